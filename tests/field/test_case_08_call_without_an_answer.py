"""Field case 8: the process dies in a tool, and the user says something else instead of waiting."""

from __future__ import annotations

import pytest
from tests.field.lives import GO_ON, Hold, life
from tests.field.support import ONCE, PATIENCE, SESSION, Field, prompt

from perdure import OUTCOME_UNKNOWN_TOOL_RESULT, AgentSessionFlow, SessionStatus, TurnStatus
from perdure.testing import by_message, call, text


def paying(field: Field, hold: Hold) -> AgentSessionFlow:
    async def pay(amount: int) -> str:
        """Pays."""
        field.note("pay", amount)
        await hold.here("pay")
        return "paid"

    script = by_message({"pay": [call("pay", amount=5), text("I do not know.")], "did": text("It is not known.")})
    return field.flow(script, [pay], {"pay": ONCE})


async def die_in_the_tool(field: Field) -> None:
    async with field.asking() as client:
        with life(paying, field) as child:
            await client.start_session(SESSION, "please pay")
            await child.wait_for_async("in pay")
            child.kill()


async def test_the_next_message_finds_the_call_with_its_outcome_in_the_history(field: Field) -> None:
    """Case 8.  Plain ADK drops the call from the prompt: the model does not know that an action was under way."""
    await die_in_the_tool(field)
    async with field.asking() as client:
        await client.send_user_message(SESSION, "did you?")
    async with field.working(paying(field, GO_ON)) as client:
        snapshot = await client.wait(SESSION, timeout=PATIENCE)
        assert snapshot.status is SessionStatus.IDLE
        assert field.world == ["pay 5"]
        assert prompt(field.requests[-1]) == [
            "user says please pay",
            "model calls pay",
            f'user answers pay {{"error": "{OUTCOME_UNKNOWN_TOOL_RESULT}"}}',
            "model says I do not know.",
            "user says did you?",
        ]


@pytest.mark.parametrize("before_recovery", [True, False])
async def test_a_cancelled_call_keeps_its_outcome_in_the_history(field: Field, before_recovery: bool) -> None:
    """Case 8, cancelled by the user: before another worker is there, or in the middle of the call."""
    if before_recovery:
        await die_in_the_tool(field)
        async with field.asking() as client:
            await client.cancel_turn(SESSION)
            await client.send_user_message(SESSION, "did you?")
    else:
        async with field.asking() as client:
            with life(paying, field) as child:
                await client.start_session(SESSION, "please pay")
                await child.wait_for_async("in pay")
                await client.cancel_turn(SESSION)
                await client.wait(SESSION, timeout=PATIENCE)
                child.kill()
            await client.send_user_message(SESSION, "did you?")
    async with field.working(paying(field, GO_ON)) as client:
        snapshot = await client.wait(SESSION, timeout=PATIENCE)
        assert snapshot.status is SessionStatus.IDLE
        assert snapshot.turn is not None
        assert (snapshot.turn.number, snapshot.turn.status) == (2, TurnStatus.COMPLETED)
        assert field.world == ["pay 5"]
        seen = prompt(field.requests[-1])
        assert seen[:3] == [
            "user says please pay",
            "model calls pay",
            f'user answers pay {{"error": "{OUTCOME_UNKNOWN_TOOL_RESULT}"}}',
        ]
        assert seen[3].startswith("user says Note: the work on the request above was cancelled")
        assert "- pay(amount=5): its outcome is unknown" in seen[3]
        assert seen[4:] == ["user says did you?"]
