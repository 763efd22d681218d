"""Many worker processes on one file: every turn once, in order, none lost; and the work is shared."""

from __future__ import annotations

import asyncio
import os
from collections import Counter
from contextlib import ExitStack
from pathlib import Path

from tests.support.session_rules import check_rules, read_stored
from tests.support.troupe import World

from perdure import AgentSessionClient, SessionStatus, TurnStatus, WorkerOptions
from perdure.testing import WorkerChild

WORKERS, SESSIONS, TURNS = 3, 30, 4
TEXTS = ("model read:start model", "model par model", "idem write", "model")


async def talk(folder: str, first: int, count: int) -> None:
    """The main function of a client process: starts sessions and sends all their messages at once."""
    async with World(Path(folder)).engine() as engine:
        client = AgentSessionClient(engine, "Play")
        ids = [f"s{number}" for number in range(first, first + count)]
        await asyncio.gather(*(client.start_session(session_id, TEXTS[0]) for session_id in ids))
        for text in TEXTS[1:]:
            await asyncio.gather(*(client.send_user_message(session_id, text) for session_id in ids))
    print("said it all", flush=True)


async def test_three_workers_share_thirty_sessions(local_world: World) -> None:
    world = local_world
    with ExitStack() as children:
        share = SESSIONS // WORKERS
        workers = [children.enter_context(world.worker(max_sessions=share)) for _ in range(WORKERS)]
        for worker in workers:
            await worker.wait_for_async("ready")
        talkers = [
            children.enter_context(WorkerChild.of(talk, str(world.folder), first, SESSIONS // 2))
            for first in (0, SESSIONS // 2)
        ]
        for talker in talkers:
            assert await talker.wait_exit_async() == 0
        await world.reached("at start", SESSIONS)
        assert Counter(world.doers("at start")) == {worker.pid: share for worker in workers}
        world.open("start")
        async with world.engine() as engine:
            client = AgentSessionClient(engine)
            for number in range(SESSIONS):
                snapshot = await client.wait(f"s{number}", timeout=60)
                assert snapshot.turn is not None
                assert (snapshot.status, snapshot.turn.number) == (SessionStatus.IDLE, TURNS)
                assert snapshot.turn.status is TurnStatus.COMPLETED
                stored = await read_stored(client, f"s{number}")
                check_rules(stored, world)
                said = [message.text for message in stored.messages]
                assert said == [part for turn, text in enumerate(TEXTS, 1) for part in (text, f"done {turn}")]
        repeated = {line for line, count in Counter(world.lines()).items() if count > 1}
        assert repeated == {"at start"}, "undisturbed, everything happens exactly once"
        for worker in workers:
            worker.terminate()
        assert [await worker.wait_exit_async() for worker in workers] == [0] * WORKERS


async def test_a_worker_in_the_clients_process_and_one_in_another_both_work(world: World) -> None:
    flow = world.flow()
    with world.worker(max_sessions=5) as other:
        await other.wait_for_async("ready")
        async with world.engine(flow, options=WorkerOptions(max_sessions=5)) as engine, engine.worker():
            client = AgentSessionClient(engine, flow)
            ids = [f"s{number}" for number in range(10)]
            await asyncio.gather(*(client.start_session(session_id, "model read:start read") for session_id in ids))
            await world.reached("at start", 10)
            assert Counter(world.doers("at start")) == {os.getpid(): 5, other.pid: 5}
            world.open("start")
            for session_id in ids:
                await client.wait(session_id, timeout=60)
                check_rules(await read_stored(client, session_id), world)
            assert (await client.get_agent_snapshot("s0")).served
        other.terminate()
        assert await other.wait_exit_async() == 0
