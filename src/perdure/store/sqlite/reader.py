"""SQLite's part of reading: connections that cannot write, in a few threads, or in the event loop for small reads."""

from __future__ import annotations

import asyncio
import sqlite3
from functools import partial
from typing import TypeVar

from perdure.errors import StoreBusy
from perdure.store.codec import Unreadable
from perdure.store.sql.reader import Read, Readers
from perdure.store.sqlite.connection import SqliteConnection
from perdure.store.sqlite.errors import translate
from perdure.store.sqlite.schema import Database

READERS = 2

T = TypeVar("T")


class SqliteReader:
    """A connection that is opened when it is first needed."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._connection: SqliteConnection | None = None

    def run(self, read: Read[T]) -> T:
        """See ``Reader``."""
        try:
            if self._connection is None:
                self._connection = SqliteConnection(self._database.reader())
            return _in_one_state(self._connection, read)
        except (sqlite3.Error, Unreadable) as raised:
            raise translate(raised, self._database.address, waited=self._database.busy_timeout) from raised

    def close(self) -> None:
        """See ``Reader``."""
        if self._connection is not None:
            self._connection.raw.close()


class SqliteReaders(Readers):
    """The reading threads, and a connection of the event loop's own."""

    def __init__(self, database: Database, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__(loop, partial(SqliteReader, database), READERS)
        self._database = database
        self._own: SqliteConnection | None = None

    async def read_now(self, read: Read[T]) -> T:
        """Runs ``read`` in the event loop.

        For reads of a few rows by index: they take less time than it takes to hand them to a thread.  In WAL mode no
        writer makes them wait; where something else would (another process recovers the file), a thread waits instead.
        """
        try:
            if self._own is None:
                self._own = SqliteConnection(self._database.reader())
                self._own.raw.execute("PRAGMA busy_timeout = 0")
            return _in_one_state(self._own, read)
        except (sqlite3.Error, Unreadable) as raised:
            error = translate(raised, self._database.address)
            if not isinstance(error, StoreBusy):
                raise error from raised
        return await self.read(read)

    def stop(self) -> None:
        """Finishes what is queued and ends the threads.  Blocks."""
        super().stop()
        if self._own is not None:
            self._own.raw.close()
            self._own = None


def _in_one_state(connection: SqliteConnection, read: Read[T]) -> T:
    connection.raw.execute("BEGIN")
    try:
        return read(connection)
    finally:
        if connection.raw.in_transaction:
            connection.raw.execute("COMMIT")
