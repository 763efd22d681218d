"""Things that happen at the same moment: answers and deadlines, cancels and ends, claims and drains, calls that are
cut off."""

from __future__ import annotations

import asyncio
import os
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest
from tests.support.balky import BalkyStore, Hold
from tests.support.session_rules import check_events, check_rules, read_stored
from tests.support.troupe import World, crews_of, until

from perdure import (
    AgentSessionClient,
    Engine,
    InterruptStatus,
    SessionStatus,
    TurnNotFound,
    TurnStatus,
    UsageError,
    WorkerOptions,
    open_engine,
)
from perdure.clock import SystemClock
from perdure.engine import worker as worker_module
from perdure.engine.actor import SessionActor
from perdure.store.base import Worker


class SlowClock(SystemClock):
    """Ten seconds late."""

    def now_ms(self) -> int:
        return super().now_ms() - 10_000


async def test_what_is_accepted_while_a_session_is_being_claimed_is_heard(tmp_path: Path) -> None:
    """The claim has read the inbox, and nobody here owns the session yet when the store tells of the cancel."""
    world, balky = World(tmp_path), BalkyStore(tmp_path / "play.db")
    flow = world.flow()
    async with balky.engine(flow) as engine, engine.worker():
        client = AgentSessionClient(engine, flow)
        await client.start_session("s")
        await asyncio.sleep(0.2)  # claims that find nothing are over
        claiming = balky.holds["claim"] = Hold()
        turn_id = await client.send_user_message("s", "read:never")
        await claiming.reached.wait()
        await client.cancel_turn("s", turn_id=turn_id)
        await asyncio.sleep(0.2)  # the store has told of it
        del balky.holds["claim"]
        claiming.free.set()
        assert (await client.wait("s", timeout=10)).status is SessionStatus.IDLE
        check_rules(await read_stored(client, "s"), world)
    assert world.lines("begin s") == [], "it was cancelled before it was begun"


async def test_an_answer_that_crosses_the_deadline_counts(tmp_path: Path) -> None:
    """J6: the owner has looked for answers, and is about to let the interrupt expire, when one is accepted."""
    world, balky = World(tmp_path), BalkyStore(tmp_path / "play.db")
    flow = replace(world.flow(), interrupt_deadline=timedelta(milliseconds=300))
    async with (
        balky.engine(flow) as engine,
        engine.worker(),
        open_engine(f"sqlite:///{world.database}", clock=SlowClock()) as late,
    ):
        client = AgentSessionClient(engine, flow)
        await client.start_session("s", "ask model")
        (interrupt,) = (await client.wait("s", timeout=20)).pending_interrupts
        looked = balky.holds["read_inbox"] = Hold()
        await looked.reached.wait()
        answer = AgentSessionClient(late).resolve_interrupt("s", interrupt.interrupt_id, approved=True)
        assert (await answer).status is InterruptStatus.APPROVED
        del balky.holds["read_inbox"]
        looked.free.set()
        assert (await client.wait("s", timeout=20)).status is SessionStatus.IDLE
        stored = await read_stored(client, "s")
        check_rules(stored, world)
        assert stored.shape()[2:4] == ["AwaitToolApproval succeeded", "CallSingleAttemptTool succeeded"]


async def test_an_answer_that_crosses_a_claim_reaches_the_tool(tmp_path: Path) -> None:
    world, balky = World(tmp_path), BalkyStore(tmp_path / "play.db")
    flow = world.flow()
    async with balky.engine(flow, options=WorkerOptions(linger=timedelta(0))) as engine, engine.worker():
        client = AgentSessionClient(engine, flow)
        await client.start_session("s", "par:door ask model")
        await world.reached("at door", 3)
        world.open("door")
        (interrupt,) = (await client.wait("s", timeout=20)).pending_interrupts
        (crew,) = crews_of(engine)
        await until(lambda: not crew.held, "the session to be released")
        claimed = balky.holds["read_recorded_turn"] = Hold()
        await engine.store.register_worker(_other_code(), engine.clock.now_ms())  # makes it due, to be checked
        await claimed.reached.wait()
        await client.resolve_interrupt("s", interrupt.interrupt_id, approved=True, resolved_by="ann")
        del balky.holds["read_recorded_turn"]
        claimed.free.set()
        assert (await client.wait("s", timeout=20)).status is SessionStatus.IDLE
        stored = await read_stored(client, "s")
        check_rules(stored, world)
        (told,) = [event.data for event in stored.events if event.type.value == "interrupt_resolved"]
        assert (told["status"], told["resolved_by"]) == ("approved", "ann")


