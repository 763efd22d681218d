"""What people answer, checked and put into the form in which it is stored.  ``UsageError`` and its kinds leave it."""

from __future__ import annotations

from typing import cast

from perdure.arguments import shown, wrong
from perdure.client.checks import check_optional_text
from perdure.errors import UsageError
from perdure.session.model import Interrupt, JsonObject, JsonValue
from perdure.session.values import ensure_storable
from perdure.store.base import Answer, GivenAnswer, Reply

_VERDICT_KEYS = {"approved", "payload", "message"}


def verdict(approved: bool, payload: JsonValue, message: str | None, resolved_by: str | None) -> Answer:
    """Yes or no.

    Raises:
        UsageError: an argument is of the wrong type.
        ValueNotStorable
    """
    if not isinstance(cast(object, approved), bool):
        raise wrong("approved", approved, "True or False")
    check_optional_text(message, "message")
    check_optional_text(resolved_by, "resolved_by")
    ensure_storable(payload, "payload")
    return Answer(approved, payload, message, resolved_by)


def reply(value: JsonValue, where: str, resolved_by: str | None) -> Reply:
    """The answer to a question: an object as it is, any other value as ``{"result": value}``.

    Raises:
        UsageError: there is no value.
        ValueNotStorable
    """
    if value is None:
        raise UsageError(f"{where} is None, which is no answer; give a JSON object, or a value that is not null")
    check_optional_text(resolved_by, "resolved_by")
    ensure_storable(value, where)
    return Reply(cast("JsonObject", value) if isinstance(value, dict) else {"result": value}, resolved_by)


def suitable_answer(interrupt: Interrupt, value: JsonValue, resolved_by: str | None) -> GivenAnswer:
    """A value of ``resume_map`` as the answer to its interrupt.

    Raises:
        UsageError: it does not suit the interrupt's kind.
        ValueNotStorable
    """
    where = f"the answer to interrupt {interrupt.interrupt_id!r} ({interrupt.kind.value}, {interrupt.tool_name})"
    if interrupt.kind.takes_value:
        return reply(value, where, resolved_by)
    if isinstance(value, bool):
        return verdict(value, None, None, resolved_by)
    given = cast("object", value)
    said = cast("JsonObject", value) if isinstance(value, dict) else {}
    message = said.get("message")
    fits = isinstance(said.get("approved"), bool) and isinstance(message, str | None) and said.keys() <= _VERDICT_KEYS
    if not fits:
        raise UsageError(
            f"{where} is {shown(given)}; it takes a bool, or an object with 'approved' (bool), 'payload' and 'message'",
            interrupt_id=interrupt.interrupt_id,
            kind=interrupt.kind.value,
        )
    return verdict(said["approved"], said.get("payload"), message, resolved_by)
