"""The contract of a store: what is kept, who may write it, and how a write is told to others.

Who may write what:

* a *client* (any process) creates sessions, puts items into the inbox, and answers a pending interrupt (once: the
  answer and its inbox item are one transaction);
* the *owner* of a session (one worker, under a lease) writes everything else, in ``commit``, which checks the lease's
  fence in the same transaction.

Every write is one transaction.  ``commit`` returns when it is on disk.  Writes of one process are applied in the order
in which they were handed in, and those that wait at the same time share a transaction of the database (group commit).

All methods raise ``StoreError`` (or a kind of it) when the store itself fails.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from perdure.session.model import (
    AgentEvent,
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
from perdure.store.claims import (
    ClaimedSession,
    DueSession,
    Lease,
    Ownership,
    StoredCall,
    StoredQuestion,
    StoredTurn,
    Worker,
)
from perdure.store.requests import (
    Answer,
    Fork,
    GivenAnswer,
    InboxItem,
    InboxKind,
    NewFork,
    NewSession,
    Reply,
    Request,
)
from perdure.store.writes import (
    CallPut,
    EventPut,
    InterruptEnd,
    InterruptPut,
    LegBegin,
    LegEnd,
    QuestionEnd,
    QuestionPut,
    RecordPut,
    SessionPut,
    SessionWrite,
    StepPut,
    TurnBegin,
    TurnChange,
)

__all__ = [
    "MAX_PAYLOAD_BYTES",
    "Answer",
    "CallPut",
    "Change",
    "ClaimedSession",
    "DueSession",
    "EventBatch",
    "EventPut",
    "Fork",
    "GivenAnswer",
    "InboxItem",
    "InboxKind",
    "InterruptEnd",
    "InterruptPut",
    "Lease",
    "LegBegin",
    "LegEnd",
    "Listener",
    "NewFork",
    "NewSession",
    "Ownership",
    "QuestionEnd",
    "QuestionPut",
    "RecordPut",
    "Reply",
    "Request",
    "SessionFilter",
    "SessionPut",
    "SessionStore",
    "SessionWrite",
    "StepPut",
    "StoredCall",
    "StoredQuestion",
    "StoredTurn",
    "TurnBegin",
    "TurnChange",
    "Worker",
]

MAX_PAYLOAD_BYTES = 64 * 1024 * 1024
"""The largest single value (a tool result, a model response, a message) that a store takes."""


@dataclass(frozen=True, slots=True)
class EventBatch:
    """Items of the live stream behind a cursor.  ``trimmed``: the cursor is older than what the ring still holds."""

    events: tuple[AgentEvent, ...] = ()
    oldest: str | None = None
    trimmed: bool = False


@dataclass(frozen=True, slots=True)
class SessionFilter:
    """Which sessions to list; ``None`` is any."""

    flow_type: str | None = None
    user_id: str | None = None
    status: SessionStatus | None = None


@dataclass(frozen=True, slots=True)
class Change:
    """What a write changed.

    Attributes:
        sessions: ids of the sessions; ``None``: any may have changed (look yourself).
        work: whether there may be something new for a worker: an inbox item, or a session that became due without an
            owner.  ``False`` for what an owner writes of its own session.
    """

    sessions: frozenset[str] | None
    work: bool


Listener = Callable[[Change], None]
"""Called in the event loop, soon after a write of any process."""


class SessionStore(Protocol):
    """A place where sessions are kept.  One object per engine; it is used from one event loop."""

    @property
    def address(self) -> str:
        """The address that it was opened with, without secrets."""
        ...

    def another(self) -> SessionStore:
        """A second store at the same place, with the same credentials and settings; it is not open."""
        ...

    async def open(self) -> None:
        """Opens or creates the store and brings its schema up to date.

        Raises:
            StoreNotOurs, StoreTooNew, StoreBusy, StoreReadOnly, StoreFull, StoreUnavailable, StoreMoved,
            StoreUnfinished
        """
        ...

    async def close(self) -> None:
        """Finishes the writes that were handed in, and lets go of everything."""
        ...

    def abandon(self) -> None:
        """Lets go of everything although the event loop in which the store was opened is gone.  Blocks.

        What was handed in and not finished is as if the process had died.
        """
        ...

    async def store_id(self) -> str:
        """What tells this store from every other; made once, when it is first asked for, and kept."""
        ...

    def listen(self, listener: Listener) -> Callable[[], None]:
        """Calls ``listener`` after every write of any process; returns the function that ends this."""
        ...

    # clients

    async def create_session(
        self, new: NewSession, message: tuple[str, UserMessage] | None, request: Request, now_ms: int
    ) -> str | None:
        """Creates a session, with its first message (turn id and message) if given.  Returns the turn id.

        A second creation with the same request fingerprint returns the first one's turn id.

        Raises:
            SessionAlreadyExists: the id is taken by a session with another fingerprint.
        """
        ...

    async def accept_message(
        self, session_id: str, turn_id: str, message: UserMessage, request: Request, now_ms: int
    ) -> str:
        """Puts a message into the inbox.  Returns its turn id (of the first acceptance, for a repeated request).

        Raises:
            SessionNotFound, SessionClosed, RequestConflict, PayloadTooLarge
        """
        ...

    async def accept_cancel(self, session_id: str, turn_id: str | None, request: Request, now_ms: int) -> None:
        """Asks the owner to cancel a turn; ``turn_id`` ``None`` means the one that is open now.

        Without an open turn and a ``turn_id`` this does nothing.

        Raises:
            SessionNotFound, RequestConflict
            TurnNotFound: ``turn_id`` names neither the open turn nor a queued message.
        """
        ...

    async def accept_close(self, session_id: str, request: Request, now_ms: int) -> None:
        """Asks the owner to close the session; from now on messages are refused.  Closing twice is no error.

        A session without an owner, an open turn and queued messages is closed at once, whether or not a worker is up.

        Raises:
            SessionNotFound
        """
        ...

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
        """Answers a pending interrupt; the identical answer once more changes nothing.  Returns the interrupt.

        Answers are identical when ``approved``, ``payload`` and ``message`` are, or the ``value``, whoever gives them.

        Args:
            turn_id: the id of the turn that the answer starts, if its question outlives the turn that asked.

        Raises:
            SessionNotFound, InterruptNotFound, SessionBlocked
            UsageError: it takes the other kind of answer.
            InterruptAlreadyResolved, InterruptExpired (also when its deadline is past), InterruptWithdrawn
            SessionClosed: the answer would start a turn.
        """
        ...

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
        """Answers several pending interrupts at once, all or none.  Returns them in the order of ``given``.

        Identical answers to the same interrupts once more change nothing.  Those that start a turn start one together.

        Args:
            whole: they must be all that are pending.

        Raises:
            UsageError: ``whole``, and ``given`` does not name exactly the pending interrupts.
            And all that ``answer_interrupt`` raises.
        """
        ...

    async def append_message(self, session_id: str, turn_id: str, message: NewMessage, now_ms: int) -> None:
        """Puts a message that no turn said into the log of an idle session, as a completed turn of its own.

        Args:
            turn_id: a new one.

        Raises:
            SessionNotFound, SessionClosed, PayloadTooLarge, ValueNotStorable
            Conflict: a turn of the session runs, waits or is queued.
        """
        ...

    async def fork_session(self, source_id: str, new: NewFork, now_ms: int) -> Fork:
        """Makes a session of the turns that another one had before a turn, with the state of that moment.

        The other session is left as it is.  Its interrupts, its steps and its live stream are not copied.

        Raises:
            SessionNotFound
            SessionAlreadyExists: the new id is taken.
            TurnNotFound: the turn is none of the session's, or never began.
        """
        ...

    async def delete_session(self, session_id: str) -> None:
        """Deletes a session and all that only it refers to.  Its owner, if any, loses its lease.

        Raises:
            SessionNotFound
        """
        ...

    async def read_snapshot(self, session_id: str, now_ms: int) -> AgentSnapshot:
        """Raises: SessionNotFound"""
        ...

    async def read_status(self, session_id: str) -> tuple[SessionStatus, int]:
        """A session's status, and how many of its messages are queued.  Raises: SessionNotFound"""
        ...

    async def read_interrupt(self, session_id: str, interrupt_id: str) -> Interrupt:
        """Raises: SessionNotFound, InterruptNotFound"""
        ...

    async def list_messages(self, session_id: str, after: int | None, limit: int) -> Page[Message]:
        """Messages with an index above ``after``, in order.  Raises: SessionNotFound"""
        ...

    async def read_steps(self, session_id: str, after: int | None, limit: int) -> Page[StepRecord]:
        """Steps in the order in which they were first stored; a cursor is a position.  Raises: SessionNotFound"""
        ...

    async def read_events(self, session_id: str, after: str | None, limit: int) -> EventBatch:
        """Live events behind the cursor ``after`` (``None``: from the oldest kept).

        Raises:
            SessionNotFound
            UsageError: ``after`` is no cursor.
        """
        ...

    async def list_sessions(self, chosen: SessionFilter, after: str | None, limit: int) -> Page[SessionSummary]:
        """Sessions, the most recently changed first."""
        ...

    # workers

    async def register_worker(self, worker: Worker, now_ms: int) -> None:
        """Makes a worker known and takes its OS lock.

        Waiting and blocked sessions of its flow types that were recorded under another definition become due, so that
        the worker checks them.
        """
        ...

    async def renew_worker(self, worker_id: str, now_ms: int) -> None:
        """Renews the lease of all that the worker owns.

        Raises:
            LeaseLost: the worker was given up for dead; it owns nothing any more and must register anew.
        """
        ...

    async def unregister_worker(self, worker_id: str) -> None:
        """Takes the worker out and frees what it still owns."""
        ...

    async def reap_workers(self, now_ms: int, *, expired: bool = True) -> int:
        """Frees the sessions of workers that died (their OS lock is free) or whose lease ran out.

        Cheap when there is nothing to do: no write.

        Args:
            expired: ``False`` for those only that died.

        Returns:
            The number of workers reaped.
        """
        ...

    async def free_unheld(self, worker_id: str, held: Sequence[str], now_ms: int) -> int:
        """Frees the sessions that the worker owns but does not run, because the answer to a claim was lost.

        Args:
            held: ids of the sessions that it does run.

        Returns:
            How many sessions that were.
        """
        ...

    async def claim(
        self, worker_id: str, flow_types: Sequence[str], limit: int, now_ms: int
    ) -> Sequence[ClaimedSession]:
        """Takes up to ``limit`` sessions that nobody owns and that have something to do, oldest first.

        No write when there is none.  One that cannot be read is left alone for a minute, and the log says why.
        """
        ...

    async def adopt(self, worker_id: str, session_id: str, fence: int, now_ms: int) -> ClaimedSession | None:
        """Takes one session, whether or not it has something to do and whoever owns it; that owner loses its lease.

        Args:
            fence: the session's, as it was read before it was decided that this worker takes it.

        Returns:
            ``None`` if the session was taken or given up since then, so that the decision is out of date.

        Raises:
            SessionNotFound
            LeaseLost: the worker is not registered (any more).
        """
        ...

    async def list_due(self, flow_type: str, before_ms: int, limit: int) -> Sequence[DueSession]:
        """Sessions that nobody owns and that have had something to do since ``before_ms`` or longer, oldest first."""
        ...

    async def read_ownership(self, session_id: str) -> Ownership:
        """Who has a session at this moment.  Raises: SessionNotFound"""
        ...

    async def next_wake_ms(self, flow_types: Sequence[str]) -> int | None:
        """The earliest ``wake_at_ms`` of an unowned session of these types."""
        ...

    async def read_inbox(self, lease: Lease, after: int = 0) -> Sequence[InboxItem]:
        """The inbox of an owned session behind a position, in order.  Raises: LeaseLost"""
        ...

    async def commit(self, lease: Lease, write: SessionWrite, now_ms: int) -> None:
        """Applies one write of the owner, whole or not at all.

        Raises:
            LeaseLost: the session has another owner (or none) by now; nothing was written.
            InterruptAlreadyResolved: it would expire an interrupt that was answered first; nothing was written.
            Conflict: a message would join a turn that was cancelled first; nothing was written.
            PayloadTooLarge
        """
        ...

    async def read_recorded_turn(self, session_id: str, turn_id: str) -> RecordedTurn:
        """What the journal holds of the present leg of a turn."""
        ...

    async def read_earlier_calls(self, session_id: str, turn_id: str) -> Sequence[RecordedCall]:
        """The calls of a turn's legs before the present one, in the order in which they were asked for."""
        ...

    async def read_history(self, session_id: str, first: int, end: int) -> Sequence[JsonObject]:
        """The framework items of the messages with ``first`` <= index < ``end``, in order."""
        ...

    async def read_turn_state(self, session_id: str, turn_number: int, leg: int = 1) -> JsonObject:
        """The session state at the beginning of a leg of turn ``turn_number``: session keys as of the end of the leg or
        turn before, ``app:`` and ``user:`` keys as they were when the leg began."""
        ...
