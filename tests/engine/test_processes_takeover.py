"""The owner of a session dies or stands still: another worker takes over, and nothing happens twice silently."""

from __future__ import annotations

from tests.support.session_rules import check_rules, read_stored
from tests.support.troupe import World, until

from perdure import AgentSessionClient, InterruptStatus, SessionStatus, TurnStatus


def outcomes(steps: list[str]) -> list[str]:
    return [step for step in steps if step.startswith("Call")]


async def test_what_a_killed_owner_left_is_taken_over(world: World) -> None:
    with world.worker() as first:
        await first.wait_for_async("ready")
        async with world.engine() as engine:
            client = AgentSessionClient(engine, "Play")
            await client.start_session("busy", "model par:door model")
            await client.start_session("asks", "model ask model")
            await client.start_session("thinks", "model:door read")
            (pending,) = (await client.wait("asks", timeout=30)).pending_interrupts
            for line in ("at door",):
                await world.reached(line, 4)
            with world.worker() as second:
                await second.wait_for_async("ready")
                first.kill()
                await world.reached("begin busy c1.1.read read 2")
                await world.reached("begin busy c1.1.idem idem 2")
                await world.reached("model thinks m1.0", 2)
                world.open("door")
                for session_id in ("busy", "thinks"):
                    assert (await client.wait(session_id, timeout=30)).status is SessionStatus.IDLE
                stored = await read_stored(client, "busy")
                check_rules(stored, world)
                assert outcomes(stored.shape()) == [
                    "CallTool succeeded",
                    "CallTool succeeded",
                    "CallSingleAttemptTool outcome_unknown",
                ]
                assert world.lines("model busy") == ["model busy m1.0", "model busy m1.2"], "J10"
                check_rules(await read_stored(client, "thinks"), world)

                snapshot = await client.get_agent_snapshot("asks")
                assert snapshot.status is SessionStatus.WAITING
                assert [interrupt.interrupt_id for interrupt in snapshot.pending_interrupts] == [pending.interrupt_id]
                assert pending.status is InterruptStatus.PENDING
                await client.resolve_interrupt("asks", pending.interrupt_id, approved=True, resolved_by="ann")
                assert (await client.wait("asks", timeout=30)).status is SessionStatus.IDLE
                stored = await read_stored(client, "asks")
                check_rules(stored, world)
                assert outcomes(stored.shape()) == ["CallSingleAttemptTool succeeded"]
                assert set(world.doers("begin asks")) == {second.pid}


async def test_an_answer_that_came_while_nobody_worked_is_told_and_obeyed(local_world: World) -> None:
    world = local_world
    async with world.engine() as engine:
        client = AgentSessionClient(engine, "Play")
        with world.worker() as first:
            await client.start_session("s", "ask read")
            (pending,) = (await client.wait("s", timeout=30)).pending_interrupts
            first.kill()
        answered = await client.resolve_interrupt("s", pending.interrupt_id, approved=True, resolved_by="ann")
        assert (await client.get_agent_snapshot("s")).status is SessionStatus.RUNNING
        with world.worker():
            assert (await client.wait("s", timeout=30)).status is SessionStatus.IDLE
        stored = await read_stored(client, "s")
        check_rules(stored, world)
        (told,) = [event.data for event in stored.events if event.type.value == "interrupt_resolved"]
        assert (told["status"], told["resolved_by"]) == ("approved", "ann")
        assert told["response"] == answered.response


async def test_a_stopped_owner_loses_its_sessions_and_serves_again_later(local_world: World) -> None:
    world = local_world
    with world.worker(lease=1) as first:
        await first.wait_for_async("ready")
        async with world.engine() as engine:
            client = AgentSessionClient(engine, "Play")
            ids = [f"s{number}" for number in range(3)]
            for session_id in ids:
                await client.start_session(session_id, "model par:door model")
            await client.start_session("thinks", "model:door read")
            await world.reached("at door", 3 * len(ids) + 1)
            first.stop()
            with world.worker(lease=1) as second:
                # Read and idempotent write run again, the single attempt does not.
                await world.reached("at door", 5 * len(ids) + 2)
                assert set(world.doers("at door")[-2 * len(ids) - 1 :]) == {second.pid}
                world.open("door")
                for session_id in (*ids, "thinks"):
                    assert (await client.wait(session_id, timeout=30)).status is SessionStatus.IDLE
                # The bodies of the first one go on, and find that their results are refused.
                first.resume()
                for session_id in ids:
                    await client.send_user_message(session_id, "idem read:again")
                await world.reached("at again", len(ids))
                second.terminate()
                world.open("again")
                for session_id in ids:
                    assert (await client.wait(session_id, timeout=30)).status is SessionStatus.IDLE
                assert await second.wait_exit_async() == 0
            for session_id in ids:
                await client.send_user_message(session_id, "write")
                assert (await client.wait(session_id, timeout=30)).status is SessionStatus.IDLE
                stored = await read_stored(client, session_id)
                check_rules(stored, world)
                assert stored.snapshot.turn is not None
                assert (stored.snapshot.turn.number, stored.snapshot.turn.status) == (3, TurnStatus.COMPLETED)
                assert outcomes(stored.shape())[:3] == [
                    "CallTool succeeded",
                    "CallTool succeeded",
                    "CallSingleAttemptTool outcome_unknown",
                ]
                assert world.doers(f"begin {session_id} c3.0") == [first.pid]
            check_rules(await read_stored(client, "thinks"), world)
            first.terminate()
            assert await first.wait_exit_async() == 0


async def test_a_worker_is_stopped_again_and_again(local_world: World) -> None:
    """Wherever its loops stand when it is stopped, it must come back."""
    world = local_world
    with world.worker(lease=0.4) as first, world.worker(lease=0.4) as second:
        await first.wait_for_async("ready")
        await second.wait_for_async("ready")
        async with world.engine() as engine:
            client = AgentSessionClient(engine, "Play")
            for number in range(4):
                ids = [f"s{number}.{part}" for part in range(6)]
                stopped, other = (first, second) if number % 2 == 0 else (second, first)
                for session_id in ids:
                    await client.start_session(session_id, f"model read:half{number} model")
                await world.reached(f"at half{number}", len(ids))
                stopped.stop()
                before = world.doers(f"at half{number}").count(stopped.pid)
                await until(
                    lambda: world.doers(f"at half{number}").count(other.pid) == len(ids),  # noqa: B023 - used at once
                    f"{before} sessions to be taken over",
                )
                stopped.resume()
                world.open(f"half{number}")
                for session_id in ids:
                    assert (await client.wait(session_id, timeout=30)).status is SessionStatus.IDLE
                    check_rules(await read_stored(client, session_id), world)
            for worker, other in ((first, second), (second, first)):
                other.stop()
                await client.start_session(f"alone{worker.pid}", "model read")
                await client.wait(f"alone{worker.pid}", timeout=30)
                assert world.doers(f"begin alone{worker.pid}") == [worker.pid]
                other.resume()
