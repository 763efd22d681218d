"""Texts as the stores keep them: JSON of values and shapes, and which texts are kept apart because they are long.

Imports the vocabulary only; knows no database.  ``ValueNotStorable`` and ``PayloadTooLarge`` leave it on the way in,
``Unreadable`` (private to the stores, which turn it into ``StoreCorrupt``) on the way out.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import TypeVar, cast

from perdure.arguments import shortened
from perdure.errors import PayloadTooLarge, ValueNotStorable
from perdure.session.model import (
    ErrorInfo,
    InterruptKind,
    JsonObject,
    JsonValue,
    TurnStatus,
    UserMessage,
)
from perdure.session.policy import RetryPolicy, ToolEffect
from perdure.session.runner import CallRequest, Question, QuestionWait
from perdure.session.state import Ending
from perdure.store.base import MAX_PAYLOAD_BYTES, Answer, GivenAnswer

MAX_INLINE_BYTES = 32 * 1024
"""Longer texts are kept apart, each once, under their SHA-256."""

MAX_NAME_BYTES = 2_000
"""The longest key of the session's state.  Every database must be able to index it."""

_MICROSECOND = timedelta(microseconds=1)

T = TypeVar("T")


class Unreadable(Exception):
    """Something stored cannot be read.  ``where``: the session and the thing in it."""

    def __init__(self, where: str, reason: str) -> None:
        super().__init__(f"{where}: {reason}")
        self.where = where
        self.reason = reason


@dataclass(frozen=True, slots=True)
class LongText:
    """A text that is kept apart.  ``digest``: its SHA-256."""

    digest: bytes
    text: str


Packed = str | LongText
"""A text on its way into a store."""


def pack(text: str, where: str) -> Packed:
    """Checks a text and decides where it is kept.

    Raises:
        PayloadTooLarge: it has more than ``MAX_PAYLOAD_BYTES`` bytes as UTF-8.
        ValueNotStorable: it has no UTF-8 form (half of a surrogate pair).
    """
    if len(text) * 4 <= MAX_INLINE_BYTES and text.isascii():
        return text
    data = _checked_bytes(text, where)
    return text if len(data) <= MAX_INLINE_BYTES else LongText(hashlib.sha256(data).digest(), text)


def ensure_fits(text: str, where: str) -> None:
    """Checks that a store takes a text.

    Raises:
        PayloadTooLarge, ValueNotStorable: as ``pack``.
    """
    if len(text) > MAX_PAYLOAD_BYTES or not text.isascii():
        _checked_bytes(text, where)


def ensure_name_fits(name: str, where: str) -> None:
    """Checks that a store takes a key of the session's state.

    Raises:
        PayloadTooLarge: it has more than ``MAX_NAME_BYTES`` bytes as UTF-8.
        ValueNotStorable: as ``pack``.
    """
    if 4 * len(name) > MAX_NAME_BYTES:
        size = len(_checked_bytes(name, where))
        if size > MAX_NAME_BYTES:
            raise PayloadTooLarge(
                f"{where} has {size} bytes; a store takes {MAX_NAME_BYTES} for a key. Put what is long into the value",
                where=where,
                size=size,
                limit=MAX_NAME_BYTES,
            )


def _checked_bytes(text: str, where: str) -> bytes:
    try:
        data = text.encode()
    except UnicodeEncodeError as error:
        raise ValueNotStorable(
            f"{where} holds half of a surrogate pair at position {error.start}; text must be valid Unicode",
            where=where,
            path="",
            type_name="str",
        ) from None
    if len(data) > MAX_PAYLOAD_BYTES:
        raise PayloadTooLarge(
            f"{where} has {len(data)} bytes; a store takes {MAX_PAYLOAD_BYTES}. Keep large data outside and store a "
            "reference to it",
            where=where,
            size=len(data),
            limit=MAX_PAYLOAD_BYTES,
        )
    return data


