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
from perdure.adk.records.history import USER
from perdure.adk.waits.carry import Carry
from perdure.session.model import InterruptKind, JsonObject
from perdure.session.runner import AnsweredQuestion, Question, QuestionWait


def end_of_leg(core: TurnCore) -> tuple[tuple[Question, ...], str | None]:
    """What the invocation leaves open for the next leg, and what it hands on; nothing when the turn is over.

    Raises:
        ValueNotStorable: a ``temp:`` value has no form that can be stored.
    """
    questions = open_questions(core.session.events, core.start.turn_id, core.start.leg)
    if not questions:
        return (), None
    count = 0 if core.invocation is None else seams.model_calls_of(core.invocation)
    silent = (*core.carry.silent, *core.silent_now)
    return questions, Carry.of(core.session.state, count, silent, core.steps).to_text()


def open_questions(events: Sequence[Event], turn_id: str, leg: int) -> tuple[Question, ...]:
    """What the nodes of a turn have asked and nobody has answered, in the order in which they asked.

    Args:
        events: of the session.
    """
    asked: dict[str, tuple[Event, types.FunctionCall]] = {}
    for event in events:
        if event.invocation_id != turn_id:
            continue
        if event.author == USER:
            for response in event.get_function_responses():
                asked.pop(response.id or "", None)
            continue
        for call in event.get_function_calls():
            if call.id in (event.long_running_tool_ids or ()) and call.name in _KINDS:
                asked[call.id or ""] = (event, call)
    return tuple(_question(event, call, leg) for event, call in asked.values())


_KINDS = {seams.REQUEST_INPUT: InterruptKind.INPUT, seams.REQUEST_CREDENTIAL: InterruptKind.CREDENTIAL}


def _question(event: Event, call: types.FunctionCall, leg: int) -> Question:
    arguments: JsonObject = dict(call.args or {})
    path = event.node_info.path
    asking = event.node_info.name or event.author
    kind: InterruptKind = _KINDS[call.name or ""]
    payload: Any = arguments.get("payload")
    if kind is InterruptKind.CREDENTIAL:
        payload, arguments = arguments, {}
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
        group=f"leg{leg}",
        wait=QuestionWait.NEXT_LEG,
        tool_name=asking,
        arguments=arguments,
        agent_name=event.author,
        path=path if "/" in path else "",
        hint=str((call.args or {}).get("message") or ""),
        payload=payload,
    )


def content_of_answers(answers: Sequence[AnsweredQuestion]) -> types.Content:
    """The message with which a leg begins."""
    return types.Content(role=USER, parts=[_part(answered) for answered in answers])


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
