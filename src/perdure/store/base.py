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

import enum
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from perdure.faults import DurableWrite
from perdure.session.model import (
    NO_USAGE,
    AgentEvent,
    AgentSnapshot,
    ErrorInfo,
    Interrupt,
    InterruptKind,
    InterruptStatus,
    JsonObject,
    JsonValue,
    Message,
    Page,
    RecordStatus,
    SessionStatus,
    SessionSummary,
    StepName,
    StepRecord,
    StepStatus,
    TurnStatus,
    Usage,
    UserMessage,
)
from perdure.session.runner import (
    Approval,
    CallRequest,
    ModelCall,
    NewMessage,
    RecordedTurn,
)
from perdure.session.state import CallPhase, Ending

MAX_PAYLOAD_BYTES = 64 * 1024 * 1024
"""The largest single value (a tool result, a model response, a message) that a store takes."""

# ---------------------------------------------------------------- what clients write


@dataclass(frozen=True, slots=True)
class Request:
    """Makes a client's write idempotent.

    Attributes:
        request_id: chosen by the client; ``None``: not idempotent.
        fingerprint: of the method and its arguments.  The same id with another fingerprint is ``RequestConflict``.
    """

    request_id: str | None
    fingerprint: str


@dataclass(frozen=True, slots=True)
class NewSession:
    """A session to create.  ``state`` may have ``app:`` and ``user:`` keys, which are shared as ADK defines them;
    ``temp:`` keys are dropped."""

    session_id: str
    incarnation: str
    flow_type: str
    app_name: str
    user_id: str
    state: JsonObject
    event_capacity_bytes: int
    await_step_id: str
    """The first ``AwaitUserMessage`` step."""


@dataclass(frozen=True, slots=True)
class NewFork:
    """A session to make of another one's turns before ``before_turn_id``."""

    session_id: str
    incarnation: str
    before_turn_id: str


@dataclass(frozen=True, slots=True)
class Fork:
    """A session that was forked.  ``turn_id``: its last turn; ``None`` when it has none."""

    session_id: str
    turn_id: str | None


class InboxKind(enum.Enum):
    MESSAGE = "message"
    ANSWER = "answer"
    CANCEL = "cancel"
    CLOSE = "close"


@dataclass(frozen=True, slots=True)
class InboxItem:
    """Something for the owner of a session, in order of ``position``.

    ``turn_id``: of a message, the turn it will start; of a cancel, the turn to cancel.
    ``message``: of a message, which stays in the inbox until its turn begins.
    ``interrupt_id``, ``approved``, ``payload``, ``rejection``, ``resolved_by`` and ``resolved_at_ms``: of an answer;
    ``rejection`` is what the model sees of a no, ``None`` for ADK's words; ``resolved_at_ms`` is when it was accepted.
    """

    position: int
    kind: InboxKind
    turn_id: str | None = None
    message: UserMessage | None = None
    interrupt_id: str | None = None
    approved: bool = False
    payload: JsonValue = None
    rejection: str | None = None
    resolved_by: str | None = None
    resolved_at_ms: int | None = None


@dataclass(frozen=True, slots=True)
class Answer:
    """A person's answer to an interrupt.  ``message``: what the model sees of a rejection; ``None`` for ADK's words."""

    approved: bool
    payload: JsonValue = None
    message: str | None = None
    resolved_by: str | None = None


# ---------------------------------------------------------------- what workers write


@dataclass(frozen=True, slots=True)
class Worker:
    """A live worker.  ``definitions``: flow type -> fingerprint of the code it has."""

    worker_id: str
    definitions: Mapping[str, str]
    lease_ms: int


@dataclass(frozen=True, slots=True)
class Lease:
    """The right to write a session: valid as long as the session's fence is ``fence``."""

    session_id: str
    worker_id: str
    fence: int


