"""What the session loop is told: the inputs of ``flow.reduce``."""

from __future__ import annotations

from dataclasses import dataclass

from perdure.session.model import ErrorInfo, InterruptKind, RecordStatus
from perdure.session.policy import ToolEffect
from perdure.session.runner import QuestionWait


@dataclass(frozen=True, slots=True)
class MessageArrived:
    """An accepted message.  An engine gives each message once per ownership, in the order of acceptance, until its turn
    has begun.

    Attributes:
        turn_id: the turn that it will start.
        answers: ids of the interrupts that it answers; their questions outlived the turn that asked them.
    """

    turn_id: str
    answers: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class JoinRequested:
    """A model call of the open turn is about to be made, and would take along these queued messages, which steer."""

    turn_id: str
    message_ids: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class CancelRequested:
    """Stop the open turn, or drop a queued message.  ``turn_id`` ``None``: whichever turn is open."""

    turn_id: str | None = None


@dataclass(frozen=True, slots=True)
class CloseRequested:
    """Cancel the open turn, drop what is queued, take no more messages."""


@dataclass(frozen=True, slots=True)
class InterruptAnswered:
    """A person answered.  ``approved``: yes or no; always true of an answer that is neither."""

    interrupt_id: str
    approved: bool = True


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
class RequestedQuestion:
    """The part of a ``runner.Question`` that decides what happens to it."""

    question_id: str
    group: str
    kind: InterruptKind
    wait: QuestionWait


@dataclass(frozen=True, slots=True)
class ModelBlocked:
    """The invocation waits for ``calls`` and ``questions`` (what is known already is skipped) or for earlier ones.

    ``more``: a branch is still busy; drive again at once.
    """

    calls: tuple[RequestedCall, ...]
    more: bool = False
    questions: tuple[RequestedQuestion, ...] = ()


@dataclass(frozen=True, slots=True)
class ModelFinished:
    """The invocation ended by itself, with ``questions`` open."""

    questions: tuple[RequestedQuestion, ...] = ()


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
class CallAsked:
    """The tool ran as far as a question to a person; it runs again when that is answered."""

    step_id: str
    kind: InterruptKind


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
    | JoinRequested
    | CancelRequested
    | CloseRequested
    | InterruptAnswered
    | InterruptExpired
    | ModelStepSettled
    | AttemptStarted
    | AttemptFailed
    | CallAsked
    | CallSettled
    | TurnHasNews
    | TakenOver
    | DrainRequested
    | CodeFits
    | CodeDiffers
)
