"""What one attempt of a tool did to the session: captured for the record, taken back, or applied again.

A tool changes its session through ``tool_context``: state (at once, and as a delta of the response event) and the other
``EventActions``.  Live, the context has all that already; a replay applies it from the record.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, cast

from google.adk.auth.auth_credential import AuthCredential
from google.adk.events.event_actions import EventActions
from google.adk.sessions.state import State
from google.adk.tools.tool_context import ToolContext

from perdure.adk import seams
from perdure.adk.records.codec import decode, dumps, encode, is_plain, plain
from perdure.adk.records.failures import decode_error, encode_error
from perdure.errors import ValueNotStorable
from perdure.session.model import JsonObject, JsonValue

_ASKED_FOR = ("requested_auth_configs", "requested_tool_confirmations")
_KEPT_OF_ASKING = ("state_delta", "artifact_delta")


@dataclass(frozen=True, slots=True)
class Outcome:
    """A recorded outcome.  One of ``value`` and ``error`` means something; neither, when the run asked a person."""

    value: Any
    error: Exception | None
    state_delta: dict[str, Any]
    actions: JsonObject
    end_invocation: bool


class AttemptBaseline:
    """The session as it was before an attempt, so that the attempt's changes can be taken back."""

    def __init__(self, context: ToolContext) -> None:
        self._context = context
        self._first_reads = seams.watch_state(context)
        self._actions = {name: _shallow(value) for name, value in vars(seams.own_actions(context)).items()}
        self._state = dict(context.session.state)
        self._end_invocation = seams.invocation_of(context).end_invocation

    def restore(self) -> None:
        """Takes back what the attempt did.  A key that a sibling call has set since keeps the sibling's value."""
        context = self._context
        actions = context.actions  # records writes into containers
        state = context.session.state
        for key, (container, copied) in self._first_reads.items():
            if container is self._state.get(key) and _differ(container, copied):
                self._state[key] = copied
                if state.get(key) is container:
                    state[key] = copied
        for key, value in actions.state_delta.items():
            if self._actions["state_delta"].get(key, self) is value or state.get(key, self) is not value:
                continue
            if key in self._state:
                state[key] = self._state[key]
            else:
                del state[key]
        for name, value in self._actions.items():
            setattr(actions, name, _shallow(value))
        self._first_reads = seams.watch_state(context)
        seams.invocation_of(context).end_invocation = self._end_invocation

    def keep_state(self) -> None:
        """Takes back what an attempt that asked a person did, except to state and artifacts."""
        actions = self._context.actions
        for name, value in self._actions.items():
            if name not in _KEPT_OF_ASKING:
                setattr(actions, name, _shallow(value))
        seams.invocation_of(self._context).end_invocation = self._end_invocation


def _differ(container: Any, copied: Any) -> bool:
    try:
        return bool(container != copied)
    except Exception:  # noqa: BLE001  (values that cannot be compared: better a copy too many)
        return True


def _shallow(value: Any) -> Any:
    container: Any = value
    return copy.copy(container) if isinstance(value, dict | list) else value


def capture_success(context: ToolContext, tool_name: str, value: Any, asides: Mapping[str, str]) -> str:
    """The outcome of an attempt that returned, as JSON text.

    Raises:
        ValueNotStorable: the result, or a state value that it set, has no form that can be stored.
    """
    result = encode(value, f"the result of tool {tool_name!r}")
    return dumps({"result": result, **_effects(context, tool_name, asides)})


def capture_failure(context: ToolContext, tool_name: str, error: BaseException, asides: Mapping[str, str]) -> str:
    """The outcome of an attempt that raised, as JSON text.

    Raises:
        ValueNotStorable: a state value that it set has no form that can be stored.
    """
    return dumps({"error": encode_error(error), **_effects(context, tool_name, asides)})


def capture_ask(context: ToolContext, tool_name: str, note: JsonObject, asides: Mapping[str, str]) -> str:
    """The outcome of an attempt that asked a person, as JSON text.

    Raises:
        ValueNotStorable: a state value that it set has no form that can be stored.
    """
    return dumps({"asked": note, **_effects(context, tool_name, asides)})


