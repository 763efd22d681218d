"""What got lost between the store and Temporal is made good."""

from __future__ import annotations

import asyncio
from datetime import timedelta

import pytest
from temporalio.client import WorkflowExecutionStatus
from tests.support.play import Play, PlayCall
from tests.support.session_rules import check_rules, read_stored
from tests.support.troupe import World, until
from tests.temporal.conftest import Playhouse, asked_for, link_of, workflow_of

from perdure import AgentSessionClient, InterruptKind, SessionStatus, ToolEffect, TurnStatus
from perdure.engine.temporal import host
from perdure.engine.temporal.engine import TemporalEngine
from perdure.engine.temporal.host import HostedSession
from perdure.engine.temporal.worker import TemporalWorker


async def forget(engine: TemporalEngine, session_id: str) -> None:
    """What a client does that dies between the store and Temporal."""


async def test_j16_a_message_of_which_temporal_was_not_told_is_found(
    house: Playhouse, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def script(play: Play) -> None:
        play.say("done")

    flow = house.flow(script)
    async with house.engine(flow) as engine, engine.worker():
        client = AgentSessionClient(engine, flow)
        monkeypatch.setattr(TemporalEngine, "notify", forget)
        await client.start_session("s", "hello")
        snapshot = await client.wait("s", timeout=30)
        assert snapshot.turn is not None
        assert (snapshot.status, snapshot.turn.status) == (SessionStatus.IDLE, TurnStatus.COMPLETED)


async def test_an_answer_and_a_cancel_of_which_temporal_was_not_told_are_found(
    house: Playhouse, monkeypatch: pytest.MonkeyPatch
) -> None:
    running = asyncio.Event()

    async def endless(call_id: str, attempt: int) -> object:
        running.set()
        return await asyncio.Event().wait()

    async def script(play: Play) -> None:
        await play.tools("g", {"c1": PlayCall("wait", endless, ToolEffect.READ, InterruptKind.APPROVAL)})

    flow = house.flow(script)
    async with house.engine(flow) as engine, engine.worker():
        client = AgentSessionClient(engine, flow)
        await client.start_session("s", "hello")
        (asked,) = (await client.wait("s", timeout=30)).pending_interrupts
        monkeypatch.setattr(TemporalEngine, "notify", forget)
        await client.resolve_interrupt("s", asked.interrupt_id, approved=True)
        await running.wait()
        await client.cancel_turn("s")
        snapshot = await client.wait("s", timeout=30)
        assert snapshot.turn is not None
        assert snapshot.turn.status is TurnStatus.CANCELLED


async def test_an_activity_whose_workflow_was_ended_is_no_fault(
    world: World, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Temporal's worker would log the traceback of the cancellation, once the heartbeat finds nobody."""
    ended = asyncio.Event()
    unwanted = TemporalWorker.unwanted

    def noted(self: TemporalWorker, session: HostedSession) -> None:
        ended.set()
        unwanted(self, session)

    monkeypatch.setattr(TemporalWorker, "unwanted", noted)
    flow = world.flow()
    async with world.engine(flow) as engine, engine.worker():
        client = AgentSessionClient(engine, flow)
        await client.start_session("s", "model read:door")
        await world.reached("at door")
        await asked_for(engine, "s", "CallTool")
        await workflow_of(engine, "s").terminate()
        await asyncio.wait_for(ended.wait(), 30)
        await world.reached("at door", 2)
        world.open("door")
        assert (await client.wait("s", timeout=60)).status is SessionStatus.IDLE
    assert [record.message for record in caplog.records if record.exc_info is not None] == []


@pytest.mark.parametrize("how", ["terminate", "cancel"])
@pytest.mark.parametrize("ordered", [True, False], ids=["with its activity", "before its activity"])
async def test_j16_a_session_goes_on_whose_workflow_somebody_ended(
    world: World, monkeypatch: pytest.MonkeyPatch, how: str, ordered: bool
) -> None:
    monkeypatch.setattr(host, "PATIENCE", timedelta(seconds=30 if ordered else 1))
    flow = world.flow()
    async with world.engine(flow) as engine, engine.worker():
        client = AgentSessionClient(engine, flow)
        await client.start_session("s", "model read:door write")
        await world.reached("at door")
        if ordered:
            await asked_for(engine, "s", "CallTool")
        handle = workflow_of(engine, "s")
        await (handle.terminate() if how == "terminate" else handle.cancel())
        if ordered or how == "terminate":  # A cancel may come in an adoption: then the worker keeps what it runs.
            await world.reached("at door", 2)
        world.open("door")
        assert (await client.wait("s", timeout=60)).status is SessionStatus.IDLE
        stored = await read_stored(client, "s")
        check_rules(stored, world)
        assert world.lines("begin s c1.2") == ["begin s c1.2 write 1"]


async def test_a_write_behind_the_end_of_a_resting_sessions_workflow_is_kept(world: World) -> None:
    """The worker has the session all the time: its workflow is begun anew, and finds the write under way."""
    flow = world.flow()
    async with world.engine(flow) as engine, engine.worker():
        client = AgentSessionClient(engine, flow)
        await client.start_session("s", "model")
        await client.wait("s", timeout=30)
        ended = workflow_of(engine, "s")
        await ended.terminate()
        await client.send_user_message("s", "model write:door")
        await world.reached("at door")
        while (await ended.describe()).status is not WorkflowExecutionStatus.RUNNING:  # noqa: ASYNC110 - Temporal tells nobody
            await asyncio.sleep(0.01)
        await asked_for(engine, "s", "CallSingleAttemptTool")
        world.open("door")
        assert (await client.wait("s", timeout=60)).status is SessionStatus.IDLE
        stored = await read_stored(client, "s")
        check_rules(stored, world)
        assert [step for step in stored.shape() if step.startswith("Call")] == ["CallSingleAttemptTool succeeded"]


async def test_a_session_that_is_deleted_leaves_nothing_running(world: World) -> None:
    flow = world.flow()
    async with world.engine(flow) as engine, engine.worker():
        client = AgentSessionClient(engine, flow)
        await client.start_session("s", "read:door")
        await world.reached("at door")
        handle = workflow_of(engine, "s")
        await client.delete_session("s")
        assert (await handle.describe()).status is WorkflowExecutionStatus.TERMINATED
        # Another session of the same id is another session.
        await client.start_session("s", "model")
        assert (await client.wait("s", timeout=30)).status is SessionStatus.IDLE


async def test_a_session_is_deleted_although_nobody_serves_its_flow_any_more(world: World) -> None:
    async with world.engine() as engine:
        client = AgentSessionClient(engine, "Play")
        await client.start_session("s", "read")
        handle = workflow_of(engine, "s")
        await client.delete_session("s")
        assert (await handle.describe()).status is WorkflowExecutionStatus.TERMINATED


async def test_a_full_worker_leaves_sessions_to_others(world: World) -> None:
    with world.worker(max_sessions=1) as first, world.worker(max_sessions=1) as second:
        await first.wait_for_async("ready")
        await second.wait_for_async("ready")
        async with world.engine() as engine:
            client = AgentSessionClient(engine, "Play")
            for session_id in ("a", "b", "c"):
                await client.start_session(session_id, "read:door")
            await world.reached("at door", 2)
            assert set(world.doers("at door")) == {first.pid, second.pid}
            await until(lambda: len(world.lines("at door")) == 2, "no more")
            world.open("door")
            for session_id in ("a", "b", "c"):
                assert (await client.wait(session_id, timeout=30)).status is SessionStatus.IDLE


async def test_two_flows_and_their_sessions_share_a_worker(house: Playhouse) -> None:
    async def script(play: Play) -> None:
        play.say(f"I am {play.start.session_id}")

    flows = house.flow(script, "One"), house.flow(script, "Two")
    async with house.engine(*flows) as engine, engine.worker():
        for flow in flows:
            client = AgentSessionClient(engine, flow)
            await client.start_session(flow.flow_type, "hello")
            assert (await client.wait(flow.flow_type, timeout=30)).status is SessionStatus.IDLE
            assert link_of(engine).queue(flow.flow_type).endswith(flow.flow_type)
