"""What goes through Temporal, and so into its history: ids and small facts, as JSON.

Values of the session's loop (its state, inputs and commands) become objects that are tagged with the name of their
class; what a field has by default is left out.  Of an error only the code goes along: its message may hold anything,
and whoever writes it to the store has it anyway.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import MISSING, Field, dataclass, field, fields, is_dataclass
from functools import cache
from types import NoneType, UnionType
from typing import Any, TypeVar, Union, cast, get_args, get_origin, get_type_hints

from perdure.session.model import ErrorInfo, JsonObject, JsonValue
from perdure.session.state import CheckCode, Input, RunCall, RunModel

FORMAT = 1
"""Of the messages in this module, and of the rules of the loop as far as a history depends on them.  Workers take only
sessions of their own format; see ``docs/decisions/014-the-temporal-engine.md``."""

WORKFLOW = "PerdureSession"
POKE = "poke"
REPORT = "report"

ADOPT = "Adopt"
LOOK = "Look"
CHECK_CODE = "CheckCode"

HOST_GONE = "host_gone"
"""Type of the failure of an activity whose worker does not have the session (any more)."""
UNHEARD = "unheard"
"""Type of the failure of an activity whose heartbeats did not reach the server; what it began goes on."""
SESSION_GONE = "session_gone"
"""Type of the failure of an adoption: there is no such session."""
HISTORY_INCOMPATIBLE = "history_incompatible"
"""Type of the failure of a workflow of another format."""
NOT_TAKEN = "not_taken"
"""Type of the failure of an adoption that another worker, or a later try, may do."""
ATTEMPT_FAILED = "attempt_failed"
"""Type of the failure of an attempt that is followed by another one."""

StepCommand = RunModel | RunCall | CheckCode
"""What an activity of its own carries out."""

T = TypeVar("T")


# ---------------------------------------------------------------- messages


@dataclass(frozen=True, slots=True)
class Report:
    """What a host has applied, for the workflow.

    Attributes:
        epoch: the fence of its lease.
        first: the number of the first of ``inputs``, counted from 0 under this lease.
        inputs: packed, in the order in which the host applied them; each is reported once.
        deadline_ms: when the next pending interrupt expires.
        left: the host has given the session up with the last of its inputs.
        missed: it had, before it could look; whoever has the session next is to look.
    """

    epoch: int
    first: int
    inputs: list[JsonObject]
    deadline_ms: int | None = None
    left: bool = False
    missed: bool = False


@dataclass(frozen=True, slots=True)
class Adopt:
    """Asks a worker to take a session."""

    session_id: str
    store_id: str
    format: int = FORMAT


@dataclass(frozen=True, slots=True)
class Adopted:
    """A worker has a session.

    Attributes:
        queue: where it is asked for what only it can do.
        state: packed, with all that it applied by now.
        due: steps of it that are not over, packed.
        report: says where its numbers go on; it has no inputs.
    """

    queue: str
    state: JsonObject
    due: list[JsonObject]
    report: Report


@dataclass(frozen=True, slots=True)
class Order:
    """Asks the worker that has the session to run a step (``command``, packed), or to look into the inbox."""

    session_id: str
    epoch: int
    command: JsonObject | None = None


@dataclass(frozen=True, slots=True)
class Carry:
    """What one run of a workflow hands on to the next; ``due``: steps that were about to be ordered."""

    queue: str | None
    epoch: int
    expected: int
    state: JsonObject
    deadline_ms: int | None
    news: bool
    due: list[JsonObject] = field(default_factory=list[JsonObject])


@dataclass(frozen=True, slots=True)
class Start:
    """What a workflow begins with."""

    session_id: str
    store_id: str
    queue: str
    """Where the workers of the flow are."""
    max_events: int
    """Of one run's history; the next quiet point begins another run."""
    format: int = FORMAT
    carry: Carry | None = None


# ---------------------------------------------------------------- values of the loop


def pack(value: object) -> JsonValue:
    """A value of the session's loop as JSON."""
    if isinstance(value, ErrorInfo):
        return {"code": value.code}
    if isinstance(value, enum.Enum):
        return value.value
    if is_dataclass(value) and not isinstance(value, type):
        parts = {part.name: getattr(value, part.name) for part in fields(value)}
        kept = {part.name for part in fields(value) if parts[part.name] != _default(part)}
        return {"is": type(value).__name__, **{name: pack(parts[name]) for name in parts if name in kept}}
    if isinstance(value, Mapping):
        return {name: pack(item) for name, item in cast("Mapping[str, object]", value).items()}
    if isinstance(value, tuple):
        return [pack(item) for item in cast("tuple[object, ...]", value)]
    return value


def unpack(kind: type[T], packed: JsonValue) -> T:
    """The value that ``pack`` was given.

    Args:
        kind: its class, or the union of the classes that it may have.

    Raises:
        ValueError: it is none of these.
    """
    value: T = _unpack(kind, packed)
    return value


def unpack_input(packed: JsonObject) -> Input:
    """An input of the loop.  Raises: ValueError"""
    return cast("Input", _unpack(Input, packed))


def unpack_command(packed: JsonObject) -> StepCommand:
    """A step that is to be run.  Raises: ValueError"""
    return cast("StepCommand", _unpack(StepCommand, packed))


def _default(part: Field[Any]) -> object:
    return part.default if part.default_factory is MISSING else part.default_factory()


def _unpack(kind: Any, packed: JsonValue) -> Any:
    origin = get_origin(kind)
    if origin in (Union, UnionType):
        return _unpack(_chosen(kind, packed), packed)
    if origin is tuple:
        return tuple(_unpack(get_args(kind)[0], item) for item in packed)
    if origin is not None and issubclass(origin, Mapping):
        return {key: _unpack(get_args(kind)[1], item) for key, item in packed.items()}
    if kind is NoneType:
        return None
    if issubclass(kind, ErrorInfo):
        return ErrorInfo(code=packed["code"], message="")
    if issubclass(kind, enum.Enum):
        return kind(packed)
    if isinstance(kind, type) and is_dataclass(kind):
        if packed.get("is") != kind.__name__:
            raise ValueError(f"{packed.get('is')!r} is no {kind.__name__}")
        hints = _hints(kind)
        return kind(**{name: _unpack(hints[name], item) for name, item in packed.items() if name != "is"})
    return packed


def _chosen(union: Any, packed: JsonValue) -> Any:
    """The member of a union that a packed value belongs to."""
    members = get_args(union)
    if packed is None:
        return NoneType
    if isinstance(packed, dict) and "is" in packed:
        for member in members:
            if getattr(member, "__name__", None) == packed["is"]:
                return member
        raise ValueError(f"{packed['is']!r} is none of {', '.join(member.__name__ for member in members)}")
    (only,) = (member for member in members if member is not NoneType)
    return only


@cache
def _hints(kind: type) -> dict[str, Any]:
    return get_type_hints(kind)
