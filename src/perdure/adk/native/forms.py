"""ADK's own forms of waiting: requests to a person as function calls, answers as function responses.

A durable turn that waits has no such events: its history reads as if each call had run at once.  The requests are made
here, from the interrupts, and are the same in every process and at any time: the id of a request names its interrupt.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

from google.adk.auth.auth_tool import AuthConfig, AuthToolArguments
from google.adk.events.event import Event
from google.adk.tools.tool_confirmation import ToolConfirmation
from google.genai import types
from pydantic import ValidationError

from perdure.adk import seams
from perdure.adk.live.determinism import derived_uuids
from perdure.adk.native.errors import WrongCall
from perdure.arguments import shown
from perdure.session.model import Interrupt, InterruptKind, JsonObject, JsonValue

_ASKS_BY_REQUEST = (InterruptKind.APPROVAL, InterruptKind.CONFIRMATION, InterruptKind.CREDENTIAL)
"""Kinds for which ADK makes a call of its own; the others are asked by the call that waits.  A node of a workflow asks
by a call of its own, whatever it asks."""


_HINT = (
    "Please approve or reject the tool call {}() by responding with a FunctionResponse with an expected "
    "ToolConfirmation payload."
)
"""ADK's words, where nobody gave others."""


def request_id(interrupt_id: str) -> str:
    """The id of the function call that asks for an interrupt's answer; of the form that ADK keeps from models."""
    return f"{seams.CALL_ID_PREFIX}{interrupt_id}"


def interrupt_id_of(call_id: str) -> str:
    """The interrupt that a request asks about, if the id is that of a request."""
    return call_id.removeprefix(seams.CALL_ID_PREFIX)


# ---------------------------------------------------------------- asking


@dataclass(slots=True)
class _Request:
    """One event that asks, in the making."""

    author: str
    asking: Event | None
    role: str | None
    first: Interrupt
    parts: list[types.Part] = field(default_factory=list[types.Part])
    ids: set[str] = field(default_factory=set[str])


def requests_for(interrupts: Iterable[Interrupt], calls: Mapping[str, Event]) -> list[Event]:
    """The events that ask for the answers: one for all requests of a kind that one event's calls raised.

    Args:
        calls: function-call id -> the event with the call, as far as it was seen; else what the interrupt says does.
    """
    requests: dict[tuple[str, str], _Request] = {}
    for interrupt in interrupts:
        asking = calls.get(interrupt.tool_call_id)
        call = _call_of(interrupt, asking)
        source = asking.id if asking is not None else f"{interrupt.agent_name} {interrupt.path}"
        request = requests.setdefault(
            (source, call.name or ""), _Request(interrupt.agent_name, asking, _role_of(interrupt), interrupt)
        )
        request.parts.append(types.Part(function_call=call))
        request.ids.add(call.id or "")
    return [_event_of(request) for request in requests.values()]


def _event_of(request: _Request) -> Event:
    asking, first = request.asking, request.first
    event = Event(
        id=next(derived_uuids("request", first.interrupt_id)),
        invocation_id=first.turn_id,
        author=asking.author if asking is not None else request.author,
        branch=asking.branch if asking is not None else None,
        isolation_scope=asking.isolation_scope if asking is not None else None,
        content=types.Content(role=request.role, parts=request.parts),
        long_running_tool_ids=request.ids,
        timestamp=first.created_at.timestamp(),
    )
    if asking is not None:
        event.node_info = asking.node_info
    return event


def _call_of(interrupt: Interrupt, asking: Event | None) -> types.FunctionCall:
    original = _original_call(interrupt, asking)
    if _is_of_node(interrupt):
        return original
    match interrupt.kind:
        case InterruptKind.APPROVAL | InterruptKind.CONFIRMATION:
            name, arguments = seams.REQUEST_CONFIRMATION, _confirmation_arguments(interrupt, original)
        case InterruptKind.CREDENTIAL:
            name, arguments = seams.REQUEST_CREDENTIAL, _credential_arguments(interrupt)
        case InterruptKind.LONG_RUNNING | InterruptKind.INPUT:
            return original
    return types.FunctionCall(id=request_id(interrupt.interrupt_id), name=name, args=arguments)


def _original_call(interrupt: Interrupt, asking: Event | None) -> types.FunctionCall:
    for call in asking.get_function_calls() if asking is not None else ():
        if call.id == interrupt.tool_call_id:
            return call
    if _is_of_node(interrupt):
        return _call_of_node(interrupt)
    return types.FunctionCall(id=interrupt.tool_call_id, name=interrupt.tool_name, args=interrupt.arguments)


def _is_of_node(interrupt: Interrupt) -> bool:
    """Whether a node of a workflow asks: not a call, which waits under its own name."""
    if interrupt.kind is InterruptKind.INPUT:
        return interrupt.tool_name != seams.REQUEST_INPUT
    return seams.is_request_of_node(interrupt.tool_call_id)


def _call_of_node(interrupt: Interrupt) -> types.FunctionCall:
    """The call by which ADK asks for a node."""
    asked: JsonValue = interrupt.payload
    match interrupt.kind:
        case InterruptKind.CREDENTIAL:
            arguments = {"functionCallId": interrupt.tool_call_id, "authConfig": asked, "message": interrupt.hint}
            return types.FunctionCall(id=interrupt.tool_call_id, name=seams.REQUEST_CREDENTIAL, args=arguments)
        case InterruptKind.CONFIRMATION:
            about: JsonObject = {"tool_name": interrupt.tool_name, "args": interrupt.arguments}
            payload: JsonValue = about if asked is None else {**about, "confirmation_payload": asked}
            schema: Any = ToolConfirmation
        case _:
            named = cast("JsonObject", asked) if isinstance(asked, dict) else {}
            form = named if named.keys() == {"payload", "response_schema"} else None
            payload = interrupt.payload if form is None else form["payload"]
            schema = None if form is None else form["response_schema"]
    return seams.call_of_request(interrupt.tool_call_id, interrupt.hint or None, payload, schema)


