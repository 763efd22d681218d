"""Reads beside the writer: one state each, never held up by a write, and never holding up the event loop."""

from __future__ import annotations

import asyncio
import sqlite3
import threading

import pytest
from tests.unit.store.builders import NOW, new_session, request

from perdure.errors import StoreCorrupt, StoreUnavailable
from perdure.store.sql.connection import Connection
from perdure.store.sqlite import SqliteStore
from perdure.store.sqlite.connection import SqliteConnection


def _raw(connection: Connection) -> sqlite3.Connection:
    assert isinstance(connection, SqliteConnection)
    return connection.raw


def _count(connection: Connection) -> int:
    count: int = _raw(connection).execute("SELECT count(*) FROM sessions").fetchone()[0]
    return count


def _thread(_: Connection) -> int:
    return threading.get_ident()


async def test_small_reads_run_in_the_event_loop_and_others_do_not(store: SqliteStore) -> None:
    assert await store._readers.read_now(_thread) == threading.get_ident()
    assert await store._readers.read(_thread) != threading.get_ident()


async def test_reads_see_what_was_written_before(store: SqliteStore) -> None:
    for n in range(1, 4):
        await store.create_session(new_session(f"s{n}"), None, request(), NOW)
        assert await store._readers.read_now(_count) == n
        assert await store._readers.read(_count) == n


async def test_a_read_sees_one_state_of_the_database(store: SqliteStore, path: object) -> None:
    writing = sqlite3.connect(str(path))

    def twice(connection: Connection) -> tuple[int, int]:
        before = _count(connection)
        writing.execute("UPDATE meta SET value = value")
        writing.execute("DELETE FROM sessions")
        writing.commit()
        return before, _count(connection)

    await store.create_session(new_session(), None, request(), NOW)
    assert await store._readers.read_now(twice) == (1, 1)
    assert await store._readers.read_now(_count) == 0
    writing.close()


async def test_readers_cannot_write(store: SqliteStore) -> None:
    for read in (store._readers.read, store._readers.read_now):
        with pytest.raises(Exception, match="readonly"):
            await read(lambda connection: _raw(connection).execute("DELETE FROM sessions"))


async def test_a_small_read_that_would_have_to_wait_goes_to_a_thread(store: SqliteStore) -> None:
    tried: list[int] = []

    def busy_at_first(_: Connection) -> str:
        tried.append(threading.get_ident())
        if len(tried) == 1:
            error = sqlite3.OperationalError("database is locked")
            error.sqlite_errorcode = sqlite3.SQLITE_BUSY
            raise error
        return "read"

    assert await store._readers.read_now(busy_at_first) == "read"
    assert tried[0] == threading.get_ident() != tried[1]


async def test_both_ways_of_reading_report_the_same_errors(store: SqliteStore) -> None:
    from perdure.store.codec import Unreadable

    def broken(_: Connection) -> None:
        raise Unreadable("session 's'", "nonsense")

    def unreachable(_: Connection) -> None:
        error = sqlite3.OperationalError("disk I/O error")
        error.sqlite_errorcode = sqlite3.SQLITE_IOERR
        raise error

    for read in (store._readers.read, store._readers.read_now):
        with pytest.raises(StoreCorrupt) as corrupt:
            await read(broken)
        assert (corrupt.value.where, corrupt.value.address) == ("session 's'", store.address)
        with pytest.raises(StoreUnavailable):
            await read(unreachable)
        assert await read(_count) == 0


async def test_a_reader_whose_caller_was_cancelled_goes_on_with_the_next(store: SqliteStore) -> None:
    go = threading.Event()
    slow = store._readers.read(lambda connection: go.wait(10))
    slow.cancel()
    others = [store._readers.read(_count) for _ in range(4)]
    go.set()
    assert await asyncio.gather(*others) == [0] * 4
