"""Values to JSON and back to the same value: tool results, state that a tool sets, the insides of exceptions.

JSON values stay as they are.  Anything else that can be rebuilt is tagged; what cannot be rebuilt is refused.  A class
is imported by name only to rebuild a value of it, and only if it is a pydantic model, a dataclass or an enum.
"""

from __future__ import annotations

import base64
import dataclasses
import enum
import importlib
import json
import math
from collections.abc import Callable, Iterable
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from typing import Any, TypeVar, cast
from uuid import UUID

from pydantic import BaseModel
from pydantic_core import PydanticSerializationError, to_jsonable_python

from perdure.arguments import shortened
from perdure.errors import ValueNotStorable
from perdure.session.model import JsonValue
from perdure.session.values import is_printable, is_unicode

_TAG = "$perdure"
_SCALARS = frozenset({str, int, bool, type(None)})
_MAX_DEPTH = 200

T = TypeVar("T")


class UnknownType(Exception):
    """A stored value is of a class that the present code does not have."""


def is_plain(value: object, depth: int = 0) -> bool:
    """Whether ``value`` is JSON as it is: exact builtin types, string keys, finite numbers, valid Unicode."""
    kind = type(value)
    if kind in _SCALARS:
        return _is_plain_scalar(value)
    if kind is float:
        return math.isfinite(cast(float, value))
    if depth > _MAX_DEPTH:
        return False
    if kind is dict:
        items = cast(dict[object, object], value)
        return _TAG not in items and all(
            type(k) is str and _is_plain_scalar(k) and is_plain(v, depth + 1) for k, v in items.items()
        )
    if kind is list:
        return all(is_plain(item, depth + 1) for item in cast(list[object], value))
    return False


def _is_plain_scalar(value: object) -> bool:
    if isinstance(value, str):
        return is_unicode(value)
    return not isinstance(value, int) or is_printable(value)


def plain(value: object, where: str) -> JsonValue:
    """``value`` as JSON in the way ADK's own session services store it (types are lost).

    Raises:
        ValueNotStorable: it has no JSON form.
    """
    if is_plain(value):
        return value
    try:
        converted = to_jsonable_python(value, bytes_mode="base64")
    except (PydanticSerializationError, ValueError, RecursionError) as error:
        raise _refuse(value, where, "") from error
    bad = None if is_plain(converted) else _first_bad(converted, "", 0)
    if bad is not None:
        raise _refuse(bad[1], where, bad[0])
    return converted


def _first_bad(value: object, path: str, depth: int) -> tuple[str, object] | None:
    """The first part of a converted value that is not JSON; a dict that only looks like one of ours is."""
    parts: Iterable[tuple[str, object]] = ()
    if depth > _MAX_DEPTH:
        return path, value
    if type(value) is dict:
        items = cast(dict[object, object], value)
        wrong = next((key for key in items if type(key) is not str or not _is_plain_scalar(key)), None)
        if wrong is not None:
            return f"{path} key".strip(), wrong
        parts = ((f"{path}.{key}", item) for key, item in items.items())
    elif type(value) is list:
        parts = ((f"{path}[{index}]", item) for index, item in enumerate(cast(list[object], value)))
    elif not is_plain(value):
        return path, value
    return next((bad for at, part in parts if (bad := _first_bad(part, at, depth + 1)) is not None), None)


def encode(value: object, where: str) -> JsonValue:
    """``value`` as JSON from which ``decode`` rebuilds it.

    Args:
        where: says in an error what the value is.

    Raises:
        ValueNotStorable: some part of it cannot be rebuilt; names the part.
    """
    return value if is_plain(value) else _encode(value, where, "", 0)


def _refuse(value: object, where: str, path: str) -> ValueNotStorable:
    name = f"{type(value).__module__}.{type(value).__qualname__}"
    if isinstance(value, str) and not is_unicode(value):
        found = "text that is no valid Unicode (it has half of a surrogate pair)"
    elif type(value) is int and not _is_plain_scalar(value):
        found = "an integer of more than 4,000 digits"
    elif type(value) is float:
        found = f"the number {value}"
    else:
        found = f"a value of type {name}"
    path, where = shortened(path), shortened(where)
    at = f" at {path}" if path else ""
    return ValueNotStorable(
        f"{where}: {found}{at} cannot be stored; use JSON values, dataclasses or pydantic models",
        where=where,
        path=path,
        type_name=name,
    )


