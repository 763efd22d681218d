"""What no store takes, found before it is handed in, so that it fails what it came from and not the write.

A value can be too large, or hold text that is no valid Unicode.  A write with such a value would fail each time that it
is tried, on every worker.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from perdure.engine.steps import ToolStepResult
from perdure.errors import UsageError
from perdure.session.model import ErrorInfo, RecordStatus
from perdure.session.runner import CallRequest, NewMessage, Question, ToolAsked
from perdure.store.codec import call_request_to_json, ensure_fits, ensure_name_fits, question_to_json, to_json


def storable_result(result: ToolStepResult, tool_name: str) -> ToolStepResult:
    """The result of a tool step, or a failure in its place if it cannot be stored."""
    where = f"the result of tool {tool_name!r}"
    try:
        if result.outcome is not None:
            ensure_fits(result.outcome, where)
        ensure_fits(to_json(result.result, where), where)
    except UsageError as refusal:
        if result.status is not RecordStatus.SUCCEEDED:
            return replace(result, outcome=None)
        error = ErrorInfo(code=refusal.code, message=refusal.message, facts=dict(refusal.facts))
        return ToolStepResult(RecordStatus.FAILED, None, None, error)
    return result


def storable_asked(asked: ToolAsked, tool_name: str) -> ToolAsked | ToolStepResult:
    """What a tool asks, or the failure of its call if that cannot be stored."""
    where = f"what tool {tool_name!r} asks"
    try:
        ensure_fits(asked.outcome, where)
        ensure_fits(to_json({"hint": asked.hint, "payload": asked.payload}, where), where)
    except UsageError as refusal:
        error = ErrorInfo(code=refusal.code, message=refusal.message, facts=dict(refusal.facts))
        return ToolStepResult(RecordStatus.FAILED, None, None, error)
    return asked


def ensure_storable_messages(messages: Iterable[NewMessage]) -> None:
    """Checks messages.

    Raises:
        PayloadTooLarge, ValueNotStorable: names the message by its author.
    """
    for message in messages:
        where = f"a message of {message.author!r}"
        ensure_fits(message.item, where)
        for key, value in message.state_delta.items():
            place = f"{where}, state key {key!r}"
            ensure_fits(key, place)
            ensure_name_fits(key, f"{where}, state key {key[:40]!r}...")
            ensure_fits(to_json(value, place), place)


def ensure_storable_calls(calls: Sequence[CallRequest]) -> None:
    """Checks the requests of calls.

    Raises:
        PayloadTooLarge, ValueNotStorable: names the call by its tool.
    """
    for call in calls:
        where = f"the arguments of a call of tool {call.tool_name!r}"
        ensure_fits(call_request_to_json(call, where), where)


def ensure_storable_questions(questions: Sequence[Question], carry: str | None = None) -> None:
    """Checks questions, and what a leg hands on.

    Raises:
        PayloadTooLarge, ValueNotStorable: names the question by who asks.
    """
    for question in questions:
        where = f"a question of {question.tool_name!r}"
        ensure_fits(question_to_json(question, where), where)
    if carry is not None:
        ensure_fits(carry, "what the invocation hands on to the next one")
