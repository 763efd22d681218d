"""ADK agents on Temporal, with PostgreSQL for the data: a turn that waits, and ADK's own runner as the client."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest
from google.adk.agents import LlmAgent
from google.adk.tools.function_tool import FunctionTool
from tests.durable_runner.support import APP, SESSION, Talk, requests_in, text_of
from tests.support.postgres import Server
from tests.support.temporal_server import TemporalServer
from tests.temporal.conftest import Playhouse, events_of

from perdure import AgentSessionClient, Engine, SessionStatus, ToolEffect, ToolPolicy
from perdure.adk import DurableRunner, adk_agent_session_flow
from perdure.engine.temporal.host import TAKE_ALONG
from perdure.testing import ScriptedModel, call, reply, text

paid: list[int] = []


async def pay(amount: int) -> str:
    """Pays, which takes long enough to need an activity of its own."""
    paid.append(amount)
    await asyncio.sleep(1.5 * TAKE_ALONG.total_seconds())
    return f"paid {amount}"


def clerk() -> LlmAgent:
    """Two calls of one response, one of which waits for a person; then another call."""
    script = [reply(call("pay", amount=1), call("refund", amount=2)), call("pay", amount=3), text("It is done.")]
    tools: list[Any] = [pay, FunctionTool(refund, require_confirmation=True)]
    return LlmAgent(name="clerk", model=ScriptedModel(script), instruction="Pay.", tools=tools)


async def refund(amount: int) -> str:
    """Pays back."""
    return await pay(-amount)


@pytest.fixture
async def engine(temporal_server: TemporalServer, postgres: Server) -> AsyncIterator[Engine]:
    paid.clear()
    house = Playhouse(postgres.address(postgres.empty_schema()), temporal_server, temporal_server.new_prefix())
    async with house.engine() as engine:
        yield engine


async def test_a_confirmation_is_answered_when_the_worker_is_another(engine: Engine) -> None:
    """The turn is replayed by the second worker: what has a record does not run again."""
    once = ToolPolicy(ToolEffect.NON_IDEMPOTENT_WRITE, requires_approval=False)
    policies = {"pay": once, "refund": once}
    first, second = (adk_agent_session_flow(clerk(), flow_type="Clerk", tool_policies=policies) for _ in range(2))
    client = AgentSessionClient(engine, first)
    async with engine.worker(first):
        await client.start_session("s", "go")
        (asked,) = (await client.wait("s", timeout=30)).pending_interrupts
        assert asked.tool_name == "refund"
    assert paid == [1]
    await client.resolve_interrupt("s", asked.interrupt_id, approved=True)
    async with engine.worker(second):
        snapshot = await client.wait("s", timeout=30)
    assert snapshot.status is SessionStatus.IDLE
    assert paid == [1, -2, 3]
    steps = (await client.read_step_history("s")).items
    assert [step.status.value for step in steps if step.tool_name == "pay"] == ["succeeded"] * 2
    ordered = {
        event.activity_task_scheduled_event_attributes.activity_type.name for event in await events_of(engine, "s")
    }
    assert "CallSingleAttemptTool" in ordered


async def test_a_durable_runner_serves_itself_on_an_open_engine(engine: Engine) -> None:
    async with DurableRunner(
        agent=clerk(), app_name=APP, engine=engine, default_tool_effect=ToolEffect.IDEMPOTENT_WRITE
    ) as runner:
        talk = Talk(runner)
        await talk.start()
        assert len(requests_in(await talk.say("go"))) == 1
        assert text_of(await talk.approve()) == ["It is done."]
        assert talk.failures == [None, None]
        assert paid == [1, -2, 3]
        assert (await (await runner.sessions()).get_agent_snapshot(SESSION)).status is SessionStatus.IDLE


def test_what_a_dead_event_loop_left_is_taken_over(house: Playhouse) -> None:
    began: list[int] = []

    async def script(play: Any) -> None:
        began.append(1)
        if len(began) == 1:
            await asyncio.Event().wait()
        play.say("done")

    flow = house.flow(script)
    engine = house.engine(flow)

    async def begin() -> None:
        await engine.open()
        worker = engine.worker()
        await worker.__aenter__()
        await AgentSessionClient(engine, flow).start_session("s", "hello")
        while not began:  # noqa: ASYNC110 - nobody tells us
            await asyncio.sleep(0.01)

    async def go_on() -> SessionStatus:
        async with engine, engine.worker():
            return (await AgentSessionClient(engine, flow).wait("s", timeout=60)).status

    asyncio.run(begin())
    engine.abandon()
    assert asyncio.run(go_on()) is SessionStatus.IDLE
    assert len(began) == 2
