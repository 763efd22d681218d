"""Field case 32: a coordinator delegates to an agent in task mode, whose tool waits for a person over a restart."""

from __future__ import annotations

import pytest
from google.adk.apps.app import App, ResumabilityConfig
from google.adk.tools.function_tool import FunctionTool
from tests.field.lives import GO_ON, Build, Hold, life
from tests.field.support import FLOW, SESSION, Field, answers_in, at_rest, durable, messages_of

from perdure import AgentSessionFlow, SessionStatus, ToolEffect
from perdure.testing import call, text


def coordinator(field: Field, hold: Hold, *, resumable: bool = False) -> AgentSessionFlow:
    def book(flight: str) -> str:
        """Books."""
        field.note("book", flight)
        return f"booked {flight}"

    child = field.agent(
        [call("book", flight="LH1"), call("finish_task", result="LH1 is booked")],
        [FunctionTool(book, require_confirmation=True)],
        name="child",
        description="Books flights.",
        mode="task",
    )
    root = field.agent([call("child", request="book LH1"), text("All booked.")], name="boss", sub_agents=[child])
    config = ResumabilityConfig(is_resumable=True) if resumable else None
    app = App(name=FLOW, root_agent=root, resumability_config=config)
    return durable(app, default_tool_effect=ToolEffect.READ)


def resumable_coordinator(field: Field, hold: Hold) -> AgentSessionFlow:
    return coordinator(field, hold, resumable=True)


@pytest.mark.parametrize("build", [coordinator, resumable_coordinator])
@pytest.mark.parametrize("approved", [True, False])
async def test_the_child_goes_on_and_the_coordinator_gets_one_result(
    field: Field, build: Build, approved: bool
) -> None:
    """Case 32.  On plain ADK the child takes the coordinator's open call for its own once the app is resumable."""
    async with field.asking() as client:
        await client.start_session(SESSION, "go")
        with life(build, field) as worker:
            snapshot = await at_rest(client, SessionStatus.WAITING)
            worker.kill()
        (interrupt,) = snapshot.pending_interrupts
        assert (interrupt.agent_name, interrupt.path, interrupt.tool_name) == ("child", "boss/child", "book")
        await client.resolve_interrupt(SESSION, interrupt.interrupt_id, approved=approved, message="too dear")
    async with field.working(build(field, GO_ON)) as client:
        snapshot = await at_rest(client, SessionStatus.IDLE)
        assert snapshot.error is None
        messages = await messages_of(client)
    assert field.world == (["book LH1"] if approved else [])
    results = [m for m in messages if m.tool_name == "child" and m.role.value == "tool"]
    assert len(results) == 1
    assert messages[-1].text == "All booked."
    assert answers_in(field.requests[-1])["child"] == {"result": "LH1 is booked"}
    booked = answers_in(field.requests[-2])["book"]
    assert booked == ({"result": "booked LH1"} if approved else {"error": "too dear"})
    assert len(field.requests) == 4
