"""Field cases 7, 12, 13, 14 and 15 with long-running tools, over the engine and over restarts.

Each life is a worker of its own on one database; what runs is counted over all of them.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from google.adk.agents import LlmAgent, LoopAgent, SequentialAgent
from google.adk.tools.long_running_tool import LongRunningFunctionTool
from google.adk.workflow import START
from tests.field.support import PATIENCE, READ, SESSION, Field, answers_in, durable, messages_of, say, steps_of
from tests.support.nodes import graph

from perdure import (
    AgentSessionFlow,
    AgentSnapshot,
    InterruptAlreadyResolved,
    InterruptKind,
    SessionStatus,
    StepStatus,
    TurnStatus,
    UsageError,
)
from perdure.testing import call, reply, text

Build = Callable[[Field], AgentSessionFlow]


def render_tool(field: Field) -> LongRunningFunctionTool:
    def render(what: str) -> None:
        """Renders; the result comes later."""
        field.note("render", what)

    return LongRunningFunctionTool(render)


def ticket_tool(field: Field) -> LongRunningFunctionTool:
    def ticket(subject: str) -> dict[str, str]:
        """Opens a ticket."""
        field.note("ticket", subject)
        return {"status": "pending"}

    return LongRunningFunctionTool(ticket)


def agent(field: Field, name: str, *script: Any, **more: Any) -> LlmAgent:
    return LlmAgent(name=name, model=field.model(list(script)), tools=[render_tool(field)], **more)


def two_renders(field: Field) -> AgentSessionFlow:
    both = reply(call("render", what="a"), call("render", what="b"))
    return durable(agent(field, "artist", both, text("Rendered.")), {"render": READ})


def transferred(field: Field) -> AgentSessionFlow:
    sub = agent(field, "sub", call("render", what="one"), call("render", what="two"), text("Sub is done."))
    root = agent(field, "root", call("transfer_to_agent", agent_name="sub"), sub_agents=[sub])
    return durable(root, {"render": READ})


def line(field: Field) -> AgentSessionFlow:
    planner = agent(field, "planner", call("render", what="plan"), text("Planned."))
    executor = agent(field, "executor", text("Executed."))
    return durable(SequentialAgent(name="line", sub_agents=[planner, executor]), {"render": READ})


def rounds(field: Field) -> AgentSessionFlow:
    script = (text("it1"), call("render", what="r2"), text("it2"), call("render", what="r3"), text("it3"))
    return durable(
        LoopAgent(name="rounds", sub_agents=[agent(field, "worker", *script)], max_iterations=3), {"render": READ}
    )


async def answers_after_restarts(field: Field, build: Build) -> list[str]:
    """Answers one question in each life.  The texts of the agents."""
    async with field.working(build(field)) as client:
        snapshot = await say(client, "Go.")
    lives = 0
    while snapshot.status is SessionStatus.WAITING:
        lives += 1
        assert lives < 9
        async with field.working(build(field)) as client:
            interrupt = snapshot.pending_interrupts[0]
            await client.answer_question(SESSION, interrupt.interrupt_id, {"rendered": interrupt.arguments["what"]})
            snapshot = await client.wait(SESSION, timeout=PATIENCE)
    assert turn_status(snapshot) is TurnStatus.COMPLETED
    async with field.asking() as client:
        return [m.text for m in await messages_of(client) if m.text and m.author != "user"]


def turn_status(snapshot: AgentSnapshot) -> TurnStatus:
    assert snapshot.turn is not None
    return snapshot.turn.status


@pytest.mark.parametrize(
    ("build", "rendered", "texts"),
    [
        (two_renders, ["a", "b"], ["Rendered."]),
        (transferred, ["one", "two"], ["Sub is done."]),
        (line, ["plan"], ["Planned.", "Executed."]),
        (rounds, ["r2", "r3"], ["it1", "it2", "it3"]),
    ],
)
async def test_answers_come_after_restarts_and_no_tool_runs_again(
    field: Field, build: Build, rendered: list[str], texts: list[str]
) -> None:
    assert await answers_after_restarts(field, build) == texts
    assert sorted(field.world) == [f"render {what}" for what in rendered]


async def test_a_question_is_answered_once(field: Field) -> None:
    """Case 7."""
    async with field.working(two_renders(field)) as client:
        first, second = (await say(client, "Go.")).pending_interrupts
        assert (first.kind, first.tool_name, first.arguments) == (InterruptKind.LONG_RUNNING, "render", {"what": "a"})
        await client.answer_question(SESSION, first.interrupt_id, {"n": 1})
        await client.answer_question(SESSION, first.interrupt_id, {"n": 1})
        with pytest.raises(InterruptAlreadyResolved):
            await client.answer_question(SESSION, first.interrupt_id, {"n": 2})
        with pytest.raises(UsageError, match="answer_question"):
            await client.resolve_interrupt(SESSION, second.interrupt_id, approved=True)
        with pytest.raises(UsageError):
            await client.answer_question(SESSION, second.interrupt_id, None)
        await client.answer_question(SESSION, second.interrupt_id, "two")
        snapshot = await client.wait(SESSION, timeout=PATIENCE)
        assert turn_status(snapshot) is TurnStatus.COMPLETED
        responses = [m.framework_item["content"]["parts"] for m in await messages_of(client) if m.role.value == "tool"]
        assert [part["function_response"]["response"] for part in responses[0]] == [{"n": 1}, {"result": "two"}]
        names = [step.name.value for step in await steps_of(client)]
        assert names.count("AwaitAnswer") == 2


async def test_an_answer_that_does_not_come_in_time_is_an_error_that_the_model_sees(field: Field) -> None:
    script = (call("render", what="a"), text("Too late."))
    flow = durable(agent(field, "artist", *script), {"render": READ}, interrupt_deadline=timedelta(milliseconds=50))
    async with field.working(flow) as client:
        await client.start_session(SESSION, "Go.")
        while (snapshot := await client.wait(SESSION, timeout=PATIENCE)).status is not SessionStatus.IDLE:
            pass
        assert turn_status(snapshot) is TurnStatus.COMPLETED
        (seen,) = [m.framework_item["content"]["parts"][0] for m in await messages_of(client) if m.role.value == "tool"]
        assert set(seen["function_response"]["response"]) == {"error"}
        assert [s.status for s in await steps_of(client) if s.name.value == "AwaitAnswer"] == [StepStatus.EXPIRED]


async def test_the_result_that_follows_a_first_result_starts_a_turn(field: Field) -> None:
    def build(field: Field) -> AgentSessionFlow:
        # ADK shows the model the call with its last result only, so the prompt is as long as before.
        script = [call("ticket", subject="leak"), text("I have read the result.")]
        return durable(LlmAgent(name="desk", model=field.model(script), tools=[ticket_tool(field)]), {"ticket": READ})

    async with field.working(build(field)) as client:
        snapshot = await say(client, "Leak!")
        assert (snapshot.status, turn_status(snapshot)) == (SessionStatus.IDLE, TurnStatus.COMPLETED)
        (interrupt,) = snapshot.pending_interrupts
        assert interrupt.payload == {"status": "pending"}
    async with field.working(build(field)) as client:
        await client.answer_question(SESSION, interrupt.interrupt_id, {"status": "solved"})
        snapshot = await client.wait(SESSION, timeout=PATIENCE)
        assert snapshot.turn is not None
        assert snapshot.turn.number == 2
        assert (turn_status(snapshot), snapshot.pending_interrupts) == (TurnStatus.COMPLETED, ())
        texts = [m.text for m in await messages_of(client) if m.author == "desk" and m.text]
    assert texts == ["I have read the result."] * 2
    assert [answers_in(request) for request in field.requests] == [
        {},
        {"ticket": {"status": "pending"}},
        {"ticket": {"status": "solved"}},
    ]
    assert field.world == ["ticket leak"]


def office(field: Field) -> AgentSessionFlow:
    """A workflow whose first agent opens a ticket, and whose second one goes on when that is solved."""
    desk = LlmAgent(name="desk", model=field.model([call("ticket", subject="leak"), text("Read.")]))
    desk.tools = [ticket_tool(field)]
    after = LlmAgent(name="after", model=field.model([text("After.")]))
    return durable(graph("office", [(START, desk, after)]), {"ticket": READ})


async def test_a_late_answer_lets_a_workflow_go_on_in_another_life_and_runs_nothing_again(field: Field) -> None:
    async with field.working(office(field)) as client:
        snapshot = await say(client, "Go.")
        assert (snapshot.status, turn_status(snapshot)) == (SessionStatus.IDLE, TurnStatus.COMPLETED)
        (interrupt,) = snapshot.pending_interrupts
        assert interrupt.path == "office/desk"
    async with field.working(office(field)) as client:
        await client.answer_question(SESSION, interrupt.interrupt_id, {"status": "solved"})
        snapshot = await client.wait(SESSION, timeout=PATIENCE)
        assert snapshot.turn is not None
        assert (snapshot.turn.number, turn_status(snapshot)) == (2, TurnStatus.COMPLETED)
        assert snapshot.pending_interrupts == ()
        texts = [message.text for message in await messages_of(client) if message.text and message.author != "user"]
    assert texts == ["Read.", "Read.", "After."]
    assert field.world == ["ticket leak"]
