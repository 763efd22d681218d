"""The time limit of a node, and its retries, are for work: waiting for a person counts for neither."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from google.adk.agents.context import Context
from google.adk.events.request_input import RequestInput
from google.adk.tools.function_tool import FunctionTool
from google.adk.workflow import START, RetryConfig, Workflow, node
from tests.field.support import ASKED, PATIENCE, READ, SESSION, Field, durable, turn_of
from tests.support.nodes import request

from perdure import AgentSessionClient, AgentSessionFlow, InterruptKind, SessionStatus, TurnStatus
from perdure.testing import call, text

LIMIT = 2.0
"""Seconds.  Long for what the nodes do, even on a busy machine."""

ONE_TRY_MORE = RetryConfig(max_attempts=2, initial_delay=0.0, jitter=0.0)


def approved_function(field: Field) -> AgentSessionFlow:
    """A function that its policy makes wait."""

    @node(timeout=LIMIT, retry_config=ONE_TRY_MORE)
    async def pay(node_input: Any, ctx: Context) -> str:
        field.note("pay", ctx.attempt_count)
        return "paid"

    flow = Workflow(name="flow", edges=[(START, pay)])
    return durable(flow, node_policies={"pay": ASKED})


def confirmed_tool(field: Field) -> AgentSessionFlow:
    """A tool node that wants to be confirmed, in a workflow that has the limit."""

    def begin(node_input: Any) -> dict[str, Any]:
        return {}

    def pay() -> str:
        """Pays."""
        field.note("pay", 1)
        return "paid"

    inner = Workflow(
        name="inner",
        edges=[(START, begin, FunctionTool(pay, require_confirmation=True))],
        timeout=LIMIT,
        retry_config=ONE_TRY_MORE,
    )
    return durable(Workflow(name="flow", edges=[(START, inner)]), {"pay": READ})


def agent_that_asks(field: Field) -> AgentSessionFlow:
    """An agent as a node with the limit, one of whose calls waits."""

    def pay() -> str:
        """Pays."""
        field.note("pay", 1)
        return "paid"

    agent = field.agent([call("pay"), text("It is paid.")], [pay])
    agent.timeout = LIMIT
    agent.retry_config = ONE_TRY_MORE
    return durable(Workflow(name="flow", edges=[(START, agent)]), {"pay": ASKED})


def question_inside(field: Field) -> AgentSessionFlow:
    """A node that asks, in a workflow that has the limit: the wait is between two legs."""

    def ask(node_input: Any) -> RequestInput:
        return request(interrupt_id="how much", message="How much?")

    def pay(node_input: Any) -> str:
        field.note("pay", 1)
        return "paid"

    inner = Workflow(name="inner", edges=[(START, ask, pay)], timeout=LIMIT, retry_config=ONE_TRY_MORE)
    return durable(Workflow(name="flow", edges=[(START, inner)]))


async def _answered(client: AgentSessionClient) -> None:
    (asked,) = (await client.get_agent_snapshot(SESSION)).pending_interrupts
    answer: Any = {"amount": 5} if asked.kind is InterruptKind.INPUT else True
    await client.resume(SESSION, {asked.interrupt_id: answer})


@pytest.mark.parametrize("build", [approved_function, confirmed_tool, agent_that_asks, question_inside])
async def test_a_wait_longer_than_the_limit_costs_neither_time_nor_a_try(
    field: Field, build: Callable[[Field], AgentSessionFlow]
) -> None:
    async with field.working(build(field)) as client:
        await client.start_session(SESSION, "go")
        assert (await client.wait(SESSION, timeout=PATIENCE)).status is SessionStatus.WAITING
        await asyncio.sleep(LIMIT * 1.25)  # it is time itself that must not count
        assert (await client.get_agent_snapshot(SESSION)).status is SessionStatus.WAITING
        await _answered(client)
        snapshot = await client.wait(SESSION, timeout=PATIENCE)
    assert (snapshot.status, turn_of(snapshot).status, turn_of(snapshot).error) == (
        SessionStatus.IDLE,
        TurnStatus.COMPLETED,
        None,
    )
    assert field.world == ["pay 1"]


async def test_a_node_that_fails_after_a_wait_still_has_all_its_tries(field: Field) -> None:
    """Each try is a call of its own, and so asks for itself."""

    @node(retry_config=ONE_TRY_MORE)
    def pay(node_input: Any, ctx: Context) -> str:
        field.note("pay", ctx.attempt_count)
        if ctx.attempt_count == 1:
            raise ConnectionError("not today")
        return "paid"

    flow = durable(Workflow(name="flow", edges=[(START, pay)]), node_policies={"pay": ASKED})
    async with field.working(flow) as client:
        await client.start_session(SESSION, "go")
        for _ in range(2):
            assert (await client.wait(SESSION, timeout=PATIENCE)).status is SessionStatus.WAITING
            await _answered(client)
        assert turn_of(await client.wait(SESSION, timeout=PATIENCE)).status is TurnStatus.COMPLETED
    assert field.world[-1] == "pay 2"
