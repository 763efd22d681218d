"""All sessions of a store move to another one, in every direction, and nothing of them is lost on the way."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.support.copies import LONG, fill, says, seen
from tests.support.postgres import Server
from tests.support.stores import Backend, PostgresBackend, SqliteBackend
from tests.unit.store.builders import FLOW, NOW, claim, new_session, open_turn, request, text_message, worker

from perdure.clock import SystemClock
from perdure.errors import StoreError, StoreInUse, StoreMoved, StoreUnavailable, StoreUnfinished, UsageError
from perdure.session.model import SessionStatus
from perdure.store.copying import Stage, copy_store, undo_copy
from perdure.store.copying.tables import LEFT_BEHIND, OF_SESSION, SHARED
from perdure.store.sql.store import SqlStore

NewPlace = Callable[[str], Backend]


@pytest.fixture
def new_place(tmp_path: Path, run_dir: Path, request: pytest.FixtureRequest) -> NewPlace:
    """Makes an empty place for a store of a kind."""
    made = iter(range(100))

    def make(kind: str) -> Backend:
        if kind == "sqlite":
            return SqliteBackend(tmp_path / f"{next(made)}.db", run_dir)
        server: Server = request.getfixturevalue("postgres")
        schema = server.new_schema()
        request.addfinalizer(lambda: server.drop(schema))
        return PostgresBackend(server, schema)

    return make


@pytest.fixture(params=["sqlite-postgresql", "postgresql-sqlite", "sqlite-sqlite", "postgresql-postgresql"])
def ends(request: pytest.FixtureRequest, new_place: NewPlace) -> tuple[Backend, Backend]:
    """A source and a destination, both empty."""
    source, destination = request.param.split("-")
    return new_place(source), new_place(destination)


@pytest.fixture
def there(new_place: NewPlace) -> tuple[Backend, Backend]:
    """The direction that matters most: a file, and a place on a server."""
    return new_place("sqlite"), new_place("postgresql")


async def _opened(place: Backend) -> SqlStore:
    store = place.new_store()
    await store.open()
    return store


async def _fill(place: Backend) -> tuple[dict[str, Any], str]:
    """What is seen of a store with something of everything in it, and the store's id."""
    store = await _opened(place)
    await fill(store)
    found, store_id = await seen(store), await store.store_id()
    await store.close()
    return found, store_id


async def _refuses(place: Backend, error: type[StoreError]) -> StoreError:
    with pytest.raises(error) as caught:
        await place.new_store().open()
    return caught.value


# ---------------------------------------------------------------- what is carried over


def test_no_table_is_both_carried_over_and_left_behind() -> None:
    carried = {table.name for table in (*OF_SESSION, SHARED)}
    assert not carried & LEFT_BEHIND


async def test_both_kinds_of_store_have_the_same_tables_and_columns_to_carry_over(
    there: tuple[Backend, Backend],
) -> None:
    found: list[dict[str, list[str]]] = []
    for place in there:
        await (await _opened(place)).close()
        tables = place.tables()
        assert tables.keys() - LEFT_BEHIND == {table.name for table in (*OF_SESSION, SHARED)}
        found.append({table: sorted(columns) for table, columns in tables.items() if table not in LEFT_BEHIND})
    assert found[0] == found[1]


async def test_a_moved_store_is_the_same_store_in_another_place(ends: tuple[Backend, Backend]) -> None:
    source, destination = ends
    before, store_id = await _fill(source)
    copied = await copy_store(source.address, destination.address)
    assert (copied.sessions, copied.kept_source, copied.before) == (len(before["sessions"]), False, False)
    rows = {one.table: one.rows for one in copied.compared}
    assert min(rows.values()) > 0, f"the test leaves out {[table for table, count in rows.items() if not count]}"
    for table, count in rows.items():
        assert destination.run(f"SELECT count(*) FROM {table}") == [(count,)]
    store = await _opened(destination)
    assert await seen(store) == before
    assert await store.store_id() == store_id
    await store.close()
    error = await _refuses(source, StoreMoved)
    assert error.facts["moved_to"] == copied.destination
    again = await copy_store(source.address, destination.address)
    assert again.before


