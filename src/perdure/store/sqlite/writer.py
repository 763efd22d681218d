"""The one thread that writes: group commit, and the results handed back to the event loop.

Writes of one process are applied in the order in which they were submitted.  All that wait at the same time share one
database transaction.  A write that fails before it changed anything leaves that transaction as it is; one that fails
half-way spoils it, and then each write of the group gets a transaction of its own, so that it hurts no other.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import sqlite3
import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from queue import Empty, SimpleQueue
from typing import Any, Generic, TypeVar

from perdure.faults import DurableWrite, Moment, reach
from perdure.store.base import Change
from perdure.store.codec import LongText, Packed, Unreadable
from perdure.store.sqlite.errors import translate
from perdure.store.sqlite.queries import sql
from perdure.store.sqlite.schema import Database

MAX_GROUP = 256
"""Most writes that share one transaction: it bounds how long other processes wait."""

LOCK_PAUSES = (0.0002,) * 20 + (0.001,) * 1000 + (0.005,)
"""Seconds between tries to get the write lock; the last one repeats.  (SQLite's own handler soon sleeps for 100 ms.)"""

CHECKPOINT_PAGES = 4000
"""Size of the write-ahead log, in pages, from which a commit also moves it into the database."""

_PAYLOAD_INSERT = sql("payload_insert")
_PAYLOAD_REF_INSERT = sql("payload_ref_insert")

T = TypeVar("T")

logger = logging.getLogger(__name__)


class Transaction:
    """What one write does to the database, seen from inside that write."""

    __slots__ = ("connection", "execute", "executemany", "kinds", "sessions", "work")

    def __init__(self, connection: sqlite3.Connection) -> None:
        self.connection = connection
        self.execute = connection.execute
        self.executemany = connection.executemany
        self.kinds: tuple[DurableWrite, ...] = ()
        self.sessions: set[str] = set()
        self.work = False

    def starts(self, *kinds: DurableWrite) -> None:
        """Says that these durable writes begin now; before anything of them is written."""
        for kind in kinds:
            reach(kind, Moment.BEFORE)
        self.kinds += kinds

    def changed(self, sessions: Iterable[str], *, work: bool) -> None:
        """Says what listeners hear once the write is on disk."""
        self.sessions.update(sessions)
        self.work = self.work or work

    def keep(self, session_key: int, text: Packed | None) -> str | bytes | None:
        """What goes into the column for this text: the text, or the digest of one that is kept apart."""
        if not isinstance(text, LongText):
            return text
        self.execute(_PAYLOAD_INSERT, (text.digest, text.text))
        self.execute(_PAYLOAD_REF_INSERT, (session_key, text.digest))
        return text.digest


Write = Callable[[Transaction], T]
"""One write.  It may run twice (the first time rolled back), so it changes nothing but the database."""


@dataclass(slots=True, eq=False)
class _Job(Generic[T]):
    write: Write[T]
    future: asyncio.Future[T]
    result: T | None = None
    error: BaseException | None = None
    transaction: Transaction | None = None


@dataclass(slots=True, eq=False)
class Writer:
    """Owns the writing connection and its thread.

    Attributes:
        on_commit: called in the writer's thread after each commit.
        on_change: called in the event loop after each commit, with the same change.
        commits: transactions of the database that wrote something.
    """

    database: Database
    loop: asyncio.AbstractEventLoop
    on_commit: Callable[[Change], None]
    on_change: Callable[[Change], None]
    commits: int = 0
    connection: sqlite3.Connection = field(init=False)
    _queue: SimpleQueue[_Job[Any] | None] = field(default_factory=SimpleQueue["_Job[Any] | None"])
    _thread: threading.Thread | None = None

    def start(self) -> None:
        """Connects and starts the thread.  Blocks for the length of a file open."""
        self.connection = self.database.connect()
        self.connection.execute("PRAGMA busy_timeout = 0")
        self.connection.execute(f"PRAGMA wal_autocheckpoint = {CHECKPOINT_PAGES}")
        self._thread = threading.Thread(target=self._run, name="perdure-writer", daemon=True)
        self._thread.start()

    def submit(self, write: Write[T]) -> asyncio.Future[T]:
        """Queues a write.  The future is done when the write is on disk, or refused."""
        future: asyncio.Future[T] = self.loop.create_future()
        self._queue.put(_Job(write, future))
        return future

    def stop(self) -> None:
        """Finishes what is queued and ends the thread.  Blocks."""
        if self._thread is not None:
            self._queue.put(None)
            self._thread.join()
            self._thread = None

    # ------------------------------------------------------------ in the thread

    def _run(self) -> None:
        going = True
        while going:
            jobs: list[_Job[Any]] = []
            job = self._queue.get()
            while job is not None:
                jobs.append(job)
                if len(jobs) == MAX_GROUP:
                    break
                try:
                    job = self._queue.get_nowait()
                except Empty:
                    break
            else:
                going = False
            if jobs:
                self._write(jobs)
        self.connection.close()

    def _write(self, jobs: list[_Job[Any]]) -> None:
        groups = [jobs]
        if not self._commit(jobs):
            groups = [[job] for job in jobs]
            for group in groups:
                self._commit(group)
        done = [job for job in jobs if job.transaction is not None and job.error is None]
        change = _sum_of(job.transaction for job in done if job.transaction is not None)
        for job in done:
            self._reach_after(job)
        if change is not None:
            self._tell_others(change)
        with contextlib.suppress(RuntimeError):  # the loop was closed: nobody waits any more
            self.loop.call_soon_threadsafe(self._deliver, jobs, change)

    def _tell_others(self, change: Change) -> None:
        try:
            self.on_commit(change)
        except Exception:
            # The writes are on disk and this thread must live; others find them when they look by themselves.
            logger.exception("%s: telling other processes of a write failed", self.database.address)

    def _commit(self, jobs: list[_Job[Any]]) -> bool:
        """Runs the jobs in one transaction.  ``False``: it was spoiled, and each job needs one of its own."""
        connection = self.connection
        alone = len(jobs) == 1
        try:
            self._begin()
        except sqlite3.Error as error:
            for job in jobs:
                job.error = translate(error, self.database.address, waited=self.database.busy_timeout)
            return True
        started = connection.total_changes
        try:
            for job in jobs:
                before = connection.total_changes
                job.transaction, job.error = Transaction(connection), None
                try:
                    job.result = job.write(job.transaction)
                except BaseException as error:  # noqa: BLE001  # handed to whoever awaits the job
                    job.error = self._as_ours(error)
                    if not connection.in_transaction or connection.total_changes != before:
                        return alone
            if connection.total_changes != started:
                connection.execute("COMMIT")
                self.commits += 1
        except sqlite3.Error as error:
            if alone:
                jobs[0].error = self._as_ours(error)
            return alone
        finally:
            if connection.in_transaction:
                connection.execute("ROLLBACK")
        return True

    def _begin(self) -> None:
        """Gets the write lock; other processes' writers hold it for about a millisecond at a time."""
        deadline = time.monotonic() + self.database.busy_timeout
        tries = 0
        while True:
            try:
                self.connection.execute("BEGIN IMMEDIATE")
                return
            except sqlite3.OperationalError as error:
                if (error.sqlite_errorcode & 0xFF) != sqlite3.SQLITE_BUSY or time.monotonic() > deadline:
                    raise
            time.sleep(LOCK_PAUSES[min(tries, len(LOCK_PAUSES) - 1)])
            tries += 1

    def _as_ours(self, error: BaseException) -> BaseException:
        if isinstance(error, (sqlite3.Error, Unreadable)):
            ours = translate(error, self.database.address)
            ours.__cause__ = error
            return ours
        return error

    def _reach_after(self, job: _Job[Any]) -> None:
        assert job.transaction is not None
        try:
            for kind in job.transaction.kinds:
                reach(kind, Moment.AFTER)
        except Exception as error:  # noqa: BLE001  # an injected fault, for whoever awaits the job
            job.error = error

    # ------------------------------------------------------------ in the event loop

    def _deliver(self, jobs: list[_Job[Any]], change: Change | None) -> None:
        for job in jobs:
            if job.future.done():
                continue  # Whoever waited was cancelled; the write stands.
            if job.error is not None:
                job.future.set_exception(job.error)
            else:
                job.future.set_result(job.result)
        if change is not None:
            self.on_change(change)


def _sum_of(transactions: Iterable[Transaction]) -> Change | None:
    """What the writes of one group changed together; ``None``: nothing that anyone listens for."""
    sessions: set[str] = set()
    work = False
    for transaction in transactions:
        sessions |= transaction.sessions
        work = work or transaction.work
    return Change(frozenset(sessions), work) if sessions or work else None