def _encode(value: object, where: str, path: str, depth: int) -> JsonValue:
    if type(value) in _SCALARS:
        if not _is_plain_scalar(value):
            raise _refuse(value, where, path)
        return value
    if depth > _MAX_DEPTH:
        raise _refuse(value, where, path)
    for kind, name, write in _WRITERS:
        if isinstance(value, kind):
            if name is None:
                return write(value, where, path, depth)
            return {_TAG: name, "value": write(value, where, path, depth)}
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = {f.name: getattr(value, f.name) for f in dataclasses.fields(value)}
        return {
            _TAG: "dataclass",
            "type": _type_name(value, where, path),
            "value": {k: _encode(v, where, f"{path}.{k}", depth + 1) for k, v in fields.items()},
        }
    raise _refuse(value, where, path)


def _encode_float(value: float, where: str, path: str, depth: int) -> JsonValue:
    return float(value) if math.isfinite(value) else {_TAG: "float", "value": repr(float(value))}


def _encode_dict(value: dict[object, object], where: str, path: str, depth: int) -> JsonValue:
    if _TAG not in value and all(isinstance(key, str) and not isinstance(key, enum.Enum) for key in value):
        for key in cast(dict[str, object], value):
            _encode(str(key), where, f"{path} key".strip(), depth)
        return {str(k): _encode(v, where, f"{path}.{k}", depth + 1) for k, v in cast(dict[str, object], value).items()}
    pairs = [
        [_encode(k, where, f"{path} key", depth + 1), _encode(v, where, f"{path}[{k!r}]", depth + 1)]
        for k, v in value.items()
    ]
    return {_TAG: "dict", "value": pairs}


def _encode_items(value: list[object], where: str, path: str, depth: int) -> list[JsonValue]:
    return [_encode(item, where, f"{path}[{i}]", depth + 1) for i, item in enumerate(value)]


def _encode_set(value: set[object], where: str, path: str, depth: int) -> list[JsonValue]:
    return _encode_items(sorted(value, key=repr), where, path, depth)


def _encode_enum(value: enum.Enum, where: str, path: str, depth: int) -> JsonValue:
    return {_TAG: "enum", "type": _type_name(value, where, path), "value": value.name}


def _encode_model(value: BaseModel, where: str, path: str, depth: int) -> JsonValue:
    name = _type_name(value, where, path)
    try:
        text = value.model_dump_json()
        same = type(value).model_validate_json(text) == value
    except (ValueError, PydanticSerializationError) as error:
        raise _refuse(value, where, path) from error
    if not same:
        raise _refuse(value, where, path)
    return {_TAG: "model", "type": name, "value": json.loads(text)}


def _text(write: Callable[[Any], str]) -> Callable[[Any, str, str, int], JsonValue]:
    return lambda value, where, path, depth: write(value)


# In the order in which they are tried: a subclass before its base.  ``None`` as a tag: the writer gives the whole form.
_WRITERS: tuple[tuple[type, str | None, Callable[[Any, str, str, int], JsonValue]], ...] = (
    (enum.Enum, None, _encode_enum),
    (BaseModel, None, _encode_model),
    (bool, None, lambda value, where, path, depth: bool(value)),
    (str, None, lambda value, where, path, depth: _encode(str(value), where, path, depth)),
    (int, None, lambda value, where, path, depth: _encode(int(value), where, path, depth)),
    (float, None, _encode_float),
    (dict, None, _encode_dict),
    (list, None, _encode_items),
    (tuple, "tuple", _encode_items),
    (set, "set", _encode_set),
    (frozenset, "frozenset", _encode_set),
    (bytes, "bytes", _text(lambda value: base64.b64encode(value).decode("ascii"))),
    (bytearray, "bytearray", _text(lambda value: base64.b64encode(value).decode("ascii"))),
    (datetime, "datetime", _text(datetime.isoformat)),
    (date, "date", _text(date.isoformat)),
    (time, "time", _text(time.isoformat)),
    (
        timedelta,
        "timedelta",
        lambda value, where, path, depth: [value.days, value.seconds, value.microseconds],
    ),
    (Decimal, "decimal", _text(str)),
    (UUID, "uuid", _text(str)),
    (complex, "complex", lambda value, where, path, depth: [repr(value.real), repr(value.imag)]),
)


