"""What a worker does while nothing is to be done: almost nothing."""

from __future__ import annotations

import asyncio
from collections import Counter
from datetime import timedelta
from pathlib import Path

import pytest
from tests.support.balky import BalkyStore
from tests.support.troupe import World, crews_of, until, until_status

from perdure import AgentSessionClient, SessionStatus, WorkerOptions
from perdure.store.sqlite import notices

A_WHILE = 2.0
"""Seconds."""


async def count(balky: BalkyStore) -> tuple[Counter[str], int]:
    """Calls of the store, and transactions that wrote, in ``A_WHILE``."""
    calls, commits = balky.calls.copy(), balky.real.commits
    await asyncio.sleep(A_WHILE)
    return balky.calls - calls, balky.real.commits - commits


async def ask(client: AgentSessionClient, session_id: str) -> None:
    await client.start_session(session_id, "model ask model")
    assert (await client.wait(session_id, timeout=20)).status is SessionStatus.WAITING


@pytest.mark.parametrize("linger", [timedelta(0), timedelta(hours=1)])
async def test_sessions_that_wait_cost_nothing_even_with_messages_in_their_queue(
    tmp_path: Path, linger: timedelta
) -> None:
    world, balky = World(tmp_path), BalkyStore(tmp_path / "play.db")
    flow = world.flow()
    async with balky.engine(flow, options=WorkerOptions(linger=linger)) as engine, engine.worker():
        client = AgentSessionClient(engine, flow)
        for session_id in ("a", "b", "c"):
            await ask(client, session_id)
            await client.send_user_message(session_id, "model")
        await asyncio.sleep(0.5)  # for what follows from the above
        calls, commits = await count(balky)
        assert commits <= 1, calls  # a renewal of the lease
        assert calls.total() - calls["reap_workers"] <= 10, calls
        for session_id in ("a", "b", "c"):
            (interrupt,) = (await client.get_agent_snapshot(session_id)).pending_interrupts
            await client.resolve_interrupt(session_id, interrupt.interrupt_id, approved=True)
            snapshot = await client.wait(session_id, timeout=20)
            assert snapshot.turn is not None
            assert (snapshot.status, snapshot.turn.number) == (SessionStatus.IDLE, 2)


async def test_two_idle_workers_do_not_keep_each_other_awake(tmp_path: Path) -> None:
    world, balky = World(tmp_path), BalkyStore(tmp_path / "play.db")
    flow = world.flow()
    async with balky.engine(flow) as engine, engine.worker(), world.engine(world.flow()) as other, other.worker():
        client = AgentSessionClient(engine, flow)
        await ask(client, "s")
        await asyncio.sleep(0.5)  # as above
        calls, commits = await count(balky)
        assert commits <= 1, calls
        assert calls.total() - calls["reap_workers"] <= 10, calls


async def test_a_turn_that_waits_leaves_memory_although_the_store_changes_all_the_time(tmp_path: Path) -> None:
    world = World(tmp_path)
    flow = world.flow()
    options = WorkerOptions(linger=timedelta(seconds=0.3))
    async with world.engine(flow, options=options) as engine, engine.worker(), world.engine() as other:
        client, chatter = AgentSessionClient(engine, flow), AgentSessionClient(other, "Nobody")
        await ask(client, "s")
        (crew,) = crews_of(engine)
        number = 0
        while "s" in crew.held:
            number += 1
            assert number < 200, "it is still in memory"
            await chatter.start_session(f"n{number}", "for nobody")
            crew.poke(None)
            await asyncio.sleep(0.01)


async def test_a_session_that_begins_to_wait_makes_room_for_another_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(notices, "SAFETY_POLL", 3600.0)
    world = World(tmp_path)
    flow = world.flow()
    options = WorkerOptions(max_sessions=1, max_lingering=2)
    async with world.engine(flow, options=options) as engine, engine.worker():
        client = AgentSessionClient(engine, flow)
        await client.start_session("first", "read:door ask")
        await world.reached("at door")
        await client.start_session("second", "ask")
        world.open("door")
        assert (await client.wait("first", timeout=20)).status is SessionStatus.WAITING
        await until_status(client, "second", SessionStatus.WAITING)


async def test_only_so_many_turns_wait_in_memory(tmp_path: Path) -> None:
    world = World(tmp_path)
    flow = world.flow()
    options = WorkerOptions(linger=timedelta(hours=1), max_lingering=2)
    async with world.engine(flow, options=options) as engine, engine.worker():
        client = AgentSessionClient(engine, flow)
        for number in range(5):
            await ask(client, f"s{number}")
        (crew,) = crews_of(engine)
        await until(lambda: crew.held == ("s3", "s4"), "the others to leave")
