"""Field cases 13, 14 and 15, as far as approvals go: pauses inside agents that were transferred to, in line, in a loop.

Each pause is met by another process.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
from google.adk.agents import BaseAgent, LoopAgent, SequentialAgent
from google.adk.apps.app import App, ResumabilityConfig
from google.adk.models.llm_request import LlmRequest
from google.adk.tools.agent_tool import AgentTool
from google.adk.tools.exit_loop_tool import exit_loop
from google.adk.tools.function_tool import FunctionTool
from tests.field.lives import GO_ON, Hold, life
from tests.field.support import FLOW, SESSION, Field, at_rest, conversation, durable, messages_of, prompt

from perdure import AgentSessionFlow, Interrupt, SessionStatus, ToolEffect
from perdure.testing import call, reply, text
from perdure.testing.reading import user_text
from perdure.testing.script import Script


def _render(field: Field) -> FunctionTool:
    def render(n: int) -> str:
        """Renders."""
        field.note("render", n)
        return f"rendered {n}"

    return FunctionTool(render, require_confirmation=True)


def _flow(agent: BaseAgent, *, resumable: bool = False) -> AgentSessionFlow:
    config = ResumabilityConfig(is_resumable=True) if resumable else None
    app = App(name=FLOW, root_agent=agent, resumability_config=config)
    return durable(app, default_tool_effect=ToolEffect.READ)


def transferred(field: Field, hold: Hold, *, resumable: bool = False) -> AgentSessionFlow:
    sub = field.agent(
        [call("render", n=1), call("render", n=2), text("Both rendered.")],
        [_render(field)],
        name="sub",
        description="S.",
    )
    root = field.agent([call("transfer_to_agent", agent_name="sub")], name="root", sub_agents=[sub])
    return _flow(root, resumable=resumable)


async def approve_each_in_a_new_process(
    field: Field, build: Callable[..., AgentSessionFlow], pauses: int, **options: bool
) -> None:
    """Starts the session and answers every pause after a restart."""
    async with field.asking() as client:
        await client.start_session(SESSION, "go")
    for _ in range(pauses):
        async with field.working(build(field, GO_ON, **options)) as client:
            snapshot = await at_rest(client, SessionStatus.WAITING)
        (interrupt,) = snapshot.pending_interrupts
        async with field.asking() as client:
            await client.resolve_interrupt(SESSION, interrupt.interrupt_id, approved=True)
    async with field.working(build(field, GO_ON, **options)) as client:
        snapshot = await at_rest(client, SessionStatus.IDLE)
        assert snapshot.error is None


@pytest.mark.parametrize("resumable", [False, True])
async def test_a_second_pause_in_a_sub_agent(field: Field, resumable: bool) -> None:
    """Case 13.  The sub-agent has the last word, and the root's model is not asked again."""
    await approve_each_in_a_new_process(field, transferred, 2, resumable=resumable)
    async with field.asking() as client:
        assert (await conversation(client))[-1] == "assistant: Both rendered."
    assert field.world == ["render 1", "render 2"]
    assert len(field.requests) == 4


def planner_then_executor(field: Field, hold: Hold, *, resumable: bool = False) -> AgentSessionFlow:
    planner = field.agent([call("render", n=1), text("Planned.")], [_render(field)], name="planner")
    executor = field.agent([text("Executed.")], name="executor")
    return _flow(SequentialAgent(name="line", sub_agents=[planner, executor]), resumable=resumable)


@pytest.mark.parametrize("resumable", [False, True])
async def test_a_sequence_goes_on_after_an_approval(field: Field, resumable: bool) -> None:
    """Case 14.  Plain ADK, unless the app is resumable, never runs the second agent."""
    await approve_each_in_a_new_process(field, planner_then_executor, 1, resumable=resumable)
    async with field.asking() as client:
        texts = [(message.author, message.text) for message in await messages_of(client) if message.text]
    assert texts == [("user", "go"), ("planner", "Planned."), ("executor", "Executed.")]
    assert (field.world, len(field.requests)) == (["render 1"], 3)


def looping(field: Field, hold: Hold, *, resumable: bool = False) -> AgentSessionFlow:
    async def third() -> str:
        """Is reached in the third round only."""
        await hold.here("third")
        field.note("third")
        return "here"

    script = [text("Round 1."), call("render", n=2), text("Round 2."), call("third"), text("Round 3.")]
    worker = field.agent(script, [_render(field), third], name="worker")
    return _flow(LoopAgent(name="rounds", sub_agents=[worker], max_iterations=3), resumable=resumable)


