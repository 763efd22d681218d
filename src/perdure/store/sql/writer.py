"""The one thread that writes: group commit, and the results handed back to the event loop.

Writes of one process are applied in the order in which they were submitted.  Those that wait at the same time share one
database transaction.  A write that fails before it changed anything leaves that transaction as it is; one that fails
half-way spoils it, and then each write of the group gets a transaction of its own, so that it hurts no other.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from queue import Empty, SimpleQueue
from typing import Any, Generic, TypeVar

from perdure.faults import Moment, reach
from perdure.store.base import Change
from perdure.store.sql.transaction import Transaction, Write, sum_of

MAX_GROUP = 256
"""Most writes that share one transaction: it bounds how long other processes wait."""

T = TypeVar("T")

logger = logging.getLogger(__name__)


@dataclass(slots=True, eq=False)
class Job(Generic[T]):
    """A write on its way.

    Attributes:
        sessions: ids of the sessions that it is about; empty: it finds out by itself, and takes its own locks.
        result, error, transaction: of its last run.
    """

    write: Write[T]
    sessions: tuple[str, ...]
    future: asyncio.Future[T]
    result: T | None = None
    error: BaseException | None = None
    transaction: Transaction | None = None


class Writer(ABC):
    """Owns the thread.  A store's own writer owns the connection.

    Args:
        address: of the store, for the log.
        on_change: called in the event loop after each commit.
        on_commit: called in the writer's thread after each commit, with the same change: tells other processes.
    """

    def __init__(
        self,
        address: str,
        loop: asyncio.AbstractEventLoop,
        on_commit: Callable[[Change], None],
        on_change: Callable[[Change], None],
    ) -> None:
        self.commits: int = 0
        """Transactions of the database that wrote something."""
        self._address = address
        self._loop = loop
        self._on_commit = on_commit
        self._on_change = on_change
        self._queue: SimpleQueue[Job[Any] | None] = SimpleQueue()
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Connects and starts the thread.  Blocks for the length of a connection's beginning."""
        self.connect()
        self._thread = threading.Thread(target=self._run, name="perdure-writer", daemon=True)
        self._thread.start()

    def submit(self, write: Write[T], *sessions: str) -> asyncio.Future[T]:
        """Queues a write.  The future is done when the write is on disk, or refused.

        Args:
            sessions: ids of the sessions that it is about; none: it is about any number of them, or about none.
        """
        future: asyncio.Future[T] = self._loop.create_future()
        self._queue.put(Job(write, sessions, future))
        return future

    def stop(self) -> None:
        """Finishes what is queued and ends the thread.  Blocks."""
        if self._thread is not None:
            self._queue.put(None)
            self._thread.join()
            self._thread = None

    # ------------------------------------------------------------ what a store's own writer does

    @abstractmethod
    def connect(self) -> None:
        """Gets a connection."""

    @abstractmethod
    def disconnect(self) -> None:
        """Lets go of it."""

    @abstractmethod
    def commit(self, jobs: Sequence[Job[Any]]) -> bool:
        """Runs the jobs in one transaction and sets the result or the error of each.

        ``False``: it was spoiled, and each job needs a transaction of its own.  Never for a single job.
        """

    def groups(self, jobs: list[Job[Any]]) -> list[list[Job[Any]]]:
        """Which jobs share a transaction, in order."""
        return [jobs]

    # ------------------------------------------------------------ in the thread

    def _run(self) -> None:
        going = True
        while going:
            jobs: list[Job[Any]] = []
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
                for group in self.groups(jobs):
                    self._write(group)
        self.disconnect()

    def _write(self, jobs: list[Job[Any]]) -> None:
        if not self.commit(jobs):
            for job in jobs:
                self.commit([job])
        done = [job for job in jobs if job.transaction is not None and job.error is None]
        change = sum_of(job.transaction for job in done if job.transaction is not None)
        for job in done:
            _reach_after(job)
        with contextlib.suppress(RuntimeError):  # the loop was closed: nobody waits any more
            self._loop.call_soon_threadsafe(self._deliver, jobs, change)
        if change is not None:
            self._tell_others(change)

    def _tell_others(self, change: Change) -> None:
        try:
            self._on_commit(change)
        except Exception:
            # The writes are on disk and this thread must live; others find them when they look by themselves.
            logger.exception("%s: telling other processes of a write failed", self._address)

    # ------------------------------------------------------------ in the event loop

    def _deliver(self, jobs: list[Job[Any]], change: Change | None) -> None:
        for job in jobs:
            if job.future.done():
                continue  # Whoever waited was cancelled; the write stands.
            if job.error is not None:
                job.future.set_exception(job.error)
            else:
                job.future.set_result(job.result)
        if change is not None:
            self._on_change(change)


def _reach_after(job: Job[Any]) -> None:
    assert job.transaction is not None
    try:
        for kind in job.transaction.kinds:
            reach(kind, Moment.AFTER)
    except Exception as error:  # noqa: BLE001  # an injected fault, for whoever awaits the job
        job.error = error
