"""``SqliteStore``: the store contract on one SQLite file.

Ties the parts together: the writer's thread, the readers', the locks of workers, the signals between processes.  What
is written and read is in the modules beside it.
"""

from __future__ import annotations

import asyncio
import os
import sqlite3
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from perdure.clock import Clock, SystemClock
from perdure.errors import UsageError
from perdure.ids import IdSource, RandomIds
from perdure.session.model import (
    AgentSnapshot,
    Interrupt,
    JsonObject,
    Message,
    Page,
    SessionSummary,
    StepRecord,
    UserMessage,
)
from perdure.session.runner import NewMessage, RecordedCall, RecordedTurn
from perdure.store.base import (
    Change,
    ClaimedSession,
    DueSession,
    EventBatch,
    Fork,
    GivenAnswer,
    InboxItem,
    Lease,
    Listener,
    NewFork,
    NewSession,
    Request,
    SessionFilter,
    SessionWrite,
    Worker,
)
from perdure.store.sqlite import answers, branches, client, reading, workers
from perdure.store.sqlite.commit import check_lease, commit
from perdure.store.sqlite.errors import translate
from perdure.store.sqlite.locks import WorkerLocks
from perdure.store.sqlite.notices import Notices
from perdure.store.sqlite.prepare import prepare_write
from perdure.store.sqlite.reader import Readers
from perdure.store.sqlite.schema import Database, Durability, prepare, released_schema
from perdure.store.sqlite.writer import Writer


