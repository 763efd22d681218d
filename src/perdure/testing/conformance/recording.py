"""``Recording``: everything that a case left behind, in canonical form.  Two engines that agree record the same.

Left out are times, cursors and process ids.  Of what may pass with a dying worker (text deltas) nothing is kept in
cases that bring their own workers.  Where branches go on side by side, what has no order between them is sorted.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterable, Sequence
from itertools import groupby

from perdure.client import AgentSessionClient
from perdure.session.model import (
    PASSING_EVENTS,
    AgentEvent,
    AgentEventType,
    AgentSnapshot,
    JsonObject,
    JsonValue,
    Message,
    StepName,
    StepRecord,
)
from perdure.testing.conformance.case import ConformanceCase
from perdure.testing.conformance.names import Names
from perdure.testing.conformance.rows import event_rows, interrupt_row, message_row, request_row, step_row
from perdure.testing.conformance.stage import PATIENCE, Stage
from perdure.testing.engine import read_messages, read_step_history

Recording = JsonObject
"""``case``, ``sessions`` (name -> status, turns, steps, messages, events ...), ``ledger``, ``requests``, ``notes``."""


async def record(case: ConformanceCase, stage: Stage) -> Recording:
    """Reads all that the sessions of a case are, and what the case's tools and models saw.

    Raises:
        PerdureError: a session cannot be read.
    """
    found = {name: await _read(stage.client, session_id) for name, session_id in sorted(stage.recorded.items())}
    names = Names()
    for name, session_id in stage.sessions.items():
        names.give(session_id, f"<{name}>")
    names.give(stage.world.flow_type, "<flow>")
    for each in found.values():
        each.name_ids(names)
    sessions = {name: _named(names, each.rows(passing=case.served and case.ordered)) for name, each in found.items()}
    recording: Recording = {"case": case.name, "promise": case.promise, "sessions": sessions}
    if stage.recorded.keys() == stage.sessions.keys():
        recording["ledger"] = _named(names, stage.world.ledger)
        recording["requests"] = _named(names, [request_row(request) for request in stage.world.requests])
    recording["notes"] = _named(names, stage.notes)
    _sort(recording, case)
    return recording


def _named(names: Names, value: JsonValue) -> JsonValue:
    """As it will be read back from the reference."""
    return names.put(json.loads(json.dumps(value)))


class _Session:
    """One session as it was read."""

    def __init__(
        self,
        snapshot: AgentSnapshot,
        steps: Sequence[StepRecord],
        messages: Sequence[Message],
        events: Sequence[AgentEvent],
    ) -> None:
        self._snapshot = snapshot
        self._steps = steps
        self._messages = messages
        self._events = events

    def name_ids(self, names: Names) -> None:
        for event in self._events:
            if event.type is AgentEventType.TURN_STARTED and event.turn_id:
                names.give(event.turn_id, f"<turn {event.data['number']}>")
        for step in self._steps:
            names.give(step.turn_id or "", "<turn>")
            names.give(step.step_id, f"<{step.name.value}>")
        for message in self._messages:
            content: JsonObject = message.framework_item.get("content") or {}
            parts: list[JsonObject] = content.get("parts") or []
            calls: list[JsonObject] = [part["function_call"] for part in parts if part.get("function_call")]
            for called in calls:
                names.give_call(called.get("id", ""), called.get("name", ""), called.get("args") or {})
        for event in self._events:
            if "tool_call_id" in event.data and "arguments" in event.data:
                names.give_call(event.data["tool_call_id"], event.data["tool_name"], event.data["arguments"])
        for step in self._steps:
            names.give(step.tool_call_id or "", f"{step.tool_name}()")

    def rows(self, *, passing: bool) -> JsonObject:
        snapshot = self._snapshot
        return {
            "status": snapshot.status.value,
            "queued": snapshot.queued_messages,
            "pending": [interrupt_row(interrupt) for interrupt in snapshot.pending_interrupts],
            "usage": snapshot.usage.model_dump(mode="json"),
            "state": snapshot.state,
            "error": None if snapshot.error is None else snapshot.error.code,
            "steps": [step_row(step) for step in self._steps],
            "messages": [message_row(message) for message in self._messages],
            "events": event_rows(event for event in self._events if passing or event.type not in PASSING_EVENTS),
        }


async def _read(client: AgentSessionClient, session_id: str) -> _Session:
    snapshot = await client.get_agent_snapshot(session_id)
    steps = await read_step_history(client, session_id)
    messages = await read_messages(client, session_id)
    return _Session(snapshot, steps, messages, await read_events(client, session_id, snapshot.cursor))


async def read_events(client: AgentSessionClient, session_id: str, last: str | None) -> list[AgentEvent]:
    """The stored live stream up to a cursor, from the oldest event that is kept."""
    events: list[AgentEvent] = []
    if last is None:
        return events
    stream = client.stream_events(session_id)
    async with asyncio.timeout(PATIENCE):
        async for event in stream:
            events.append(event)
            if event.cursor >= last:
                break
    await stream.aclose()
    return events


# ---------------------------------------------------------------- what has no order


def _sort(recording: Recording, case: ConformanceCase) -> None:
    """Sorts what has no order: between sessions always, in a session where branches go on side by side."""
    sessions: dict[str, JsonObject] = recording["sessions"]
    for session in sessions.values():
        for message in session["messages"]:
            message["item"].get("long_running_tool_ids", []).sort()  # a set, in ADK
    if not case.ordered:
        for session in sessions.values():
            session["pending"].sort(key=_sort_key)
            session["steps"] = _unordered_steps(session["steps"])
            for message in session["messages"]:
                _sort_answers(message["item"])
            session["messages"].sort(key=_by_author)
            session["events"] = _unordered_events(session["events"])
        for row in recording.get("requests", ()):
            row["contents"].sort()
    if "requests" in recording and (len(sessions) > 1 or not case.ordered):
        recording["requests"].sort(key=_sort_key)
        recording["ledger"].sort()
    if "requests" in recording and not (case.ordered or case.served):
        # A worker that was killed may have asked once more, in another branch.
        recording["requests"] = [row for row, _ in groupby(recording["requests"])]


def _unordered_steps(steps: Iterable[JsonObject]) -> list[JsonObject]:
    """Steps sorted; how often the live invocation stopped on the way depends on timing, so ``RunModel`` is left out."""
    kept = [step for step in steps if step["name"] not in (StepName.RUN_MODEL.value, StepName.RESUME_TURN.value)]
    return sorted(kept, key=_sort_key)


def _unordered_events(events: Iterable[JsonObject]) -> list[JsonObject]:
    """Events sorted, without the moments at which all branches stood still: how many there are depends on timing."""
    return sorted((row for row in events if row["type"] != AgentEventType.TURN_SUSPENDED.value), key=_sort_key)


def _sort_answers(item: JsonObject) -> None:
    """What nodes of a workflow asked is answered in one message, which is in the branch of the one that asked first."""
    parts: list[JsonObject] = item.get("content", {}).get("parts", [])
    names = {part.get("function_response", {}).get("name") for part in parts}
    if len(parts) > 1 and names == {"adk_request_input"}:
        parts.sort(key=_sort_key)
        item.pop("branch", None)


def _by_author(row: JsonObject) -> tuple[str, str]:
    """Messages of one author keep their order."""
    return str(row["item"].get("branch", "")), str(row["author"])


def _sort_key(row: JsonValue) -> str:
    return json.dumps(row, sort_keys=True)