async def test_sessions_go_on_in_the_new_place(ends: tuple[Backend, Backend]) -> None:
    source, destination = ends
    await _fill(source)
    await copy_store(source.address, destination.address)
    store = await _opened(destination)
    await store.register_worker(worker("w9"), NOW)
    await store.create_session(new_session("new"), ("t-new", text_message()), request(), NOW)
    owners = {found.lease.session_id: found for found in await store.claim("w9", [FLOW], 10, NOW)}
    assert owners.keys() == {"new", "queued", "waiting", "asking", "blocked"}
    assert [item.turn_id for item in owners["queued"].inbox] == ["t1", "t2", "t1"]
    await store.append_message("idle", "t-more", says(0, LONG), NOW)
    assert [one.text for one in (await store.list_messages("idle", None, 100)).items][-1] == LONG
    await store.delete_session("long")
    assert LONG in [one.text for one in (await store.list_messages("fork", None, 100)).items]
    await store.close()


# ---------------------------------------------------------------- who is in the way


async def test_a_store_with_live_workers_is_not_moved(ends: tuple[Backend, Backend]) -> None:
    source, destination = ends
    store = await _opened(source)
    await store.register_worker(worker(), SystemClock().now_ms())
    with pytest.raises(StoreInUse, match="SIGTERM") as caught:
        await copy_store(source.address, destination.address, patience=0.5)
    assert caught.value.facts["workers"] == ["w1"]
    await store.unregister_worker("w1")  # Nothing was changed: the store is in use as before.
    await store.close()
    await copy_store(source.address, destination.address)


async def test_a_dead_worker_is_not_in_the_way(ends: tuple[Backend, Backend]) -> None:
    source, destination = ends
    store = await _opened(source)
    await open_turn(store)
    await source.die(store)
    await copy_store(source.address, destination.address, patience=20)
    await store.close()
    other = await _opened(destination)
    await other.register_worker(worker("w2"), NOW)
    assert (await claim(other, "w2")).claimed.lost == 1
    await other.close()


async def test_who_has_the_source_open_already_cannot_write_it_any_more(ends: tuple[Backend, Backend]) -> None:
    """J14."""
    source, destination = ends
    store = await _opened(source)
    await store.create_session(new_session(), None, request(), NOW)
    copied = await copy_store(source.address, destination.address)
    for write in (
        store.accept_message("s", "t1", text_message(), request(), NOW),
        store.create_session(new_session("late"), None, request(), NOW),
        store.delete_session("s"),
        store.register_worker(worker(), NOW),
    ):
        with pytest.raises(StoreMoved) as caught:
            await write
        assert caught.value.facts["moved_to"] == copied.destination
    assert (await store.read_snapshot("s", NOW)).status is SessionStatus.IDLE
    await store.close()


async def test_what_cannot_be_copied_where(there: tuple[Backend, Backend], new_place: NewPlace) -> None:
    source, destination = there
    with pytest.raises(StoreUnavailable, match="no store"):
        await copy_store(source.address, destination.address)
    await _fill(source)
    with pytest.raises(UsageError, match="itself"):
        await copy_store(source.address, source.address)
    other = new_place("sqlite")
    await _fill(other)
    with pytest.raises(UsageError, match="not empty"):
        await copy_store(source.address, other.address)
    await copy_store(source.address, destination.address)
    with pytest.raises(StoreMoved):
        await copy_store(source.address, new_place("sqlite").address)
    with pytest.raises(StoreMoved):
        await copy_store(source.address, destination.address, keep_source=True)
    with pytest.raises(StoreMoved):
        await copy_store(other.address, source.address)
    with pytest.raises(UsageError, match="not empty"):
        await copy_store(other.address, destination.address)
    await (await _opened(other)).close()  # It was not touched.


# ---------------------------------------------------------------- stopped on the way


class Stopped(Exception):
    pass


def _stop_at(stage: Stage, nth: int = 1) -> Callable[[Stage, int, int], None]:
    def told(reached: Stage, done: int, of: int) -> None:
        if reached is stage and done >= nth:
            raise Stopped

    return told


async def _stopped_on_the_way(source: Backend, destination: Backend, **options: Any) -> None:
    with pytest.raises(Stopped):
        await copy_store(source.address, destination.address, told=_stop_at(Stage.COPYING, 3), group=1, **options)


