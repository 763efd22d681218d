"""The state of the session loop, what it is told (inputs) and what it wants done (commands).

Frozen data without I/O; ``flow.reduce`` is the function over it.  The state holds small facts only: ids, phases,
counts.  Texts, arguments and results stay with the engine and the store.
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
from perdure.session.policy import ToolEffect

MAX_MODEL_STEP_TAKEOVERS = 5
"""How many workers may die in one ``RunModel`` step before its turn fails: a turn that kills its worker must not kill
them all."""


class CallPhase(enum.Enum):
    AWAITING = "awaiting"
    """Waits for its interrupt."""
    DUE = "due"
    """May run; a single-attempt call has no start mark yet."""
    STARTED = "started"
    """An attempt was started, durably."""
    SETTLED = "settled"


@dataclass(frozen=True, slots=True)
class Call:
    """One tool call of the open turn.

    Attributes:
        rank: its place among the settled calls, from 1; 0 while it is not settled.
        handed_out: the live turn has its record.
        issued: a ``RunCall`` was given to this worker (not persisted).
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


@dataclass(frozen=True, slots=True)
class ModelStep:
    """The ``RunModel`` step that is due or running.  ``attempts``: workers that took it."""

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
    """The turn under way.  ``calls`` is in the order in which they were asked for."""

    turn_id: str
    number: int
    steps: int = 0
    """``RunModel`` and ``ResumeTurn`` steps so far; their ids are made from it."""
    model: ModelStep | None = None
    calls: Mapping[str, Call] = field(default_factory=dict[str, Call])
    settled: int = 0
    """Calls settled so far."""
    handed_out_late: bool = False
    """Records were handed out while the model step ran, perhaps too late for it to use them."""
    ending: Ending | None = None
    suspended: bool = False


@dataclass(frozen=True, slots=True)
class SessionState:
    """All that decides what a session does next.

    Attributes:
        queue: turn ids of accepted messages that have not begun, oldest first.
        turns: turns begun so far.
        await_step_id: the open ``AwaitUserMessage`` step; ``None`` while a turn is open.
        blocked: why the session is blocked.
        checking: a worker is finding out whether its code fits the open turn (not persisted).
    """

    session_id: str
    queue: tuple[str, ...] = ()
    turns: int = 0
    await_step_id: str | None = None
    turn: OpenTurn | None = None
    closed: bool = False
    blocked: ErrorInfo | None = None
    checking: bool = False

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
    turn_id: str


@dataclass(frozen=True, slots=True)
class CancelRequested:
    """``turn_id`` ``None``: whichever turn is open."""

    turn_id: str | None = None


@dataclass(frozen=True, slots=True)
class CloseRequested:
    pass


@dataclass(frozen=True, slots=True)
class InterruptAnswered:
    interrupt_id: str
    approved: bool


@dataclass(frozen=True, slots=True)
class InterruptExpired:
    interrupt_id: str


@dataclass(frozen=True, slots=True)
class RequestedCall:
    """The part of a ``CallRequest`` that decides what happens to it."""

    call_id: str
    group: str
    effect: ToolEffect
    max_attempts: int
    ask: InterruptKind | None = None


@dataclass(frozen=True, slots=True)
class ModelBlocked:
    calls: tuple[RequestedCall, ...]
    more: bool = False


@dataclass(frozen=True, slots=True)
class ModelFinished:
    pass


@dataclass(frozen=True, slots=True)
class ModelFailed:
    error: ErrorInfo


@dataclass(frozen=True, slots=True)
class ModelStepSettled:
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
    step_id: str
    status: RecordStatus


@dataclass(frozen=True, slots=True)
class TurnHasNews:
    """The live turn asked for something while nobody drove it."""


@dataclass(frozen=True, slots=True)
class TakenOver:
    """A worker owns the session from now on; what ran on the former owner does not run any more.

    ``check``: first find out whether the code fits the open turn.
    """

    check: bool = False


@dataclass(frozen=True, slots=True)
class CodeFits:
    pass


@dataclass(frozen=True, slots=True)
class CodeDiffers:
    error: ErrorInfo


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
    | CodeFits
    | CodeDiffers
)


# ---------------------------------------------------------------- commands


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
class EndTurn:
    """Store the end of the turn; a failed or cancelled one with its closing messages."""

    turn_id: str
    status: TurnStatus
    error: ErrorInfo | None = None


@dataclass(frozen=True, slots=True)
class DropMessage:
    """The session was closed before this message began; store that."""

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
    interrupt_id: str
    call_id: str
    kind: InterruptKind


@dataclass(frozen=True, slots=True)
class SettleInterrupt:
    interrupt_id: str
    status: InterruptStatus


@dataclass(frozen=True, slots=True)
class BlockSession:
    error: ErrorInfo


@dataclass(frozen=True, slots=True)
class UnblockSession:
    pass


@dataclass(frozen=True, slots=True)
class CloseSession:
    pass


@dataclass(frozen=True, slots=True)
class RunModel:
    """Drive the live turn with the records of ``call_ids``, in that order."""

    step_id: str
    call_ids: tuple[str, ...]


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


@dataclass(frozen=True, slots=True)
class DropTurn:
    """Forget the live turn."""


Command = (
    PutStep
    | BeginTurn
    | SuspendTurn
    | ContinueTurn
    | EndTurn
    | DropMessage
    | PutRecord
    | RaiseInterrupt
    | SettleInterrupt
    | BlockSession
    | UnblockSession
    | CloseSession
    | RunModel
    | HandOut
    | RunCall
    | StopStep
    | CheckCode
    | DropTurn
)
"""The first twelve are to be stored, in one transaction with the input; the rest is done after that is durable."""
