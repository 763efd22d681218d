"""A session that rests stays with its worker for a while: its next message is no new beginning."""

from __future__ import annotations

import asyncio
from datetime import timedelta

import pytest
from tests.engine.conftest import local_only
from tests.support.troupe import LOOK_EVERY, World, crews_of, until
from tests.unit.store.builders import message

from perdure import AgentSessionClient, AgentSnapshot, Engine, SessionStatus, WorkerOptions
from perdure.store.base import Ownership

LONG = WorkerOptions(linger=timedelta(hours=1))
BRIEF = WorkerOptions(linger=timedelta(milliseconds=100))


async def say(client: AgentSessionClient, text: str = "model read model", session_id: str = "s") -> AgentSnapshot:
    await client.send_user_message(session_id, text)
    snapshot = await client.wait(session_id, timeout=60)
    assert (snapshot.status, snapshot.error) == (SessionStatus.IDLE, None)
    return snapshot


async def begin(client: AgentSessionClient, session_id: str = "s") -> None:
    await client.start_session(session_id)
    await say(client, session_id=session_id)


def number_of(snapshot: AgentSnapshot) -> int:
    assert snapshot.turn is not None
    return snapshot.turn.number


async def ownership(engine: Engine) -> Ownership:
    return await engine.store.read_ownership("s")


async def given_up(engine: Engine) -> None:
    """Waits until nobody has the session."""
    while (await ownership(engine)).owner is not None:  # noqa: ASYNC110 - the store tells, nobody else
        await asyncio.sleep(LOOK_EVERY)


async def test_the_next_message_finds_the_worker_that_had_the_last_one(world: World) -> None:
    flow = world.flow()
    async with world.engine(flow, options=LONG) as engine, engine.worker(), world.engine() as elsewhere:
        client = AgentSessionClient(engine, flow)
        await begin(client)
        before = await ownership(engine)
        assert before.owner is not None
        assert number_of(await say(client)) == 2
        assert number_of(await say(AgentSessionClient(elsewhere, "Play"))) == 3
        assert await ownership(engine) == before
    async with world.engine() as engine:
        assert (await ownership(engine)).owner is None, "a worker that leaves gives up what it keeps"


async def test_it_is_given_up_when_nothing_comes_for_a_while(world: World) -> None:
    flow = world.flow()
    async with world.engine(flow, options=BRIEF) as engine, engine.worker():
        client = AgentSessionClient(engine, flow)
        await begin(client)
        await given_up(engine)
        (crew,) = crews_of(engine)
        await until(lambda: crew.held == (), "the actor to leave")
        assert number_of(await say(client)) == 2


@local_only
async def test_of_too_many_the_one_goes_that_has_rested_longest(world: World) -> None:
    flow = world.flow()
    options = WorkerOptions(linger=timedelta(hours=1), max_lingering=2)
    async with world.engine(flow, options=options) as engine, engine.worker():
        client = AgentSessionClient(engine, flow)
        for session_id in ("a", "b"):
            await begin(client, session_id)
        await say(client, session_id="a")
        await begin(client, "c")
        (crew,) = crews_of(engine)
        await until(lambda: set(crew.held) == {"a", "c"}, "b to leave")


async def test_a_message_appended_meanwhile_is_not_overlooked(world: World) -> None:
    """Whoever writes into the log of a session at rest takes it from its owner, which knows an older log."""
    flow = world.flow()
    async with world.engine(flow, options=LONG) as engine, engine.worker():
        client = AgentSessionClient(engine, flow)
        await begin(client)
        before = await ownership(engine)
        await engine.store.append_message("s", "appended", message(0, "noted"), engine.clock.now_ms())
        assert (await ownership(engine)).fence > before.fence
        assert number_of(await say(client)) == 3
        texts = [one.text for one in (await client.list_messages("s")).items]
        assert [text for text in texts if text in ("noted", "done 1", "done 3")] == ["done 1", "noted", "done 3"]


async def test_it_is_closed_and_deleted_at_once(world: World) -> None:
    flow = world.flow()
    async with world.engine(flow, options=LONG) as engine, engine.worker():
        client = AgentSessionClient(engine, flow)
        for session_id in ("s", "t"):
            await begin(client, session_id)
        await client.close_session("s")
        assert (await client.get_agent_snapshot("s")).status is SessionStatus.CLOSED
        await client.delete_session("t")
        await begin(client, "t")
        assert number_of(await say(client, session_id="t")) == 2
        (crew,) = crews_of(engine)
        await until(lambda: crew.held == ("t",), "the closed session's actor to leave")


@pytest.mark.parametrize("how", ["kill", "terminate"])
async def test_a_message_behind_its_workers_end_is_answered_by_another(world: World, how: str) -> None:
    with world.worker(linger=3600) as first:
        await first.wait_for_async("ready")
        async with world.engine() as engine:
            client = AgentSessionClient(engine, "Play")
            await begin(client)
            before = await ownership(engine)
            with world.worker() as second:
                await second.wait_for_async("ready")
                getattr(first, how)()
                assert number_of(await say(client)) == 2
                after = await ownership(engine)
                assert after.fence > before.fence
                assert set(world.doers("begin s c2")) == {second.pid}


async def test_messages_at_the_moment_at_which_it_is_given_up(world: World) -> None:
    """Whoever gives a session up and whoever sends a message meet in the store: one of them sees the other."""
    flow = world.flow()
    options = WorkerOptions(linger=timedelta(milliseconds=6))
    async with world.engine(flow, options=options) as engine, engine.worker(), world.engine() as elsewhere:
        clients = [AgentSessionClient(engine, flow), AgentSessionClient(elsewhere, "Play")]
        await begin(clients[0])
        for number in range(2, 26):
            await asyncio.sleep(number % 12 / 1000)
            assert number_of(await say(clients[number % 2], "model")) == number
