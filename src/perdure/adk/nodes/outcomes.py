"""What one run of a node's function gave, as a record, and put back into its node from there.

A function hands its values to ADK one by one; with each go the changes that it made to the session since the one
before.  The record keeps them apart, so that ADK makes the same events of them again.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any

from google.adk.agents.context import Context
from google.adk.events.event import Event
from google.adk.events.request_input import RequestInput
from google.genai import types
from pydantic import BaseModel
from pydantic_core import to_jsonable_python

from perdure.adk import seams
from perdure.adk.records.codec import decode, dumps, encode, plain
from perdure.adk.records.failures import decode_error, encode_error
from perdure.adk.tools.outcomes import encode_state
from perdure.errors import ValueNotStorable
from perdure.session.model import JsonObject, JsonValue

BECAME_SCOPE = dumps({"scope": True})
"""The outcome of a function that began to start other nodes: from there on it runs in place."""


@dataclass(frozen=True, slots=True)
class Effects:
    """Changes to the session that ADK puts into the next event of a node."""

    state: dict[str, Any] = field(default_factory=dict[str, Any])
    artifacts: dict[str, int] = field(default_factory=dict[str, int])

    @classmethod
    def taken_from(cls, context: Context) -> Effects:
        """Takes what is pending out of a context, as ADK does when it makes an event of it."""
        actions = context.actions
        taken = cls(dict(actions.state_delta), dict(actions.artifact_delta))
        actions.state_delta.clear()
        actions.artifact_delta.clear()
        return taken

    def put_into(self, context: Context) -> None:
        """Makes them pending in a context, and the state visible in the session."""
        if self.state:
            context.session.state.update(self.state)
            context.actions.state_delta.update(self.state)
        context.actions.artifact_delta.update(self.artifacts)

    def to_json(self, node_name: str) -> JsonObject:
        """For a record.

        Raises:
            ValueNotStorable: a state value has no form that can be stored.
        """
        form: JsonObject = {}
        if self.state:
            form["state"] = {
                key: encode_state(key, value, f"node {node_name!r}: state key {key!r}")
                for key, value in self.state.items()
            }
        if self.artifacts:
            form["artifacts"] = dict(self.artifacts)
        return form

    @classmethod
    def of_json(cls, form: JsonObject) -> Effects:
        """From a record.

        Raises:
            UnknownType: a state value is of a class that is gone.
        """
        return cls({key: decode(value) for key, value in form.get("state", {}).items()}, form.get("artifacts", {}))


@dataclass(frozen=True, slots=True)
class NodeOutcome:
    """A recorded run of a node's function.

    Attributes:
        items: each value that it gave, with what it had changed by then.
        rest: what it changed after the last one.
        output, route: what it set on its context; ``None`` when it did not.
        error: what it raised in the end.
        scope: it began to start other nodes; nothing else is known of it.
    """

    items: tuple[tuple[Any, Effects], ...] = ()
    rest: Effects = Effects()
    output: Any = None
    route: Any = None
    error: Exception | None = None
    scope: bool = False

    @property
    def silent(self) -> bool:
        """Whether ADK will make no event of it, so that the session does not show that the node has run."""
        values = any(value is not None or effects != Effects() for value, effects in self.items)
        return not (values or self.rest != Effects() or self.output is not None or self.route is not None)


class OutcomeWriter:
    """Collects what a function gives, as JSON at once: the function may change a value later."""

    def __init__(self, context: Context, node_name: str) -> None:
        self._context = context
        self._name = node_name
        self._items: list[JsonValue] = []
        self.taken: list[Effects] = []
        self.shown: JsonValue = None
        """What the node gives to the next one, for people."""

    def add(self, value: object) -> None:
        """Takes a value and what was changed up to it.

        Raises:
            ValueNotStorable: it, or a state value, has no form that can be stored.
        """
        effects = self._take()
        value = _as_adk_takes_it(value)
        if isinstance(value, Event) and value.actions.state_delta:
            self._context.session.state.update(value.actions.state_delta)  # the function would find it there
        self._items.append({**_encode_value(value, self._name), **effects.to_json(self._name)})
        self.shown = _shown(value, self.shown)

    def _take(self) -> Effects:
        effects = Effects.taken_from(self._context)
        self.taken.append(effects)
        return effects

    def finish(self, error: BaseException | None = None) -> str:
        """The whole as JSON text.

        Raises:
            ValueNotStorable: what the function set last has no form that can be stored.
        """
        outcome: JsonObject = {"items": self._items, "rest": self._take().to_json(self._name)}
        output, route = seams.take_node_results(self._context)
        if output is not None:
            outcome["output"] = encode(output, f"the output of node {self._name!r}")
        if route is not None:
            outcome["route"] = encode(route, f"the route of node {self._name!r}")
        if error is not None:
            outcome["error"] = encode_error(error)
        return dumps(outcome)

    def take_back(self) -> None:
        """Makes all changes pending again, for ``AttemptBaseline`` to find and undo them."""
        for effects in self.taken:
            self._context.actions.state_delta.update(effects.state)
        self.taken.clear()
        seams.take_node_results(self._context)


def _as_adk_takes_it(value: object) -> object:
    """A value as ``FunctionNode`` would hand it on."""
    if isinstance(value, RequestInput):
        return seams.event_of_request(value)
    if isinstance(value, BaseModel) and not isinstance(value, Event | types.Content):
        return value.model_dump()
    return value


def _shown(value: object, before: JsonValue) -> JsonValue:
    output = value.output if isinstance(value, Event) else value
    return before if output is None else show(output)


def show(value: object) -> JsonValue:
    """A value as JSON for people, whatever it is."""
    if isinstance(value, types.Content) and all(part.text is not None for part in value.parts or ()):
        return "".join(part.text or "" for part in value.parts or ())
    try:
        return plain(value, "a value")
    except ValueNotStorable:
        return plain(to_jsonable_python(value, bytes_mode="base64", fallback=_class_name), "a value")


def _class_name(value: object) -> str:
    return f"<{type(value).__qualname__}>"


def _encode_value(value: object, node_name: str) -> JsonObject:
    where = f"what node {node_name!r} gave"
    if not isinstance(value, Event):
        return {"value": encode(value, where)}
    bare = value.model_copy(update={"output": None, "actions": value.actions.model_copy(update={"state_delta": {}})})
    form: JsonObject = {"event": bare.model_dump(mode="json", exclude_none=True, exclude={"id", "timestamp"})}
    if value.output is not None:
        form["event_output"] = encode(value.output, where)
    if value.actions.state_delta:
        form["event_state"] = Effects(value.actions.state_delta).to_json(node_name)["state"]
    return form


def _decode_value(form: JsonObject) -> Any:
    if "event" not in form:
        return decode(form["value"])
    event = Event.model_validate_json(json.dumps(form["event"]))  # through text: bytes are Base64 only there
    event.output = decode(form.get("event_output"))
    for key, value in form.get("event_state", {}).items():
        event.actions.state_delta[key] = decode(value)
    return event


def bare_node_failure(error: BaseException) -> str:
    """The outcome of a run that raised and whose changes do not count."""
    return dumps({"items": [], "rest": {}, "error": encode_error(error)})


def read_node_outcome(form: JsonObject) -> NodeOutcome:
    """What a record says.  Events get ids and times from the present providers.

    Raises:
        UnknownType: it holds a value of a class that is gone.
    """
    if form.get("scope"):
        return NodeOutcome(scope=True)
    error = form.get("error")
    return NodeOutcome(
        items=tuple((_decode_value(item), Effects.of_json(item)) for item in form["items"]),
        rest=Effects.of_json(form["rest"]),
        output=decode(form.get("output")),
        route=decode(form.get("route")),
        error=None if error is None else decode_error(error),
    )
