"""Field case 23: a turn of many calls with big results ends, and what Temporal keeps of it grows with the calls."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from google.adk.agents import LlmAgent
from tests.temporal.conftest import BRIEFLY, Playhouse, events_of, workflow_of

from perdure import AgentSessionClient, Engine, SessionStatus, ToolEffect, ToolPolicy, TurnStatus
from perdure.adk import adk_agent_session_flow
from perdure.session.runner import AgentSessionFlow
from perdure.testing import ScriptedModel, by_message, call, text

CONTEXT = "c" * 200_000
FEW, MANY = 50, 150


def page(number: int) -> dict[str, Any]:
    """Reads a page of 5 KB."""
    return {"number": number, "text": "p" * 5_000}


def reader() -> AgentSessionFlow:
    def turn_of(calls: int) -> list[Any]:
        return [*(call("page", number=number) for number in range(calls)), text("All read.")]

    script = by_message({f"read {calls} {CONTEXT}": turn_of(calls) for calls in (FEW, MANY)} | {"hello": text("Hi.")})
    agent = LlmAgent(name="reader", model=ScriptedModel(script), tools=[page])
    policies = {"page": ToolPolicy(ToolEffect.READ)}
    return adk_agent_session_flow(agent, flow_type="Reader", tool_policies=policies)


async def size_of(engine: Engine, session_id: str) -> int:
    """Bytes of history over all runs."""
    size = 0
    run_id: str | None = (await workflow_of(engine, session_id).describe()).run_id
    while run_id:
        events = await events_of(engine, session_id, run_id)
        size += sum(event.ByteSize() for event in events)
        run_id = events[0].workflow_execution_started_event_attributes.continued_execution_run_id or None
    return size


async def test_150_calls_with_big_results_in_one_turn(house: Playhouse) -> None:
    flow = reader()
    sizes: dict[int, int] = {}
    async with house.engine(flow, options=BRIEFLY) as engine, engine.worker():
        client = AgentSessionClient(engine, flow)
        for calls in (FEW, MANY):
            session_id = f"s{calls}"
            await client.start_session(session_id, f"read {calls} {CONTEXT}")
            snapshot = await client.wait(session_id, timeout=180)
            assert snapshot.turn is not None
            assert snapshot.turn.status is TurnStatus.COMPLETED, snapshot.error
            steps = (await client.read_step_history(session_id, limit=1000)).items
            assert sum(step.tool_name == "page" for step in steps) == calls
            await workflow_of(engine, session_id).result()
            sizes[calls] = await size_of(engine, session_id)
    assert sizes[MANY] < 1_000_000
    # How much is reported together depends on how busy the machine is; with the square of the calls it would be 9.
    assert sizes[MANY] / sizes[FEW] < 1.5 * MANY / FEW, "bytes grow with the calls, not with their square"


async def test_no_run_has_a_time_limit_so_a_parked_session_still_answers(house: Playhouse) -> None:
    """Temporal would end a run at its limit, and a chat that is parked for longer with it."""
    flow = reader()
    async with house.engine(flow, options=BRIEFLY) as engine, engine.worker():
        client = AgentSessionClient(engine, flow)
        await client.start_session("s", "hello")
        assert (await client.wait("s", timeout=60)).status is SessionStatus.IDLE
        started = (await events_of(engine, "s"))[0].workflow_execution_started_event_attributes
        limits = (started.workflow_execution_timeout, started.workflow_run_timeout)
        assert [limit.ToTimedelta() for limit in limits] == [timedelta(0), timedelta(0)]
        await workflow_of(engine, "s").result()  # A session that rests has no workflow.
        await client.send_user_message("s", "hello")
        assert (await client.wait("s", timeout=60)).status is SessionStatus.IDLE
