"""``SqliteStore``: the store contract on one SQLite file.

Ties the parts together: the writer's thread, the readers', the locks of workers, the signals between processes.
"""

from __future__ import annotations

import asyncio
import os
import sqlite3
from collections.abc import Awaitable
from pathlib import Path
from typing import TypeVar

from perdure.clock import Clock, SystemClock
from perdure.errors import UsageError
from perdure.ids import IdSource, RandomIds
from perdure.store.base import Worker
from perdure.store.sql import workers
from perdure.store.sql.reader import Read
from perdure.store.sql.store import SqlStore
from perdure.store.sql.transaction import Write
from perdure.store.sqlite.errors import translate
from perdure.store.sqlite.locks import WorkerLocks
from perdure.store.sqlite.notices import Notices
from perdure.store.sqlite.reader import SqliteReaders
from perdure.store.sqlite.schema import Database, Durability, prepare, released_schema
from perdure.store.sqlite.writer import SqliteWriter

T = TypeVar("T")


class SqliteStore(SqlStore):
    """Sessions in one SQLite file.

    Args:
        path: the file; made when it does not exist (its directory must).
        durability: what a finished write survives: ``"power"`` (a loss of power) or ``"process"`` (the end of the
            process only, and faster).
        clock, ids: for the store's own marks; ``None`` for the machine's clock and random ids.
        run_dir: where the sockets for wake-ups are; ``None`` for a private directory below the system's temporary one.
            All processes that share the file must agree on it.
        busy_timeout: seconds that a write waits for another program's lock before ``StoreBusy``.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        durability: Durability = "power",
        clock: Clock | None = None,
        ids: IdSource | None = None,
        run_dir: str | os.PathLike[str] | None = None,
        busy_timeout: float = 10.0,
    ) -> None:
        if os.fspath(path) in ("", ":memory:"):
            raise UsageError("a durable store needs a file; give SqliteStore the path of one")
        if durability not in ("power", "process"):
            raise UsageError(f"durability is {durability!r}; it must be 'power' or 'process'")
        super().__init__()
        self._database = Database(Path(path), durability, busy_timeout)
        self._clock = clock or SystemClock()
        self._ids = ids or RandomIds()
        self._run_dir = None if run_dir is None else Path(run_dir)
        self._locks = WorkerLocks(self._database.path)
        self._open: tuple[SqliteWriter, SqliteReaders, Notices] | None = None
        self._commits = 0

    def another(self) -> SqliteStore:
        file = self._database
        return SqliteStore(
            file.path,
            durability=file.durability,
            clock=self._clock,
            ids=self._ids,
            run_dir=self._run_dir,
            busy_timeout=file.busy_timeout,
        )

    @property
    def address(self) -> str:
        """``sqlite:///`` and the path."""
        return self._database.address

    @property
    def commits(self) -> int:
        """Transactions of the database that wrote something, since the store was opened."""
        return self._commits if self._open is None else self._open[0].commits

    # ------------------------------------------------------------ life

    async def open(self) -> None:
        """Opens or creates the file and brings its schema up to date.

        Raises:
            StoreNotOurs, StoreTooNew, StoreBusy, StoreReadOnly, StoreFull, StoreUnavailable, StoreMoved,
            StoreUnfinished
        """
        loop = asyncio.get_running_loop()
        now_ms = self._clock.now_ms()
        await loop.run_in_executor(None, prepare, self._database, released_schema(), now_ms)
        readers = SqliteReaders(self._database, loop)
        notices = Notices(self._database, self._run_dir, self._ids.new_id(), loop, self._tell)
        writer = SqliteWriter(self._database, loop, notices.send, self._tell)
        try:
            notices.start()
            writer.start()
        except sqlite3.Error as error:
            await notices.stop()
            notices.close()
            raise translate(error, self.address) from error
        self._open = (writer, readers, notices)

    async def close(self) -> None:
        """Finishes the writes that were handed in, and lets go of everything.  Closing twice is no error."""
        if self._open is None:
            return
        writer, readers, notices = self._open
        self._open = None
        await notices.stop()
        loop = asyncio.get_running_loop()
        await loop.run_in_executor(None, writer.stop)
        await loop.run_in_executor(None, readers.stop)
        notices.close()
        self._locks.close()
        self._commits = writer.commits

    def abandon(self) -> None:
        """Lets go of everything although the event loop in which the store was opened is gone.  Blocks."""
        if self._open is None:
            return
        writer, readers, notices = self._open
        self._open = None
        writer.stop()
        readers.stop()
        notices.close()
        self._locks.close()
        self._commits = writer.commits

    @property
    def _writer(self) -> SqliteWriter:
        return self._opened()[0]

    @property
    def _readers(self) -> SqliteReaders:
        return self._opened()[1]

    def _opened(self) -> tuple[SqliteWriter, SqliteReaders, Notices]:
        if self._open is None:
            raise UsageError(f"{self.address} is not open; call open() first")
        return self._open

    def _submit(self, write: Write[T], *sessions: str) -> asyncio.Future[T]:
        return self._writer.submit(write, *sessions)

    def _read(self, read: Read[T]) -> Awaitable[T]:
        return self._readers.read(read)

    def _read_now(self, read: Read[T]) -> Awaitable[T]:
        return self._readers.read_now(read)

    # ------------------------------------------------------------ workers

    async def register_worker(self, worker: Worker, now_ms: int) -> None:
        """See ``SessionStore``."""
        writer = self._writer
        try:
            self._locks.take(worker.worker_id)
        except OSError as error:
            raise translate(error, self.address) from error
        try:
            await writer.submit(workers.register_worker(worker, now_ms, now_ms))
        except BaseException:
            self._locks.release(worker.worker_id)
            raise

    async def unregister_worker(self, worker_id: str) -> None:
        """See ``SessionStore``."""
        try:
            gone = workers.remove_workers((worker_id,), self._clock.now_ms(), orderly=True)
            await self._writer.submit(gone)
        finally:
            self._locks.release(worker_id)  # If the write failed, others find the lock free.

    async def reap_workers(self, now_ms: int, *, expired: bool = True) -> int:
        """See ``SessionStore``."""
        known = await self._readers.read_now(lambda connection: connection.execute("workers_all").fetchall())
        others = {worker_id: until for worker_id, until in known if not self._locks.holds(worker_id)}
        # Whoever looks is alive: after a long stall it renews its own lease, rather than give up what it runs.
        self._locks.keep_watching(others.keys())
        gone = [
            worker_id
            for worker_id, until in others.items()
            if (expired and until <= now_ms) or self._locks.is_free(worker_id)
        ]
        if not gone:
            return 0
        removed = await self._writer.submit(workers.remove_workers(gone, now_ms))
        for worker_id in gone:
            self._locks.remove(worker_id)
        return removed