class SqliteStore:
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
        self._database = Database(Path(path), durability, busy_timeout)
        self._clock = clock or SystemClock()
        self._ids = ids or RandomIds()
        self._run_dir = None if run_dir is None else Path(run_dir)
        self._locks = WorkerLocks(self._database.path)
        self._listeners: dict[object, Listener] = {}
        self._open: tuple[Writer, Readers, Notices] | None = None
        self._commits = 0

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
            StoreNotOurs, StoreTooNew, StoreBusy, StoreReadOnly, StoreFull, StoreUnavailable
        """
        loop = asyncio.get_running_loop()
        now_ms = self._clock.now_ms()
        await loop.run_in_executor(None, prepare, self._database, released_schema(), now_ms)
        readers = Readers(self._database, loop)
        notices = Notices(self._database, self._run_dir, self._ids.new_id(), loop, self._tell)
        writer = Writer(self._database, loop, notices.send, self._tell)
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
    def _writer(self) -> Writer:
        return self._opened()[0]

    @property
    def _readers(self) -> Readers:
        return self._opened()[1]

    def _opened(self) -> tuple[Writer, Readers, Notices]:
        if self._open is None:
            raise UsageError(f"{self.address} is not open; call open() first")
        return self._open

    async def store_id(self) -> str:
        """See ``SessionStore``."""
        found: str | None = await self._readers.read_now(reading.store_id)
        return found if found is not None else await self._writer.submit(client.name_store(self._ids.new_id()))

    def listen(self, listener: Listener) -> Callable[[], None]:
        """Calls ``listener`` after every write of any process; returns the function that ends this."""
        key = object()
        self._listeners[key] = listener

        def stop() -> None:
            self._listeners.pop(key, None)

        return stop

    def _tell(self, change: Change) -> None:
        for listener in tuple(self._listeners.values()):
            listener(change)

    # ------------------------------------------------------------ clients

    async def create_session(
        self, new: NewSession, message: tuple[str, UserMessage] | None, request: Request, now_ms: int
    ) -> str | None:
        """See ``SessionStore``."""
        return await self._writer.submit(client.create_session(new, message, request, now_ms))

    async def accept_message(
        self, session_id: str, turn_id: str, message: UserMessage, request: Request, now_ms: int
    ) -> str:
        """See ``SessionStore``."""
        return await self._writer.submit(client.accept_message(session_id, turn_id, message, request, now_ms))

    async def accept_cancel(self, session_id: str, turn_id: str | None, request: Request, now_ms: int) -> None:
        """See ``SessionStore``."""
        await self._writer.submit(client.accept_cancel(session_id, turn_id, request, now_ms))

    async def accept_close(self, session_id: str, request: Request, now_ms: int) -> None:
        """See ``SessionStore``."""
        await self._writer.submit(client.accept_close(session_id, request, now_ms))

    async def answer_interrupt(
        self,
        session_id: str,
        interrupt_id: str,
        answer: GivenAnswer,
        request: Request,
        now_ms: int,
        *,
        turn_id: str | None = None,
    ) -> Interrupt:
        """See ``SessionStore``."""
        return await self._writer.submit(
            answers.answer_interrupt(session_id, interrupt_id, answer, request, now_ms, turn_id)
        )

    async def answer_interrupts(
        self,
        session_id: str,
        given: Mapping[str, GivenAnswer],
        request: Request,
        now_ms: int,
        *,
        turn_id: str,
        whole: bool = True,
    ) -> Sequence[Interrupt]:
        """See ``SessionStore``."""
        return await self._writer.submit(answers.answer_interrupts(session_id, given, request, now_ms, turn_id, whole))

    async def append_message(self, session_id: str, turn_id: str, message: NewMessage, now_ms: int) -> None:
        """See ``SessionStore``."""
        await self._writer.submit(branches.append_message(session_id, turn_id, message, now_ms))

    async def fork_session(self, source_id: str, new: NewFork, now_ms: int) -> Fork:
        """See ``SessionStore``."""
        return await self._writer.submit(branches.fork_session(source_id, new, now_ms))

    async def delete_session(self, session_id: str) -> None:
        """See ``SessionStore``."""
        await self._writer.submit(client.delete_session(session_id))

    async def read_snapshot(self, session_id: str, now_ms: int) -> AgentSnapshot:
        """See ``SessionStore``."""
        return await self._readers.read_now(lambda connection: reading.snapshot(connection, session_id, now_ms))

    async def read_interrupt(self, session_id: str, interrupt_id: str) -> Interrupt:
        """See ``SessionStore``."""
        return await self._readers.read(lambda connection: reading.interrupt(connection, session_id, interrupt_id))

    async def list_messages(self, session_id: str, after: int | None, limit: int) -> Page[Message]:
        """See ``SessionStore``."""
        return await self._readers.read(lambda connection: reading.messages(connection, session_id, after, limit))

    async def read_steps(self, session_id: str, after: int | None, limit: int) -> Page[StepRecord]:
        """See ``SessionStore``."""
        return await self._readers.read(lambda connection: reading.steps(connection, session_id, after, limit))

    async def read_events(self, session_id: str, after: str | None, limit: int) -> EventBatch:
        """See ``SessionStore``."""
        return await self._readers.read(lambda connection: reading.events(connection, session_id, after, limit))

    async def list_sessions(self, chosen: SessionFilter, after: str | None, limit: int) -> Page[SessionSummary]:
        """See ``SessionStore``."""
        return await self._readers.read(lambda connection: reading.list_sessions(connection, chosen, after, limit))

    # ------------------------------------------------------------ workers

    async def register_worker(self, worker: Worker, now_ms: int) -> None:
        """See ``SessionStore``."""
        writer = self._writer
        try:
            self._locks.take(worker.worker_id)
        except OSError as error:
            raise translate(error, self.address) from error
        try:
            await writer.submit(workers.register_worker(worker, now_ms))
        except BaseException:
            self._locks.release(worker.worker_id)
            raise

    async def renew_worker(self, worker_id: str, now_ms: int) -> None:
        """See ``SessionStore``."""
        await self._writer.submit(workers.renew_worker(worker_id, now_ms))

    async def unregister_worker(self, worker_id: str) -> None:
        """See ``SessionStore``."""
        try:
            await self._writer.submit(workers.remove_workers((worker_id,), self._clock.now_ms()))
        finally:
            self._locks.release(worker_id)  # If the write failed, others find the lock free.

    async def reap_workers(self, now_ms: int, *, expired: bool = True) -> int:
        """See ``SessionStore``."""
        known = await self._readers.read_now(workers.all_workers)
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

    async def free_unheld(self, worker_id: str, held: Sequence[str], now_ms: int) -> int:
        """See ``SessionStore``."""
        return await self._writer.submit(workers.free_unheld(worker_id, held, now_ms))

    async def claim(
        self, worker_id: str, flow_types: Sequence[str], limit: int, now_ms: int
    ) -> Sequence[ClaimedSession]:
        """See ``SessionStore``."""
        types = tuple(flow_types)
        if not await self._readers.read_now(lambda connection: workers.due_sessions(connection, types, 1, now_ms)):
            return ()
        return await self._writer.submit(workers.claim(worker_id, types, limit, now_ms))

    async def adopt(self, worker_id: str, session_id: str, now_ms: int) -> ClaimedSession:
        """See ``SessionStore``."""
        return await self._writer.submit(workers.adopt(worker_id, session_id))

    async def list_due(self, flow_type: str, before_ms: int, limit: int) -> Sequence[DueSession]:
        """See ``SessionStore``."""
        return await self._readers.read_now(
            lambda connection: workers.list_due(connection, flow_type, before_ms, limit)
        )

    async def next_wake_ms(self, flow_types: Sequence[str]) -> int | None:
        """See ``SessionStore``."""
        types = tuple(flow_types)
        return await self._readers.read_now(lambda connection: workers.next_wake(connection, types))

    async def read_inbox(self, lease: Lease, after: int = 0) -> Sequence[InboxItem]:
        """See ``SessionStore``."""
        return await self._readers.read_now(
            lambda connection: workers.read_inbox(connection, check_lease(connection, lease), lease.session_id, after)
        )

    async def commit(self, lease: Lease, write: SessionWrite, now_ms: int) -> None:
        """See ``SessionStore``."""
        await self._writer.submit(commit(lease, prepare_write(lease, write), now_ms))

    async def read_recorded_turn(self, session_id: str, turn_id: str) -> RecordedTurn:
        """See ``SessionStore``."""
        return await self._readers.read(lambda connection: reading.recorded_turn(connection, session_id, turn_id))

    async def read_earlier_calls(self, session_id: str, turn_id: str) -> Sequence[RecordedCall]:
        """See ``SessionStore``."""
        return await self._readers.read(lambda connection: reading.earlier_calls(connection, session_id, turn_id))

    async def read_history(self, session_id: str, first: int, end: int) -> Sequence[JsonObject]:
        """See ``SessionStore``."""
        return await self._readers.read(lambda connection: reading.history(connection, session_id, first, end))

    async def read_turn_state(self, session_id: str, turn_number: int, leg: int = 1) -> JsonObject:
        """See ``SessionStore``."""
        return await self._readers.read_now(
            lambda connection: reading.turn_state(connection, session_id, turn_number, leg)
        )
