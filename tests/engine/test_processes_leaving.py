"""A worker process is told to leave: what runs finishes, nothing new starts, nothing is lost, no attempt is wasted."""

from __future__ import annotations

import pytest
from tests.support.session_rules import check_rules, read_stored
from tests.support.troupe import World

from perdure import AgentSessionClient, SessionStatus
from perdure.testing import WorkerChild


async def leave(worker: WorkerChild) -> None:
    """SIGTERM, and the signal has been seen by now."""
    worker.terminate()
    await worker.wait_for_async("told")


async def steps_of(client: AgentSessionClient, session_id: str) -> list[str]:
    steps = (await client.read_step_history(session_id)).items
    return [f"{step.name.value} {step.status.value} {step.attempts}" for step in steps]


async def finish(client: AgentSessionClient, world: World, *session_ids: str) -> None:
    """Another worker brings the sessions to their end, and all is as it must be."""
    with world.worker():
        for session_id in session_ids:
            assert (await client.wait(session_id, timeout=30)).status is SessionStatus.IDLE
            check_rules(await read_stored(client, session_id), world)


async def test_a_running_tool_finishes_and_nothing_new_starts(world: World) -> None:
    async with world.engine() as engine:
        client = AgentSessionClient(engine, "Play")
        with world.worker() as worker:
            await worker.wait_for_async("ready")
            for kind in ("read", "write"):
                await client.start_session(kind, f"{kind}:door model read")
                await client.send_user_message(kind, "model")
            await world.reached("at door", 2)
            await leave(worker)
            await client.start_session("late", "model")
            world.open("door")
            assert await worker.wait_exit_async() == 0
            assert worker.lines[-1] == "left"
        assert await steps_of(client, "read") == [
            "AwaitUserMessage succeeded 1",
            "RunModel succeeded 1",
            "CallTool succeeded 1",
            "ResumeTurn succeeded 1",
            "RunModel pending 0",
        ]
        assert (await steps_of(client, "write"))[2] == "CallSingleAttemptTool succeeded 1"
        assert await steps_of(client, "late") == ["AwaitUserMessage pending 0"]
        assert world.lines("model") == []
        await finish(client, world, "read", "write", "late")
        assert [line for line in world.lines("begin") if line.endswith("1")] == world.lines("begin"), "once each"


async def test_a_model_call_under_way_is_recorded_and_its_calls_are_left(world: World) -> None:
    async with world.engine() as engine:
        client = AgentSessionClient(engine, "Play")
        with world.worker() as worker:
            await worker.wait_for_async("ready")
            await client.start_session("s", "model:door par model")
            await world.reached("at door")
            await leave(worker)
            world.open("door")
            assert await worker.wait_exit_async() == 0
        assert (await steps_of(client, "s"))[1:] == [
            "RunModel succeeded 1",
            "CallTool pending 0",
            "CallTool pending 0",
            "CallSingleAttemptTool pending 0",
        ]
        assert world.lines("begin") == []
        await finish(client, world, "s")
        assert world.lines("model s") == ["model s m1.0", "model s m1.2"], "J10"
        assert [line.split()[-1] for line in world.lines("begin s")] == ["1", "1", "1"]


@pytest.mark.parametrize("signal", ["TERM", "KILL"])
async def test_a_pause_between_attempts_is_cut_short_and_costs_none(world: World, signal: str) -> None:
    async with world.engine() as engine:
        client = AgentSessionClient(engine, "Play")
        with world.worker() as worker:
            await worker.wait_for_async("ready")
            await client.start_session("s", "sleepy")  # the pause lasts an hour
            await world.reached("begin s c1.0 sleepy 1")
            if signal == "TERM":
                worker.terminate()
                assert await worker.wait_exit_async() == 0
            else:
                worker.kill()
        await finish(client, world, "s")
        assert world.lines("begin s") == ["begin s c1.0 sleepy 1", "begin s c1.0 sleepy 2"]
        assert (await steps_of(client, "s"))[2] == "CallTool succeeded 2"


async def test_a_session_that_waits_for_someone_is_let_go(world: World) -> None:
    async with world.engine() as engine:
        client = AgentSessionClient(engine, "Play")
        with world.worker() as worker:
            await client.start_session("s", "model ask model")
            (interrupt,) = (await client.wait("s", timeout=30)).pending_interrupts
            worker.terminate()
            assert await worker.wait_exit_async() == 0
        assert (await client.get_agent_snapshot("s")).status is SessionStatus.WAITING
        await client.resolve_interrupt("s", interrupt.interrupt_id, approved=True)
        await finish(client, world, "s")
        assert world.lines("begin s") == ["begin s c1.1 ask 1"]


async def test_other_workers_go_on_while_one_leaves(world: World) -> None:
    async with world.engine() as engine:
        client = AgentSessionClient(engine, "Play")
        with world.worker(max_sessions=2) as first, world.worker(max_sessions=2) as second:
            await first.wait_for_async("ready")
            await second.wait_for_async("ready")
            ids = [f"s{number}" for number in range(4)]
            for session_id in ids:
                await client.start_session(session_id, "read:one model read:two")
            await world.reached("at one", 4)
            await leave(first)
            world.open("one")
            assert await first.wait_exit_async() == 0
            await world.reached("at two", 2)
            assert set(world.doers("at two")) == {second.pid}
            world.open("two")
            for session_id in ids:
                assert (await client.wait(session_id, timeout=30)).status is SessionStatus.IDLE
                check_rules(await read_stored(client, session_id), world)


async def test_a_second_signal_stops_at_once(world: World) -> None:
    async with world.engine() as engine:
        client = AgentSessionClient(engine, "Play")
        with world.worker(grace=3600) as worker:
            await worker.wait_for_async("ready")
            await client.start_session("s", "par:door model")
            await world.reached("at door", 3)
            await leave(worker)
            worker.terminate()
            assert await worker.wait_exit_async() == 0
        assert not world.lines("end s")
        world.open("door")
        await finish(client, world, "s")
        steps = await steps_of(client, "s")
        assert steps[2:5] == [
            "CallTool succeeded 2",
            "CallTool succeeded 2",
            "CallSingleAttemptTool outcome_unknown 1",
        ]


async def test_when_the_grace_is_over_the_rest_is_cut_off(world: World) -> None:
    async with world.engine() as engine:
        client = AgentSessionClient(engine, "Play")
        with world.worker(grace=0.1) as worker:
            await worker.wait_for_async("ready")
            await client.start_session("s", "idem:door")
            await world.reached("at door")
            worker.terminate()
            assert await worker.wait_exit_async() == 0
        world.open("door")
        await finish(client, world, "s")
        assert world.lines("begin s") == ["begin s c1.0 idem 1", "begin s c1.0 idem 2"]