@dataclass(frozen=True, slots=True)
class StoredTurn:
    """The open turn of a claimed session.

    Attributes:
        first_index: index of its first message.
        stored_messages: how many messages of it are stored.
        step_count: how many steps of it are stored, or more; new step ids are numbered from it.
        usage: of the turn so far.
        ending: how it will end, once the writes that still run have their records; ``None`` while it goes on.
    """

    turn_id: str
    number: int
    status: TurnStatus
    message: UserMessage
    started_at_ms: int
    first_index: int
    stored_messages: int
    step_count: int
    usage: Usage = NO_USAGE
    ending: Ending | None = None


@dataclass(frozen=True, slots=True)
class StoredCall:
    """A call of the open turn."""

    request: CallRequest
    step_id: str
    phase: CallPhase
    attempts: int
    approval_step_id: str | None
    interrupt_id: str | None
    approval: Approval | None
    record: RecordStatus | None


@dataclass(frozen=True, slots=True)
class ClaimedSession:
    """A session that this worker owns from now on, with all that its loop needs.

    Attributes:
        check: the worker's code differs from what the open turn was recorded under (or the session is blocked): find
            out first whether it fits.
        model_step: the open ``RunModel`` step and its attempts; ``None`` when none is open.
        max_sequence: of the open turn's records; 0 when it has none.
        lost: how many owners in a row, right before this one, neither settled a step nor released the session.
        next_deadline_ms: earliest deadline of a pending interrupt.
    """

    lease: Lease
    incarnation: str
    flow_type: str
    user_id: str
    turns: int
    closed: bool
    blocked: ErrorInfo | None
    await_step_id: str | None
    message_count: int
    check: bool
    turn: StoredTurn | None = None
    calls: tuple[StoredCall, ...] = ()
    model_step: tuple[str, int] | None = None
    max_sequence: int = 0
    lost: int = 0
    inbox: tuple[InboxItem, ...] = ()
    next_deadline_ms: int | None = None


@dataclass(frozen=True, slots=True)
class TurnBegin:
    """A new open turn.  The message comes from the inbox item of the same turn id, which is consumed."""

    turn_id: str
    number: int
    started_at_ms: int


@dataclass(frozen=True, slots=True)
class TurnChange:
    """A new status of a turn.  ``ended_at_ms`` and ``error`` only when it ends."""

    turn_id: str
    status: TurnStatus
    ended_at_ms: int | None = None
    error: ErrorInfo | None = None


@dataclass(frozen=True, slots=True)
class StepPut:
    """Insert a step or bring it up to date.  A settled step never changes (J3): such a put is ignored.

    ``key`` is kept from the first put when it is empty; ``started_at_ms`` likewise when ``None``.
    """

    step_id: str
    turn_id: str | None
    name: StepName
    status: StepStatus
    attempts: int
    key: str = ""
    call_id: str | None = None
    started_at_ms: int | None = None
    settled_at_ms: int | None = None
    error: ErrorInfo | None = None


@dataclass(frozen=True, slots=True)
class CallPut:
    """Insert a call (``request`` given) or bring its phase and attempts up to date."""

    turn_id: str
    call_id: str
    phase: CallPhase
    attempts: int
    step_id: str
    approval_step_id: str | None = None
    interrupt_id: str | None = None
    request: CallRequest | None = None


@dataclass(frozen=True, slots=True)
class RecordPut:
    """The record of a call; written once, later ones are ignored (J3).

    ``outcome``: the framework's JSON text; ``result``: what the model sees, for people.
    """

    turn_id: str
    call_id: str
    sequence: int
    status: RecordStatus
    settled_at_ms: int
    outcome: str | None = None
    result: JsonValue = None
    error: ErrorInfo | None = None


@dataclass(frozen=True, slots=True)
class InterruptPut:
    """A new pending interrupt.  ``arguments`` and the like come from the call's request."""

    interrupt_id: str
    turn_id: str
    call_id: str
    kind: InterruptKind
    created_at_ms: int
    deadline_ms: int | None


@dataclass(frozen=True, slots=True)
class InterruptEnd:
    """Expire an interrupt, which is refused when it was answered first; or withdraw it, unless it was."""

    interrupt_id: str
    status: InterruptStatus


