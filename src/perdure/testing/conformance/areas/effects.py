"""Effects in undisturbed runs: how often a tool is tried, what its record is, and what the model sees of it."""

from __future__ import annotations

from datetime import timedelta

from google.adk.tools.tool_context import ToolContext

from perdure.adk import idempotency_key_for_tool_call
from perdure.errors import ToolExecutionError
from perdure.session.model import StepStatus
from perdure.session.policy import ToolEffect, ToolPolicy
from perdure.session.runner import AgentSessionFlow
from perdure.testing.conformance.case import case
from perdure.testing.conformance.checks import same
from perdure.testing.conformance.stage import Stage
from perdure.testing.conformance.world import AT_ONCE, IDEMPOTENT, ONCE, READ, World
from perdure.testing.replies import call, reply, text
from perdure.testing.script import by_message

FREE = ToolPolicy(ToolEffect.UNCLASSIFIED, requires_approval=False)


def trials(world: World) -> AgentSessionFlow:
    """One tool of each effect; each fails as often as it is told to, counted in the world."""

    def attempt(tool: str, fails: int, key: str) -> str:
        world.note(tool, key)
        made = sum(line.startswith(f"{tool} ") and line.endswith(key) for line in world.ledger)
        if made <= fails:
            raise ConnectionError(f"{tool} fails for the time being, {made}")
        return f"{tool} done"

    def read(fails: int, tool_context: ToolContext) -> str:
        """Reads."""
        return attempt("read", fails, idempotency_key_for_tool_call(tool_context))

    def idempotent(fails: int, tool_context: ToolContext) -> str:
        """Writes under a key."""
        return attempt("idempotent", fails, idempotency_key_for_tool_call(tool_context))

    def once(fails: int, tool_context: ToolContext) -> str:
        """Writes."""
        return attempt("once", fails, idempotency_key_for_tool_call(tool_context))

    def unclassified(fails: int, tool_context: ToolContext) -> str:
        """Does something."""
        return attempt("unclassified", fails, idempotency_key_for_tool_call(tool_context))

    script = {
        f"{tool} {fails}": [call(tool, fails=fails), text("Seen.")]
        for tool in ("read", "idempotent", "once", "unclassified")
        for fails in (0, 2, 5)
    }
    policies = {"read": READ, "idempotent": IDEMPOTENT, "once": ONCE, "unclassified": FREE}
    return world.flow(world.agent(by_message(script), [read, idempotent, once, unclassified]), policies)


EFFECTS = ("read", "idempotent", "once", "unclassified")


async def _try(stage: Stage, fails: int) -> dict[str, tuple[StepStatus, int]]:
    """Each effect in a session of its own: status and attempts of its call."""
    for effect in EFFECTS:
        await stage.start(f"{effect} {fails}", effect)
    found: dict[str, tuple[StepStatus, int]] = {}
    for effect in EFFECTS:
        await stage.completed(effect)
        step = (await stage.calls(effect))[effect]
        found[effect] = (step.status, step.attempts)
        keys = {line.partition(" ")[2] for line in stage.world.ledger if line.startswith(f"{effect} ")}
        same("every attempt has the same key", len(keys), 1)
    return found


@case("effects/succeeding", "A tool that works is run once, whatever its effect.", trials)
async def succeeding(stage: Stage) -> None:
    same("outcomes", await _try(stage, 0), dict.fromkeys(EFFECTS, (StepStatus.SUCCEEDED, 1)))


@case("effects/failing-twice", "Reads and idempotent writes are tried three times, others once.", trials)
async def failing_twice(stage: Stage) -> None:
    expected = {
        "read": (StepStatus.SUCCEEDED, 3),
        "idempotent": (StepStatus.SUCCEEDED, 3),
        "once": (StepStatus.OUTCOME_UNKNOWN, 1),
        "unclassified": (StepStatus.OUTCOME_UNKNOWN, 1),
    }
    same("outcomes", await _try(stage, 2), expected)


