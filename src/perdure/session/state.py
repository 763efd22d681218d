"""The state of the session loop, what it is told (inputs) and what it wants done (commands).

Frozen data without I/O; ``flow.reduce`` is the function over it.  The state holds small facts only: ids, phases,
counts.  Texts, arguments and results stay with the engine and the store.

A field marked *not stored* describes what one worker is doing.  A state that is built from the store has its default
there, and ``TakenOver`` is the first thing that it is told.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass, field

from perdure.session.model import (
    ErrorInfo,
    InterruptKind,
    InterruptStatus,
    RecordStatus,
    SessionStatus,
    StepName,
    StepStatus,
    TurnStatus,
)
from perdure.session.policy import EFFECT_RULES, ToolEffect

MAX_MODEL_STEP_TAKEOVERS = 5
"""How many workers may die in one ``RunModel`` step, or in a row without settling any step, before the turn fails: a
turn that kills its worker must not kill them all."""


class CallPhase(enum.Enum):
    AWAITING = "awaiting"
    """Waits for its interrupt."""
    DUE = "due"
    """May run.  A single-attempt call never started; another one may have attempts behind it that died with their
    worker."""
    STARTED = "started"
    """An attempt was started, durably."""
    SETTLED = "settled"


@dataclass(frozen=True, slots=True)
class Call:
    """One tool call of the open turn.

    Attributes:
        attempts: tries that were started, those that died with their worker included.
        rank: its place among the settled calls, from 1; 0 while it is not settled.
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
    approval_step_id: str | None = None
    interrupt_id: str | None = None
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
        calls: by call id, in the order in which they were asked for.
        settled: calls settled so far.
        drive_again: something happened while the model step ran, perhaps too late for it to see (not stored).
        ending: how the turn ends, once the writes that still run have their records.
        suspended: every branch waits for someone.
    """

    turn_id: str
    number: int
    steps: int = 0
    model: ModelStep | None = None
    calls: Mapping[str, Call] = field(default_factory=dict[str, Call])
    settled: int = 0
    drive_again: bool = False
    ending: Ending | None = None
    suspended: bool = False

    @property
    def all_settled(self) -> bool:
        return all(call.settled for call in self.calls.values())

    @property
    def busy(self) -> bool:
        """Whether something can go on without an answer from outside."""
        return self.model is not None or any(
            call.phase in (CallPhase.DUE, CallPhase.STARTED) for call in self.calls.values()
        )


@dataclass(frozen=True, slots=True)
class SessionState:
    """All that decides what a session does next.

    Attributes:
        queue: turn ids of accepted messages that have not begun, oldest first.
        turns: turns begun so far.
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


# ---------------------------------------------------------------- inputs


@dataclass(frozen=True, slots=True)
class MessageArrived:
    """An accepted message.  An engine gives each message once per ownership, in the order of acceptance, until its turn
    has begun; ``turn_id`` is the turn that it will start."""

    turn_id: str


@dataclass(frozen=True, slots=True)
class CancelRequested:
    """Stop the open turn, or drop a queued message.  ``turn_id`` ``None``: whichever turn is open."""

    turn_id: str | None = None


@dataclass(frozen=True, slots=True)
class CloseRequested:
    """Cancel the open turn, drop what is queued, take no more messages."""


@dataclass(frozen=True, slots=True)
class InterruptAnswered:
    """A person said yes or no."""

    interrupt_id: str
    approved: bool


@dataclass(frozen=True, slots=True)
class InterruptExpired:
    """The deadline of an interrupt passed without an answer."""

    interrupt_id: str


@dataclass(frozen=True, slots=True)
class RequestedCall:
    """The part of a ``runner.CallRequest`` that decides what happens to it."""

    call_id: str
    group: str
    effect: ToolEffect
    max_attempts: int
    ask: InterruptKind | None = None


@dataclass(frozen=True, slots=True)
class ModelBlocked:
    """The invocation waits for ``calls`` (calls that are known already are skipped) or for earlier ones.

    ``more``: a branch is still busy; drive again at once.
    """

    calls: tuple[RequestedCall, ...]
    more: bool = False


@dataclass(frozen=True, slots=True)
class ModelFinished:
    """The invocation ended by itself."""


@dataclass(frozen=True, slots=True)
class ModelFailed:
    """The invocation raised."""

    error: ErrorInfo


@dataclass(frozen=True, slots=True)
class ModelStepSettled:
    """What came of a ``RunModel``."""

    step_id: str
    outcome: ModelBlocked | ModelFinished | ModelFailed


@dataclass(frozen=True, slots=True)
class AttemptStarted:
    """A single-attempt call is about to run; nothing runs before this is durable."""

    step_id: str


@dataclass(frozen=True, slots=True)
class AttemptFailed:
    """An attempt failed and the step goes on to its next one."""

    step_id: str


@dataclass(frozen=True, slots=True)
class CallSettled:
    """What came of a ``RunCall``, all attempts included."""

    step_id: str
    status: RecordStatus


@dataclass(frozen=True, slots=True)
class TurnHasNews:
    """The live turn asked for something while nobody drove it.  ``turn_id`` ``None``: of the open turn."""

    turn_id: str | None = None


@dataclass(frozen=True, slots=True)
class TakenOver:
    """A worker owns the session from now on; what ran on the former owner does not run any more.

    Attributes:
        check: first find out whether the code fits the open turn.
        lost: how many owners in a row died in the open turn without settling a step of it.
    """

    check: bool = False
    lost: int = 0


@dataclass(frozen=True, slots=True)
class DrainRequested:
    """The worker is about to give the session up: what runs goes on, nothing new is started until ``TakenOver``."""