def bare_failure(error: BaseException) -> str:
    """The outcome of an attempt that raised and whose changes do not count."""
    return dumps({"error": encode_error(error)})


def _effects(context: ToolContext, tool_name: str, asides: Mapping[str, str]) -> JsonObject:
    actions = context.actions
    effects: JsonObject = {}
    state: JsonObject = {}
    tokens: JsonObject = {}
    for key, value in actions.state_delta.items():
        recorded = _aside_of(key, value, asides)
        if recorded is None:
            state[key] = encode_state(key, value, f"tool {tool_name!r}: state key {key!r}")
        else:
            tokens[key] = recorded
    if state:
        effects["state"] = state
    if tokens:
        effects["tokens"] = tokens
    others = {
        name
        for name, value in vars(actions).items()
        if name != "state_delta" and name not in _ASKED_FOR and value is not None and value != {}
    }
    if others:
        effects["actions"] = actions.model_dump(mode="json", include=others)
    if seams.invocation_of(context).end_invocation:
        effects["end_invocation"] = True
    return effects


def _aside_of(key: str, value: Any, asides: Mapping[str, str]) -> str | None:
    """The record of a token that ADK keeps in the turn's state; the outcome refers to it instead of repeating it."""
    if not (asides and isinstance(value, AuthCredential) and key.startswith(State.TEMP_PREFIX)):
        return None
    text = value.model_dump_json(exclude_none=True)
    return next((name for name, recorded in asides.items() if recorded == text), None)


def encode_state(key: str, value: Any, where: str) -> JsonValue:
    """A state value for the record, if it can be stored with the response, too."""
    encode(key, where)
    encoded = encode(value, where)
    if encoded is not value and not key.startswith(State.TEMP_PREFIX):
        plain(value, where)
    return encoded


def read_outcome(outcome: JsonObject, asides: Mapping[str, str]) -> Outcome:
    """What a record says.

    Args:
        asides: the records of tokens that it refers to; one that is not there is left out.

    Raises:
        UnknownType: it holds a value of a class that is gone.
    """
    error = outcome.get("error")
    tokens = {
        key: AuthCredential.model_validate_json(asides[name])
        for key, name in outcome.get("tokens", {}).items()
        if name in asides
    }
    return Outcome(
        value=None if error is not None else decode(outcome.get("result")),
        error=None if error is None else decode_error(error),
        state_delta={**{key: decode(value) for key, value in outcome.get("state", {}).items()}, **tokens},
        actions=outcome.get("actions", {}),
        end_invocation=bool(outcome.get("end_invocation")),
    )


def apply_state(context: ToolContext, outcome: Outcome) -> None:
    """Makes the state that a recorded call set visible in the session."""
    context.session.state.update(outcome.state_delta)


def apply_actions(context: ToolContext, outcome: Outcome) -> None:
    """Puts what a recorded call did into its context, from where ADK takes it into the response event."""
    actions = seams.own_actions(context)
    actions.state_delta.update(outcome.state_delta)
    if outcome.actions:
        recorded = EventActions.model_validate(outcome.actions)
        for name in recorded.model_fields_set:
            value = getattr(recorded, name)
            mine = getattr(actions, name)
            if isinstance(value, dict) and isinstance(mine, dict):
                cast(dict[str, Any], mine).update(cast(dict[str, Any], value))
            else:
                setattr(actions, name, value)
    if outcome.end_invocation:
        seams.invocation_of(context).end_invocation = True


def shown_result(value: Any, tool_name: str) -> JsonValue:
    """A tool's result as the model sees it, for people.

    Raises:
        ValueNotStorable: it has no form that can be stored with the response.
    """
    response: Any = value
    if not isinstance(value, dict):
        response = {"result": value}
    wrong = next((key for key in cast(dict[object, Any], response) if not isinstance(key, str)), None)
    if wrong is not None:
        raise ValueNotStorable(
            f"the result of tool {tool_name!r}: the key {wrong!r} is no string; a response has string keys",
            where=f"the result of tool {tool_name!r}",
            path=f"[{wrong!r}]",
            type_name=type(wrong).__name__,
        )
    return response if is_plain(response) else plain(response, f"the result of tool {tool_name!r}")