async def test_a_loop_keeps_its_round(field: Field) -> None:
    """Case 15.  Killed at the pause of the second round, and inside the third."""
    async with field.asking() as client:
        await client.start_session(SESSION, "go")
        with life(looping, field) as child:
            snapshot = await at_rest(client, SessionStatus.WAITING)
            child.kill()
        await client.resolve_interrupt(SESSION, snapshot.pending_interrupts[0].interrupt_id, approved=True)
        with life(looping, field) as child:
            await child.wait_for_async("in third")
            child.kill()
    async with field.working(looping(field, GO_ON)) as client:
        await at_rest(client, SessionStatus.IDLE)
        rounds = [message.text for message in await messages_of(client) if message.text.startswith("Round")]
    assert rounds == ["Round 1.", "Round 2.", "Round 3."]
    assert field.world == ["render 2", "third"]
    assert len(field.requests) == 5


def loops_in_loops(field: Field, hold: Hold) -> AgentSessionFlow:
    digger = field.agent([call("render", n=1), call("exit_loop")], [_render(field), exit_loop], name="digger")
    inner = LoopAgent(name="inner", sub_agents=[digger], max_iterations=3)
    never = field.agent([text("Never.")], name="never")
    outer = LoopAgent(name="outer", sub_agents=[inner, never], max_iterations=3)
    after = field.agent([text("After.")], name="after")
    return _flow(SequentialAgent(name="line", sub_agents=[outer, after]))


async def test_the_exit_of_an_inner_loop_ends_the_outer_one_after_a_restart_too(field: Field) -> None:
    """Case 15, nested: ADK's rule."""
    await approve_each_in_a_new_process(field, loops_in_loops, 1)
    async with field.asking() as client:
        texts = [message.text for message in await messages_of(client) if message.text]
    assert texts == ["go", "After."]
    assert len(field.requests) == 3


def agents_as_tools(field: Field, hold: Hold) -> AgentSessionFlow:
    inner = field.agent(lambda request: _for(request), [_render(field)], name="inner", description="I.")
    line = SequentialAgent(name="line", sub_agents=[inner], description="L.")
    both = reply(call("line", request="one"), call("line", request="two"))
    root = field.agent([both, text("Root.")], [AgentTool(line)], name="root")
    return _flow(root)


def _for(request: LlmRequest) -> Script:
    asked = user_text(request)
    return [call("render", n=["one", "two"].index(asked) + 1), text(f"Did {asked}.")]


async def test_two_runs_of_one_agent_tool_wait_side_by_side(field: Field) -> None:
    """Each run of the agent waits for itself, and says where it is; its calls are steps of their own."""
    async with field.working(agents_as_tools(field, GO_ON)) as client:
        await client.start_session(SESSION, "go")
        snapshot = await at_rest(client, SessionStatus.WAITING)
        places: dict[str, Interrupt] = {}
        for interrupt in snapshot.pending_interrupts:
            root, call_id, line, name = interrupt.path.split("/")
            assert (root, line, name, interrupt.agent_name) == ("root", "line", "inner", "inner")
            places[call_id] = interrupt
        assert sorted(i.arguments["n"] for i in places.values()) == [1, 2]
    second = max(places.values(), key=lambda interrupt: interrupt.arguments["n"])
    async with field.working(agents_as_tools(field, GO_ON)) as client:
        await client.resolve_interrupt(SESSION, second.interrupt_id, approved=True)
        snapshot = await at_rest(client, SessionStatus.WAITING)
    (first,) = snapshot.pending_interrupts
    assert first.interrupt_id != second.interrupt_id
    async with field.working(agents_as_tools(field, GO_ON)) as client:
        await client.resolve_interrupt(SESSION, first.interrupt_id, approved=False, message="no")
        await at_rest(client, SessionStatus.IDLE)
        assert (await conversation(client))[-1] == "assistant: Root."
    assert field.world == ["render 2"]
    assert [line for line in prompt(field.requests[-1]) if "answers" in line] == [
        'user answers line {"result": "Did one."}',
        'user answers line {"result": "Did two."}',
    ]
    assert len(field.requests) == 6