@dataclass(frozen=True, slots=True)
class CodeFits:
    """The answer to ``CheckCode``.  ``turn_id`` ``None``: of the open turn."""

    turn_id: str | None = None


@dataclass(frozen=True, slots=True)
class CodeDiffers:
    """The code does not repeat what is recorded: the answer to ``CheckCode``, or what came of a step.

    Attributes:
        turn_id: ``None``: the open turn.
        unstarted: step ids of ``RunCall`` commands of which no attempt began, because the invocation never asked for
            the call.  Their attempts do not count; those of other calls do.
    """

    error: ErrorInfo
    turn_id: str | None = None
    unstarted: tuple[str, ...] = ()


Input = (
    MessageArrived
    | CancelRequested
    | CloseRequested
    | InterruptAnswered
    | InterruptExpired
    | ModelStepSettled
    | AttemptStarted
    | AttemptFailed
    | CallSettled
    | TurnHasNews
    | TakenOver
    | DrainRequested
    | CodeFits
    | CodeDiffers
)


# ---------------------------------------------------------------- commands to store


@dataclass(frozen=True, slots=True)
class PutStep:
    """Store this state of a step.  ``call_id`` for tool and approval steps."""

    step_id: str
    turn_id: str | None
    name: StepName
    status: StepStatus
    attempts: int
    call_id: str | None = None


@dataclass(frozen=True, slots=True)
class BeginTurn:
    """Store a new open turn; its message leaves the queue."""

    turn_id: str
    number: int


@dataclass(frozen=True, slots=True)
class SuspendTurn:
    """Store that the turn waits for someone."""

    turn_id: str


@dataclass(frozen=True, slots=True)
class ContinueTurn:
    """Store that the turn waits no longer."""

    turn_id: str


@dataclass(frozen=True, slots=True)
class AnnounceEnd:
    """Store how the turn will end; ``EndTurn`` follows when the writes that still run have their records.  A state that
    is built from the store has it as ``OpenTurn.ending``."""

    turn_id: str
    status: TurnStatus
    error: ErrorInfo | None = None


@dataclass(frozen=True, slots=True)
class EndTurn:
    """Store the end of the turn; a failed or cancelled one with its closing messages."""

    turn_id: str
    status: TurnStatus
    error: ErrorInfo | None = None


@dataclass(frozen=True, slots=True)
class DropMessage:
    """Store that this message never begins: it was cancelled, or its session closed."""

    turn_id: str


class Reason(enum.Enum):
    """Why perdure itself decided a record."""

    REJECTED = "rejected"
    EXPIRED = "expired"
    NOT_RUN = "not_run"
    """The turn ended first; the tool never ran."""
    STOPPED = "stopped"
    """A running read was stopped with its turn."""
    INTERRUPTED = "interrupted"
    """It was running when its worker died or its turn was cancelled."""


@dataclass(frozen=True, slots=True)
class PutRecord:
    """Store the record of a call.  ``reason`` ``None``: the tool decided, and the engine has the outcome."""

    call_id: str
    step_id: str
    status: RecordStatus
    reason: Reason | None = None


@dataclass(frozen=True, slots=True)
class RaiseInterrupt:
    """Store a new pending interrupt."""

    interrupt_id: str
    call_id: str
    kind: InterruptKind


@dataclass(frozen=True, slots=True)
class SettleInterrupt:
    """Store that an interrupt was answered, expired or was withdrawn."""

    interrupt_id: str
    status: InterruptStatus


@dataclass(frozen=True, slots=True)
class BlockSession:
    """Store why the session cannot go on under this code."""

    error: ErrorInfo


@dataclass(frozen=True, slots=True)
class UnblockSession:
    """Store that the session is blocked no longer."""


@dataclass(frozen=True, slots=True)
class CloseSession:
    """Store that the session is closed."""


StoreCommand = (
    PutStep
    | BeginTurn
    | SuspendTurn
    | ContinueTurn
    | AnnounceEnd
    | EndTurn
    | DropMessage
    | PutRecord
    | RaiseInterrupt
    | SettleInterrupt
    | BlockSession
    | UnblockSession
    | CloseSession
)
"""To be stored, all those of one reduction in one transaction with its input."""


# ---------------------------------------------------------------- commands to carry out


@dataclass(frozen=True, slots=True)
class RunModel:
    """Drive the live turn with the records of ``call_ids``, in that order.  ``attempt``: of the step; each worker that
    takes it makes one."""

    step_id: str
    call_ids: tuple[str, ...]
    attempt: int = 1


@dataclass(frozen=True, slots=True)
class HandOut:
    """Give the records of ``call_ids`` to the live turn, which is being driven already."""

    call_ids: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class RunCall:
    """Run the tool step.  ``attempt`` is the number of its first try.  A single-attempt call first sends
    ``AttemptStarted`` and waits until that is durable."""

    step_id: str
    call_id: str
    attempt: int
    single_attempt: bool


@dataclass(frozen=True, slots=True)
class StopStep:
    """Stop what runs for this step; whatever it still reports is ignored."""

    step_id: str


@dataclass(frozen=True, slots=True)
class CheckCode:
    """Rebuild the live turn and answer ``CodeFits`` or ``CodeDiffers``."""

    turn_id: str


@dataclass(frozen=True, slots=True)
class DropTurn:
    """Forget the live turn."""


WorkCommand = RunModel | HandOut | RunCall | StopStep | CheckCode | DropTurn
"""To be carried out, in order, when what was to be stored with it is durable."""

Command = StoreCommand | WorkCommand
