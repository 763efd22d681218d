"""What the session loop wants done: the commands of ``flow.reduce``, those to store and those to carry out."""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import ClassVar

from perdure.session.model import (
    ErrorInfo,
    InterruptKind,
    InterruptStatus,
    RecordStatus,
    StepName,
    StepStatus,
    TurnStatus,
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
class EndLeg:
    """Store that an invocation of the turn ended with questions open: a checkpoint, from which the next one begins."""

    turn_id: str
    leg: int


@dataclass(frozen=True, slots=True)
class BeginLeg:
    """Store that the next invocation of the turn begins, with the answers to the questions of the one before."""

    turn_id: str
    leg: int


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


@dataclass(frozen=True, slots=True)
class JoinTurn:
    """Store that a message left the queue and became part of the open turn."""

    turn_id: str
    message_id: str


class Reason(enum.Enum):
    """Why perdure itself decided a record."""

    REJECTED = "rejected"
    EXPIRED = "expired"
    NOT_RUN = "not_run"
    """The turn ended first; the tool never ran, or never since it asked."""
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
    """Store a new pending interrupt of a call.  ``in_the_middle``: the tool itself asked, in a run of its body."""

    interrupt_id: str
    call_id: str
    kind: InterruptKind
    in_the_middle: bool = False


@dataclass(frozen=True, slots=True)
class RaiseQuestion:
    """Store a new question, and its pending interrupt."""

    interrupt_id: str
    question_id: str
    step_id: str


@dataclass(frozen=True, slots=True)
class SettleQuestion:
    """Store that nobody waits for the answer to a question any more.

    Attributes:
        question_id: of the open turn; ``None``: its answer is not for the turn that asked, or there is none.
        expired: the answer is that nobody answered in time; else the engine has it.
    """

    interrupt_id: str
    question_id: str | None = None
    expired: bool = False


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
    | EndLeg
    | BeginLeg
    | AnnounceEnd
    | EndTurn
    | DropMessage
    | JoinTurn
    | PutRecord
    | RaiseInterrupt
    | RaiseQuestion
    | SettleQuestion
    | SettleInterrupt
    | BlockSession
    | UnblockSession
    | CloseSession
)
"""To be stored, all those of one reduction in one transaction with its input."""


# ---------------------------------------------------------------- commands to carry out


@dataclass(frozen=True, slots=True)
class RunModel:
    """Drive the live turn with the records of ``call_ids`` and the answers to ``question_ids``, both in the order of
    settlement.  ``attempt``: of the step; each worker that takes it makes one."""

    step_id: str
    call_ids: tuple[str, ...]
    attempt: int = 1
    question_ids: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class HandOut:
    """Give records and answers, as for ``RunModel``, to the live turn, which is being driven already."""

    call_ids: tuple[str, ...]
    question_ids: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class RunCall:
    """Run the tool step.  A single-attempt call first sends ``AttemptStarted`` and waits until that is durable.

    Attributes:
        attempt: the number of its first try.
        asks: how many tries before ended with a question; they do not count against the attempts that it has.
    """

    step_id: str
    call_id: str
    attempt: int
    single_attempt: bool
    asks: int = 0


@dataclass(frozen=True, slots=True)
class StopStep:
    """Stop what runs for this step; whatever it still reports is ignored."""

    step_id: str


@dataclass(frozen=True, slots=True)
class CheckCode:
    """Rebuild the live turn and answer ``CodeFits`` or ``CodeDiffers``.

    Attributes:
        step_id: the same for all: a session has one check at a time.
        at_rest: no model step is open, so each model call that the turn made has its record.
    """

    step_id: ClassVar[str] = "check"

    turn_id: str
    at_rest: bool = False


@dataclass(frozen=True, slots=True)
class DropTurn:
    """Forget the live turn."""


WorkCommand = RunModel | HandOut | RunCall | StopStep | CheckCode | DropTurn
"""To be carried out, in order, when what was to be stored with it is durable."""

Command = StoreCommand | WorkCommand