async def test_a_cancel_means_the_turn_that_was_open_when_it_was_accepted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(SessionActor, "poke", _do_not_look)
    world = World(tmp_path)
    flow = world.flow()
    async with world.engine(flow) as engine:
        client = AgentSessionClient(engine, flow)
        first = await client.start_session("s", "model:one")
        second = await client.send_user_message("s", "model:two")
        async with engine.worker():
            await world.reached("at one")
            await client.cancel_turn("s")
            world.open("one")
            await world.reached("at two")
            monkeypatch.undo()
            (crew,) = crews_of(engine)
            crew.poke(None)
            world.open("two")
            snapshot = await client.wait("s", timeout=20)
            assert snapshot.turn is not None
            assert (snapshot.turn.turn_id, snapshot.turn.status) == (second, TurnStatus.COMPLETED)
            with pytest.raises(TurnNotFound):
                await client.cancel_turn("s", turn_id=first)
            check_rules(await read_stored(client, "s"), world)


async def test_a_claim_under_way_when_the_worker_leaves_is_given_back(tmp_path: Path) -> None:
    world, balky = World(tmp_path), BalkyStore(tmp_path / "play.db")
    flow = world.flow()
    async with balky.engine(flow) as engine, world.engine() as other:
        client = AgentSessionClient(other, flow)
        leave = asyncio.Event()
        leaving = asyncio.create_task(_work_until(engine, leave))
        await client.start_session("busy", "read:door")
        await world.reached("at door")
        held = balky.holds["claim"] = Hold()
        await client.start_session("s", "model read")
        await held.reached.wait()
        leave.set()
        with world.worker():  # goes on with it while the one that leaves is still busy
            assert (await client.wait("s", timeout=30)).status is SessionStatus.IDLE
            assert not leaving.done()
            world.open("door")
            await leaving
        check_rules(await read_stored(client, "s"), world)
        assert os.getpid() not in world.doers("model s")


async def test_a_call_of_a_client_that_is_cut_off_is_done_or_not_and_can_be_repeated(tmp_path: Path) -> None:
    world, balky = World(tmp_path), BalkyStore(tmp_path / "play.db")
    flow = world.flow()
    async with balky.engine(flow) as engine:
        client = AgentSessionClient(engine, flow)
        await client.start_session("s")
        held = balky.holds["accept_message"] = Hold()
        sending = asyncio.create_task(client.send_user_message("s", "model", request_id="r"))
        await held.reached.wait()
        sending.cancel()
        with pytest.raises(asyncio.CancelledError):
            await sending
        del balky.holds["accept_message"]
        early = asyncio.create_task(client.send_user_message("s", "read", request_id="q"))
        await asyncio.sleep(0)
        early.cancel()
        again = await client.send_user_message("s", "model", request_id="r")
        await client.send_user_message("s", "read", request_id="q")
        async with engine.worker():
            snapshot = await client.wait("s", timeout=20)
            assert snapshot.turn is not None
            stored = await read_stored(client, "s")
            check_rules(stored, world)
            assert snapshot.turn.number == 2
            assert again in stored.turn_ids


async def test_closing_an_engine_drains_its_workers_first(tmp_path: Path) -> None:
    world = World(tmp_path)
    flow = world.flow()
    engine = world.engine(flow)
    await engine.open()
    client = AgentSessionClient(engine, flow)
    async with engine.worker(), engine.worker():
        await client.start_session("s", "read:door model")
        await world.reached("at door")
        waiting = asyncio.create_task(client.wait("s"))
        watching = asyncio.create_task(_drain(client, "s"))
        closing = asyncio.create_task(engine.close())
        crews = crews_of(engine)
        await until(lambda: all(crew._leaving.is_set() for crew in crews), "the drain to begin")
        world.open("door")
        await closing
        for left in (waiting, watching):
            with pytest.raises(UsageError, match="not open"):
                await left
    await engine.close()
    async with world.engine(world.flow()) as again:
        client = AgentSessionClient(again, flow)
        assert (await read_stored(client, "s")).shape()[2:] == [
            "CallTool succeeded",
            "ResumeTurn succeeded",
            "RunModel pending",
        ]
        async with again.worker():
            assert (await client.wait("s", timeout=20)).status is SessionStatus.IDLE
        check_rules(await read_stored(client, "s"), world)