def _confirmation_arguments(interrupt: Interrupt, original: types.FunctionCall) -> dict[str, Any]:
    hint = interrupt.hint
    if not hint or hint == gate_hint(interrupt.tool_name):
        hint = _HINT.format(interrupt.tool_name)
    confirmation = ToolConfirmation(hint=hint, payload=interrupt.payload)
    return {
        "originalFunctionCall": original.model_dump(exclude_none=True, by_alias=True),
        "toolConfirmation": confirmation.model_dump(exclude_none=True, by_alias=True),
    }


def gate_hint(tool_name: str) -> str:
    """What perdure tells people when a tool's own gate asks; programs get ADK's words."""
    return f"Tool {tool_name!r} wants to be confirmed before it runs."


def _credential_arguments(interrupt: Interrupt) -> dict[str, Any]:
    arguments = AuthToolArguments(
        function_call_id=_toolset_id(interrupt) or interrupt.tool_call_id,
        auth_config=AuthConfig.model_validate(interrupt.payload),
    )
    return arguments.model_dump(mode="json", exclude_none=True, by_alias=True)


def _role_of(interrupt: Interrupt) -> str | None:
    if interrupt.kind is not InterruptKind.CREDENTIAL:
        return "model"
    # ADK's request for a tool has the role of the response that it comes of; one for a toolset has none.
    return None if _toolset_id(interrupt) else "user"


def _toolset_id(interrupt: Interrupt) -> str | None:
    """How ADK names the sign-in of a toolset; ``None``: it is a tool's.  (Our own id says where in the tree, too.)"""
    _, prefix, toolset = interrupt.tool_call_id.partition(seams.TOOLSET_AUTH_PREFIX)
    return f"{prefix}{toolset}" if prefix else None


# ---------------------------------------------------------------- answering


@dataclass(frozen=True, slots=True)
class YesOrNo:
    """An answer to an approval, a confirmation or a sign-in."""

    approved: bool
    payload: JsonValue = None


@dataclass(frozen=True, slots=True)
class Reply:
    """An answer to a question: what a long-running call came to, or what somebody entered."""

    value: JsonValue


def responses_in(content: types.Content | None) -> list[types.FunctionResponse]:
    """The function responses of a user's message.

    Raises:
        WrongCall: some have no id, two have the same, or there is text beside them.
    """
    parts = (content.parts if content is not None else None) or []
    responses = [part.function_response for part in parts if part.function_response]
    if not responses:
        return []
    if any(part.text for part in parts):
        raise WrongCall(
            "Message cannot contain both function responses and text. Function responses resume an existing invocation "
            "while text starts a new one."
        )
    if any(not response.id for response in responses):
        raise WrongCall("Function response id is required to resume an invocation.")
    if len({response.id for response in responses}) < len(responses):
        raise WrongCall("the message answers one function call twice; give one function response for each call")
    return responses


def may_ask(interrupt: Interrupt, call_id: str) -> bool:
    """Whether a function response with this id answers the interrupt."""
    if call_id == request_id(interrupt.interrupt_id):
        return True
    asks_itself = interrupt.kind not in _ASKS_BY_REQUEST or _is_of_node(interrupt)
    return asks_itself and call_id == interrupt.tool_call_id


def asked_by(response: types.FunctionResponse, pending: Sequence[Interrupt]) -> Interrupt | None:
    """The pending interrupt that a function response answers; ``None`` when there is none."""
    return next((one for one in pending if may_ask(one, response.id or "")), None)


def answer_in(response: types.FunctionResponse, interrupt: Interrupt) -> YesOrNo | Reply:
    """What a function response says in answer to an interrupt.

    Raises:
        WrongCall: it says nothing, or is none that ADK would take, or has the name of another function.
    """
    asked = _call_of(interrupt, None).name
    if response.name is not None and response.name != asked:
        raise WrongCall(
            f"the response to {response.id} has the name {shown(response.name)}, but the call with this id is of "
            f"{asked!r}; give that name"
        )
    given: JsonObject | None = response.response
    match interrupt.kind:
        case InterruptKind.APPROVAL | InterruptKind.CONFIRMATION:
            confirmation = _confirmation_in(response, given)
            return YesOrNo(confirmation.confirmed, confirmation.payload)
        case InterruptKind.CREDENTIAL:
            if not given:
                raise WrongCall(
                    f"the response to {response.id} is {given!r}, which is no sign-in; give the request's AuthConfig "
                    "with the user's answer in it"
                )
            return YesOrNo(True, given)
        case InterruptKind.LONG_RUNNING | InterruptKind.INPUT:
            return Reply(given)


def _confirmation_in(response: types.FunctionResponse, given: JsonObject | None) -> ToolConfirmation:
    """Yes or no, said by somebody: ADK's own default of a missing ``confirmed`` is no answer.

    Raises:
        WrongCall: it is neither.
    """
    wanted = "give {'confirmed': True} or {'confirmed': False}"
    try:
        confirmation = ToolConfirmation.from_response_dict(given or {})
    except (ValidationError, ValueError, TypeError) as error:
        raise WrongCall(
            f"the response to {response.id} is {shown(given)}, which is no ToolConfirmation ({error}); {wanted}"
        ) from error
    if "confirmed" not in confirmation.model_fields_set:
        raise WrongCall(f"the response to {response.id} is {shown(given)}, which says neither yes nor no; {wanted}")
    return confirmation
