"""Workers die by SIGKILL, at every durable write of a turn and elsewhere; Temporal's server is started again."""

from __future__ import annotations

import asyncio

import pytest
from tests.support.session_rules import check_rules, read_stored
from tests.support.temporal_server import TemporalServer
from tests.support.troupe import World, serve, until_status
from tests.temporal.conftest import asked_for

from perdure import AgentSessionClient, SessionStatus, TurnStatus
from perdure.faults import DurableWrite, FaultPoint, Moment
from perdure.testing import WorkerChild

POINTS = [
    FaultPoint(DurableWrite.SESSION_CLAIMED, Moment.AFTER),
    FaultPoint(DurableWrite.TURN_STARTED, Moment.BEFORE),
    FaultPoint(DurableWrite.MODEL_STEP_SETTLED, Moment.AFTER),
    FaultPoint(DurableWrite.ATTEMPT_STARTED, Moment.AFTER),
    FaultPoint(DurableWrite.STEP_SETTLED, Moment.BEFORE),
    FaultPoint(DurableWrite.STEP_SETTLED, Moment.AFTER),
    FaultPoint(DurableWrite.TURN_ENDED, Moment.AFTER),
]
LOST = (
    FaultPoint(DurableWrite.ATTEMPT_STARTED, Moment.AFTER),
    FaultPoint(DurableWrite.STEP_SETTLED, Moment.BEFORE),
)
"""Where the write has begun, or may have, and has no record."""


@pytest.mark.parametrize("point", POINTS, ids=str)
async def test_a_worker_that_dies_at_a_write_is_replaced(world: World, point: FaultPoint) -> None:
    """What is recorded is not done again, and a write that may have happened is never repeated silently (J2, J10)."""
    doomed = WorkerChild.of(serve, str(world.folder), 10, 30, 60, 200, fault=point)
    async with world.engine() as engine:
        client = AgentSessionClient(engine, "Play")
        with doomed as first:
            await first.wait_for_async("ready")
            await client.start_session("s", "model write model")
            await first.wait_exit_async()
            with world.worker():
                snapshot = await client.wait("s", timeout=60)
        assert snapshot.turn is not None
        assert (snapshot.status, snapshot.turn.status) == (SessionStatus.IDLE, TurnStatus.COMPLETED)
        stored = await read_stored(client, "s")
        check_rules(stored, world)
        (outcome,) = [step.status.value for step in stored.steps if step.tool_name]
        began = len(world.lines("begin s c1.1"))
        assert began <= 1
        lost = point in LOST
        assert outcome == ("outcome_unknown" if lost else "succeeded")


async def test_a_server_that_starts_again_finds_everything_as_it_was(
    world: World, temporal_server: TemporalServer
) -> None:
    flow = world.flow()
    async with world.engine(flow) as engine, engine.worker():
        client = AgentSessionClient(engine, flow)
        await client.start_session("busy", "model write:door model")
        await client.start_session("asks", "model ask model")
        (asked,) = (await client.wait("asks", timeout=30)).pending_interrupts
        await world.reached("at door")
        temporal_server.stop()
        try:
            # What is accepted now is on disk; the write ends, and is recorded, without the server.
            await client.send_user_message("busy", "model")
            await client.resolve_interrupt("asks", asked.interrupt_id, approved=True)
            world.open("door")
            await world.reached("end busy c1.1 write 1")
        finally:
            temporal_server.start()
        for session_id in ("busy", "asks"):
            assert (await client.wait(session_id, timeout=90)).status is SessionStatus.IDLE
            check_rules(await read_stored(client, session_id), world)
        assert world.lines("begin busy c1.1") == ["begin busy c1.1 write 1"]
        outcomes = [step.status.value for step in (await read_stored(client, "busy")).steps if step.tool_name]
        assert outcomes == ["succeeded"]


@pytest.mark.parametrize("ordered", [True, False], ids=["its activity lost", "its activity not ordered yet"])
async def test_a_write_that_outlasts_the_server_is_not_given_up(
    world: World, temporal_server: TemporalServer, ordered: bool
) -> None:
    """Its heartbeats get lost for longer than they may; its worker lives, and says so when it is asked again."""
    flow = world.flow()
    async with world.engine(flow) as engine, engine.worker():
        client = AgentSessionClient(engine, flow)
        await client.start_session("s", "model write:door model")
        await world.reached("at door")
        if ordered:
            await asked_for(engine, "s", "CallSingleAttemptTool")
        temporal_server.stop()
        try:
            await asyncio.sleep(6)
        finally:
            temporal_server.start()
        await asked_for(engine, "s", "CallSingleAttemptTool", 2 if ordered else 1)
        world.open("door")
        assert (await client.wait("s", timeout=60)).status is SessionStatus.IDLE
        stored = await read_stored(client, "s")
        check_rules(stored, world)
        assert world.lines("begin s c1.1") == ["begin s c1.1 write 1"]
        assert [step.status.value for step in stored.steps if step.tool_name] == ["succeeded"]


async def test_a_worker_that_dies_between_two_attempts_costs_none(world: World) -> None:
    with world.worker() as first:
        await first.wait_for_async("ready")
        async with world.engine() as engine:
            client = AgentSessionClient(engine, "Play")
            await client.start_session("s", "sleepy")  # Its second attempt would be made in an hour.
            await world.reached("begin s c1.0 sleepy 1")
            with world.worker() as second:
                await second.wait_for_async("ready")
                first.kill()
                await until_status(client, "s", SessionStatus.IDLE)
                assert world.lines("begin s") == ["begin s c1.0 sleepy 1", "begin s c1.0 sleepy 2"]
                check_rules(await read_stored(client, "s"), world)


async def test_a_cancel_reaches_a_tool_that_runs_in_another_process(world: World) -> None:
    with world.worker() as worker:
        await worker.wait_for_async("ready")
        async with world.engine() as engine:
            client = AgentSessionClient(engine, "Play")
            await client.start_session("s", "par:door")
            await world.reached("at door", 3)
            await client.cancel_turn("s")
            snapshot = await client.wait("s", timeout=30)
            assert snapshot.turn is not None
            assert snapshot.turn.status is TurnStatus.CANCELLED
            await client.send_user_message("s", "model")
            assert (await client.wait("s", timeout=30)).status is SessionStatus.IDLE
            stored = await read_stored(client, "s")
            check_rules(stored, world)
            assert [step.status.value for step in stored.steps if step.tool_name] == [
                "failed",
                "outcome_unknown",
                "outcome_unknown",
            ]
            assert not world.lines("end s"), "none of the bodies went on"
