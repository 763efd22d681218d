"""A turn is cancelled while agents inside agents work and wait: everything ends, and the session is usable."""

from __future__ import annotations

import pytest
from google.adk.agents import ParallelAgent, SequentialAgent
from google.adk.tools.agent_tool import AgentTool
from google.adk.tools.function_tool import FunctionTool
from tests.field.lives import GO_ON, Hold, life
from tests.field.support import (
    ONCE,
    READ,
    SESSION,
    Field,
    at_rest,
    call_steps,
    durable,
    messages_of,
    say,
    turn_of,
    until,
)

from perdure import AgentSessionFlow, SessionStatus, StepStatus, TurnStatus
from perdure.testing import by_message, call, text


def deep(field: Field, hold: Hold) -> AgentSessionFlow:
    async def write() -> str:
        """Writes, and takes its time."""
        field.note("write")
        await hold.here("write")
        return "written"

    def pay() -> str:
        """Pays."""
        field.note("pay")
        return "paid"

    helper = field.agent([call("write"), text("Helped.")], [write], name="helper", description="Helps.")
    line = SequentialAgent(name="line", sub_agents=[helper], description="A line.")
    boss = field.agent(
        by_message({"go": [call("line", request="x"), text("Never.")]}, otherwise=text("Boss again.")),
        [AgentTool(line)],
        name="boss",
    )
    payer = field.agent(
        by_message({"go": [call("pay"), text("Never.")]}, otherwise=text("Payer again.")),
        [FunctionTool(pay, require_confirmation=True)],
        name="payer",
    )
    return durable(ParallelAgent(name="both", sub_agents=[boss, payer]), {"write": ONCE, "pay": READ})


@pytest.mark.parametrize("killed", [False, True])
async def test_a_cancel_reaches_every_level(field: Field, killed: bool) -> None:
    async with field.asking() as client:
        await client.start_session(SESSION, "go")
        with life(deep, field) as child:
            await child.wait_for_async("in write")

            async def payer_waits() -> bool:
                return len((await client.get_agent_snapshot(SESSION)).pending_interrupts) == 1

            await until(payer_waits)
            if killed:
                child.kill()
            await client.cancel_turn(SESSION)
            if not killed:
                snapshot = await at_rest(client, SessionStatus.IDLE)
                assert turn_of(snapshot).status is TurnStatus.CANCELLED
    async with field.working(deep(field, GO_ON)) as client:
        snapshot = await at_rest(client, SessionStatus.IDLE)
        assert turn_of(snapshot).status is TurnStatus.CANCELLED
        assert snapshot.pending_interrupts == ()
        assert (await call_steps(client))["write"].status is StepStatus.OUTCOME_UNKNOWN
        note = (await messages_of(client))[-1].text
        assert "write" in note
        assert "unknown" in note
        snapshot = await say(client, "and now?")
        assert (snapshot.status, turn_of(snapshot).status) == (SessionStatus.IDLE, TurnStatus.COMPLETED)
        said = {message.text for message in await messages_of(client)}
        assert {"Boss again.", "Payer again."} <= said
    assert field.world == ["write"]