@dataclass(frozen=True, slots=True)
class EventPut:
    """One item of the live stream.  ``number``: its place under this lease, from 1; the cursor is (fence, number)."""

    number: int
    event: AgentEvent


@dataclass(frozen=True, slots=True)
class SessionPut:
    """New facts of the session row.  ``None`` leaves a field as it is, except where said."""

    status: SessionStatus
    await_step_id: str | None = None
    """Written as it is: ``None`` while a turn is open."""
    blocked: ErrorInfo | None = None
    """Written as it is: ``None`` when the session is not blocked."""
    closed: bool = False
    definition: str | None = None
    """The fingerprint of the code under which the open turn is recorded."""


@dataclass(frozen=True, slots=True)
class SessionWrite:
    """Everything that one step of a session's loop stores, in one transaction.

    Attributes:
        kinds: which durable writes this is, for the fault points.
        consumed: inbox positions that are done with (a begun message's is found by its turn id).
        release: give the session up with this write: its owner becomes nobody.  A released session that still has
            work (inbox items, an open turn that is not suspended) can be claimed at once.
        wake_at_ms: when the session must be looked at again though nothing happens to it (the next deadline); kept as
            it is when ``release`` is false.
    """

    kinds: tuple[DurableWrite, ...]
    session: SessionPut | None = None
    consumed: tuple[int, ...] = ()
    begin: TurnBegin | None = None
    turn: TurnChange | None = None
    ending: Ending | None = None
    """How the turn of ``turn_id`` will end."""
    usage: Usage | None = None
    """To add to the open turn's and the session's usage."""
    steps: tuple[StepPut, ...] = ()
    calls: tuple[CallPut, ...] = ()
    records: tuple[RecordPut, ...] = ()
    model_calls: tuple[ModelCall, ...] = ()
    interrupts: tuple[InterruptPut, ...] = ()
    interrupt_ends: tuple[InterruptEnd, ...] = ()
    messages: tuple[NewMessage, ...] = ()
    """Of the open turn (or of the one this write ends); an ordinal that is stored already is ignored (J5)."""
    turn_id: str | None = None
    """The turn that ``usage``, ``model_calls`` and ``messages`` belong to."""
    dropped: tuple[str, ...] = ()
    """Turn ids of queued messages that will never begin; stored as cancelled turns."""
    events: tuple[EventPut, ...] = ()
    release: bool = False
    unfinished: bool = False
    """With ``release``: the owner leaves in the middle of something; a session with an open turn is due at once."""
    wake_at_ms: int | None = None


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

    async def open(self) -> None:
        """Opens or creates the store and brings its schema up to date.

        Raises:
            StoreNotOurs, StoreTooNew, StoreBusy, StoreReadOnly, StoreFull, StoreUnavailable
        """
        ...

    async def close(self) -> None:
        """Finishes the writes that were handed in, and lets go of everything."""
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
        self, session_id: str, interrupt_id: str, answer: Answer, request: Request, now_ms: int
    ) -> Interrupt:
        """Answers a pending interrupt; the identical answer once more changes nothing.  Returns the interrupt.

        Answers are identical when ``approved``, ``payload`` and ``message`` are, whoever gives them.

        Raises:
            SessionNotFound, InterruptNotFound, SessionBlocked
            InterruptAlreadyResolved, InterruptExpired (also when its deadline is past), InterruptWithdrawn
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

        No write when there is none.
        """
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
            PayloadTooLarge
        """
        ...

    async def read_recorded_turn(self, session_id: str, turn_id: str) -> RecordedTurn:
        """What the journal holds of a turn."""
        ...

    async def read_history(self, session_id: str, first: int, end: int) -> Sequence[JsonObject]:
        """The framework items of the messages with ``first`` <= index < ``end``, in order."""
        ...

    async def read_turn_state(self, session_id: str, turn_number: int) -> JsonObject:
        """The session state at the beginning of turn ``turn_number``: session keys as of the end of the turn before,
        ``app:`` and ``user:`` keys as they were when the turn began."""
        ...
