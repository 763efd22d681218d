"""What a failed or cancelled turn stores last.

It keeps the history valid (each call has its result) and tells the next turn's model what happened.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Sequence
from typing import Any

from google.adk.events.event import Event
from google.adk.events.event_actions import EventActions
from google.adk.sessions.state import State
from google.genai import types

from perdure.adk import seams
from perdure.adk.live.determinism import derived_uuids
from perdure.adk.records.codec import UnknownType, plain
from perdure.adk.records.history import USER, content_of, is_stored, message_of
from perdure.adk.tools.answers import failure_response
from perdure.adk.tools.outcomes import Outcome, read_outcome, shown_result
from perdure.session.model import (
    STEERED,
    TOOL_CALL_NOT_RUN_ERROR_PREFIX,
    ErrorInfo,
    JoinedMessage,
    RecordStatus,
    TurnStatus,
)
from perdure.session.runner import ClosedCall, NewMessage, TurnStart

_NO_RESULT = "The turn ended before the result of this call came."

_NOT_RUN = f"{TOOL_CALL_NOT_RUN_ERROR_PREFIX}: the turn ended first."

_IN_WORDS = {
    RecordStatus.SUCCEEDED: "it succeeded; do not repeat it",
    RecordStatus.REJECTED: "it was rejected and did not run",
    RecordStatus.OUTCOME_UNKNOWN: "its outcome is unknown: it may have happened; do not repeat it without checking",
}


def closing_messages(
    start: TurnStart,
    stored: Sequence[Event],
    joined: Sequence[JoinedMessage],
    calls: Sequence[ClosedCall],
    status: TurnStatus,
    error: ErrorInfo | None,
    now_ms: int,
) -> tuple[NewMessage, ...]:
    """The messages; see ``AgentFrameworkRunner.closing_messages``."""
    events: list[Event] = []
    closer = _Closer(start, now_ms)
    if not any(event.author == USER for event in stored):
        delta = {
            key: plain(value, f"state key {key!r}")
            for key, value in start.message.state_delta.items()
            if not key.startswith(State.TEMP_PREFIX)
        }
        events.append(closer.event(USER, content_of(start.message), EventActions(state_delta=delta)))
    by_id = {call.request.call_id: call for call in calls}
    events.extend(closer.answers(stored, by_id))
    known = {event.id for event in stored}
    for one in joined:
        if one.message_id not in known:
            events.append(closer.event(USER, content_of(one.message)))
            events[-1].id = one.message_id
            events[-1].custom_metadata = {STEERED: True}
    note = _note(calls, status, error, _unanswered(stored))
    events.append(closer.event(USER, types.Content(role=USER, parts=[types.Part(text=note)])))
    first = sum(1 for event in stored if is_stored(event))
    return tuple(message_of(event, first + number) for number, event in enumerate(events))


def is_closing(event: Event) -> bool:
    """Whether an event is one that ``closing_messages`` made."""
    first = next(_closing_ids(event.invocation_id))
    return event.id.rpartition("-")[0] == first.rpartition("-")[0]


def _closing_ids(turn_id: str) -> Iterator[str]:
    return derived_uuids(turn_id, "closing")


class _Closer:
    """Makes the events: ids and times follow from the turn and ``now_ms`` alone."""

    def __init__(self, start: TurnStart, now_ms: int) -> None:
        self._start = start
        self._now_ms = now_ms
        self._count = 0
        self._ids = _closing_ids(start.turn_id)

    def event(self, author: str, content: types.Content, actions: EventActions | None = None) -> Event:
        self._count += 1
        return Event(
            id=next(self._ids),
            invocation_id=self._start.turn_id,
            author=author,
            content=content,
            actions=actions or EventActions(),
            timestamp=(self._now_ms * 1000 + self._count) / 1_000_000,
        )

    def answers(self, stored: Sequence[Event], calls: dict[str, ClosedCall]) -> list[Event]:
        """A response event for each event whose calls lack some."""
        answered = {response.id for event in stored for response in event.get_function_responses()}
        events: list[Event] = []
        for asking in stored:
            missing = [call for call in asking.get_function_calls() if call.id not in answered]
            if not missing:
                continue
            actions = EventActions()
            later = asking.long_running_tool_ids or set()
            parts = [_answer(call, calls.get(call.id or ""), actions, call.id in later) for call in missing]
            event = self.event(asking.author, types.Content(role=USER, parts=parts), actions)
            event.branch = asking.branch
            event.node_info.path = asking.node_info.path
            event.isolation_scope = asking.isolation_scope
            events.append(event)
        return events


def _answer(call: types.FunctionCall, closed: ClosedCall | None, actions: EventActions, later: bool) -> types.Part:
    """The response to a call; what the tool did to the session goes into ``actions``.

    Args:
        later: the call is of a long-running tool; if that returned nothing, its result was to come later.
    """
    response: Any = {"error": _NOT_RUN}
    media: list[types.FunctionResponsePart] | None = None
    if closed is not None:
        outcome = _outcome_of(closed)
        if outcome is not None:
            _keep_effects(outcome, actions)
        if _waits(closed) and later:
            response = {"error": _NO_RESULT}
        elif closed.record.status is RecordStatus.SUCCEEDED:
            value, media = seams.split_media(outcome.value if outcome else None)
            response = shown_result(value, call.name or "")
        else:
            response = failure_response(closed.record.status, closed.record.error)
    part = types.Part.from_function_response(name=call.name or "", response=response, parts=media)
    if part.function_response is not None:
        part.function_response.id = call.id
    return part


def _waits(closed: ClosedCall) -> bool:
    """Whether the tool returned nothing, by ADK's measure."""
    outcome = _outcome_of(closed)
    return closed.record.status is RecordStatus.SUCCEEDED and not (outcome and outcome.value)


