"""Workers that die: nothing recorded is done again, no write is repeated silently, and nobody has to ask for the rest.

The workers are real processes that are killed (SIGKILL).  Tools stop at named places until the case opens them, so a
worker is killed exactly where the case wants it.
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
from perdure.testing.conformance.case import case
from perdure.testing.conformance.checks import same
from perdure.testing.conformance.stage import Stage, turn_of
from perdure.testing.conformance.world import IDEMPOTENT, ONCE, READ, World
from perdure.testing.reading import user_text
from perdure.testing.replies import call, text
from perdure.testing.script import Script

EFFECTS = ("read", "idempotent", "once", "unclassified")
POLICIES = {
    "read": READ,
    "idempotent": IDEMPOTENT,
    "once": ONCE,
    "unclassified": ToolPolicy(ToolEffect.UNCLASSIFIED, requires_approval=False),
}


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
