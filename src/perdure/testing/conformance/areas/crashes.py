"""Workers that die: nothing recorded is done again, no write is repeated silently, and nobody has to ask for the rest.

The workers are real processes that are killed (SIGKILL), stopped (SIGSTOP) or told to leave (SIGTERM).  Tools stop at
named places until the case opens them, so a worker is killed exactly where the case wants it.
"""

from __future__ import annotations

from typing import Any

from google.adk.agents.callback_context import CallbackContext
from google.adk.models.llm_request import LlmRequest
from google.adk.tools.base_tool import BaseTool
from google.adk.tools.tool_context import ToolContext

from perdure.adk import idempotency_key_for_tool_call
from perdure.session.model import StepStatus
from perdure.session.policy import ToolEffect, ToolPolicy
from perdure.session.runner import AgentSessionFlow
from perdure.testing.children import WorkerChild
from perdure.testing.conformance.case import case
from perdure.testing.conformance.checks import holds, same
from perdure.testing.conformance.stage import Stage, turn_of
from perdure.testing.conformance.world import IDEMPOTENT, ONCE, READ, World
from perdure.testing.reading import user_text
from perdure.testing.replies import call, text
from perdure.testing.script import Script, by_message

EFFECTS = ("read", "idempotent", "once", "unclassified")
POLICIES = {
    "read": READ,
    "idempotent": IDEMPOTENT,
    "once": ONCE,
    "unclassified": ToolPolicy(ToolEffect.UNCLASSIFIED, requires_approval=False),
}
POLICIES_OF_TWO = {"once": ONCE, "read": READ}
SHORT_LEASE = 3.0
"""Seconds, for a worker that is to be given up although it may still live."""


def deeds(world: World) -> AgentSessionFlow:
    """One tool of each effect.  The message says which, and at which moment it stops."""

    async def act(effect: str, moment: str, context: ToolContext) -> str:
        world.note("begin", effect, idempotency_key_for_tool_call(context))
        if moment == "during":
            await world.stop_at(f"during {effect}")
        world.note("done", effect)
        if moment == "after":
            await world.stop_at(f"after {effect}")
        return f"{effect} done"

    async def read(moment: str, tool_context: ToolContext) -> str:
        """Reads."""
        return await act("read", moment, tool_context)

    async def idempotent(moment: str, tool_context: ToolContext) -> str:
        """Writes under a key."""
        return await act("idempotent", moment, tool_context)

    async def once(moment: str, tool_context: ToolContext) -> str:
        """Writes."""
        return await act("once", moment, tool_context)

    async def unclassified(moment: str, tool_context: ToolContext) -> str:
        """Does something."""
        return await act("unclassified", moment, tool_context)

    async def before(tool: BaseTool, args: dict[str, Any], tool_context: ToolContext) -> None:
        if args["moment"] == "before":
            await world.stop_at(f"before {tool.name}")

    async def recorded(
        tool: BaseTool, args: dict[str, Any], tool_context: ToolContext, tool_response: dict[str, Any]
    ) -> None:
        if args["moment"] == "recorded":
            await world.stop_at(f"recorded {tool.name}")

    def script(request: LlmRequest) -> Script:
        effect, _, moment = user_text(request).partition(" ")
        return [call(effect, moment=moment), text("Seen.")]

    agent = world.agent(
        script, [read, idempotent, once, unclassified], before_tool_callback=before, after_tool_callback=recorded
    )
    return world.flow(agent, POLICIES)


async def _die(stage: Stage, moment: str) -> dict[str, tuple[StepStatus, int, int]]:
    """Each effect in a session of its own; their worker is killed when all are at the moment.

    Returns:
        For each effect status and attempts of its call, and how often it began in the world.
    """
    with stage.process() as doomed:
        await stage.up(doomed)
        for effect in EFFECTS:
            await stage.start(f"{effect} {moment}", effect)
        for effect in EFFECTS:
            await stage.reached(f"{moment} {effect}")
            await stage.charged(1, effect)
        async with stage.worker():
            doomed.kill()
            for effect in EFFECTS:
                stage.world.open(f"{moment} {effect}")
            found: dict[str, tuple[StepStatus, int, int]] = {}
            for effect in EFFECTS:
                await stage.completed(effect)
                step = (await stage.calls(effect))[effect]
                begun = [line for line in stage.world.ledger if line.startswith(f"begin {effect} ")]
                same("all attempts have one key", len(set(begun)), 1)
                found[effect] = (step.status, step.attempts, len(begun))
            return found


