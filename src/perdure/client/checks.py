"""What a client checks before it hands a call to the store.  ``UsageError`` and its kinds leave it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import cast

from perdure.arguments import expect, expect_count, shown, wrong
from perdure.errors import UsageError
from perdure.session.model import JsonObject, JsonValue
from perdure.session.values import ensure_storable, fingerprint
from perdure.store.base import Request

DEFAULT_PAGE = 100
MAX_PAGE = 1000
MAX_SESSION_ID_LENGTH = 256


def check_session_id(session_id: object) -> str:
    """The text as a session id.

    Raises:
        UsageError: it cannot be one.
    """
    text = check_text(session_id, "session_id")
    if not text.strip() or len(text) > MAX_SESSION_ID_LENGTH or not text.isprintable():
        shown = repr(text) if len(text) <= 40 else f"{text[:40]!r}... ({len(text)} characters)"
        raise UsageError(
            f"{shown} cannot be a session id; use 1 to {MAX_SESSION_ID_LENGTH} printable characters", session_id=text
        )
    return text


def text_id(session_id: object) -> str:
    return check_text(session_id, "session_id")


def check_text(value: object, argument: str) -> str:
    """The value as text that every store takes.

    Raises:
        UsageError: it is no text; names the argument.
        ValueNotStorable: it has half of a surrogate pair; names the argument.
    """
    expect(value, str, argument, "a str")
    text = cast(str, value)
    ensure_storable(text, argument)
    return text


def check_optional_text(value: object, argument: str) -> None:
    """Raises: UsageError, when the value is neither ``None`` nor text; ValueNotStorable, when no store takes it."""
    if value is not None:
        check_text(value, argument)


def mapping(value: object, argument: str) -> JsonObject:
    """A copy of a state argument.  Raises: UsageError, ValueNotStorable."""
    if value is None:
        return {}
    if not isinstance(value, Mapping):
        raise wrong(argument, value, "a mapping of keys to values, or None")
    copy = dict(cast("Mapping[str, JsonValue]", value))
    ensure_storable(copy, argument)
    return copy


def request_of(request_id: str | None, *parts: object) -> Request:
    """Raises: UsageError, when the id is no text."""
    return Request(None if request_id is None else check_text(request_id, "request_id"), fingerprint(*parts))


def page_limit(limit: int) -> int:
    expect_count(limit, "limit", least=1)
    if limit > MAX_PAGE:
        raise UsageError(f"limit is {limit}; it must be between 1 and {MAX_PAGE}", limit=limit)
    return limit


def page_position(after: str | None) -> int | None:
    check_optional_text(after, "after")
    if after is None:
        return None
    if not (after.isascii() and after.isdigit()):
        raise UsageError(
            f"after: {shown(after)} is no page cursor; pass the next_cursor of the page before, or None", after=after
        )
    return int(after)
