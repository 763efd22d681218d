"""Legs of a turn: what an invocation leaves open when it ends, what it hands on, and how the next one begins.

A node of a workflow that asks for input ends the invocation, as on plain ADK.  When all is answered the next leg
begins: an invocation under the same id, whose message are the answers, and which ADK takes up from the session's
events.  What is in no event and yet belongs to the turn is carried over.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

from google.adk.events.event import Event
from google.genai import types

from perdure.adk import seams
from perdure.adk.live.core import TurnCore
from perdure.adk.live.places import node_names
from perdure.adk.records.history import USER
from perdure.adk.waits.carry import Carry
from perdure.session.model import InterruptKind, JsonObject
from perdure.session.runner import AnsweredQuestion, Question, QuestionWait


def end_of_leg(core: TurnCore) -> tuple[tuple[Question, ...], str | None]:
    """What the invocation leaves open for the next leg, and what it hands on; nothing when the turn is over.

    Raises:
        ValueNotStorable: a ``temp:`` value has no form that can be stored.
    """
    questions = open_questions(core)
    if not questions:
        return (), None
    count = 0 if core.invocation is None else seams.model_calls_of(core.invocation)
    silent = (*core.carry.silent, *core.silent_now)
    return questions, Carry.of(core.session.state, count, silent, core.steps).to_text()


def open_questions(core: TurnCore) -> tuple[Question, ...]:
    """What the nodes of a turn have asked and nobody has answered, in the order in which they asked."""
    invocation_id = core.start.turn_id if core.invocation is None else core.invocation.invocation_id
    asked: dict[str, tuple[Event, types.FunctionCall]] = {}
    for event in core.session.events:
        if event.invocation_id != invocation_id:
            continue
        if event.author == USER:
            for response in event.get_function_responses():
                asked.pop(response.id or "", None)
            continue
        asked.update({call.id or "": (event, call) for call in _asks_of(event)})
    return tuple(_question(core, event, call) for event, call in asked.values())


def early_questions(core: TurnCore, event: Event) -> list[Question]:
    """What an event asks for the next leg.  It may be answered while the rest of the invocation goes on."""
    if event.author == USER:
        return []
    return [_question(core, event, call) for call in _asks_of(event) if call.id not in core.long_running]


def _asks_of(event: Event) -> list[types.FunctionCall]:
    ids = event.long_running_tool_ids or ()
    return [call for call in event.get_function_calls() if call.id in ids and call.name in _KINDS]


_KINDS = {seams.REQUEST_INPUT: InterruptKind.INPUT, seams.REQUEST_CREDENTIAL: InterruptKind.CREDENTIAL}


def _question(core: TurnCore, event: Event, call: types.FunctionCall) -> Question:
    arguments: JsonObject = dict(call.args or {})
    asking = event.node_info.name or event.author
    kind: InterruptKind = _KINDS[call.name or ""]
    payload: Any = arguments.get("payload")
    if kind is InterruptKind.CREDENTIAL:
        payload, arguments = arguments.get("authConfig"), {}
    elif seams.asks_for_confirmation(call.id or "") and isinstance(payload, dict):
        about = cast(JsonObject, payload)
        kind, arguments, payload = InterruptKind.CONFIRMATION, about.get("args", {}), about.get("confirmation_payload")
        asking = str(about.get("tool_name", asking))
    else:
        schema = arguments.get("response_schema")
        payload = {"payload": payload, "response_schema": schema} if schema is not None else payload
        arguments = {}
    return Question(
        question_id=call.id or "",
        kind=kind,
        group=f"leg{core.start.leg}",
        wait=QuestionWait.NEXT_LEG,
        tool_name=asking,
        arguments=arguments,
        agent_name=event.author,
        path="/".join(node_names(core, event.node_info.path)),
        hint=str((call.args or {}).get("message") or ""),
        payload=payload,
    )


def content_of_answers(answers: Sequence[AnsweredQuestion]) -> types.Content:
    """The message with which a leg begins."""
    # Without an answer is what was asked by a node that is gone.
    return types.Content(role=USER, parts=[_part(answered) for answered in answers if answered.answer is not None])


def _part(answered: AnsweredQuestion) -> types.Part:
    question = answered.question
    name = seams.REQUEST_CREDENTIAL if question.kind is InterruptKind.CREDENTIAL else seams.REQUEST_INPUT
    response = types.FunctionResponse(id=question.question_id, name=name, response=_response(answered))
    return types.Part(function_response=response)


def _response(answered: AnsweredQuestion) -> JsonObject:
    """An answer in the form in which ADK takes it."""
    answer, kind = answered.answer, answered.question.kind
    assert answer is not None, "a leg begins when all is answered"
    value: Any = answer.value
    if kind is InterruptKind.CONFIRMATION:
        approved = answer.error is None and bool(value.get("approved"))
        confirmed: JsonObject = {"confirmed": approved}
        if approved and value.get("payload") is not None:
            confirmed["payload"] = value["payload"]
        return confirmed
    if answer.error is not None:
        return {"error": answer.error.message}
    if kind is InterruptKind.CREDENTIAL:
        if not value.get("approved"):
            return {"error": str(value.get("message") or "The sign-in was declined.")}
        value = value.get("payload")
    return cast(JsonObject, value) if isinstance(value, dict) else {"result": value}
