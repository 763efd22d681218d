"""How a store hears of other processes' writes, and how others see that this process lives.

One connection of its own does both, in the event loop: it listens, and its database session holds the advisory locks of
this process's workers.  When the process dies, on whatever host, the server ends the session, and the locks are free.

A connection that breaks is made anew at once, with the locks that it held; meanwhile something may have been missed, so
listeners are told to look.  They are also told at intervals, for a notification that was never sent: whoever commits
sends it behind the commit, and may die in between.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable
from typing import TypeVar

import psycopg

from perdure.errors import PerdureError
from perdure.store.base import Change
from perdure.store.postgres.connection import PostgresConnection, Raw
from perdure.store.postgres.errors import is_lost, translate, unavailable
from perdure.store.postgres.reaching import PAUSES
from perdure.store.postgres.schema import Database
from perdure.store.postgres.watch import Watch
from perdure.store.sql.changes import ANYTHING, decode

SAFETY_POLL = 5.0
"""Seconds between two looks, at the store and at the connection itself: a network may lose it without a word."""

LOCK_TRIES = 5
"""Others who look whether a lock is free hold it for a moment."""

T = TypeVar("T")

logger = logging.getLogger(__name__)


class Notices:
    """Listens, and holds the locks of workers.

    Args:
        sender: with what this store's own notifications begin; they are not heard.
        tell: called in the event loop for each change.
    """

    def __init__(
        self,
        database: Database,
        watch: Watch,
        channel: str,
        sender: str,
        loop: asyncio.AbstractEventLoop,
        tell: Callable[[Change], None],
    ) -> None:
        self._database = database
        self._watch = watch
        self._channel = channel
        self._sender = sender
        self._loop = loop
        self._tell = tell
        self._raw: Raw | None = None
        self._watched: int | None = None
        """The file descriptor that the event loop watches; a broken connection no longer knows it."""
        self._in_use = asyncio.Lock()
        self._broken = asyncio.Event()
        self._whole = asyncio.Event()
        self._tasks: list[asyncio.Task[None]] = []
        self._locks: set[str] = set()
        self._steady_since = 0.0

    @property
    def locks(self) -> frozenset[str]:
        """Ids of the workers of this store."""
        return frozenset(self._locks)

    def steady_for(self, seconds: float) -> bool:
        """Whether the connection has held for so long since it last broke."""
        return not self._broken.is_set() and time.monotonic() - self._steady_since >= seconds

    async def start(self) -> None:
        """Starts to listen: from here on no change is missed.

        Raises:
            psycopg.Error: the server cannot be reached.
        """
        self._steady_since = -1e9  # It has not broken yet.
        await self._connect()
        self._tasks = [
            self._loop.create_task(self._keep(), name="perdure-store-notices"),
            self._loop.create_task(self._cut_what_is_stuck(), name="perdure-store-watch"),
        ]

    async def stop(self) -> None:
        """Lets go of the connection, and with it of all locks."""
        tasks, self._tasks = self._tasks, []
        for task in tasks:  # One after the other: the second may have to cut what the first one waits for.
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
        self._disconnect()
        self._locks.clear()

    def abandon(self) -> None:
        """The same when the event loop is gone, and the tasks with it."""
        self._tasks = []
        self._disconnect()
        self._locks.clear()

    # ------------------------------------------------------------ locks

    async def take_lock(self, worker_id: str) -> None:
        """Takes the lock of a worker of this process; nothing when it has it.

        Raises:
            StoreUnavailable: another process is this worker, or the server cannot be reached.
        """
        if worker_id in self._locks:
            return
        if not await self._ask("worker_lock", worker_id):
            raise unavailable(self._database.address, f"another process is worker {worker_id}")
        self._locks.add(worker_id)

    async def release_lock(self, worker_id: str) -> None:
        """Lets go of a worker's lock; nothing when this process does not hold it."""
        if worker_id in self._locks:
            self._locks.discard(worker_id)
            with contextlib.suppress(PerdureError):  # A connection that is gone has let go of it.
                await self._ask("worker_unlock", worker_id)

    async def _ask(self, name: str, *facts: str) -> bool:
        await self._made_anew()
        async with self._in_use:
            raw = self._raw
            if raw is None:
                raise unavailable(self._database.address, "the connection is broken, and being made anew")
            self._unwatch()
            try:
                taken = await self._in_thread(lambda: self._answer(raw, name, facts))
            except BaseException as error:
                self._break()
                if isinstance(error, (psycopg.Error, OSError)):
                    raise translate(error, self._database.address) from error
                raise
            self._watch_for_news(raw)
            return taken

    async def _made_anew(self) -> None:
        """Waits for a connection, as long as others wait for a server that is away."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self._database.patience):
                await self._whole.wait()

    def _answer(self, raw: Raw, name: str, facts: tuple[str, ...]) -> bool:
        """In a thread.  Notifications that come meanwhile are kept for later by libpq or told of by the handler."""
        with self._watch.over(raw):
            for _ in range(LOCK_TRIES):
                row = PostgresConnection(raw).execute(name, facts).fetchone()
                if row == (True,):
                    return True
                time.sleep(PAUSES[1])
            return False

    async def _in_thread(self, work: Callable[[], T]) -> T:
        """Runs ``work`` in a thread; when this is cancelled, not before the thread is done with the connection."""
        working = self._loop.run_in_executor(None, work)
        try:
            return await asyncio.shield(working)
        except asyncio.CancelledError:
            await asyncio.gather(working, return_exceptions=True)
            raise

    # ------------------------------------------------------------ the connection

    async def _connect(self) -> None:
        async with self._in_use:
            locks = frozenset(self._locks)
            made: list[Raw] = []
            try:
                await self._in_thread(lambda: made.append(self._new_connection(locks)))
            except asyncio.CancelledError:
                for raw in made:
                    raw.close()
                raise
            self._raw = raw = made[0]
            self._broken.clear()
            self._whole.set()
            self._watch_for_news(raw)

    def _new_connection(self, locks: frozenset[str]) -> Raw:
        raw = self._database.connect()
        try:
            raw.add_notify_handler(self._on_notify)
            raw.execute(f'LISTEN "{self._channel}"'.encode())
            for worker_id in locks:
                self._answer(raw, "worker_lock", (worker_id,))
        except BaseException:
            raw.close()
            raise
        return raw

    def _disconnect(self) -> None:
        self._whole.clear()
        self._unwatch()
        raw, self._raw = self._raw, None
        if raw is not None:
            raw.close()

    def _watch_for_news(self, raw: Raw) -> None:
        self._watched = raw.fileno()
        self._loop.add_reader(self._watched, self._on_readable, raw)
        self._on_readable(raw)  # Something may have come in behind the last answer.

    def _unwatch(self) -> None:
        if self._watched is not None:
            self._loop.remove_reader(self._watched)
            self._watched = None

    def _break(self) -> None:
        """The connection is of no use any more."""
        self._disconnect()
        self._broken.set()

    async def _keep(self) -> None:
        """Makes the connection anew when it breaks, and looks at intervals."""
        tries = 0
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(SAFETY_POLL):
                    await self._broken.wait()
            if self._broken.is_set():
                try:
                    await self._connect()
                except (psycopg.Error, OSError) as error:
                    if tries == 0:
                        reason = translate(error, self._database.address).message
                        logger.warning("the connection for wake-ups broke and is tried again: %s", reason)
                    await asyncio.sleep(max(PAUSES[1], PAUSES[min(tries, len(PAUSES) - 1)]))
                    tries += 1
                    continue
                tries = 0
                self._steady_since = time.monotonic()
            else:
                with contextlib.suppress(PerdureError):  # It is broken now.
                    await self._ask("still_there")
            self._tell(ANYTHING)

    async def _cut_what_is_stuck(self) -> None:
        while True:
            await asyncio.sleep(min(1.0, self._database.patience / 2))
            self._watch.cut()

    # ------------------------------------------------------------ notifications

    def _on_readable(self, raw: Raw) -> None:
        try:
            raw.pgconn.consume_input()
            while (notice := raw.pgconn.notifies()) is not None:
                self._hear(notice.extra.decode())
        except psycopg.Error as error:
            if is_lost(error, raw):
                self._break()
            else:
                raise

    def _on_notify(self, notice: psycopg.Notify) -> None:
        """Called where a statement is waited for: in a thread."""
        self._loop.call_soon_threadsafe(self._hear, notice.payload)

    def _hear(self, text: str) -> None:
        if not text.startswith(self._sender):
            self._tell(decode(text[len(self._sender) :]))
