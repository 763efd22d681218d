"""Rows of the database as shapes of the vocabulary.

Each function takes one row in the column order of its query in ``queries.sql``.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any, TypeVar, cast

from perdure.clock import to_datetime
from perdure.session.events import cursor_for
from perdure.session.model import (
    AgentEvent,
    Interrupt,
    InterruptKind,
    InterruptStatus,
    JsonObject,
    Message,
    MessageRole,
    RecordStatus,
    SessionStatus,
    SessionSummary,
    StepName,
    StepRecord,
    StepStatus,
    TurnInfo,
    TurnStatus,
    Usage,
)
from perdure.session.runner import Answer, Approval, CallRecord, ModelCall, QuestionWait
from perdure.session.state import CallPhase, LateQuestion
from perdure.store.base import InboxItem, InboxKind, StoredCall, StoredQuestion
from perdure.store.codec import (
    Unreadable,
    call_request_from_json,
    error_from_json,
    from_json,
    message_from_json,
    question_from_json,
)
from perdure.store.sql.connection import Connection, Row

T = TypeVar("T")


def load(connection: Connection, value: str | bytes, where: str) -> str:
    """The text of a column that holds it, or the digest of one that is kept apart."""
    if isinstance(value, str):
        return value
    row = connection.execute("payload_text", (value,)).fetchone()
    if row is None:
        raise Unreadable(where, f"its text {value.hex()} is missing")
    text: str = row[0]
    return text


def read_row(build: Callable[..., T], row: Row, where: str, *more: Any) -> T:
    """What ``build`` makes of a row.

    Raises:
        Unreadable: the row holds a value that perdure never stored.
    """
    try:
        return build(row, where, *more)
    except (ValueError, TypeError, KeyError, IndexError) as error:
        raise Unreadable(where, f"{type(error).__name__}: {error}") from error


def _moment(ms: int | None) -> Any:
    return None if ms is None else to_datetime(ms)


def _object(text: str, where: str) -> JsonObject:
    value = from_json(text, where)
    if not isinstance(value, dict):
        raise Unreadable(where, f"a JSON object was stored, found {type(value).__name__}")
    return cast("JsonObject", value)


def turn_info(row: Row, where: str) -> TurnInfo:
    turn_id, number, status, started, ended, tokens_in, tokens_out, calls, error = row
    return TurnInfo(
        turn_id=turn_id,
        number=number,
        status=TurnStatus(status),
        started_at=to_datetime(started),
        ended_at=_moment(ended),
        usage=Usage(input_tokens=tokens_in, output_tokens=tokens_out, model_calls=calls),
        error=error_from_json(error, where),
    )


def interrupt(row: Row, where: str, connection: Connection) -> Interrupt:
    interrupt_id, kind, turn_id, created, deadline, status, *answer, asker_id, asked, request = row
    resolved_by, resolved_at, response = answer
    # Of a call or of a question; and in place of some of it, what a call says that asks in the middle.
    shown = _object(load(connection, request, where), where)
    if asked is not None:
        shown |= _object(load(connection, asked, where), where)
    return Interrupt(
        interrupt_id=interrupt_id,
        kind=InterruptKind(kind),
        turn_id=turn_id,
        tool_name=shown["tool_name"],
        tool_call_id=asker_id,
        arguments=shown["arguments"],
        agent_name=shown["agent_name"],
        path=shown.get("path", ""),
        hint=shown["hint"],
        payload=shown["payload"],
        created_at=to_datetime(created),
        deadline=_moment(deadline),
        status=InterruptStatus(status),
        resolved_by=resolved_by,
        resolved_at=_moment(resolved_at),
        response=None if response is None else from_json(load(connection, response, where), where),
    )


def message(row: Row, where: str, connection: Connection) -> Message:
    position, turn_id, role, author, text, tool_name, tool_call_id, images, item, created = row
    return Message(
        index=position,
        turn_id=turn_id,
        role=MessageRole(role),
        author=author,
        text=load(connection, text, where),
        tool_name=tool_name,
        tool_call_id=tool_call_id,
        images=() if images is None else tuple(json.loads(images)),
        framework_item=_object(load(connection, item, where), where),
        created_at=to_datetime(created),
    )


def history_item(row: Row, where: str, connection: Connection) -> JsonObject:
    return _object(load(connection, row[1], where), where)


def step(row: Row, where: str, connection: Connection) -> StepRecord:
    _, step_id, turn_id, name, key, status, attempts, tool_name, call_id, effect, result, error, started, settled = row
    return StepRecord(
        step_id=step_id,
        turn_id=turn_id,
        name=StepName(name),
        key=key,
        status=StepStatus(status),
        attempts=attempts,
        tool_name=tool_name,
        tool_call_id=call_id,
        effect=effect,
        result=None if result is None else from_json(load(connection, result, where), where),
        error=error_from_json(error, where),
        started_at=_moment(started),
        settled_at=_moment(settled),
    )


def event(row: Row, where: str) -> AgentEvent:
    fence, number, data = row
    stored = AgentEvent.model_validate_json(data)
    cursor = cursor_for(fence, number)
    return stored if stored.cursor == cursor else stored.model_copy(update={"cursor": cursor})


def summary(row: Row, where: str) -> SessionSummary:
    session_id, flow_type, user_id, status, turns, pending, queued, created, updated, _ = row
    return SessionSummary(
        session_id=session_id,
        flow_type=flow_type,
        user_id=user_id,
        status=SessionStatus(status),
        turns=turns,
        pending_interrupts=pending,
        queued_messages=queued,
        created_at=to_datetime(created),
        updated_at=to_datetime(updated),
    )


def inbox_item(row: Row, where: str, connection: Connection) -> InboxItem:
    position, kind, turn_id, interrupt_id, content, resolved_by, resolved_at, asked = row
    text = None if content is None else load(connection, content, where)
    if kind == InboxKind.MESSAGE.value and text is not None:
        return InboxItem(position, InboxKind.MESSAGE, turn_id, message=message_from_json(text, where))
    if kind == InboxKind.ANSWER.value and text is not None:
        answer = _object(text, where)
        item = InboxItem(
            position,
            InboxKind.ANSWER,
            interrupt_id=interrupt_id,
            approved=True,
            resolved_by=resolved_by,
            resolved_at_ms=resolved_at,
            value=answer,
        )
        if InterruptKind(asked).takes_value:
            return item
        verdict = {"approved": answer["approved"], "payload": answer["payload"], "rejection": answer["message"]}
        return replace(item, value=None, **verdict)
    return InboxItem(position, InboxKind(kind), turn_id)


def stored_call(row: Row, where: str, connection: Connection) -> StoredCall:
    request, step_id, phase, attempts, approval_step_id, interrupt_id, record, *rest = row
    *_, answered, response, kind, asks, asked, _ = rest
    return StoredCall(
        request=call_request_from_json(load(connection, request, where), where),
        step_id=step_id,
        phase=CallPhase(phase),
        attempts=attempts,
        approval_step_id=approval_step_id,
        interrupt_id=interrupt_id,
        approval=_approval(answered, response, kind, asked, where, connection),
        record=None if record is None else RecordStatus(record),
        asking=None if kind is None else InterruptKind(kind),
        asks=asks,
        asked=None if asked is None else load(connection, asked, where),
    )


def stored_question(row: Row, where: str, connection: Connection) -> StoredQuestion:
    request, step_id, interrupt_id, settled, sequence, settled_at, error, answer = row
    question = question_from_json(load(connection, request, where), where)
    return StoredQuestion(
        question=question,
        step_id=step_id,
        interrupt_id=interrupt_id,
        settled=bool(settled) or question.wait is QuestionWait.NEXT_TURN,
        answer=None
        if sequence is None
        else Answer(
            question_id=question.question_id,
            sequence=sequence,
            value=from_json(load(connection, answer, where), where),
            error=error_from_json(error, where),
            settled_at_ms=settled_at,
        ),
    )


def late_question(row: Row, where: str) -> LateQuestion:
    turn_id, step_id, interrupt_id, kind = row
    return LateQuestion(turn_id, step_id, interrupt_id, InterruptKind(kind))


def recorded_call(row: Row, where: str, connection: Connection) -> tuple[Any, ...]:
    """The request of a call, its approval, its record, and what it did before it asked."""
    request, _, _, _, _, _, record, sequence, settled, error, outcome, *rest = row
    answered, response, kind, _, asked, call_id = rest
    return (
        call_request_from_json(load(connection, request, where), where),
        _approval(answered, response, kind, asked, where, connection),
        None
        if record is None
        else CallRecord(
            call_id=call_id,
            sequence=sequence,
            status=RecordStatus(record),
            outcome=None if outcome is None else load(connection, outcome, where),
            error=error_from_json(error, where),
            settled_at_ms=settled,
        ),
        None if asked is None else load(connection, asked, where),
    )


def _approval(
    answered: str | None,
    response: str | bytes | None,
    kind: str | None,
    asked: str | bytes | None,
    where: str,
    connection: Connection,
) -> Approval | None:
    if answered != InterruptStatus.APPROVED.value or response is None:
        return None
    payload = _object(load(connection, response, where), where)["payload"]
    return Approval(payload, InterruptKind(kind), None if asked is None else load(connection, asked, where))


def model_call(row: Row, where: str, connection: Connection) -> ModelCall:
    key, sequence, response, tokens_in, tokens_out, calls, settled = row
    return ModelCall(
        key=key,
        sequence=sequence,
        response=load(connection, response, where),
        usage=Usage(input_tokens=tokens_in, output_tokens=tokens_out, model_calls=calls),
        settled_at_ms=settled,
    )
