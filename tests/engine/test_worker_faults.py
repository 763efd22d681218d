"""The store fails while several sessions run: the others go on, nothing is lost, and the failed one goes on later."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Awaitable, Callable
from contextlib import closing
from datetime import timedelta
from pathlib import Path
from typing import TypeVar

import pytest
from tests.support.balky import BalkyStore
from tests.support.play import Play, PlayRunner
from tests.support.session_rules import check_rules, read_stored
from tests.support.troupe import World, answer, until, until_status

from perdure import AgentSessionClient, SessionStatus, StoreError, StoreFull, WorkerOptions, faults
from perdure.faults import FAULT_POINTS, Action, DurableWrite, FaultPoint, InjectedFault, Moment
from perdure.session.runner import AgentSessionFlow

T = TypeVar("T")

HEALTHY = ("model par model", "idem write", "model read model")
POINTS = [point for point in FAULT_POINTS if point.write is not DurableWrite.SESSION_BLOCKED]


async def insist(call: Callable[[], Awaitable[T]]) -> T:
    """What a client does: the same request again, until it is heard."""
    while True:
        try:
            return await call()
        except (InjectedFault, StoreError):
            await asyncio.sleep(0.01)


async def play_all(client: AgentSessionClient, world: World) -> None:
    """Sessions that make every durable write between them."""
    ids = [f"s{number}" for number in range(len(HEALTHY))]
    for session_id, text in zip(ids, HEALTHY, strict=True):
        await insist(lambda: client.start_session(session_id, text))  # noqa: B023 - used at once
        await insist(lambda: client.send_user_message(session_id, "model read", request_id="2"))  # noqa: B023 - as above
    await insist(lambda: client.start_session("asks", "model ask model"))
    await insist(lambda: client.start_session("waits", "half leg quest late model"))
    await insist(lambda: client.start_session("slow", "model:slow moody read model"))
    await insist(lambda: client.start_session("cancelled", "model idem:never"))
    await insist(lambda: client.start_session("closed", "ask"))
    await until(lambda: "at slow" in world.lines() and "at never" in world.lines(), "both doors to be reached")
    await asyncio.sleep(0.06)  # deltas that wait for no other write get their own
    await insist(lambda: client.steer_user_message("slow", "read", request_id="told"))
    world.open("slow")
    snapshot = await insist(lambda: client.wait("asks", timeout=20))
    (interrupt,) = snapshot.pending_interrupts
    await insist(lambda: client.resolve_interrupt("asks", interrupt.interrupt_id, approved=True))
    while (snapshot := await insist(lambda: client.wait("waits", timeout=20))).pending_interrupts:
        (asked,) = snapshot.pending_interrupts
        await insist(lambda: answer(client, asked, "waits"))  # noqa: B023 - used at once
    await insist(lambda: client.cancel_turn("cancelled", request_id="c"))
    await insist(lambda: client.wait("closed", timeout=20))
    await insist(lambda: client.close_session("closed"))
    for session_id in (*ids, "asks", "waits", "slow", "cancelled", "closed"):
        await insist(lambda: client.wait(session_id, timeout=20))  # noqa: B023 - as above
        check_rules(await read_stored(client, session_id), world)


@pytest.mark.parametrize("nth", [1, 3])
@pytest.mark.parametrize("point", POINTS, ids=str)
async def test_whichever_write_fails_all_sessions_come_to_their_end(
    tmp_path: Path, point: FaultPoint, nth: int
) -> None:
    world = World(tmp_path)
    flow = world.flow()
    with faults.arm(point, Action.RAISE, nth=nth) as armed:
        async with world.engine(flow) as engine, engine.worker():
            await play_all(AgentSessionClient(engine, flow), world)
    assert armed.fired or nth > 1, f"{point} was never reached"


@pytest.mark.parametrize("moment", Moment, ids=str)
async def test_a_session_is_blocked_although_the_write_that_says_so_fails(tmp_path: Path, moment: Moment) -> None:
    world = World(tmp_path)
    flow = world.flow()
    async with world.engine(flow) as engine, engine.worker():
        await AgentSessionClient(engine, flow).start_session("s", "model ask")
        await AgentSessionClient(engine, flow).wait("s", timeout=20)

    async def other_script(play: Play) -> None:
        play.say("something else")

    other = AgentSessionFlow("Play", PlayRunner(other_script, "other code"), "Play")
    async with world.engine(other) as engine:
        with faults.arm(FaultPoint(DurableWrite.SESSION_BLOCKED, moment), Action.RAISE) as armed:
            async with engine.worker():
                client = AgentSessionClient(engine, other)
                snapshot = await until_status(client, "s", SessionStatus.BLOCKED)
        assert armed.fired
        assert len(snapshot.pending_interrupts) == 1


async def test_a_deadline_is_kept_although_the_owner_failed(tmp_path: Path) -> None:
    world, balky = World(tmp_path), BalkyStore(tmp_path / "play.db")
    flow = world.flow(deadline=timedelta(milliseconds=400))
    async with balky.engine(flow) as engine, engine.worker():
        client = AgentSessionClient(engine, flow)
        balky.failures["read_inbox"] = [StoreFull("injected")]
        await client.start_session("s", "ask")
        await client.wait("s", timeout=20)
        await client.send_user_message("s", "model")  # makes the owner look
        await until(lambda: not balky.failures["read_inbox"], "the look to fail")
        assert (await until_status(client, "s", SessionStatus.IDLE)).pending_interrupts == ()
        stored = await read_stored(client, "s")
        check_rules(stored, world)
        assert stored.shape()[2] == "AwaitToolApproval expired"


async def test_a_database_that_others_lock_for_a_while(tmp_path: Path) -> None:
    world, balky = World(tmp_path), BalkyStore(tmp_path / "play.db", busy_timeout=0.05)
    flow = world.flow()
    async with balky.engine(flow, options=WorkerOptions(lease=timedelta(seconds=1))) as engine, engine.worker():
        client = AgentSessionClient(engine, flow)
        for number in range(8):
            await client.start_session(f"s{number}", "model par:door model")
        await world.reached("at door", 24)
        with closing(sqlite3.connect(world.database, isolation_level=None)) as foreign:
            for _ in range(3):
                foreign.execute("BEGIN IMMEDIATE")
                with pytest.raises(StoreError):
                    await client.start_session("refused", "model")
                world.open("door")
                failed = balky.calls["commit"]
                await until(lambda: balky.calls["commit"] > failed + 8, "writes to be refused")  # noqa: B023 - at once
                foreign.execute("COMMIT")
        for number in range(8):
            assert (await client.wait(f"s{number}", timeout=20)).status is SessionStatus.IDLE
            check_rules(await read_stored(client, f"s{number}"), world)


async def test_a_disk_that_is_full_for_a_while(tmp_path: Path) -> None:
    world, balky = World(tmp_path), BalkyStore(tmp_path / "play.db")
    flow = world.flow()
    async with balky.engine(flow) as engine, engine.worker():
        client = AgentSessionClient(engine, flow)
        for number in range(8):
            await client.start_session(f"s{number}", "model par:door model")
        await world.reached("at door", 24)
        writing = balky.real._writer.connection.raw
        (pages,) = writing.execute("PRAGMA page_count").fetchone()
        writing.execute(f"PRAGMA max_page_count = {pages}")
        with pytest.raises(StoreFull):
            await asyncio.gather(*(client.send_user_message("s0", "model " * 1000) for _ in range(20)))
        world.open("door")
        failed = balky.calls["commit"]
        await until(lambda: balky.calls["commit"] > failed + 20, "writes to be tried")
        writing.execute("PRAGMA max_page_count = 1000000")
        for number in range(8):
            assert (await client.wait(f"s{number}", timeout=30)).status is SessionStatus.IDLE
            check_rules(await read_stored(client, f"s{number}"), world)
