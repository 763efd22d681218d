"""What the owner of a session writes: the parts of ``SessionWrite``, which is one transaction."""

from __future__ import annotations

from dataclasses import dataclass

from perdure.faults import DurableWrite
from perdure.session.model import (
    AgentEvent,
    ErrorInfo,
    InterruptKind,
    InterruptStatus,
    JsonObject,
    JsonValue,
    RecordStatus,
    SessionStatus,
    StepName,
    StepStatus,
    TurnStatus,
    Usage,
)
from perdure.session.runner import Answer, CallRequest, ModelCall, NewMessage, Question
from perdure.session.state import CallPhase, Ending


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
    """Insert a call (``request`` given) into the present leg, or bring its phase and attempts up to date.

    ``asks``: attempts that ended with a question.  ``asked``: the outcome of the last of them; ``None`` keeps it.
    """

    turn_id: str
    call_id: str
    phase: CallPhase
    attempts: int
    step_id: str
    approval_step_id: str | None = None
    interrupt_id: str | None = None
    request: CallRequest | None = None
    asks: int = 0
    asked: str | None = None


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
    """A new pending interrupt.  ``arguments`` and the like come from the request of the call, or from the question.

    ``call_id``: of the call or the question that asks.  ``asked``: the ``hint`` and ``payload`` of a call that asks in
    the middle.
    """

    interrupt_id: str
    turn_id: str
    call_id: str
    kind: InterruptKind
    created_at_ms: int
    deadline_ms: int | None
    asked: JsonObject | None = None


@dataclass(frozen=True, slots=True)
class QuestionPut:
    """A new question of the present leg."""

    interrupt_id: str
    turn_id: str
    step_id: str
    question: Question


@dataclass(frozen=True, slots=True)
class QuestionEnd:
    """Nothing waits for a question any more.  Written once, later ones are ignored (J3).

    ``answer``: what the live turn or the next leg gets; ``None`` when it gets nothing.
    """

    interrupt_id: str
    answer: Answer | None = None


@dataclass(frozen=True, slots=True)
class LegEnd:
    """The present leg of the open turn ended at a frontier.  ``carry``: what it hands on, as JSON text."""

    carry: str | None


@dataclass(frozen=True, slots=True)
class LegBegin:
    """The next leg of the open turn begins, with all that is stored by this very write."""

    leg: int


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
    leg_end: LegEnd | None = None
    leg_begin: LegBegin | None = None
    """Of the turn of ``turn_id``; what else this write holds belongs to the leg before."""
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
    questions: tuple[QuestionPut, ...] = ()
    question_ends: tuple[QuestionEnd, ...] = ()
    messages: tuple[NewMessage, ...] = ()
    """Of the open turn (or of the one this write ends); an ordinal that is stored already is ignored (J5)."""
    turn_id: str | None = None
    """The turn that ``usage``, ``model_calls`` and ``messages`` belong to."""
    dropped: tuple[str, ...] = ()
    """Turn ids of queued messages that will never begin; stored as cancelled turns."""
    joined: tuple[str, ...] = ()
    """Those of queued messages that became part of the open turn; ``model_calls`` has what they say."""
    events: tuple[EventPut, ...] = ()
    release: bool = False
    unfinished: bool = False
    """With ``release``: the owner leaves in the middle of something; a session with an open turn is due at once."""
    wake_at_ms: int | None = None
