"""Workers in several processes on one PostgreSQL server: it restarts, sessions are ended, the network is cut."""

from __future__ import annotations

import asyncio
from collections import Counter
from contextlib import ExitStack
from pathlib import Path

import pytest
from tests.support.postgres import Server
from tests.support.proxy import proxy
from tests.support.session_rules import check_rules, read_stored
from tests.support.troupe import ADDRESS, World

from perdure import AgentSessionClient, SessionStatus, TurnStatus


@pytest.fixture
def schema(postgres: Server) -> str:
    return postgres.empty_schema()


@pytest.fixture
def world(postgres: Server, schema: str, tmp_path: Path) -> World:
    (tmp_path / ADDRESS).write_text(postgres.address(schema))
    return World(tmp_path)


def outcomes(steps: list[str]) -> list[str]:
    return [step for step in steps if step.startswith("Call")]


async def _all_is_done_once(world: World, client: AgentSessionClient, ids: list[str]) -> None:
    for session_id in ids:
        assert (await client.wait(session_id, timeout=60)).status is SessionStatus.IDLE
        stored = await read_stored(client, session_id)
        check_rules(stored, world)
        assert set(outcomes(stored.shape())) <= {"CallTool succeeded", "CallSingleAttemptTool succeeded"}
    assert [line for line, count in Counter(world.lines("begin")).items() if count > 1] == []


async def test_the_server_restarts_in_the_middle_of_turns(world: World, postgres: Server) -> None:
    """Nobody is taken for dead, nothing runs twice, no session is left behind."""
    ids = [f"s{number}" for number in range(6)]
    with ExitStack() as children:
        workers = [children.enter_context(world.worker(max_sessions=4)) for _ in range(2)]
        for worker in workers:
            await worker.wait_for_async("ready")
        async with world.engine() as engine:
            client = AgentSessionClient(engine, "Play")
            for session_id in ids:
                await client.start_session(session_id, "model par:door model write")
            await world.reached("at door", 3 * len(ids))
            restarting = asyncio.create_task(asyncio.to_thread(postgres.restart))
            world.open("door")
            await restarting
            await client.send_user_message(ids[0], "read")
            await _all_is_done_once(world, client, ids)
        for worker in workers:
            worker.terminate()
        assert [await worker.wait_exit_async() for worker in workers] == [0, 0]


async def test_an_administrator_ends_all_sessions_again_and_again(world: World, postgres: Server, schema: str) -> None:
    ids = [f"s{number}" for number in range(6)]
    with ExitStack() as children:
        for worker in [children.enter_context(world.worker(max_sessions=4)) for _ in range(2)]:
            await worker.wait_for_async("ready")
        async with world.engine() as engine:
            client = AgentSessionClient(engine, "Play")
            for session_id in ids:
                await client.start_session(session_id, "model par:~ model write:door idem")
            for _ in range(5):
                assert postgres.cut_off(schema) > 0
                await asyncio.sleep(0.05)
            await world.reached("at door", len(ids))
            postgres.cut_off(schema)
            world.open("door")
            await _all_is_done_once(world, client, ids)


async def test_a_killed_worker_is_noticed_though_its_lease_has_an_hour_to_go(world: World) -> None:
    with world.worker(lease=3600) as first:
        await first.wait_for_async("ready")
        async with world.engine() as engine:
            client = AgentSessionClient(engine, "Play")
            await client.start_session("s", "model read:door")
            await world.reached("at door")
            with world.worker(lease=3600) as second:
                await second.wait_for_async("ready")
                first.kill()
                await world.reached("at door", 2)
                world.open("door")
                assert (await client.wait("s", timeout=60)).status is SessionStatus.IDLE
                check_rules(await read_stored(client, "s"), world)
                assert set(world.doers("end s")) == {second.pid}


async def test_a_worker_behind_a_cut_network_is_fenced_and_serves_again_later(
    world: World, postgres: Server, schema: str
) -> None:
    with proxy(postgres.folder) as line:
        far = postgres.address(schema, socket_folder=line.folder, connect_timeout="2")
        with world.worker(lease=1, address=far) as first:
            await first.wait_for_async("ready")
            async with world.engine() as engine:
                client = AgentSessionClient(engine, "Play")
                await client.start_session("s", "model par:door model")
                await world.reached("at door", 3)
                line.swallow()
                with world.worker(lease=1) as second:
                    # Read and idempotent write run again, the single attempt does not.
                    await world.reached("at door", 5)
                    world.open("door")
                    assert (await client.wait("s", timeout=60)).status is SessionStatus.IDLE
                    second.terminate()
                    assert await second.wait_exit_async() == 0
                line.heal()
                await client.start_session("later", "write")
                snapshot = await client.wait("later", timeout=60)
                assert snapshot.turn is not None
                assert snapshot.turn.status is TurnStatus.COMPLETED
                assert world.doers("begin later") == [first.pid]
                stored = await read_stored(client, "s")
                check_rules(stored, world)
                assert outcomes(stored.shape()) == [
                    "CallTool succeeded",
                    "CallTool succeeded",
                    "CallSingleAttemptTool outcome_unknown",
                ]