def _outcome_of(closed: ClosedCall) -> Outcome | None:
    if closed.record.outcome is None:
        return None
    try:
        return read_outcome(json.loads(closed.record.outcome), {})  # tokens end with their turn
    except UnknownType:
        return None  # the class is gone; that the call succeeded is still told


def _keep_effects(outcome: Outcome, actions: EventActions) -> None:
    for key, value in outcome.state_delta.items():
        if not key.startswith(State.TEMP_PREFIX):
            actions.state_delta[key] = plain(value, f"state key {key!r}")
    actions.artifact_delta.update(outcome.actions.get("artifact_delta", {}))


def _unanswered(stored: Sequence[Event]) -> set[str]:
    """The calls of long-running tools that have no response."""
    answered = {response.id for event in stored for response in event.get_function_responses()}
    return {name for event in stored for name in event.long_running_tool_ids or ()} - answered


def _note(calls: Sequence[ClosedCall], status: TurnStatus, error: ErrorInfo | None, unanswered: Collection[str]) -> str:
    """The turn-failure note."""
    if status is TurnStatus.CANCELLED:
        head = "Note: the work on the request above was cancelled before it was finished."
    else:
        reason = f" ({error.message})" if error is not None else ""
        head = f"Note: the work on the request above failed before it was finished{reason}."
    if not calls:
        return f"{head} No tool was called."
    lines = [f"- {call.request.tool_name}({_arguments(call)}): {_in_words(call, unanswered)}" for call in calls]
    return "\n".join([head, "These tools were called:", *lines])


def _arguments(call: ClosedCall) -> str:
    return ", ".join(
        f"{name}={json.dumps(value, ensure_ascii=False)}" for name, value in call.request.arguments.items()
    )


def _in_words(call: ClosedCall, unanswered: Collection[str]) -> str:
    if call.request.call_id in unanswered and _waits(call):
        return "it started, and its result had not come; do not repeat it without checking"
    words = _IN_WORDS.get(call.record.status)
    if words is not None:
        return words
    message = call.record.error.message if call.record.error else ""
    if message.startswith(TOOL_CALL_NOT_RUN_ERROR_PREFIX):
        return "it did not run"
    return f"it failed: {message}" if message else "it failed"