def _type_name(value: object, where: str, path: str) -> str:
    """How the class of ``value`` is found again; refuses a class that cannot be imported (a local one)."""
    kind = type(value)
    name = f"{kind.__module__}:{kind.__qualname__}"
    try:
        found = import_type(name)
    except UnknownType as error:
        raise _refuse(value, where, path) from error
    if found is not kind:
        raise _refuse(value, where, path)
    return name


def import_type(name: str) -> type:
    """The class called ``module:qualified.name``.

    Raises:
        UnknownType: there is no such class.
    """
    module, _, path = name.partition(":")
    try:
        found: object = importlib.import_module(module)
        for part in path.split("."):
            found = getattr(found, part)
    except (ImportError, AttributeError, ValueError) as error:
        raise UnknownType(name) from error
    if not isinstance(found, type):
        raise UnknownType(name)
    return found


def decode(value: JsonValue) -> Any:
    """Rebuilds what ``encode`` was given.

    Raises:
        UnknownType: it is of a class that is gone or changed.
    """
    if type(value) is dict:
        fields = cast(dict[str, Any], value)
        tag = fields.get(_TAG)
        return {key: decode(item) for key, item in fields.items()} if tag is None else _READERS[tag](fields)
    if type(value) is list:
        return [decode(item) for item in cast(list[object], value)]
    return value


def _class(value: dict[str, Any], base: type[T]) -> type[T]:
    kind = import_type(value["type"])
    if not issubclass(kind, base):
        raise UnknownType(value["type"])
    return kind


def _decode_model(value: dict[str, Any]) -> BaseModel:
    try:
        return _class(value, BaseModel).model_validate_json(json.dumps(value["value"]))
    except ValueError as error:
        raise UnknownType(value["type"]) from error


def _decode_enum(value: dict[str, Any]) -> enum.Enum:
    try:
        return _class(value, enum.Enum)[value["value"]]
    except KeyError as error:
        raise UnknownType(value["type"]) from error


def _decode_dataclass(value: dict[str, Any]) -> object:
    kind = import_type(value["type"])
    if not dataclasses.is_dataclass(kind):
        raise UnknownType(value["type"])
    rebuilt = object.__new__(kind)
    for name, item in value["value"].items():
        object.__setattr__(rebuilt, name, decode(item))
    return rebuilt


_READERS: dict[str, Callable[[dict[str, Any]], Any]] = {
    "enum": _decode_enum,
    "model": _decode_model,
    "dataclass": _decode_dataclass,
    "float": lambda v: float(v["value"]),
    "dict": lambda v: {decode(key): decode(item) for key, item in v["value"]},
    "tuple": lambda v: tuple(decode(v["value"])),
    "set": lambda v: set(decode(v["value"])),
    "frozenset": lambda v: frozenset(decode(v["value"])),
    "bytes": lambda v: base64.b64decode(v["value"]),
    "bytearray": lambda v: bytearray(base64.b64decode(v["value"])),
    "datetime": lambda v: datetime.fromisoformat(v["value"]),
    "date": lambda v: date.fromisoformat(v["value"]),
    "time": lambda v: time.fromisoformat(v["value"]),
    "timedelta": lambda v: timedelta(*v["value"]),
    "decimal": lambda v: Decimal(v["value"]),
    "uuid": lambda v: UUID(v["value"]),
    "complex": lambda v: complex(float(v["value"][0]), float(v["value"][1])),
}


def dumps(value: JsonValue) -> str:
    """JSON text, compact."""
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