_encode = json.JSONEncoder(ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode


def to_json(value: JsonValue, where: str) -> str:
    """A value as compact JSON.

    Raises:
        ValueNotStorable: names the part of it that has no JSON form.
    """
    try:
        return _encode(value)
    except (TypeError, ValueError, RecursionError) as error:
        path, culprit = _find_culprit(value, "", 0)
        path, type_name = shortened(path), type(culprit).__name__
        raise ValueNotStorable(
            f"{where}{path} is a {type_name} and has no JSON form ({error}); store plain values: None, bool, int, "
            "finite float, str, list, dict with string keys",
            where=where,
            path=path,
            type_name=type_name,
        ) from None


def _find_culprit(value: JsonValue, path: str, depth: int) -> tuple[str, object]:
    """The first innermost part of ``value`` that cannot be encoded."""
    parts: Iterable[tuple[object, JsonValue]] = ()
    if isinstance(value, dict):
        parts = cast("JsonObject", value).items()
    elif isinstance(value, (list, tuple)):
        parts = enumerate(cast("Sequence[JsonValue]", value))
    if depth < 32:
        for key, part in parts:
            try:
                _encode(part)
            except (TypeError, ValueError, RecursionError):
                return _find_culprit(part, f"{path}[{key!r}]", depth + 1)
    return path, cast("object", value)


def from_json(text: str, where: str) -> JsonValue:
    """The value of a stored JSON text.

    Raises:
        Unreadable: the text is no JSON.
    """
    return parse(json.loads, text, where)


def same_json(one: JsonValue, other: JsonValue) -> bool:
    """Whether two values are the same JSON.  (Python's ``==`` takes ``1`` for ``True``.)"""
    return json.dumps(one, sort_keys=True) == json.dumps(other, sort_keys=True)


def parse(read: Callable[[str], T], text: str, where: str) -> T:
    """Whatever ``read`` makes of a stored text.

    Raises:
        Unreadable: it is not what was stored.
    """
    try:
        return read(text)
    except (ValueError, TypeError, KeyError, IndexError) as error:
        raise Unreadable(where, f"{type(error).__name__}: {error}") from error


def error_to_json(error: ErrorInfo | None) -> str | None:
    return None if error is None else error.model_dump_json()


def error_from_json(text: str | None, where: str) -> ErrorInfo | None:
    return None if text is None else parse(ErrorInfo.model_validate_json, text, where)


def ending_to_json(ending: Ending) -> str:
    return json.dumps([ending.status.value, error_to_json(ending.error)])


def ending_from_json(text: str | None, where: str) -> Ending | None:
    if text is None:
        return None
    status, error = from_json(text, where)
    return Ending(TurnStatus(status), error_from_json(error, where))


def message_to_json(message: UserMessage, where: str) -> str:
    try:
        return message.model_dump_json()
    except ValueError as error:
        # pydantic says what it could not serialise, but not where; the state delta is the only free-form part.
        to_json(message.state_delta, f"{where}.state_delta")
        to_json(message.run_config, f"{where}.run_config")
        raise ValueNotStorable(f"{where} has no JSON form: {error}", where=where, path="", type_name="str") from None


def message_from_json(text: str, where: str) -> UserMessage:
    return parse(UserMessage.model_validate_json, text, where)


def answer_to_json(answer: GivenAnswer, where: str) -> str:
    """The part of an answer that makes it the same or another one."""
    if isinstance(answer, Answer):
        return to_json({"approved": answer.approved, "payload": answer.payload, "message": answer.message}, where)
    return to_json(answer.value, where)


def call_request_to_json(request: CallRequest, where: str) -> str:
    retry = request.retry
    stored: JsonObject = {
        "call_id": request.call_id,
        "group": request.group,
        "tool_name": request.tool_name,
        "arguments": request.arguments,
        "agent_name": request.agent_name,
        "effect": request.effect.value,
        "retry": [
            retry.max_attempts,
            retry.first_delay // _MICROSECOND,
            retry.backoff,
            retry.max_delay // _MICROSECOND,
        ],
        "timeout_us": None if request.timeout is None else request.timeout // _MICROSECOND,
        "ask": None if request.ask is None else request.ask.value,
        "hint": request.hint,
        "payload": request.payload,
        "path": request.path,
    }
    return to_json(stored, where)


def call_request_from_json(text: str, where: str) -> CallRequest:
    return parse(_read_call_request, text, where)


def _read_call_request(text: str) -> CallRequest:
    stored = json.loads(text)
    max_attempts, first_delay, backoff, max_delay = stored["retry"]
    timeout, ask = stored["timeout_us"], stored["ask"]
    return CallRequest(
        call_id=stored["call_id"],
        group=stored["group"],
        tool_name=stored["tool_name"],
        arguments=stored["arguments"],
        agent_name=stored["agent_name"],
        effect=ToolEffect(stored["effect"]),
        retry=RetryPolicy(max_attempts, first_delay * _MICROSECOND, backoff, max_delay * _MICROSECOND),
        timeout=None if timeout is None else timeout * _MICROSECOND,
        ask=None if ask is None else InterruptKind(ask),
        hint=stored["hint"],
        payload=stored["payload"],
        path=stored.get("path", ""),
    )


def question_to_json(question: Question, where: str) -> str:
    stored: JsonObject = {
        "question_id": question.question_id,
        "kind": question.kind.value,
        "group": question.group,
        "wait": question.wait.value,
        "tool_name": question.tool_name,
        "arguments": question.arguments,
        "agent_name": question.agent_name,
        "path": question.path,
        "hint": question.hint,
        "payload": question.payload,
    }
    return to_json(stored, where)


def question_from_json(text: str, where: str) -> Question:
    return parse(_read_question, text, where)


def _read_question(text: str) -> Question:
    stored = json.loads(text)
    return Question(**(stored | {"kind": InterruptKind(stored["kind"]), "wait": QuestionWait(stored["wait"])}))