async def test_only_the_main_thread_can_serve_until_a_signal(tmp_path: Path) -> None:
    world = World(tmp_path)

    async def serve() -> None:
        async with world.engine(world.flow()) as engine:
            await engine.serve()

    with pytest.raises(UsageError, match="main thread"):
        await asyncio.to_thread(asyncio.run, serve())


async def test_whoever_stops_a_worker_and_is_cut_off_leaves_nothing_running(tmp_path: Path) -> None:
    world = World(tmp_path)
    flow = world.flow()
    async with world.engine(flow) as engine:
        client = AgentSessionClient(engine, flow)
        up = asyncio.Event()

        async def work() -> None:
            async with engine.worker():
                up.set()
                await world.reached("at door")

        working = asyncio.create_task(work())
        await up.wait()
        await client.start_session("s", "idem:door")
        (crew,) = crews_of(engine)
        await until(crew._leaving.is_set, "the drain to begin")
        working.cancel()
        with pytest.raises(asyncio.CancelledError):
            await working
        assert not [task for task in asyncio.all_tasks() if task.get_name().startswith("perdure ")]
        world.open("door")
        async with engine.worker():
            assert (await client.wait("s", timeout=20)).status is SessionStatus.IDLE
        check_rules(await read_stored(client, "s"), world)


async def test_a_step_that_does_not_let_itself_be_stopped_keeps_no_worker(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(worker_module, "END_GRACE", timedelta(milliseconds=50))
    world = World(tmp_path)
    pass_door = World.pass_door

    async def stubborn(self: World, door: str) -> None:
        while True:
            try:
                return await pass_door(self, door)
            except asyncio.CancelledError:
                self.note("no, thanks")

    monkeypatch.setattr(World, "pass_door", stubborn)
    flow = world.flow()
    async with world.engine(flow, options=WorkerOptions(drain_grace=timedelta(0))) as engine:
        client = AgentSessionClient(engine, flow)
        async with engine.worker():
            await client.start_session("s", "write:door model")
            await world.reached("at door")
        assert world.lines("no, thanks")
        async with engine.worker():
            assert (await client.wait("s", timeout=20)).status is SessionStatus.IDLE
        world.open("door")
        await world.reached("end s c1.0 write 1")
        stored = await read_stored(client, "s")
        check_rules(stored, world)
        assert stored.shape()[2] == "CallSingleAttemptTool outcome_unknown"


async def test_a_session_that_is_deleted_and_started_again_is_a_new_one(tmp_path: Path) -> None:
    world = World(tmp_path)
    flow = world.flow()
    async with world.engine(flow) as engine, engine.worker(), world.engine() as other:
        client, elsewhere = AgentSessionClient(engine, flow), AgentSessionClient(other, flow)
        for number in range(5):
            await client.start_session("s", f"model par:door{number} model")
            await world.reached(f"at door{number}", 3)
            await elsewhere.delete_session("s")
            await elsewhere.start_session("s", f"read:next{number} model")
            world.open(f"door{number}")
            await world.reached(f"at next{number}")
            world.open(f"next{number}")
            assert (await client.wait("s", timeout=20)).status is SessionStatus.IDLE
            stored = await read_stored(client, "s")
            assert stored.shape() == [
                "AwaitUserMessage succeeded",
                "RunModel succeeded",
                "CallTool succeeded",
                "ResumeTurn succeeded",
                "RunModel succeeded",
                "AwaitUserMessage pending",
            ]
            check_events(stored.events)
            assert len(stored.messages) == 2
            await client.delete_session("s")


def _do_not_look(actor: SessionActor) -> None:
    pass


async def _work_until(engine: Engine, leave: asyncio.Event) -> None:
    async with engine.worker():
        await leave.wait()


async def _drain(client: AgentSessionClient, session_id: str) -> None:
    async for _ in client.stream_events(session_id):
        pass


def _other_code() -> Worker:
    return Worker("other", {"Play": "other code"}, 60_000)