@case("effects/failing-for-good", "A read that keeps failing has failed; of a write the outcome is unknown.", trials)
async def failing_for_good(stage: Stage) -> None:
    expected = {
        "read": (StepStatus.FAILED, 3),
        "idempotent": (StepStatus.OUTCOME_UNKNOWN, 3),
        "once": (StepStatus.OUTCOME_UNKNOWN, 1),
        "unclassified": (StepStatus.OUTCOME_UNKNOWN, 1),
    }
    same("outcomes", await _try(stage, 5), expected)


def refusing(world: World) -> AgentSessionFlow:
    """A tool that says that trying again is of no use, among others that work."""

    def hopeless() -> str:
        """Cannot."""
        world.note("hopeless")
        raise ToolExecutionError("there is no such account")

    def fine(n: int) -> str:
        """Can."""
        world.note("fine", n)
        return f"fine {n}"

    script = [reply(call("fine", n=1), call("hopeless"), call("fine", n=2)), text("Seen.")]
    return world.flow(world.agent(script, [hopeless, fine]), {"hopeless": READ, "fine": IDEMPOTENT})


@case(
    "effects/told-to-stop",
    "A ToolExecutionError fails at once, and its siblings keep their results.",
    refusing,
    ordered=False,
)
async def told_to_stop(stage: Stage) -> None:
    await stage.start()
    await stage.idle()
    outcomes = sorted((step.tool_name, step.status.value) for step in await stage.steps() if step.tool_name)
    same("outcomes", outcomes, [("fine", "succeeded"), ("fine", "succeeded"), ("hopeless", "failed")])
    same("each ran once", sorted(stage.world.ledger), ["fine 1", "fine 2", "hopeless"])


def slow(world: World) -> AgentSessionFlow:
    """Tools that never end by themselves."""

    async def look() -> str:
        """Looks for ever, at first."""
        world.note("look")
        if world.ledger.count("look") == 1:
            await world.stop_at("never")
        return "seen"

    async def write() -> str:
        """Writes for ever."""
        world.note("write")
        await world.stop_at("never")
        return "written"

    limit = timedelta(milliseconds=100)
    policies = {
        "look": ToolPolicy(ToolEffect.READ, timeout=limit, retry=AT_ONCE),
        "write": ToolPolicy(ToolEffect.NON_IDEMPOTENT_WRITE, timeout=limit, requires_approval=False),
    }
    script = [call("look"), call("write"), text("Enough.")]
    return world.flow(world.agent(script, [look, write]), policies)


@case(
    "effects/timeouts",
    "An attempt that takes too long is over: a read is tried again, of a write the outcome is unknown.",
    slow,
)
async def timeouts(stage: Stage) -> None:
    await stage.start()
    await stage.completed()
    calls = await stage.calls()
    same("the read", (calls["look"].status, calls["look"].attempts), (StepStatus.SUCCEEDED, 2))
    same("the write", (calls["write"].status, calls["write"].attempts), (StepStatus.OUTCOME_UNKNOWN, 1))


def unlisted(world: World) -> AgentSessionFlow:
    """Tools without a policy, and one whose effect says that it must be asked for."""

    def mystery() -> str:
        """Nobody said what it does."""
        world.note("mystery")
        return "done"

    def wire() -> str:
        """Wires money."""
        world.note("wire")
        return "wired"

    script = [reply(call("mystery"), call("wire")), text("Seen.")]
    return world.flow(world.agent(script, [mystery, wire]), {"wire": ToolPolicy(ToolEffect.NON_IDEMPOTENT_WRITE)})


@case("effects/asked-by-effect", "What must not be repeated, or is not classified, waits for a person first.", unlisted)
async def asked_by_effect(stage: Stage) -> None:
    await stage.start()
    asked = await stage.asked(2)
    same("nothing ran", stage.world.ledger, [])
    for interrupt in asked:
        await stage.decide(interrupt, True)
        await stage.settled(interrupt.tool_name)
    await stage.idle()
    same("both ran, once", stage.world.ledger, ["mystery", "wire"])
