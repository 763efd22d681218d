"""Nothing is left behind: no task, no thread, no open file, no socket, no lock."""

from __future__ import annotations

import asyncio
import gc
import os
import threading
from pathlib import Path

from tests.support.balky import BalkyStore
from tests.support.session_rules import check_rules, read_stored
from tests.support.troupe import World, crews_of, hub_of, until

from perdure import AgentSessionClient, Engine, SessionStatus, WorkerOptions
from perdure.store.sqlite.signals import default_run_dir

SESSIONS = 200


def left_behind(world: World) -> list[str]:
    """What a process and a file system hold of a database that nobody has open."""
    tasks = [task.get_name() for task in asyncio.all_tasks() if task is not asyncio.current_task()]
    threads = [thread.name for thread in threading.enumerate() if thread.name.startswith("perdure")]
    files = [name for name in open_files() if str(world.folder) in name]
    run_dir = default_run_dir(world.database)
    sockets = os.listdir(run_dir) if run_dir.exists() else []
    locks = world.database.with_name(world.database.name + "-locks")
    return [*tasks, *threads, *files, *sockets, *(os.listdir(locks) if locks.exists() else [])]


def open_files() -> list[str]:
    names: list[str] = []
    for number in os.listdir("/proc/self/fd"):
        try:
            names.append(os.readlink(f"/proc/self/fd/{number}"))
        except FileNotFoundError:  # of the listing itself
            continue
    return names


async def use(engine: Engine, number: int) -> None:
    client = AgentSessionClient(engine, "Play")
    await client.start_session(f"s{number}", "model read model")
    events = client.stream_events(f"s{number}")
    await anext(events)
    assert (await client.wait(f"s{number}", timeout=30)).status is SessionStatus.IDLE
    await events.aclose()


async def test_two_hundred_sessions_leave_nothing_behind(tmp_path: Path) -> None:
    world = World(tmp_path)
    flow = world.flow()
    async with world.engine(flow, options=WorkerOptions(max_lingering=5)) as engine:
        client = AgentSessionClient(engine, flow)
        async with engine.worker():
            await use(engine, 0)
            files, tasks = len(open_files()), len(asyncio.all_tasks())
            texts = ("model read model", "par fail", "ask", "model idem:never")
            ids = [f"x{number}" for number in range(SESSIONS)]
            await asyncio.gather(*(client.start_session(i, texts[n % 4]) for n, i in enumerate(ids)))
            await world.reached("at never", SESSIONS // 4)
            for number, session_id in enumerate(ids):
                if number % 8 == 7:
                    await client.delete_session(session_id)
                    continue
                if number % 8 == 3:
                    await client.cancel_turn(session_id)
                if number % 8 == 2:
                    await client.close_session(session_id)
                snapshot = await client.wait(session_id, timeout=30)
                assert snapshot.status in (SessionStatus.IDLE, SessionStatus.WAITING, SessionStatus.CLOSED)
                if snapshot.status is not SessionStatus.WAITING:
                    check_rules(await read_stored(client, session_id), world)
            assert len(open_files()) <= files + 4  # those of a reader that was needed only now
            (crew,) = crews_of(engine)
            await until(lambda: len(crew.held) <= 5, "most of those that wait to leave memory")
            assert len(asyncio.all_tasks()) <= tasks + 2 * 5
        assert [task.get_name() for task in asyncio.all_tasks() if "session" in task.get_name()] == []
        assert not hub_of(engine)._readers
        assert not hub_of(engine)._feeds
    gc.collect()
    assert left_behind(world) == []


async def test_an_engine_can_be_opened_and_closed_fifty_times(tmp_path: Path) -> None:
    world = World(tmp_path)
    flow = world.flow()
    engine = world.engine(flow)
    for number in range(50):
        async with engine if number % 2 else world.engine(flow) as opened:
            if number % 10 == 0:
                async with opened.worker():
                    await use(opened, number)
            elif number % 3 == 0:
                async with opened.worker():
                    pass
    assert left_behind(world) == []


async def test_a_lease_that_is_lost_leaves_no_lock_behind(tmp_path: Path) -> None:
    world, balky = World(tmp_path), BalkyStore(tmp_path / "play.db")
    flow = world.flow()
    async with balky.engine(flow) as engine, engine.worker(), world.engine() as other:
        await use(engine, 0)
        for number in range(1, 6):
            assert await other.store.reap_workers(2**41) == 1
            await use(engine, number)
        assert len([name for name in open_files() if "-locks/" in name]) == 1
    assert left_behind(world) == []
