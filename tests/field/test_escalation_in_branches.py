"""A branch that escalates stops its siblings: what they were doing ends, and what they asked for is withdrawn."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from google.adk.agents import ParallelAgent, SequentialAgent
from google.adk.tools.function_tool import FunctionTool
from google.adk.tools.tool_context import ToolContext
from tests.field.lives import GO_ON, Hold, life
from tests.field.support import ONCE, READ, SESSION, Field, at_rest, call_steps, durable, messages_of, steps_of, turn_of

from perdure import AgentSessionFlow, SessionStatus, StepStatus, TurnStatus
from perdure.testing import call, reply, text


def stopping(field: Field, hold: Hold) -> AgentSessionFlow:
    """Branch ``quick`` escalates when the other one reads, writes and waits for a person."""
    reading, written = asyncio.Event(), asyncio.Event()

    async def read() -> str:
        """Reads for ever."""
        reading.set()
        await asyncio.Event().wait()
        return "never"

    async def write() -> str:
        """Writes, and is not over before the escalation."""
        field.note("write")
        await asyncio.wait_for(written.wait(), 20)
        return "written"

    def pay() -> str:
        """Pays."""
        field.note("pay")
        return "paid"

    async def stop(tool_context: ToolContext) -> dict[str, Any]:
        """Stops everything."""
        await asyncio.wait_for(reading.wait(), 20)
        tool_context.actions.escalate = True
        asyncio.get_running_loop().call_later(0.2, written.set)
        return {"stopped": True}

    async def after() -> str:
        """What comes after."""
        await hold.here("after")
        field.note("after")
        return "ok"

    quick = field.agent([call("stop"), text("Never.")], [stop], name="quick")
    patient = field.agent(
        [reply(call("read"), call("write"), call("pay")), text("Never.")],
        [read, write, FunctionTool(pay, require_confirmation=True)],
        name="patient",
    )
    last = field.agent([call("after"), text("The end.")], [after], name="last")
    both = ParallelAgent(name="both", sub_agents=[quick, patient])
    root = SequentialAgent(name="line", sub_agents=[both, last])
    return durable(root, {"read": READ, "write": ONCE, "pay": READ, "stop": READ, "after": READ})


@pytest.mark.parametrize("killed", [False, True])
async def test_the_turn_goes_on_without_them(field: Field, killed: bool) -> None:
    async with field.asking() as client:
        await client.start_session(SESSION, "go")
        if killed:
            with life(stopping, field) as child:
                await child.wait_for_async("in after")
                child.kill()
    async with field.working(stopping(field, GO_ON)) as client:
        snapshot = await at_rest(client, SessionStatus.IDLE)
        assert (snapshot.error, turn_of(snapshot).status) == (None, TurnStatus.COMPLETED)
        assert snapshot.pending_interrupts == ()
        assert (await messages_of(client))[-1].text == "The end."
        steps = await call_steps(client)
        assert steps["read"].status is StepStatus.FAILED
        assert steps["write"].status in (StepStatus.SUCCEEDED, StepStatus.OUTCOME_UNKNOWN)
        assert "pay" not in steps
        assert all(step.status.settled for step in await steps_of(client) if step.tool_name)
    assert field.world == ["write", "after"]
