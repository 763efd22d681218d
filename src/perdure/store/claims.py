"""What a worker gets with a session that it claims: the lease, and all that the session's loop needs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from perdure.session.model import (
    NO_USAGE,
    ErrorInfo,
    InterruptKind,
    RecordStatus,
    TurnStatus,
    Usage,
    UserMessage,
)
from perdure.session.runner import Answer, AnsweredQuestion, Approval, CallRequest, Question
from perdure.session.state import CallPhase, Ending, LateQuestion
from perdure.store.requests import InboxItem


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
class DueSession:
    """A session that nobody owns.  ``fence``: no lease up to this one is worth anything any more."""

    session_id: str
    fence: int


@dataclass(frozen=True, slots=True)
class Ownership:
    """Who has a session.  ``owner``: id of a worker; ``None``: nobody, and all leases up to ``fence`` are void."""

    flow_type: str
    owner: str | None
    fence: int


@dataclass(frozen=True, slots=True)
class StoredTurn:
    """The open turn of a claimed session.

    Attributes:
        first_index: index of its first message.
        stored_messages: how many messages of it are stored.
        step_count: how many steps of it are stored, or more; new step ids are numbered from it.
        usage: of the turn so far.
        leg: the present one.
        leg_first_index: index of the first message of the present leg.
        answers: what the present leg began with.
        carry: what the leg before handed on; ``None`` in the first.
        next_carry: what the present leg hands on, if it has ended.
        raised: how many interrupts each call and question of the turn raised, by its id.
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
    leg: int = 1
    leg_first_index: int = 0
    answers: tuple[AnsweredQuestion, ...] = ()
    carry: str | None = None
    next_carry: str | None = None
    raised: Mapping[str, int] = field(default_factory=dict[str, int])
    ending: Ending | None = None


@dataclass(frozen=True, slots=True)
class StoredCall:
    """A call of the open turn's present leg.

    Attributes:
        asking: the kind of its last interrupt.
        asks: how many of its attempts ended with a question.
        asked: the outcome of the last attempt that did.
    """

    request: CallRequest
    step_id: str
    phase: CallPhase
    attempts: int
    approval_step_id: str | None
    interrupt_id: str | None
    approval: Approval | None
    record: RecordStatus | None
    asking: InterruptKind | None = None
    asks: int = 0
    asked: str | None = None


@dataclass(frozen=True, slots=True)
class StoredQuestion:
    """A question of the open turn's present leg.  ``settled``: nothing waits for its answer (any more)."""

    question: Question
    step_id: str
    interrupt_id: str
    settled: bool
    answer: Answer | None


@dataclass(frozen=True, slots=True)
class ClaimedSession:
    """A session that this worker owns from now on, with all that its loop needs.

    Attributes:
        check: the worker's code differs from what the open turn was recorded under (or the session is blocked): find
            out first whether it fits.
        model_step: the open ``RunModel`` step and its attempts; ``None`` when none is open.
        late: questions that nobody waits for and whose answers start turns.
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
    questions: tuple[StoredQuestion, ...] = ()
    late: tuple[LateQuestion, ...] = ()
    model_step: tuple[str, int] | None = None
    max_sequence: int = 0
    lost: int = 0
    inbox: tuple[InboxItem, ...] = ()
    next_deadline_ms: int | None = None
