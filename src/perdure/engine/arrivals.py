"""Inputs on their way into the reducer, each with what goes with it: from the inbox, or from a live turn."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from typing import assert_never

from perdure.engine.attachments import NOTHING, Attachment
from perdure.engine.book import max_attempts_of
from perdure.engine.steps import ToolStepResult
from perdure.errors import PerdureError
from perdure.faults import DurableWrite
from perdure.session.model import TOOL_CALL_NOT_RUN_ERROR_PREFIX, ErrorInfo, RecordStatus
from perdure.session.runner import (
    Approval,
    DriveBlocked,
    DriveFailed,
    DriveFinished,
    DriveResult,
    ModelCall,
    Question,
)
from perdure.session.state import (
    CancelRequested,
    CloseRequested,
    Input,
    InterruptAnswered,
    MessageArrived,
    ModelBlocked,
    ModelFailed,
    ModelFinished,
    ModelStepSettled,
    RequestedCall,
    RequestedQuestion,
)
from perdure.store.base import InboxItem, InboxKind


@dataclass(frozen=True, slots=True)
class Arrival:
    """An input on its way into the reducer.  ``applied`` is told whether the reducer took it."""

    given: Input
    attachment: Attachment = NOTHING
    applied: asyncio.Future[bool] | None = None


@dataclass(frozen=True, slots=True, eq=False)
class JoinAsked:
    """A model call of a turn is about to be made and would take along what steers.

    Attributes:
        key, sequence: of the record that says what joined.
        seen: see ``JoinedMessages``.
        record: gets that record, once it is on disk; ``None`` if nothing joined.
    """

    turn_id: str
    key: str
    sequence: int
    seen: tuple[int, ...]
    record: asyncio.Future[ModelCall | None]

    def decided(self, record: ModelCall | None) -> None:
        """Says what became of it, if somebody still waits."""
        if not self.record.done():
            self.record.set_result(record)


def error_info(error: BaseException) -> ErrorInfo:
    """An exception as data: perdure's own with their code and facts, others by their type's name."""
    if isinstance(error, PerdureError):
        return ErrorInfo(code=error.code, message=error.message, facts=dict(error.facts))
    return ErrorInfo(code=type(error).__name__, message=str(error) or type(error).__name__)


def not_run(error: Exception) -> ToolStepResult:
    """The result of a call whose live turn could not be brought up."""
    info = error_info(error)
    message = f"{TOOL_CALL_NOT_RUN_ERROR_PREFIX}: {info.message}"
    return ToolStepResult(RecordStatus.FAILED, None, None, info.model_copy(update={"message": message}))


def model_arrival(step_id: str, result: DriveResult) -> Arrival:
    """What came of driving the live turn."""
    kinds = (DurableWrite.MODEL_STEP_SETTLED,)
    match result:
        case DriveBlocked(progress, calls, more, questions):
            requested = tuple(
                RequestedCall(call.call_id, call.group, call.effect, max_attempts_of(call), call.ask) for call in calls
            )
            outcome = ModelBlocked(requested, more, _requested(questions))
            attachment = Attachment(
                kinds=kinds,
                progress=progress,
                requests={call.call_id: call for call in calls},
                questions=_by_id(questions),
            )
            return Arrival(ModelStepSettled(step_id, outcome), attachment)
        case DriveFinished(progress, questions, carry):
            attachment = Attachment(kinds=kinds, progress=progress, questions=_by_id(questions), carry=carry)
            return Arrival(ModelStepSettled(step_id, ModelFinished(_requested(questions))), attachment)
        case DriveFailed(progress, error):
            return Arrival(ModelStepSettled(step_id, ModelFailed(error)), Attachment(kinds=kinds, progress=progress))
        case _:
            assert_never(result)


def _requested(questions: Sequence[Question]) -> tuple[RequestedQuestion, ...]:
    return tuple(RequestedQuestion(one.question_id, one.group, one.kind, one.wait) for one in questions)


def _by_id(questions: Sequence[Question]) -> dict[str, Question]:
    return {question.question_id: question for question in questions}


def inbox_arrival(item: InboxItem) -> Arrival:
    """What a client asks."""
    match item.kind:
        case InboxKind.MESSAGE:
            assert item.turn_id is not None
            assert item.message is not None
            answers = tuple(answer.interrupt_id for answer in item.message.answers)
            kinds = (DurableWrite.INTERRUPT_SETTLED,) if answers else ()
            return Arrival(
                MessageArrived(item.turn_id, answers), Attachment(kinds=kinds, message=(item.turn_id, item.message))
            )
        case InboxKind.ANSWER:
            return _answer_arrival(item)
        case InboxKind.CANCEL:
            return Arrival(CancelRequested(item.turn_id), Attachment(consumed=(item.position,)))
        case InboxKind.CLOSE:
            return Arrival(CloseRequested(), Attachment(consumed=(item.position,)))
        case _:
            assert_never(item.kind)


def _answer_arrival(item: InboxItem) -> Arrival:
    assert item.interrupt_id is not None
    verdict = {"approved": item.approved, "payload": item.payload, "message": item.rejection}
    attachment = Attachment(
        kinds=(DurableWrite.INTERRUPT_SETTLED,),
        consumed=(item.position,),
        approval=Approval(item.payload) if item.approved and item.value is None else None,
        rejection=item.rejection,
        resolved_by=item.resolved_by,
        resolved_at_ms=item.resolved_at_ms,
        response=verdict if item.value is None else item.value,
    )
    return Arrival(InterruptAnswered(item.interrupt_id, item.approved), attachment)
