"""The live stream over processes and restarts: every event once and in order, from any cursor on."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence
from contextlib import ExitStack, aclosing
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest
from tests.engine.test_worker_outlives import RENEWS_SOON, declare_dead
from tests.support.session_rules import DELTAS, ENDED, check_events, check_rules, read_stored
from tests.support.troupe import World, hub_of

from perdure import AgentEvent, AgentSessionClient, EventCursorExpired, SessionNotFound, UsageError
from perdure.engine import feed

TURNS = 3


async def read(client: AgentSessionClient, session_id: str, after: str | None, count: int) -> list[AgentEvent]:
    """Exactly so many events."""
    async with aclosing(stream(client, session_id, after)) as events:
        return [await anext(events) for _ in range(count)]


async def follow(client: AgentSessionClient, session_id: str, turns: int) -> list[AgentEvent]:
    """Reads until so many turns have ended."""
    seen: list[AgentEvent] = []
    async with aclosing(stream(client, session_id)) as events:
        while sum(event.type in ENDED for event in seen) < turns:
            seen.append(await anext(events))
    return seen


async def stream(
    client: AgentSessionClient, session_id: str, after: str | None = None
) -> AsyncGenerator[AgentEvent, None]:
    async for event in client.stream_events(session_id, after=after):
        yield event


def durable(events: Sequence[AgentEvent]) -> list[str]:
    return [f"{event.cursor} {event.type.value}" for event in events if event.type not in DELTAS]


async def test_readers_in_other_processes_miss_nothing_while_owners_are_killed(local_world: World) -> None:
    world = local_world
    async with world.engine() as engine, world.engine() as another:
        client = AgentSessionClient(engine, "Play")
        for turn in range(TURNS):
            await client.start_session("s")
            await client.send_user_message("s", f"model ask model par:door{turn} model")
        reader = asyncio.create_task(follow(client, "s", TURNS))
        for turn in range(TURNS):
            with world.worker() as worker:  # ends the turn before and begins this one
                (interrupt,) = (await client.wait("s", timeout=30)).pending_interrupts
                await client.resolve_interrupt("s", interrupt.interrupt_id, approved=turn % 2 == 0)
                await world.reached(f"at door{turn}", 3)
                worker.kill()
            world.open(f"door{turn}")
        with world.worker():
            seen = await reader
            # Whoever comes later, from whichever cursor on, gets exactly the rest.
            late = AgentSessionClient(another)
            assert await read(late, "s", None, len(seen)) == seen
            for place, event in enumerate(seen[:-1]):
                rest = seen[place + 1 :]
                assert await read(late, "s", event.cursor, len(rest)) == rest
        stored = await read_stored(client, "s")
        check_rules(stored, world)
        assert durable(seen) == durable(stored.events)
        assert [event.cursor for event in seen] == [event.cursor for event in stored.events]


async def test_a_reader_beside_the_owner_misses_nothing_when_the_owner_changes(world: World) -> None:
    flow = world.flow()
    text = "model model read:a model par:b model model"
    async with world.engine(flow, options=replace(RENEWS_SOON, drain_grace=timedelta(0))) as engine:
        client = AgentSessionClient(engine, flow)
        await client.start_session("s", text)
        await client.send_user_message("s", "model")
        readers = [asyncio.create_task(follow(client, "s", 2))]
        async with engine.worker():
            await world.reached("at a")
            readers.append(asyncio.create_task(follow(client, "s", 2)))
            await declare_dead(world)  # it goes on showing for a while, and takes the session again
            await world.reached("at a", 2)
        with ExitStack() as children:
            children.enter_context(world.worker())  # now an owner in another process
            world.open("a")
            await world.reached("at b", 3)
            readers.append(asyncio.create_task(follow(client, "s", 2)))
        async with engine.worker():  # and in this one again
            await world.reached("at b", 5)
            world.open("b")
            seen = [await reader for reader in readers]
        stored = await read_stored(client, "s")
        check_rules(stored, world)
        for events in seen:
            check_events(events)
            assert durable(events) == durable(stored.events)
        deltas = {event.cursor for event in stored.events if event.type in DELTAS}
        for events in seen:  # a delta that was shown may have died with its owner; a stored one is shown
            assert deltas <= {event.cursor for event in events}


async def test_a_reader_that_falls_behind_costs_no_memory_and_misses_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(feed, "MAX_BEHIND", 10)
    world = World(tmp_path)
    flow = world.flow()
    async with world.engine(flow) as engine, engine.worker():
        client = AgentSessionClient(engine, flow)
        await client.start_session("s")
        async with aclosing(stream(client, "s")) as events:
            await client.send_user_message("s", "model " * 50)
            seen = [await anext(events)]  # and now it is busy with other things
            (subscription,) = hub_of(engine)._readers["s"]
            await client.wait("s", timeout=20)
            await client.send_user_message("s", "model " * 50)
            await client.wait("s", timeout=20)
            assert len(subscription.items) <= 10
            while sum(event.type in ENDED for event in seen) < 2:
                seen.append(await anext(events))
        stored = await read_stored(client, "s")
        assert [event.cursor for event in seen] == [event.cursor for event in stored.events]
        assert not hub_of(engine)._readers, "a reader that leaves leaves nothing behind"


async def test_a_ring_that_no_longer_reaches_back_says_so(local_world: World) -> None:
    world = local_world
    flow = replace(world.flow(), event_stream_capacity_bytes=4000)
    async with world.engine(flow) as engine, engine.worker():
        client = AgentSessionClient(engine, flow)
        await client.start_session("s", "model")
        first = await anext(stream(client, "s"))
        await client.send_user_message("s", "model " * 30)
        await client.wait("s", timeout=20)
        with pytest.raises(EventCursorExpired) as refused:
            await anext(stream(client, "s", first.cursor))
        stored = (await read_stored(client, "s")).events
        kept = await read(client, "s", None, len(stored))
        assert [event.cursor for event in kept] == [event.cursor for event in stored]
        assert refused.value.facts == {"session_id": "s", "cursor": first.cursor, "oldest": stored[0].cursor}


async def test_the_stream_of_a_session_that_is_deleted_ends_with_an_error(world: World) -> None:
    flow = world.flow()
    async with world.engine(flow) as engine, engine.worker(), world.engine() as other:
        client = AgentSessionClient(engine, flow)
        with pytest.raises(SessionNotFound):
            await anext(stream(client, "s"))
        await client.start_session("s", "model read:door")
        readers = [asyncio.create_task(follow(AgentSessionClient(reads), "s", 1)) for reads in (engine, other)]
        await world.reached("at door")
        await client.delete_session("s")
        for reader in readers:
            with pytest.raises(SessionNotFound):
                await reader
        with pytest.raises(SessionNotFound):
            await client.wait("s")


async def test_a_text_that_is_no_cursor_is_refused(local_world: World) -> None:
    world = local_world
    async with world.engine() as engine:
        client = AgentSessionClient(engine, "Play")
        await client.start_session("s")
        with pytest.raises(UsageError):
            await anext(stream(client, "s", "yesterday"))
