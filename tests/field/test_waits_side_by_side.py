"""A wait is not hidden behind another one: whoever may answer sees all that is asked at once, and answers in any order.

Each life is a worker of its own on one database.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from google.adk.agents import LlmAgent, ParallelAgent
from google.adk.events.event import Event
from google.adk.events.request_input import RequestInput
from google.adk.tools.agent_tool import AgentTool
from google.adk.tools.long_running_tool import LongRunningFunctionTool
from google.adk.tools.tool_context import ToolContext
from google.adk.workflow import START
from google.genai import types
from pydantic import BaseModel
from tests.field.support import ASKED, PATIENCE, READ, SESSION, Field, answers_in, durable, messages_of, prompt, say
from tests.support.nodes import graph, request

from perdure import (
    AgentSessionClient,
    AgentSessionFlow,
    InterruptKind,
    SessionStatus,
    ToolEffect,
    ToolPolicy,
    TurnStatus,
)
from perdure.testing import call, reply, text

Build = Callable[[Field], AgentSessionFlow]

POLICIES = {"render": READ, "ticket": READ, "pay": ASKED, "wire": READ}


def tools_of(field: Field) -> list[Any]:
    def pay(amount: int) -> dict[str, int]:
        """Pays, once somebody agrees."""
        field.note("pay", amount)
        return {"paid": amount}

    def wire(amount: int, tool_context: ToolContext) -> dict[str, Any]:
        """Asks in its own body."""
        if tool_context.tool_confirmation is None:
            tool_context.request_confirmation(hint="Really?")
            return {"status": "asking"}
        field.note("wire", amount)
        return {"wired": amount}

    def render(what: str) -> None:
        """Renders; the result comes later."""
        field.note("render", what)

    def ticket(subject: str) -> dict[str, str]:
        """Opens a ticket; it is solved later."""
        field.note("ticket", subject)
        return {"status": "pending"}

    return [pay, wire, LongRunningFunctionTool(render), LongRunningFunctionTool(ticket)]


def one_agent(*script: Any) -> Build:
    def build(field: Field) -> AgentSessionFlow:
        return field.flow(list(script), tools_of(field), POLICIES)

    return build


gated = one_agent(reply(call("pay", amount=5), call("render", what="a")), text("Done."))
asking = one_agent(reply(call("render", what="a"), call("wire", amount=5)), text("Done."))


def agent_beside(field: Field) -> AgentSessionFlow:
    """A long-running call beside an agent that waits."""
    inner = LlmAgent(
        name="inner", model=field.model([call("pay", amount=5), text("Paid.")]), tools=tools_of(field), description="I."
    )
    script = [reply(call("inner", request="pay"), call("render", what="a")), text("Done.")]
    outer = LlmAgent(name="outer", model=field.model(script), tools=[AgentTool(inner), *tools_of(field)])
    return durable(outer, POLICIES)


def two_agents(field: Field) -> AgentSessionFlow:
    """Two agents as tools of one response, each of which waits."""

    def tool(name: str, asks: Any) -> AgentTool:
        agent = LlmAgent(
            name=name, model=field.model([asks, text("ok")]), tools=tools_of(field), description=f"{name}."
        )
        return AgentTool(agent)

    script = [reply(call("payer", request="p"), call("painter", request="r")), text("Done.")]
    tools: list[Any] = [tool("payer", call("pay", amount=5)), tool("painter", call("render", what="a"))]
    return durable(LlmAgent(name="outer", model=field.model(script), tools=tools), POLICIES)


def branches(field: Field) -> AgentSessionFlow:
    def branch(name: str, asks: Any) -> LlmAgent:
        return LlmAgent(name=name, model=field.model([asks, text("Done.")]), tools=tools_of(field))

    payer, painter = branch("payer", call("pay", amount=5)), branch("painter", call("render", what="a"))
    return durable(ParallelAgent(name="fan", sub_agents=[payer, painter]), POLICIES)


def asking_workflow(field: Field) -> AgentSessionFlow:
    """One branch of a workflow asks for input; in the other an agent waits for an approval."""

    def ask(node_input: Any) -> RequestInput:
        return request(interrupt_id="word", message="Which word?")

    def use(node_input: Any) -> None:
        field.note("use", node_input["rendered"])

    payer = LlmAgent(name="payer", model=field.model([call("pay", amount=5), text("Done.")]), tools=tools_of(field))
    return durable(graph("flow", [(START, (ask, payer)), (ask, use)]), POLICIES)


def gated_node(field: Field) -> AgentSessionFlow:
    """Beside it, a function that waits for an approval."""

    def ask(node_input: Any) -> RequestInput:
        return request(interrupt_id="word", message="Which word?")

    def pay(node_input: Any) -> Any:
        field.note("pay")
        return Event(content=types.Content(role="model", parts=[types.Part(text="Done.")]))

    def use(node_input: Any) -> None:
        field.note("use", node_input["rendered"])

    flow = graph("flow", [(START, (ask, pay)), (ask, use)])
    return durable(flow, node_policies={"pay": ToolPolicy(ToolEffect.IDEMPOTENT_WRITE, requires_approval=True)})


class Wanted(BaseModel):
    """What the workflow below takes."""

    what: str


def workflow_as_tool(field: Field) -> AgentSessionFlow:
    """A workflow that an agent has as a tool asks, beside a call that waits for an approval."""

    def ask(node_input: Any) -> RequestInput:
        return request(interrupt_id="word", message="Which word?")

    def use(node_input: Any) -> str:
        field.note("use", node_input["rendered"])
        return "used"

    script = [reply(call("pay", amount=5), call("flow", what="go")), text("Done.")]
    tool: Any = graph("flow", [(START, ask, use)], description="F.", input_schema=Wanted)
    return durable(LlmAgent(name="boss", model=field.model(script), tools=[tool, *tools_of(field)]), POLICIES)


BUILDS: dict[str, Build] = {
    "gated": gated,
    "asking": asking,
    "agent_beside": agent_beside,
    "two_agents": two_agents,
    "branches": branches,
    "asking_workflow": asking_workflow,
    "gated_node": gated_node,
    "workflow_as_tool": workflow_as_tool,
}


async def _answer(client: AgentSessionClient, kinds: list[InterruptKind]) -> None:
    for kind in kinds:
        (found,) = [one for one in (await client.get_agent_snapshot(SESSION)).pending_interrupts if one.kind is kind]
        if kind.takes_value:
            await client.answer_question(SESSION, found.interrupt_id, {"rendered": "a"})
        else:
            await client.resolve_interrupt(SESSION, found.interrupt_id, approved=True)


async def _ended_well(field: Field, client: AgentSessionClient) -> None:
    snapshot = await client.wait(SESSION, timeout=PATIENCE)
    assert snapshot.turn is not None
    assert (snapshot.status, snapshot.turn.status) == (SessionStatus.IDLE, TurnStatus.COMPLETED)
    assert sorted(line.split()[0] for line in field.world) in (["pay", "render"], ["render", "wire"], ["pay", "use"])
    assert "Done." in [message.text for message in await messages_of(client)]


@pytest.mark.parametrize("restart", [False, True])
@pytest.mark.parametrize("question_first", [False, True])
@pytest.mark.parametrize("build", BUILDS.values(), ids=BUILDS)
async def test_both_are_seen_at_once_and_either_may_be_answered_first(
    field: Field, build: Build, question_first: bool, restart: bool
) -> None:
    async with field.working(build(field)) as client:
        snapshot = await say(client, "Go.")
        kinds = [one.kind for one in snapshot.pending_interrupts]
        assert len(kinds) == 2
        kinds.sort(key=lambda kind: kind.takes_value is not question_first)
        if not restart:
            await _answer(client, kinds)
            await _ended_well(field, client)
            return
    async with field.asking() as client:
        await _answer(client, kinds[:1])
    async with field.working(build(field)) as client:
        snapshot = await client.wait(SESSION, timeout=PATIENCE)
        assert snapshot.status is SessionStatus.WAITING
        assert [one.kind for one in snapshot.pending_interrupts] == kinds[1:]
    async with field.asking() as client:
        await _answer(client, kinds[1:])
    async with field.working(build(field)) as client:
        await _ended_well(field, client)


@pytest.mark.parametrize("build", BUILDS.values(), ids=BUILDS)
async def test_both_are_answered_in_one_map(field: Field, build: Build) -> None:
    async with field.working(build(field)) as client:
        snapshot = await say(client, "Go.")
        answers: dict[str, Any] = {
            one.interrupt_id: {"rendered": "a"} if one.kind.takes_value else True for one in snapshot.pending_interrupts
        }
        assert len(answers) == 2
        await client.resume(SESSION, answers)
        await _ended_well(field, client)


async def test_two_long_running_calls_beside_a_gated_one(field: Field) -> None:
    """Each is answered by itself, in lives of their own; the model sees the results of all three."""
    wanted = reply(call("render", what="a"), call("pay", amount=5), call("render", what="b"))
    build = one_agent(wanted, text("Done."))
    async with field.working(build(field)) as client:
        snapshot = await say(client, "Go.")
    assert [one.tool_name for one in snapshot.pending_interrupts] == ["pay", "render", "render"]
    pay, first, second = snapshot.pending_interrupts
    for interrupt in (second, pay, first):
        async with field.working(build(field)) as client:
            if interrupt is pay:
                await client.resolve_interrupt(SESSION, interrupt.interrupt_id, approved=True)
            else:
                await client.answer_question(SESSION, interrupt.interrupt_id, {"of": interrupt.arguments["what"]})
            snapshot = await client.wait(SESSION, timeout=PATIENCE)
    assert snapshot.status is SessionStatus.IDLE
    assert sorted(field.world) == ["pay 5", "render a", "render b"]
    results = [line for line in prompt(field.requests[-1]) if "answers" in line]
    assert results == [
        'user answers pay {"paid": 5}',
        'user answers render {"of": "a"}',
        'user answers render {"of": "b"}',
    ]


async def test_what_a_ticket_comes_to_is_asked_beside_an_approval(field: Field) -> None:
    """A first result: the late answer may be given before the approval, and starts a turn when this one is over."""
    wanted = reply(call("pay", amount=5), call("ticket", subject="leak"))
    build = one_agent(wanted, text("I have read it."))
    async with field.working(build(field)) as client:
        snapshot = await say(client, "Go.")
        assert [one.tool_name for one in snapshot.pending_interrupts] == ["pay", "ticket"]
        pay, ticket = snapshot.pending_interrupts
        await client.answer_question(SESSION, ticket.interrupt_id, {"status": "solved"})
        await client.resolve_interrupt(SESSION, pay.interrupt_id, approved=True)
        snapshot = await client.wait(SESSION, timeout=PATIENCE)
        assert (snapshot.status, snapshot.pending_interrupts) == (SessionStatus.IDLE, ())
    assert [answers_in(request) for request in field.requests] == [
        {},
        {"pay": {"paid": 5}, "ticket": {"status": "pending"}},
        {"pay": {"paid": 5}, "ticket": {"status": "solved"}},
    ]
