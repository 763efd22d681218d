"""Reads beside the writer, in a few threads.  Each sees one state of the database, however many statements it takes."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable
from queue import SimpleQueue
from typing import Any, Protocol, TypeVar

from perdure.store.sql.connection import Connection

T = TypeVar("T")

Read = Callable[[Connection], T]


class Reader(Protocol):
    """What one thread reads with; used by that thread only."""

    def run(self, read: Read[T]) -> T:
        """Runs a read in one state of the database.

        Raises:
            StoreError: the database failed.
            And all that ``read`` raises.
        """
        ...

    def close(self) -> None:
        """Lets go of the connection, if there is one."""
        ...


class Readers:
    """The reading threads, each of which starts when it is first needed.

    Args:
        size: how many there are at most.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, new_reader: Callable[[], Reader], size: int) -> None:
        self._loop = loop
        self._new_reader = new_reader
        self._size = size
        self._queue: SimpleQueue[tuple[Read[Any], asyncio.Future[Any]] | None] = SimpleQueue()
        self._threads: list[threading.Thread] = []
        self._waiting = 0

    def read(self, read: Read[T]) -> asyncio.Future[T]:
        """Runs ``read`` in one of the threads."""
        future: asyncio.Future[T] = self._loop.create_future()
        self._waiting += 1
        if self._waiting > len(self._threads) and len(self._threads) < self._size:
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

    def _run(self) -> None:
        reader = self._new_reader()
        while (job := self._queue.get()) is not None:
            read, future = job
            result: Any = None
            error: BaseException | None = None
            try:
                result = reader.run(read)
            except BaseException as raised:  # noqa: BLE001  # handed to whoever awaits the read
                error = raised
            with contextlib.suppress(RuntimeError):  # the loop was closed: nobody waits any more
                self._loop.call_soon_threadsafe(self._deliver, future, result, error)
        reader.close()

    def _deliver(self, future: asyncio.Future[Any], result: object, error: BaseException | None) -> None:
        self._waiting -= 1
        if future.done():
            return
        if error is not None:
            future.set_exception(error)
        else:
            future.set_result(result)
