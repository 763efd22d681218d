"""Field case 2: the process dies after a tool did its work and before its result is stored."""

from __future__ import annotations

import pytest
from google.adk.tools.tool_context import ToolContext
from tests.field.lives import GO_ON, Hold, life
from tests.field.support import (
    IDEMPOTENT,
    ONCE,
    PATIENCE,
    READ,
    Field,
    answers_in,
    call_steps,
    messages_of,
    say,
)

from perdure import OUTCOME_UNKNOWN_TOOL_RESULT, AgentSessionFlow, SessionStatus, ToolExecutionError
from perdure.adk import IDEMPOTENCY_KEY_CUSTOM_METADATA_KEY, idempotency_key_for_tool_call
from perdure.testing import by_message, call, text

TOOLS = ("look", "pay", "mail", "nobody_said")


def four_effects(field: Field, hold: Hold) -> AgentSessionFlow:
    """One tool of each effect; ``nobody_said`` has no policy.  Each session calls the one that is named."""

    def tool(name: str) -> object:
        async def body(tool_context: ToolContext) -> str:
            """Does its work, then takes its time."""
            field.note(name, idempotency_key_for_tool_call(tool_context))
            await hold.here(name)
            return "ok"

        body.__name__ = name
        return body

    return field.flow(
        by_message({name: [call(name), text("Done.")] for name in TOOLS}),
        [tool(name) for name in TOOLS],
        {"look": READ, "pay": IDEMPOTENT, "mail": ONCE},
        approvals="declared",
    )


async def test_what_runs_again_after_the_crash_follows_from_the_effect(field: Field) -> None:
    """Case 2.  Plain ADK runs every tool again on resume, under whatever key the tool thinks of."""
    async with field.asking() as client:
        with life(four_effects, field) as child:
            for name in TOOLS:
                await client.start_session(name, f"call {name}")
            for _ in TOOLS:
                await child.wait_for_async("in ")
            child.kill()
    async with field.working(four_effects(field, GO_ON)) as client:
        for name in TOOLS:
            snapshot = await client.wait(name, timeout=PATIENCE)
            assert snapshot.status is SessionStatus.IDLE
            step = (await call_steps(client, name))[name]
            lines = [line.split() for line in field.world if line.split()[0] == name]
            assert {key for _, key in lines} == {f"{name}/{step.turn_id}/{step.tool_call_id}"}, "one key for all tries"
            (answer,) = [m for m in await messages_of(client, name) if m.role.value == "tool"]
            response = answer.framework_item["content"]["parts"][0]["function_response"]["response"]
            if name in ("look", "pay"):
                assert (len(lines), step.attempts, step.status.value) == (2, 2, "succeeded")
                assert response == {"result": "ok"}
            else:
                assert (len(lines), step.attempts, step.status.value) == (1, 1, "outcome_unknown")
                assert response == {"error": OUTCOME_UNKNOWN_TOOL_RESULT}


async def test_every_try_of_a_call_has_one_idempotency_key_and_no_other_call_has_it(field: Field) -> None:
    """Design: the key is ``<session id>/<turn id>/<tool call id>``, also in the context's metadata."""
    metadata: list[str] = []

    def pay(tool_context: ToolContext) -> str:
        """Pays at the third try."""
        field.note(idempotency_key_for_tool_call(tool_context))
        metadata.append(tool_context.custom_metadata[IDEMPOTENCY_KEY_CUSTOM_METADATA_KEY])
        if len(field.world) % 3:
            raise ConnectionError("line down")
        return "paid"

    async with field.working(
        field.flow([call("pay"), call("pay"), text("Done.")], [pay], {"pay": IDEMPOTENT})
    ) as client:
        snapshot = await say(client, "go")
        assert field.world == metadata
        first, second = field.world[:3], field.world[3:]
        assert (len(set(first)), len(set(second)), len({*first, *second})) == (1, 1, 2)
        assert snapshot.turn is not None
        assert all(key.startswith(f"s/{snapshot.turn.turn_id}/adk-") for key in field.world)


@pytest.mark.parametrize("last_words", ["declined", ""])
async def test_a_tool_that_reports_failure_is_not_tried_again(field: Field, last_words: str) -> None:
    """Design: ``ToolExecutionError`` is ``failed`` at once, whatever the effect."""

    def pay() -> str:
        """Fails for good."""
        field.note("pay")
        raise ToolExecutionError(last_words)

    async with field.working(field.flow([call("pay"), text("Done.")], [pay], {"pay": IDEMPOTENT})) as client:
        await say(client, "go")
        step = (await call_steps(client))["pay"]
        assert (field.world, step.attempts, step.status.value) == (["pay"], 1, "failed")
        (answer,) = answers_in(field.requests[-1]).values()
        assert answer == {"error": f"The tool call failed: {last_words or 'ToolExecutionError'}"}
