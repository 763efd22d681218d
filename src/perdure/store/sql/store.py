"""``SqlStore``: what the contract asks for, handed to the writer's thread and to the readers'.

What is written and read is in the modules beside it; how a database is opened, locked and listened to is each store's
own.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import TypeVar

from perdure.ids import IdSource
from perdure.session.model import (
    AgentSnapshot,
    Interrupt,
    JsonObject,
    Message,
    Page,
    SessionStatus,
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
    Ownership,
    Request,
    SessionFilter,
    SessionWrite,
    Worker,
)
from perdure.store.sql import answers, branches, claims, client, reading, workers
from perdure.store.sql.commit import check_lease, commit
from perdure.store.sql.prepare import prepare_write
from perdure.store.sql.reader import Read
from perdure.store.sql.transaction import Write

T = TypeVar("T")


class SqlStore(ABC):
    """The part of ``SessionStore`` that is the same on every SQL database."""

    _ids: IdSource

    def __init__(self) -> None:
        self._listeners: dict[object, Listener] = {}

    # ------------------------------------------------------------ what each store does its own way

    @property
    @abstractmethod
    def address(self) -> str:
        """The address that it was opened with, without secrets."""

    @property
    @abstractmethod
    def commits(self) -> int:
        """Transactions of the database that wrote something, since the store was opened."""

    @abstractmethod
    def another(self) -> SqlStore:
        """See ``SessionStore``."""

    @abstractmethod
    async def open(self) -> None:
        """See ``SessionStore``."""

    @abstractmethod
    async def close(self) -> None:
        """See ``SessionStore``."""

    @abstractmethod
    def abandon(self) -> None:
        """See ``SessionStore``."""

    @abstractmethod
    async def register_worker(self, worker: Worker, now_ms: int) -> None:
        """See ``SessionStore``."""

    @abstractmethod
    async def unregister_worker(self, worker_id: str) -> None:
        """See ``SessionStore``."""

    @abstractmethod
    async def reap_workers(self, now_ms: int, *, expired: bool = True) -> int:
        """See ``SessionStore``."""

    @abstractmethod
    def _submit(self, write: Write[T], *sessions: str) -> asyncio.Future[T]:
        """Queues a write about these sessions; none: it takes its own locks."""

    @abstractmethod
    def _read(self, read: Read[T]) -> Awaitable[T]:
        """Runs a read in one state of the database."""

    @abstractmethod
    def _read_now(self, read: Read[T]) -> Awaitable[T]:
        """The same for a read of a few rows by index."""

    def _look(self, read: Read[T]) -> Awaitable[T]:
        """The same for one whose statements need not see the same state."""
        return self._read_now(read)

    def _lease_now_ms(self, now_ms: int) -> int | None:
        """The time by which leases are kept; ``None``: the database's own."""
        return now_ms

    async def store_id(self) -> str:
        """See ``SessionStore``."""
        found: str | None = await self._read_now(reading.store_id)
        return found if found is not None else await self._submit(client.name_store(self._ids.new_id()))

    # ------------------------------------------------------------ listeners

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
        return await self._submit(client.create_session(new, message, request, now_ms), new.session_id)

    async def accept_message(
        self, session_id: str, turn_id: str, message: UserMessage, request: Request, now_ms: int
    ) -> str:
        """See ``SessionStore``."""
        return await self._submit(client.accept_message(session_id, turn_id, message, request, now_ms), session_id)

    async def accept_cancel(self, session_id: str, turn_id: str | None, request: Request, now_ms: int) -> None:
        """See ``SessionStore``."""
        await self._submit(client.accept_cancel(session_id, turn_id, request, now_ms), session_id)

    async def accept_close(self, session_id: str, request: Request, now_ms: int) -> None:
        """See ``SessionStore``."""
        await self._submit(client.accept_close(session_id, request, now_ms), session_id)

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
        return await self._submit(
            answers.answer_interrupt(session_id, interrupt_id, answer, request, now_ms, turn_id), session_id
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
        return await self._submit(
            answers.answer_interrupts(session_id, given, request, now_ms, turn_id, whole), session_id
        )

    async def append_message(self, session_id: str, turn_id: str, message: NewMessage, now_ms: int) -> None:
        """See ``SessionStore``."""
        await self._submit(branches.append_message(session_id, turn_id, message, now_ms), session_id)

    async def fork_session(self, source_id: str, new: NewFork, now_ms: int) -> Fork:
        """See ``SessionStore``."""
        return await self._submit(branches.fork_session(source_id, new, now_ms), source_id, new.session_id)

    async def delete_session(self, session_id: str) -> None:
        """See ``SessionStore``."""
        await self._submit(client.delete_session(session_id), session_id)

    async def read_snapshot(self, session_id: str, now_ms: int) -> AgentSnapshot:
        """See ``SessionStore``."""
        return await self._read_now(lambda connection: reading.snapshot(connection, session_id, now_ms))

    async def read_status(self, session_id: str) -> tuple[SessionStatus, int]:
        """See ``SessionStore``."""
        return await self._look(lambda connection: reading.status(connection, session_id))

    async def read_interrupt(self, session_id: str, interrupt_id: str) -> Interrupt:
        """See ``SessionStore``."""
        return await self._read(lambda connection: reading.interrupt(connection, session_id, interrupt_id))

    async def list_messages(self, session_id: str, after: int | None, limit: int) -> Page[Message]:
        """See ``SessionStore``."""
        return await self._read(lambda connection: reading.messages(connection, session_id, after, limit))

    async def read_steps(self, session_id: str, after: int | None, limit: int) -> Page[StepRecord]:
        """See ``SessionStore``."""
        return await self._read(lambda connection: reading.steps(connection, session_id, after, limit))

    async def read_events(self, session_id: str, after: str | None, limit: int) -> EventBatch:
        """See ``SessionStore``."""
        return await self._read(lambda connection: reading.events(connection, session_id, after, limit))

    async def list_sessions(self, chosen: SessionFilter, after: str | None, limit: int) -> Page[SessionSummary]:
        """See ``SessionStore``."""
        return await self._read(lambda connection: reading.list_sessions(connection, chosen, after, limit))

    # ------------------------------------------------------------ workers

    async def renew_worker(self, worker_id: str, now_ms: int) -> None:
        """See ``SessionStore``."""
        await self._submit(workers.renew_worker(worker_id, self._lease_now_ms(now_ms)))

    async def free_unheld(self, worker_id: str, held: Sequence[str], now_ms: int) -> int:
        """See ``SessionStore``."""
        return await self._submit(workers.free_unheld(worker_id, held, now_ms))

    async def claim(
        self, worker_id: str, flow_types: Sequence[str], limit: int, now_ms: int
    ) -> Sequence[ClaimedSession]:
        """See ``SessionStore``."""
        types = tuple(flow_types)
        if not await self._look(lambda connection: claims.due_sessions(connection, types, 1, now_ms)):
            return ()
        return await self._submit(claims.claim(worker_id, types, limit, now_ms))

    async def adopt(self, worker_id: str, session_id: str, fence: int, now_ms: int) -> ClaimedSession | None:
        """See ``SessionStore``."""
        return await self._submit(claims.adopt(worker_id, session_id, fence))

    async def list_due(self, flow_type: str, before_ms: int, limit: int) -> Sequence[DueSession]:
        """See ``SessionStore``."""
        return await self._look(lambda connection: claims.list_due(connection, flow_type, before_ms, limit))

    async def read_ownership(self, session_id: str) -> Ownership:
        """See ``SessionStore``."""
        return await self._look(lambda connection: claims.ownership(connection, session_id))

    async def next_wake_ms(self, flow_types: Sequence[str]) -> int | None:
        """See ``SessionStore``."""
        types = tuple(flow_types)
        return await self._look(lambda connection: claims.next_wake(connection, types))

    async def read_inbox(self, lease: Lease, after: int = 0) -> Sequence[InboxItem]:
        """See ``SessionStore``."""
        return await self._look(
            lambda connection: claims.read_inbox(connection, check_lease(connection, lease), lease.session_id, after)
        )

    async def commit(self, lease: Lease, write: SessionWrite, now_ms: int) -> None:
        """See ``SessionStore``."""
        await self._submit(commit(lease, prepare_write(lease, write), now_ms), lease.session_id)

    async def read_recorded_turn(self, session_id: str, turn_id: str) -> RecordedTurn:
        """See ``SessionStore``."""
        return await self._read(lambda connection: reading.recorded_turn(connection, session_id, turn_id))

    async def read_earlier_calls(self, session_id: str, turn_id: str) -> Sequence[RecordedCall]:
        """See ``SessionStore``."""
        return await self._read(lambda connection: reading.earlier_calls(connection, session_id, turn_id))

    async def read_history(self, session_id: str, first: int, end: int) -> Sequence[JsonObject]:
        """See ``SessionStore``."""
        return await self._read(lambda connection: reading.history(connection, session_id, first, end))

    async def read_turn_state(self, session_id: str, turn_number: int, leg: int = 1) -> JsonObject:
        """See ``SessionStore``."""
        return await self._read_now(lambda connection: reading.turn_state(connection, session_id, turn_number, leg))
