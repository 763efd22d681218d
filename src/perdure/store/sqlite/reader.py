"""Reads beside the writer, with connections that cannot write: in a few threads, or at once when they are small.

Each read sees one state of the database, however many statements it takes.
"""

from __future__ import annotations

import asyncio
import contextlib
import sqlite3
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from queue import SimpleQueue
from typing import Any, TypeVar

from perdure.errors import StoreBusy
from perdure.store.codec import Unreadable
from perdure.store.sqlite.errors import translate
from perdure.store.sqlite.schema import Database

READERS = 2

T = TypeVar("T")

Read = Callable[[sqlite3.Connection], T]


@dataclass(slots=True, eq=False)
class Readers:
    """The reading threads, each of which starts when it is first needed, and a connection of the event loop's own."""

    database: Database
    loop: asyncio.AbstractEventLoop
    _queue: SimpleQueue[tuple[Read[Any], asyncio.Future[Any]] | None] = field(
        default_factory=SimpleQueue["tuple[Read[Any], asyncio.Future[Any]] | None"]
    )
    _threads: list[threading.Thread] = field(default_factory=list[threading.Thread])
    _waiting: int = 0
    _own: sqlite3.Connection | None = None

    async def read_now(self, read: Read[T]) -> T:
        """Runs ``read`` in the event loop.

        For reads of a few rows by index: they take less time than it takes to hand them to a thread.  In WAL mode no
        writer makes them wait; where something else would (another process recovers the file), a thread waits instead.
        """
        try:
            if self._own is None:
                self._own = self.database.reader()
                self._own.execute("PRAGMA busy_timeout = 0")
            return _in_one_state(self._own, read)
        except (sqlite3.Error, Unreadable) as raised:
            error = translate(raised, self.database.address)
            if not isinstance(error, StoreBusy):
                raise error from raised
        return await self.read(read)

    def read(self, read: Read[T]) -> asyncio.Future[T]:
        """Runs ``read`` in one of the threads."""
        future: asyncio.Future[T] = self.loop.create_future()
        self._waiting += 1
        if self._waiting > len(self._threads) and len(self._threads) < READERS:
            thread = threading.Thread(target=self._run, name=f"perdure-reader-{len(self._threads)}", daemon=True)
            self._threads.append(thread)
            thread.start()
        self._queue.put((read, future))
        return future

    def stop(self) -> None:
        """Finishes what is queued and ends the threads.  Blocks."""
        for _ in self._threads:
            self._queue.put(None)
        for thread in self._threads:
            thread.join()
        self._threads.clear()
        if self._own is not None:
            self._own.close()
            self._own = None

    def _run(self) -> None:
        connection: sqlite3.Connection | None = None
        while (job := self._queue.get()) is not None:
            read, future = job
            result: Any = None
            error: BaseException | None = None
            try:
                if connection is None:
                    connection = self.database.reader()
                result = _in_one_state(connection, read)
            except (sqlite3.Error, Unreadable) as raised:
                error = translate(raised, self.database.address, waited=self.database.busy_timeout)
                error.__cause__ = raised
            except BaseException as raised:  # noqa: BLE001  # handed to whoever awaits the read
                error = raised
            with contextlib.suppress(RuntimeError):  # the loop was closed: nobody waits any more
                self.loop.call_soon_threadsafe(self._deliver, future, result, error)
        if connection is not None:
            connection.close()

    def _deliver(self, future: asyncio.Future[Any], result: object, error: BaseException | None) -> None:
        self._waiting -= 1
        if future.done():
            return
        if error is not None:
            future.set_exception(error)
        else:
            future.set_result(result)


def _in_one_state(connection: sqlite3.Connection, read: Read[T]) -> T:
    connection.execute("BEGIN")
    try:
        return read(connection)
    finally:
        if connection.in_transaction:
            connection.execute("COMMIT")