@case(
    "crashes/before-a-call",
    "A call that had not begun when its worker died runs as if nothing had happened.",
    deeds,
    served=False,
)
async def before_a_call(stage: Stage) -> None:
    expected = dict.fromkeys(EFFECTS, (StepStatus.SUCCEEDED, 1, 1))
    same("status, attempts, times begun", await _die(stage, "before"), expected)


LOST_IN_THE_MIDDLE = {
    "read": (StepStatus.SUCCEEDED, 2, 2),
    "idempotent": (StepStatus.SUCCEEDED, 2, 2),
    "once": (StepStatus.OUTCOME_UNKNOWN, 1, 1),
    "unclassified": (StepStatus.OUTCOME_UNKNOWN, 1, 1),
}


@case(
    "crashes/during-a-call",
    "Reads and idempotent writes run again; of other writes the outcome is unknown.",
    deeds,
    served=False,
)
async def during_a_call(stage: Stage) -> None:
    same("status, attempts, times begun", await _die(stage, "during"), LOST_IN_THE_MIDDLE)


@case(
    "crashes/after-a-call",
    "The same when the tool was done and its record was not: nobody can know.",
    deeds,
    served=False,
)
async def after_a_call(stage: Stage) -> None:
    same("status, attempts, times begun", await _die(stage, "after"), LOST_IN_THE_MIDDLE)


@case("crashes/after-a-record", "A call that has a record is never run again.", deeds, served=False)
async def after_a_record(stage: Stage) -> None:
    expected = dict.fromkeys(EFFECTS, (StepStatus.SUCCEEDED, 1, 1))
    same("status, attempts, times begun", await _die(stage, "recorded"), expected)


@case(
    "crashes/again-and-again",
    "An attempt counts whether it failed or its worker died: three, and a read has failed.",
    deeds,
    served=False,
)
async def again_and_again(stage: Stage) -> None:
    await stage.start("read during")
    for life in (1, 2, 3):
        with stage.process() as doomed:
            await stage.reached("during read", life)
            doomed.kill()
    async with stage.worker():
        await stage.completed()
    step = (await stage.calls())["read"]
    same("the read", (step.status, step.attempts), (StepStatus.FAILED, 3))
    same("times begun", len(stage.world.ledger), 3)


@case(
    "crashes/stopped-worker",
    "A worker that stood still and wakes up when another has its session writes nothing.",
    deeds,
    served=False,
)
async def stopped_worker(stage: Stage) -> None:
    with stage.process(lease=SHORT_LEASE) as stopped:
        await stage.up(stopped)
        await stage.start("once during")
        await stage.reached("during once")
        stopped.stop()
        async with stage.worker():
            await stage.completed()
            before = (await stage.steps(), await stage.messages())
            same("the outcome", (await stage.calls())["once"].status, StepStatus.OUTCOME_UNKNOWN)
            await _wakes_up_and_leaves(stage, stopped)
            same("steps", await stage.steps(), before[0])
            same("messages", await stage.messages(), before[1])
    _began_once(stage)


async def _wakes_up_and_leaves(stage: Stage, stopped: WorkerChild) -> None:
    """When it is gone, it has done whatever it still wanted to do."""
    stage.world.open("during once")
    stopped.resume()
    stopped.terminate()
    await stopped.wait_exit_async()


def _began_once(stage: Stage) -> None:
    for tool in ("once", "read"):
        begun = sum(line.startswith(f"begin {tool}") for line in stage.world.ledger)
        holds(f"{tool} began once at the most", begun <= 1)


def two_deeds(world: World) -> AgentSessionFlow:
    """A write and then a read; both stop in the middle."""

    async def once() -> str:
        """Writes."""
        world.note("begin once")
        try:
            await world.stop_at("during once")
        finally:
            world.note("end once")
        return "written"

    async def read() -> str:
        """Reads."""
        world.note("begin read")
        await world.stop_at("during read")
        return "read"

    script = by_message({"go": [call("once"), call("read"), text("Done.")]}, otherwise=text("Yes?"))
    return world.flow(world.agent(script, [once, read]), POLICIES_OF_TWO)


