"""``PostgresStore``: the store contract on one schema of a PostgreSQL database.

Ties the parts together: the writer's thread, the readers', the connection that listens and holds the workers' locks.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable
from dataclasses import dataclass
from functools import partial
from typing import TypeVar

import psycopg

from perdure.clock import Clock, SystemClock
from perdure.errors import UsageError
from perdure.ids import IdSource, RandomIds
from perdure.store.base import Worker
from perdure.store.postgres.errors import may_pass, translate
from perdure.store.postgres.notices import Notices
from perdure.store.postgres.reaching import PAUSES
from perdure.store.postgres.reader import Look, PostgresReader
from perdure.store.postgres.schema import Durability, parse_address, prepare, released_schema
from perdure.store.postgres.watch import Watch
from perdure.store.postgres.writer import PostgresWriter
from perdure.store.sql import workers
from perdure.store.sql.reader import Read, Readers
from perdure.store.sql.store import SqlStore
from perdure.store.sql.transaction import Write

T = TypeVar("T")

SENDER_LENGTH = 8


@dataclass(frozen=True, slots=True)
class LeaseRules:
    """When a worker counts as dead.

    Attributes:
        lock_grace: seconds for which the lock of a worker must be free: a live one whose connection broke is back by
            then.
        calm: seconds for which the server must have been up, and the judge's own connection must have held: whatever
            broke that may have broken others' too.
        own_clock: leases are kept by the database's clock.  ``False``: by the times that the store is given, for tests
            that move the time.
    """

    lock_grace: float = 0.3
    calm: float = 3.0
    own_clock: bool = True


class PostgresStore(SqlStore):
    """Sessions in one PostgreSQL database.

    Args:
        address: ``postgresql://user:password@host:port/database``, with ``?schema=`` for another schema than
            ``perdure``, and whatever else libpq takes (``sslmode`` and the like).
        durability: what a finished write survives: ``"power"`` (a loss of power: ``synchronous_commit`` as the server
            has it, at least ``on``) or ``"process"`` (``synchronous_commit = off``: a crash of the server may lose the
            last moments).
        clock, ids: for the store's own marks; ``None`` for the machine's clock and random ids.
        patience: seconds for which whatever was asked waits for a server that is away, before ``StoreUnavailable``.
        readers: most connections for reading.  A store has two more: one writes, one listens.
        leases: when a worker counts as dead.

    Raises:
        UsageError: the address is none, or ``durability`` is of no known kind.
    """

    def __init__(
        self,
        address: str,
        *,
        durability: Durability = "power",
        clock: Clock | None = None,
        ids: IdSource | None = None,
        patience: float = 10.0,
        readers: int = 4,
        leases: LeaseRules = LeaseRules(),
    ) -> None:
        super().__init__()
        if durability not in ("power", "process"):
            raise UsageError(f"durability is {durability!r}; it must be 'power' or 'process'")
        self._database = parse_address(address, durability, patience)
        self._clock = clock or SystemClock()
        self._ids = ids or RandomIds()
        self._size = readers
        self._leases = leases
        self._freed: dict[str, float] = {}
        """Workers whose lock is free, and since when."""
        self._open: tuple[PostgresWriter, Readers, Notices] | None = None
        self._commits = 0

    def another(self) -> PostgresStore:
        store = PostgresStore(
            self._database.address, clock=self._clock, ids=self._ids, readers=self._size, leases=self._leases
        )
        store._database = self._database  # with the password, which the address leaves out
        return store

    @property
    def address(self) -> str:
        """The address without the password."""
        return self._database.address

    @property
    def commits(self) -> int:
        """Transactions of the database that wrote something, since the store was opened."""
        return self._commits if self._open is None else self._open[0].commits

    # ------------------------------------------------------------ life

    async def open(self) -> None:
        """Connects, and creates the tables or brings them up to date.  Waits for a server that is away.

        Raises:
            StoreNotOurs, StoreTooNew, StoreCorrupt, StoreBusy, StoreReadOnly, StoreAccessDenied, StoreFull,
            StoreUnavailable, StoreMoved, StoreUnfinished
        """
        loop = asyncio.get_running_loop()
        give_up = time.monotonic() + self._database.patience
        while True:
            await loop.run_in_executor(None, prepare, self._database, released_schema(), self._clock.now_ms())
            try:
                self._open = await self._connect(loop)
            except psycopg.Error as error:  # Perhaps the server has just gone away.
                if not may_pass(error) or time.monotonic() > give_up:
                    raise translate(error, self.address) from error
                await asyncio.sleep(PAUSES[1])
            else:
                return

    async def _connect(self, loop: asyncio.AbstractEventLoop) -> tuple[PostgresWriter, Readers, Notices]:
        """The connections of an open store.

        Raises:
            psycopg.Error
        """
        watch = Watch(self._database.patience)
        channel, name = f"perdure/{self._database.schema}", self._ids.new_id()
        sender = name[:SENDER_LENGTH].ljust(SENDER_LENGTH)
        notices = Notices(self._database, watch, channel, sender, loop, self._tell)
        writer = PostgresWriter(self._database, watch, channel, name, sender, loop, self._tell)
        readers = Readers(loop, partial(PostgresReader, self._database, watch), self._size)
        try:
            await notices.start()
            await loop.run_in_executor(None, writer.start)
        except BaseException:
            await notices.stop()
            raise
        return writer, readers, notices

    async def close(self) -> None:
        """Finishes the writes that were handed in, and lets go of everything.  Closing twice is no error."""
        if self._open is None:
            return
        writer, readers, notices = self._open
        self._open = None
        loop = asyncio.get_running_loop()
        await loop.run_in_executor(None, writer.stop)
        await loop.run_in_executor(None, readers.stop)
        await notices.stop()
        self._commits = writer.commits

    def abandon(self) -> None:
        """Lets go of everything although the event loop in which the store was opened is gone.  Blocks."""
        if self._open is None:
            return
        writer, readers, notices = self._open
        self._open = None
        notices.abandon()  # At once: the locks of the workers are free, whatever the other connections wait for.
        writer.stop()
        readers.stop()
        self._commits = writer.commits

    @property
    def _writer(self) -> PostgresWriter:
        return self._opened()[0]

    @property
    def _readers(self) -> Readers:
        return self._opened()[1]

    @property
    def _notices(self) -> Notices:
        return self._opened()[2]

    def _opened(self) -> tuple[PostgresWriter, Readers, Notices]:
        if self._open is None:
            raise UsageError(f"{self.address} is not open; call open() first")
        return self._open

    def _submit(self, write: Write[T], *sessions: str) -> asyncio.Future[T]:
        return self._writer.submit(write, *sessions)

    def _read(self, read: Read[T]) -> Awaitable[T]:
        return self._readers.read(read)

    def _read_now(self, read: Read[T]) -> Awaitable[T]:
        return self._readers.read(read)

    def _look(self, read: Read[T]) -> Awaitable[T]:
        return self._readers.read(Look(read))

    def _lease_now_ms(self, now_ms: int) -> int | None:
        return None if self._leases.own_clock else now_ms

    # ------------------------------------------------------------ workers

    async def register_worker(self, worker: Worker, now_ms: int) -> None:
        """See ``SessionStore``."""
        notices = self._notices
        await notices.take_lock(worker.worker_id)
        try:
            await self._writer.submit(workers.register_worker(worker, now_ms, self._lease_now_ms(now_ms)))
        except BaseException:
            await notices.release_lock(worker.worker_id)
            raise

    async def unregister_worker(self, worker_id: str) -> None:
        """See ``SessionStore``."""
        try:
            gone = workers.remove_workers((worker_id,), self._clock.now_ms(), orderly=True)
            await self._writer.submit(gone)
        finally:
            await self._notices.release_lock(worker_id)  # If the write failed, others find the lock free.

    async def reap_workers(self, now_ms: int, *, expired: bool = True) -> int:
        """See ``SessionStore``."""
        gone = await self._gone(now_ms, expired)
        # One by one: each write locks the sessions of one worker, in order.
        removed = [await self._writer.submit(workers.remove_workers((worker_id,), now_ms)) for worker_id in gone]
        return sum(removed)

    async def _gone(self, now_ms: int, expired: bool) -> list[str]:
        """Which workers died.  Whoever looks is alive, so the workers of this store are not asked about."""
        facts = (self._lease_now_ms(now_ms), list(self._notices.locks))
        known = await self._look(lambda connection: connection.execute("workers_all", facts).fetchall())
        now = time.monotonic()
        self._freed = {worker_id: self._freed.get(worker_id, now) for worker_id, _, free, _ in known if free}
        rules = self._leases
        if not self._notices.steady_for(rules.calm):
            return []
        return [
            worker_id
            for worker_id, ran_out, free, server_up in known
            if server_up >= rules.calm
            and ((expired and ran_out) or (free and now - self._freed[worker_id] >= rules.lock_grace))
        ]
