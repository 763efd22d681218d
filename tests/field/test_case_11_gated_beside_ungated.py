"""Field case 11: one of two parallel calls is gated; the other one's result is not lost over the pause."""

from __future__ import annotations

import pytest
from google.adk.tools.function_tool import FunctionTool
from tests.field.lives import GO_ON, Hold, life
from tests.field.support import PATIENCE, READ, SESSION, Field, answers_in, say, step_settled

from perdure import AgentSessionFlow, SessionStatus
from perdure.testing import call, reply, text


def delete_and_list(field: Field, hold: Hold) -> AgentSessionFlow:
    def delete() -> str:
        """Deletes."""
        field.note("delete")
        return "deleted"

    def list_all() -> list[str]:
        """Lists."""
        field.note("list_all")
        return ["x"]

    return field.flow(
        [reply(call("delete"), call("list_all")), text("Done.")],
        [FunctionTool(delete, require_confirmation=True), list_all],
        {"delete": READ, "list_all": READ},
    )


@pytest.mark.parametrize("killed", [False, True])
async def test_the_ungated_call_runs_once_before_the_pause(field: Field, killed: bool) -> None:
    """Case 11.  Plain ADK is right here, without the kill in the pause."""
    if killed:
        async with field.asking() as client:
            with life(delete_and_list, field) as child:
                await client.start_session(SESSION, "go")
                await step_settled(client, "list_all")
                child.kill()
    async with field.working(delete_and_list(field, GO_ON)) as client:
        snapshot = await client.wait(SESSION, timeout=PATIENCE) if killed else await say(client, "go")
        await step_settled(client, "list_all")
        snapshot = await client.wait(SESSION, timeout=PATIENCE)
        assert snapshot.status is SessionStatus.WAITING
        assert field.world == ["list_all"]
        assert len(field.requests) == 1
        (interrupt,) = snapshot.pending_interrupts
        await client.resolve_interrupt(SESSION, interrupt.interrupt_id, approved=True)
        snapshot = await client.wait(SESSION, timeout=PATIENCE)
        assert snapshot.status is SessionStatus.IDLE
        assert field.world == ["list_all", "delete"]
        assert answers_in(field.requests[-1]) == {"delete": {"result": "deleted"}, "list_all": {"result": ["x"]}}
        assert (len(field.requests), snapshot.usage.model_calls) == (2, 2)