@case(
    "crashes/stopped-worker-in-the-middle",
    "It writes nothing either while the other is in the middle of the turn, and does not go on with it.",
    two_deeds,
    served=False,
)
async def stopped_worker_in_the_middle(stage: Stage) -> None:
    with stage.process(lease=SHORT_LEASE) as stopped:
        await stage.up(stopped)
        await stage.start()
        await stage.reached("during once")
        stopped.stop()
        async with stage.worker():
            await stage.reached("during read")
            stage.world.open("during once")
            stopped.resume()
            await stage.noted("end once")
            await stage.start("hello", "other")
            for _ in range(4):  # By then it has gone on, if it can.
                await stage.completed("other")
                await stage.send("hello", "other")
            _began_once(stage)
            stage.world.open("during read")
            await stage.completed()
    same("the write", (await stage.calls())["once"].status, StepStatus.OUTCOME_UNKNOWN)
    stage.leave_out("other")


@case(
    "crashes/leaving-worker",
    "A worker that is told to leave lets its calls finish, and another goes on.",
    deeds,
    served=False,
)
async def leaving_worker(stage: Stage) -> None:
    with stage.process() as leaving:
        await stage.up(leaving)
        await stage.start("once during")
        await stage.reached("during once")
        leaving.terminate()
        stage.world.open("during once")
        same("it ended well", await leaving.wait_exit_async(), 0)
    async with stage.worker():
        await stage.completed()
    step = (await stage.calls())["once"]
    same("the write", (step.status, step.attempts), (StepStatus.SUCCEEDED, 1))


def thinker(world: World) -> AgentSessionFlow:
    """Stops before its second model call."""

    async def think(callback_context: CallbackContext, llm_request: LlmRequest) -> None:
        if len(llm_request.contents) > 1:
            await world.stop_at("thinking")

    def look() -> str:
        """Looks."""
        world.note("look")
        return "seen"

    agent = world.agent([call("look"), text("I see.")], [look], before_model_callback=think)
    return world.flow(agent, {"look": READ})


@case(
    "crashes/between-model-calls",
    "A model call that has a record is not made again; what follows it is.",
    thinker,
    served=False,
)
async def between_model_calls(stage: Stage) -> None:
    with stage.process() as doomed:
        await stage.up(doomed)
        await stage.start()
        await stage.reached("thinking")
        doomed.kill()
    stage.world.open("thinking")
    async with stage.worker():
        snapshot = await stage.idle()
    same("model calls", (snapshot.usage.model_calls, len(stage.world.requests)), (2, 2))
    same("looked once", stage.world.ledger, ["look"])


@case(
    "crashes/queue-survives",
    "What was queued behind a turn whose worker died is handled behind it.",
    thinker,
    served=False,
)
async def queue_survives(stage: Stage) -> None:
    with stage.process() as doomed:
        await stage.up(doomed)
        await stage.start("one")
        await stage.reached("thinking")
        await stage.send("two")
        await stage.send("three")
        doomed.kill()
    stage.world.open("thinking")
    async with stage.worker():
        same("turns", turn_of(await stage.idle()).number, 3)
    same("looked", stage.world.ledger, ["look"] * 3)


@case("crashes/many-sessions", "All sessions of a worker that dies are taken over.", thinker, served=False)
async def many_sessions(stage: Stage) -> None:
    names = [f"s{number}" for number in range(8)]
    with stage.process() as doomed:
        await stage.up(doomed)
        for name in names:
            await stage.start("go", name)
        await stage.reached("thinking", len(names))
        async with stage.worker():
            doomed.kill()
            stage.world.open("thinking")
            for name in names:
                await stage.completed(name)
    same("each looked once", stage.world.ledger, ["look"] * len(names))


@case(
    "crashes/servers-restart", "Servers that start again find everything as it was.", deeds, served=False, restarts=True
)
async def servers_restart(stage: Stage) -> None:
    restart = stage.target.restart_services
    holds("the target can restart its servers", restart is not None)
    with stage.process() as worker:
        await stage.up(worker)
        await stage.start("once during")
        await stage.reached("during once")
        if restart is not None:
            await restart()
        stage.world.open("during once")
        await stage.idle()
        step = (await stage.calls())["once"]
        same("the write", (step.status, step.attempts), (StepStatus.SUCCEEDED, 1))
        await stage.send("read now")
        same("it is usable", turn_of(await stage.idle()).number, 2)
