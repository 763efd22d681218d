"""The ring of live events: ordered cursors, a byte budget, and readers who are told what they missed."""

from __future__ import annotations

import pytest
from tests.support.stores import Backend
from tests.unit.store.builders import NOW, Owner, claim, event, new_session, open_turn, request, text_message, worker

from perdure.errors import UsageError
from perdure.session.events import cursor_for
from perdure.session.model import AgentEventType
from perdure.store.base import EventPut
from perdure.store.sql.store import SqlStore


async def _numbers(store: SqlStore, after: str | None = None, limit: int = 1000) -> list[str]:
    return [shown.cursor for shown in (await store.read_events("s", after, limit)).events]


async def _small_ring(store: SqlStore, capacity: int) -> Owner:
    await store.register_worker(worker(), NOW)
    new = new_session(event_capacity_bytes=capacity)
    await store.create_session(new, ("t1", text_message()), request(), NOW)
    return await claim(store)


def _size() -> int:
    return len(event(1).event.model_dump_json())


async def test_a_reader_goes_on_behind_its_cursor(store: SqlStore) -> None:
    owner = await open_turn(store)
    await owner.commit(events=(event(1), event(2, text="größer"), event(3)))
    batch = await store.read_events("s", None, 2)
    assert [shown.text for shown in batch.events] == ["x", "größer"]
    assert (batch.oldest, batch.trimmed) == (cursor_for(1, 1), False)
    assert await _numbers(store, batch.events[-1].cursor) == [cursor_for(1, 3)]
    assert await _numbers(store, cursor_for(1, 3)) == []


async def test_cursors_follow_the_lease_not_what_the_event_says(store: SqlStore) -> None:
    owner = await open_turn(store)
    await owner.commit(events=(event(1),))
    await owner.release()
    second = await claim(store)
    await second.commit(events=(event(1),))
    assert await _numbers(store) == [cursor_for(1, 1), cursor_for(2, 1)]


async def test_an_event_is_stored_once(store: SqlStore) -> None:
    owner = await open_turn(store)
    await owner.commit(events=(event(1), event(2)))
    await owner.commit(events=(event(2), event(3)))
    assert await _numbers(store) == [cursor_for(1, n) for n in (1, 2, 3)]


async def test_a_cursor_of_the_future_has_nothing_behind_it_yet(store: SqlStore) -> None:
    owner = await open_turn(store)
    await owner.commit(events=(event(1),))
    batch = await store.read_events("s", cursor_for(7, 1), 10)
    assert (batch.events, batch.trimmed) == ((), False)


async def test_what_is_no_cursor_is_refused(store: SqlStore) -> None:
    await open_turn(store)
    with pytest.raises(UsageError, match="no event cursor"):
        await store.read_events("s", "12", 10)


async def test_the_oldest_events_make_room(store: SqlStore, backend: Backend) -> None:
    capacity = 10 * _size()
    owner = await _small_ring(store, capacity)
    for number in range(1, 31):
        await owner.commit(events=(event(number),))
        ((kept, counted),) = backend.run("SELECT (SELECT sum(size) FROM events), event_bytes FROM sessions")
        assert kept == counted <= capacity
    numbers = await _numbers(store)
    assert numbers == [cursor_for(1, n) for n in range(31 - len(numbers), 31)]
    assert len(numbers) >= 8


async def test_a_reader_that_fell_behind_is_told(store: SqlStore) -> None:
    owner = await _small_ring(store, 10 * _size())
    await owner.commit(events=tuple(event(n) for n in range(1, 21)))
    batch = await store.read_events("s", None, 100)
    oldest = batch.events[0].cursor
    assert (batch.oldest, batch.trimmed) == (oldest, False)
    last_lost = int(oldest.split("-")[1], 16) - 1
    assert not (await store.read_events("s", cursor_for(1, last_lost), 100)).trimmed
    behind = await store.read_events("s", cursor_for(1, last_lost - 1), 100)
    assert behind.trimmed
    assert behind.oldest == oldest


async def test_an_event_larger_than_the_ring_is_not_kept(store: SqlStore) -> None:
    owner = await _small_ring(store, 100)
    await owner.commit(events=(event(1),))
    batch = await store.read_events("s", cursor_for(0, 0), 10)
    assert (batch.events, batch.oldest, batch.trimmed) == ((), None, True)


async def test_every_field_of_an_event_survives(store: SqlStore) -> None:
    owner = await open_turn(store)
    put = EventPut(
        1,
        event(1, AgentEventType.TOOL_CALL_FINISHED, text=None).event.model_copy(
            update={"step_execution_id": "step", "attempt": 2, "data": {"arguments": {"a": [None, 1.5]}}}
        ),
    )
    await owner.commit(events=(put,))
    assert (await store.read_events("s", None, 1)).events == (put.event,)