async def test_neither_end_of_an_unfinished_move_can_be_used(
    ends: tuple[Backend, Backend], new_place: NewPlace
) -> None:
    """J14."""
    source, destination = ends
    before, _ = await _fill(source)
    await _stopped_on_the_way(source, destination)
    assert (await _refuses(source, StoreMoved)).facts["moved_to"]
    assert (await _refuses(destination, StoreUnfinished)).facts["copy_of"]
    third = new_place("sqlite")
    with pytest.raises(StoreMoved):
        await copy_store(source.address, third.address)
    with pytest.raises(StoreUnfinished):
        await copy_store(destination.address, third.address)
    await copy_store(source.address, destination.address)
    store = await _opened(destination)
    assert await seen(store) == before
    await store.close()


async def test_an_unfinished_move_can_be_given_up(ends: tuple[Backend, Backend], new_place: NewPlace) -> None:
    source, destination = ends
    before, store_id = await _fill(source)
    with pytest.raises(UsageError, match="not being moved"):
        await undo_copy(source.address, destination.address)
    await _stopped_on_the_way(source, destination)
    with pytest.raises(UsageError, match="not being moved"):
        await undo_copy(source.address, new_place("sqlite").address)
    await undo_copy(source.address, destination.address)
    store = await _opened(source)
    assert await seen(store) == before
    await store.accept_message("idle", "t-more", text_message(), request(), NOW)
    await store.close()
    await _refuses(destination, StoreUnfinished)
    # The same copy may go on; what changed meanwhile is copied anew.
    await copy_store(source.address, destination.address)
    other = await _opened(destination)
    assert (await other.read_snapshot("idle", NOW)).queued_messages == 1
    assert await other.store_id() == store_id
    await other.close()
    with pytest.raises(UsageError, match="finished"):
        await undo_copy(source.address, destination.address)


async def test_a_copy_beside_its_source_is_another_store(ends: tuple[Backend, Backend]) -> None:
    source, destination = ends
    before, store_id = await _fill(source)
    await _stopped_on_the_way(source, destination, keep_source=True)
    store = await _opened(source)  # It stays in use, and changes before the copy goes on.
    await store.delete_session("idle")
    await store.accept_message("queued", "t-more", text_message(), request(), NOW)
    after = await seen(store)
    await store.close()
    assert after != before
    copied = await copy_store(source.address, destination.address, keep_source=True)
    assert copied.kept_source
    for place in ends:
        store = await _opened(place)
        assert await seen(store) == after
        assert (await store.store_id() == store_id) is (place is source)
        await store.close()


async def test_a_difference_is_noticed(ends: tuple[Backend, Backend]) -> None:
    source, destination = ends
    await _fill(source)

    def meddle(stage: Stage, done: int, of: int) -> None:
        if (stage, done) == (Stage.COMPARING, 1):
            destination.run("UPDATE messages SET author = 'somebody else'")

    with pytest.raises(StoreError, match="not the same"):
        await copy_store(source.address, destination.address, told=meddle, group=1)
    await _refuses(destination, StoreUnfinished)


async def test_of_two_runs_at_once_the_later_one_finishes(there: tuple[Backend, Backend]) -> None:
    source, destination = there
    before, _ = await _fill(source)

    def overtake(stage: Stage, done: int, of: int) -> None:
        if (stage, done) == (Stage.COMPARING, of):
            asyncio.run(copy_store(source.address, destination.address))

    with pytest.raises(StoreError, match="another run"):
        await copy_store(source.address, destination.address, told=overtake)
    store = await _opened(destination)
    assert await seen(store) == before
    await store.close()


async def test_a_move_that_is_given_up_does_not_finish(there: tuple[Backend, Backend]) -> None:
    source, destination = there
    before, _ = await _fill(source)

    def give_up(stage: Stage, done: int, of: int) -> None:
        if (stage, done) == (Stage.COMPARING, of):
            asyncio.run(undo_copy(source.address, destination.address))

    with pytest.raises(StoreError, match="given up"):
        await copy_store(source.address, destination.address, told=give_up)
    await _refuses(destination, StoreUnfinished)
    store = await _opened(source)
    assert await seen(store) == before
    await store.close()
