"""The owner's write as rows and texts, made before it is queued.

So what the caller changes later does not matter, and what cannot be stored is refused before anything is written.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace

from perdure.session.runner import NewMessage
from perdure.store.base import CallPut, InterruptPut, Lease, QuestionEnd, QuestionPut, RecordPut, SessionWrite, StepPut
from perdure.store.codec import Packed, call_request_to_json, error_to_json, pack, question_to_json, to_json
from perdure.store.sql.events import EventRow, event_row
from perdure.store.sql.state import StateDelta, split_delta

Columns = tuple[str | int | None, ...]


@dataclass(frozen=True, slots=True)
class PreparedMessage:
    """``head``: role, author, tool name, call id, images, time."""

    ordinal: int
    head: Columns
    text: Packed
    item: Packed
    delta: StateDelta


@dataclass(frozen=True, slots=True)
class PreparedRecord:
    """``head``: status, sequence, time, error."""

    turn_id: str
    call_id: str
    head: Columns
    outcome: Packed | None
    result: Packed | None


@dataclass(frozen=True, slots=True)
class PreparedWrite:
    """A ``SessionWrite`` and those of its parts that hold texts.

    Attributes:
        steps: one row per step, without session and position.
        requests: the request of each call that is new, in the order of ``write.calls``.
        asked: what the last attempt of each of these calls that asked came to.
        shown: what each new interrupt shows besides, in the order of ``write.interrupts``.
        carry: of ``write.leg_end``.
        questions, answers: of ``write.questions`` and ``write.question_ends``.
        responses: of the model calls.
    """

    write: SessionWrite
    steps: tuple[Columns, ...]
    requests: tuple[Packed | None, ...]
    asked: tuple[Packed | None, ...]
    shown: tuple[Packed | None, ...]
    questions: tuple[Packed, ...]
    answers: tuple[Packed | None, ...]
    carry: Packed | None
    records: tuple[PreparedRecord, ...]
    responses: tuple[Packed, ...]
    messages: tuple[PreparedMessage, ...]
    events: tuple[EventRow, ...]


def prepare_write(lease: Lease, write: SessionWrite) -> PreparedWrite:
    """Makes all texts of a write.

    Raises:
        PayloadTooLarge, ValueNotStorable
    """
    where = f"session {lease.session_id!r}"
    return PreparedWrite(
        write=write,
        steps=tuple([_step(put) for put in _merged(write.steps)]),
        requests=tuple([_request(put, where) for put in write.calls]),
        asked=tuple([_asked(put, where) for put in write.calls]),
        shown=tuple([_shown(put, where) for put in write.interrupts]),
        questions=tuple([_question(put, where) for put in write.questions]),
        answers=tuple([_answer(end, where) for end in write.question_ends]),
        carry=_carry(write, where),
        records=tuple([_record(put, where) for put in write.records]),
        responses=tuple([pack(call.response, f"{where}, model call {call.key!r}") for call in write.model_calls]),
        messages=tuple([prepare_message(message, where) for message in write.messages]),
        events=tuple([event_row(put.number, put.event) for put in write.events]),
    )


def _merged(puts: Sequence[StepPut]) -> Sequence[StepPut]:
    """One put per step: the last one, unless an earlier one is settled already (J3)."""
    if len(puts) < 2:
        return puts
    merged: dict[str, StepPut] = {}
    for put in puts:
        earlier = merged.get(put.step_id)
        if earlier is None:
            merged[put.step_id] = put
        elif not earlier.status.settled:
            merged[put.step_id] = replace(
                put,
                key=put.key or earlier.key,
                turn_id=put.turn_id or earlier.turn_id,
                started_at_ms=earlier.started_at_ms if put.started_at_ms is None else put.started_at_ms,
            )
    return tuple(merged.values())


def _step(put: StepPut) -> Columns:
    return (
        put.step_id,
        put.turn_id,
        put.name.value,
        put.status.value,
        put.attempts,
        put.key,
        put.call_id,
        put.started_at_ms,
        put.settled_at_ms,
        error_to_json(put.error),
    )


def _request(put: CallPut, where: str) -> Packed | None:
    if put.request is None:
        return None
    place = f"{where}, call {put.call_id!r} of {put.request.tool_name}"
    return pack(call_request_to_json(put.request, place), place)


def _asked(put: CallPut, where: str) -> Packed | None:
    return None if put.asked is None else pack(put.asked, f"{where}, call {put.call_id!r}, what it did before it asked")


def _shown(put: InterruptPut, where: str) -> Packed | None:
    place = f"{where}, interrupt {put.interrupt_id!r}"
    return None if put.asked is None else pack(to_json(put.asked, place), place)


def _question(put: QuestionPut, where: str) -> Packed:
    place = f"{where}, question {put.question.question_id!r}"
    return pack(question_to_json(put.question, place), place)


def _answer(end: QuestionEnd, where: str) -> Packed | None:
    place = f"{where}, answer to {end.interrupt_id!r}"
    return None if end.answer is None else pack(to_json(end.answer.value, place), place)


def _carry(write: SessionWrite, where: str) -> Packed | None:
    if write.leg_end is None or write.leg_end.carry is None:
        return None
    return pack(write.leg_end.carry, f"{where}, what a leg hands on")


def _record(put: RecordPut, where: str) -> PreparedRecord:
    place = f"{where}, record of call {put.call_id!r}"
    return PreparedRecord(
        put.turn_id,
        put.call_id,
        (put.status.value, put.sequence, put.settled_at_ms, error_to_json(put.error)),
        None if put.outcome is None else pack(put.outcome, place),
        None if put.result is None else pack(to_json(put.result, place), place),
    )


def prepare_message(message: NewMessage, where: str) -> PreparedMessage:
    """Makes the texts of a message.

    Raises:
        PayloadTooLarge, ValueNotStorable
    """
    place = f"{where}, message {message.ordinal}"
    images = json.dumps(message.images) if message.images else None
    return PreparedMessage(
        message.ordinal,
        (message.role.value, message.author, message.tool_name, message.tool_call_id, images, message.created_at_ms),
        pack(message.text, place),
        pack(message.item, place),
        split_delta(message.state_delta, f"{place}, state"),
    )
