"""Exceptions as JSON, and exceptions of the same class rebuilt from it.

What a callback of the application sees of a recorded failure must not depend on whether it is a replay, so live code
too raises the rebuilt exception.
"""

from __future__ import annotations

from collections.abc import Iterator
from types import FunctionType
from typing import Any, cast

from perdure.adk.records.codec import UnknownType, decode, dumps, encode, import_type
from perdure.errors import PerdureError, ValueNotStorable
from perdure.session.model import ErrorInfo, JsonObject, JsonValue, mended

_EXCEPTION = "exception"
"""The fact of a turn's error that holds the exception itself."""

MAX_PART_LENGTH = 20_000
"""Characters of one argument or attribute of an exception, as JSON; a larger one is left out."""


OUTCOME_UNKNOWN = "OutcomeUnknown"
"""The class, so to speak, of the failure of a call of which nobody knows whether it happened."""


class RecordedError(Exception):
    """A recorded failure whose own exception cannot be rebuilt.  Its text is that exception's.

    Attributes:
        type_name: class of the exception that was raised.
    """

    def __init__(self, message: str, type_name: str) -> None:
        super().__init__(message)
        self.type_name = type_name

    def __reduce__(self) -> tuple[type[RecordedError], tuple[str, str]]:
        return type(self), (str(self), self.type_name)


def message_of(error: BaseException) -> str:
    """The text of an exception, as it can be kept; its class's name when it has none."""
    try:
        text = str(error)
    except Exception:  # noqa: BLE001  (a broken __str__ must not hide the failure itself)
        text = ""
    return mended(text) or type(error).__name__


def error_info(error: BaseException) -> ErrorInfo:
    """An exception as data: perdure's own errors keep their code, others have the name of their class."""
    if isinstance(error, PerdureError):
        facts = {name: value for name, value in error.facts.items() if isinstance(value, str | int | float | bool)}
        return ErrorInfo(code=error.code, message=error.message, facts=facts)
    code = error.type_name if isinstance(error, RecordedError) else type(error).__name__
    return ErrorInfo(code=code, message=message_of(error))


def failure_info(error: BaseException) -> ErrorInfo:
    """As ``error_info``, with what ``rebuilt`` needs."""
    info = error_info(error)
    return info.model_copy(update={"facts": {**info.facts, _EXCEPTION: encode_error(error)}})


def rebuilt(info: ErrorInfo) -> Exception:
    """The exception that an error tells of: of its class, with its text, if that can be had; else ``RecordedError``."""
    encoded = info.facts.get(_EXCEPTION)
    if encoded is not None:
        return decode_error(encoded)
    kind = next((kind for kind in _all_errors(PerdureError) if kind.code == info.code), None)
    return RecordedError(info.message, info.code) if kind is None else kind(info.message, **info.facts)


def _all_errors(kind: type[PerdureError]) -> Iterator[type[PerdureError]]:
    yield kind
    for subclass in kind.__subclasses__():
        yield from _all_errors(subclass)


def encode_error(error: BaseException) -> JsonObject:
    """An exception as JSON.  What of its insides cannot be stored is left out."""
    kind = type(error)
    attributes: dict[str, JsonValue] = {}
    for name, value in vars(error).items():
        if name.startswith("__"):
            continue
        try:
            attributes[name] = _encode_part(value, name)
        except ValueNotStorable:
            continue
    encoded: JsonObject = {"type": f"{kind.__module__}:{kind.__qualname__}", "message": message_of(error)}
    try:
        encoded["args"] = [_encode_part(argument, "args") for argument in _arguments(error)]
    except ValueNotStorable:
        encoded["args"] = [encoded["message"]]
    if attributes:
        encoded["attributes"] = attributes
    return encoded


def _encode_part(value: object, where: str) -> JsonValue:
    """A part of an exception's insides.

    Raises:
        ValueNotStorable: it cannot be rebuilt, or is too large to keep with an error.
    """
    encoded: JsonValue = encode(value, where)
    if len(dumps(encoded)) > MAX_PART_LENGTH:
        raise ValueNotStorable(f"{where} is too large", where=where, path="", type_name=type(value).__name__)
    return encoded


def _is_builtin(kind: type[BaseException]) -> bool:
    """Whether making an exception of the class runs no Python code."""
    return not isinstance(kind.__init__, FunctionType) and not isinstance(kind.__new__, FunctionType)


def _arguments(error: BaseException) -> tuple[Any, ...]:
    """What the exception was made with; for an ``OSError`` its ``args`` are not all."""
    if isinstance(error, OSError) and _is_builtin(type(error)):
        return cast(tuple[Any, ...], error.__reduce__()[1])
    return error.args


def decode_error(encoded: JsonObject) -> Exception:
    """An exception of the recorded class with the recorded text; else a ``RecordedError`` with that text."""
    message = str(encoded["message"])
    fallback = RecordedError(message, str(encoded["type"]).rpartition(":")[2].rpartition(".")[2])
    try:
        kind = import_type(str(encoded["type"]))
        if not issubclass(kind, Exception):
            return fallback
        args = [decode(argument) for argument in encoded["args"]]
        if _is_builtin(kind):
            rebuilt = kind(*args)
        else:  # not through __init__: it may take other arguments, or do things
            rebuilt = kind.__new__(kind, *args)
            rebuilt.args = tuple(args)
        for name, value in cast(dict[str, Any], encoded.get("attributes", {})).items():
            setattr(rebuilt, name, decode(value))
    except (UnknownType, TypeError, ValueError, AttributeError):
        return fallback
    return rebuilt if message_of(rebuilt) == message else fallback
