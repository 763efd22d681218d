"""The rows of a recording: what of each step, message, event, interrupt and request is compared."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import cast

from google.genai import types

from perdure.session.model import (
    PASSING_EVENTS,
    AgentEvent,
    AgentEventType,
    ErrorInfo,
    Interrupt,
    JsonObject,
    JsonValue,
    Message,
    StepRecord,
)
from perdure.testing.request_log import LoggedRequest

_OF_THE_MOMENT = frozenset({"id", "timestamp"})
"""Keys of an ADK event that say when it was made; ids of calls stay and get names."""


def step_row(step: StepRecord) -> JsonObject:
    """A step, without times."""
    row: JsonObject = {
        "name": step.name.value,
        "status": step.status.value,
        "attempts": step.attempts,
        "turn": step.turn_id,
        "key": step.key,
        "tool": step.tool_name,
        "effect": step.effect,
        "result": step.result,
        "error": error_row(step.error),
        "started": step.started_at is not None,
        "settled": step.settled_at is not None,
    }
    return _given(row)


def message_row(message: Message) -> JsonObject:
    """A message with its ADK event, without times and the event's own id."""
    row: JsonObject = {
        "role": message.role.value,
        "author": message.author,
        "text": message.text,
        "tool": message.tool_name,
        "images": list(message.images),
        "turn": message.turn_id,
        "item": _lasting(message.framework_item),
    }
    return _given(row)


def event_rows(events: Iterable[AgentEvent]) -> list[JsonObject]:
    """Events of the live stream; the deltas of one attempt become one text, however it was cut."""
    rows: list[JsonObject] = []
    for event in events:
        row = _event_row(event)
        before = rows[-1] if rows else {}
        joined = event.text is not None and all(before.get(key) == row.get(key) for key in ("type", "step", "attempt"))
        if joined:
            before["text"] += event.text
        else:
            rows.append(row)
    return rows


def _event_row(event: AgentEvent) -> JsonObject:
    row: JsonObject = {"type": event.type.value, "turn": event.turn_id, "attempt": event.attempt, "text": event.text}
    data = event.data
    if event.type in PASSING_EVENTS:
        row["step"] = event.step_execution_id
    elif event.type in (AgentEventType.INTERRUPT_REQUESTED, AgentEventType.INTERRUPT_RESOLVED):
        row["interrupt"] = interrupt_row(Interrupt.model_validate(data))
    elif event.type is AgentEventType.MESSAGE:
        row["index"] = data["index"]
    elif event.type.value.startswith("turn_"):
        error = data.get("error")
        row |= {"number": data["number"], "status": data["status"], "usage": data["usage"]}
        row["error"] = error and error["code"]
    else:
        row["data"] = data
    return _given(row)


def interrupt_row(interrupt: Interrupt) -> JsonObject:
    """An interrupt, without times."""
    row = interrupt.model_dump(mode="json", exclude={"created_at", "deadline", "resolved_at"})
    row["deadline"] = interrupt.deadline is not None
    return _given(row)


def request_row(request: LoggedRequest) -> JsonObject:
    """What a model was asked, one line a part."""
    return {
        "system": request.system_instruction,
        "tools": list(request.tools),
        "contents": [f"{content.role} {_part(part)}" for content in request.contents for part in content.parts or ()],
    }


def error_row(error: ErrorInfo | None) -> JsonObject | None:
    """An error's code and message; facts may hold what is of the moment."""
    return None if error is None else {"code": error.code, "message": error.message}


def _part(part: types.Part) -> str:
    if part.function_call is not None:
        called = part.function_call
        return f"calls {called.name} {json.dumps(called.args, sort_keys=True)} {called.id or ''}".rstrip()
    if part.function_response is not None:
        given = part.function_response
        return f"answers {given.name} {json.dumps(given.response, sort_keys=True)} {given.id or ''}".rstrip()
    if part.text is not None:
        return f"says {part.text}"
    return f"gives {json.dumps(part.model_dump(mode='json', exclude_none=True), sort_keys=True)}"


def _lasting(value: JsonValue) -> JsonValue:
    """An ADK event without what is empty or of the moment.  Call ids are under ``id`` too: theirs stay."""
    if isinstance(value, dict):
        fields = cast(JsonObject, value)
        of_the_moment = _OF_THE_MOMENT if "timestamp" in fields else frozenset[str]()
        kept = {key: _lasting(item) for key, item in fields.items() if key not in of_the_moment}
        return {key: item for key, item in kept.items() if item not in (None, {}, [])}
    if isinstance(value, list):
        return [_lasting(item) for item in cast(Iterable[JsonValue], value)]
    return value


def _given(row: JsonObject) -> JsonObject:
    return {key: value for key, value in row.items() if value is not None and value != []}
