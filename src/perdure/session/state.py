"""The state of the session loop; with what it is told (``inputs``) and what it wants done (``commands``) in one place.

Frozen data without I/O; ``flow.reduce`` is the function over it.  The state holds small facts only: ids, phases,
counts.  Texts, arguments and results stay with the engine and the store.

A field marked *not stored* describes what one worker is doing.  A state that is built from the store has its default
there, and ``TakenOver`` is the first thing that it is told.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass, field

from perdure.session.commands import (
    AnnounceEnd,
    BeginLeg,
    BeginTurn,
    BlockSession,
    CheckCode,
    CloseSession,
    Command,
    ContinueTurn,
    DropMessage,
    DropTurn,
    EndLeg,
    EndTurn,
    HandOut,
    JoinTurn,
    PutRecord,
    PutStep,
    RaiseInterrupt,
    RaiseQuestion,
    Reason,
    RunCall,
    RunModel,
    SettleInterrupt,
    SettleQuestion,
    StopStep,
    StoreCommand,
    SuspendTurn,
    UnblockSession,
    WorkCommand,
)
from perdure.session.inputs import (
    AttemptFailed,
    AttemptStarted,
    CallAsked,
    CallSettled,
    CancelRequested,
    CloseRequested,
    CodeDiffers,
    CodeFits,
    DrainRequested,
    Input,
    InterruptAnswered,
    InterruptExpired,
    JoinRequested,
    MessageArrived,
    ModelBlocked,
    ModelFailed,
    ModelFinished,
    ModelStepSettled,
    RequestedCall,
    RequestedQuestion,
    TakenOver,
    TurnHasNews,
)
from perdure.session.model import ErrorInfo, InterruptKind, RecordStatus, SessionStatus, TurnStatus
from perdure.session.policy import EFFECT_RULES, ToolEffect
from perdure.session.runner import QuestionWait

__all__ = [
    "MAX_MODEL_STEP_TAKEOVERS",
    "AnnounceEnd",
    "AttemptFailed",
    "AttemptStarted",
    "BeginLeg",
    "BeginTurn",
    "BlockSession",
    "Call",
    "CallAsked",
    "CallPhase",
    "CallSettled",
    "CancelRequested",
    "CheckCode",
    "CloseRequested",
    "CloseSession",
    "CodeDiffers",
    "CodeFits",
    "Command",
    "ContinueTurn",
    "DrainRequested",
    "DropMessage",
    "DropTurn",
    "EndLeg",
    "EndTurn",
    "Ending",
    "HandOut",
    "Input",
    "InterruptAnswered",
    "InterruptExpired",
    "JoinRequested",
    "JoinTurn",
    "LateQuestion",
    "MessageArrived",
    "ModelBlocked",
    "ModelFailed",
    "ModelFinished",
    "ModelStep",
    "ModelStepSettled",
    "OpenTurn",
    "PutRecord",
    "PutStep",
    "Question",
    "RaiseInterrupt",
    "RaiseQuestion",
    "Reason",
    "RequestedCall",
    "RequestedQuestion",
    "RunCall",
    "RunModel",
    "SessionState",
    "SettleInterrupt",
    "SettleQuestion",
    "StopStep",
    "StoreCommand",
    "SuspendTurn",
    "TakenOver",
    "TurnHasNews",
    "UnblockSession",
    "WorkCommand",
]

MAX_MODEL_STEP_TAKEOVERS = 5
"""How many workers may die in one ``RunModel`` step, or in a row without settling any step, before the turn fails: a
turn that kills its worker must not kill them all."""


class CallPhase(enum.Enum):
    AWAITING = "awaiting"
    """Waits for its interrupt: before it runs, or because its last attempt asked."""
    DUE = "due"
    """May run.  Since it was let through, a single-attempt call never started; another one may have attempts behind it
    that died with their worker."""
    STARTED = "started"
    """An attempt was started, durably."""
    SETTLED = "settled"


@dataclass(frozen=True, slots=True)
class Call:
    """One tool call of the open turn.

    Attributes:
        attempts: tries that were started, those that died with their worker and those that asked included.
        asks: tries that ended with a question to a person; each may be followed by a further one.
        asking: the kind of its last interrupt.
        rank: its place among the settled calls and questions, from 1; 0 while it is not settled.
        handed_out: the live turn has its record (a replay hands out the records of complete groups by itself).
        issued: this worker has a ``RunCall`` for it that is neither settled nor stopped (not stored).
    """

    call_id: str
    step_id: str
    group: str
    effect: ToolEffect
    max_attempts: int
    phase: CallPhase
    attempts: int = 0
    asks: int = 0
    approval_step_id: str | None = None
    interrupt_id: str | None = None
    asking: InterruptKind | None = None
    record: RecordStatus | None = None
    rank: int = 0
    handed_out: bool = False
    issued: bool = False

    @property
    def settled(self) -> bool:
        return self.phase is CallPhase.SETTLED

    @property
    def single_attempt(self) -> bool:
        return EFFECT_RULES[self.effect].single_attempt

    @property
    def tries(self) -> int:
        """The attempts that count against ``max_attempts``."""
        return self.attempts - self.asks


@dataclass(frozen=True, slots=True)
class Question:
    """One question of the present leg of the open turn.  Groups of questions are apart from groups of calls.

    Attributes:
        settled: the turn does not wait for an answer (any more).
        rank: its place among the settled calls and questions, from 1; 0 while it has no answer.
        handed_out: the live turn has its answer (a replay hands out the answers of complete groups by itself).
    """

    question_id: str
    step_id: str
    interrupt_id: str
    kind: InterruptKind
    group: str
    wait: QuestionWait
    settled: bool = False
    rank: int = 0
    handed_out: bool = False


@dataclass(frozen=True, slots=True)
class LateQuestion:
    """A question whose answer starts a turn (``QuestionWait.NEXT_TURN``).  ``turn_id``: of the turn that asked it."""

    turn_id: str
    step_id: str
    interrupt_id: str
    kind: InterruptKind


@dataclass(frozen=True, slots=True)
class ModelStep:
    """The ``RunModel`` step that is due or running.

    Attributes:
        attempts: workers that took it.
        issued: this worker has a ``RunModel`` for it (not stored).
    """

    step_id: str
    attempts: int = 0
    issued: bool = False


@dataclass(frozen=True, slots=True)
class Ending:
    """How the turn ends once nothing of it runs any more."""

    status: TurnStatus
    error: ErrorInfo | None = None


@dataclass(frozen=True, slots=True)
class OpenTurn:
    """The turn under way.

    Attributes:
        steps: ``RunModel`` and ``ResumeTurn`` steps so far; their ids are made from it.
        leg: which invocation of the turn this is, from 1.
        calls, questions: of this leg, by their ids, in the order in which they were asked for.
        raised: how many interrupts each call or question raised, by its id, in all legs; their ids are made from it.
        settled: calls settled and questions answered so far in this leg.
        at_frontier: the invocation of this leg has ended, and the next one begins when its questions are answered.
        over: nothing of this leg runs any more (not stored).
        drive_again: something happened while the model step ran, perhaps too late for it to see (not stored).
        ending: how the turn ends, once the writes that still run have their records.
        suspended: every branch waits for someone.
    """

    turn_id: str
    number: int
    steps: int = 0
    leg: int = 1
    model: ModelStep | None = None
    calls: Mapping[str, Call] = field(default_factory=dict[str, Call])
    questions: Mapping[str, Question] = field(default_factory=dict[str, Question])
    raised: Mapping[str, int] = field(default_factory=dict[str, int])
    settled: int = 0
    at_frontier: bool = False
    over: bool = False
    drive_again: bool = False
    ending: Ending | None = None
    suspended: bool = False

    @property
    def all_settled(self) -> bool:
        return all(call.settled for call in self.calls.values())

    @property
    def all_answered(self) -> bool:
        """Whether it waits for no question."""
        return all(question.settled for question in self.questions.values())

    @property
    def waits_live(self) -> bool:
        """Whether the invocation of this leg waits for a call or for a question."""
        live = (question for question in self.questions.values() if question.wait is QuestionWait.LIVE)
        return not self.all_settled or not all(question.settled for question in live)

    @property
    def busy(self) -> bool:
        """Whether something can go on without an answer from outside."""
        if self.model is not None or (self.at_frontier and self.all_answered):
            return True
        return any(call.phase in (CallPhase.DUE, CallPhase.STARTED) for call in self.calls.values())


@dataclass(frozen=True, slots=True)
class SessionState:
    """All that decides what a session does next.

    Attributes:
        queue: turn ids of accepted messages that have not begun, oldest first.
        turns: turns begun so far.
        late: questions that nobody waits for and whose answers start turns, by interrupt id, oldest first.
        await_step_id: the open ``AwaitUserMessage`` step; ``None`` while a turn is open.
        blocked: why the session is blocked.
        checking: this worker is finding out whether its code fits the open turn (not stored).
        draining: this worker is about to give the session up (not stored).
    """

    session_id: str
    queue: tuple[str, ...] = ()
    turns: int = 0
    await_step_id: str | None = None
    turn: OpenTurn | None = None
    late: Mapping[str, LateQuestion] = field(default_factory=dict[str, LateQuestion])
    closed: bool = False
    blocked: ErrorInfo | None = None
    checking: bool = False
    draining: bool = False

    @property
    def status(self) -> SessionStatus:
        if self.closed:
            return SessionStatus.CLOSED
        if self.blocked is not None:
            return SessionStatus.BLOCKED
        if self.turn is None:
            return SessionStatus.RUNNING if self.queue else SessionStatus.IDLE
        return SessionStatus.WAITING if self.turn.suspended else SessionStatus.RUNNING
