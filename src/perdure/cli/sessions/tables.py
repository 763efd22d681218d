"""Sessions, conversations, steps and events as lists."""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import datetime

from rich.table import Table
from rich.text import Text

from perdure.cli.output import call_text, clean, cut, local_time
from perdure.cli.views import STATUS_STYLES, error_text, message_text, plain_table
from perdure.session.model import (
    AgentEvent,
    AgentEventType,
    ErrorInfo,
    Message,
    SessionSummary,
    StepRecord,
    StepStatus,
)

STEP_STYLES = {
    StepStatus.PENDING: "dim",
    StepStatus.RUNNING: "green",
    StepStatus.FAILED: "red",
    StepStatus.REJECTED: "yellow",
    StepStatus.OUTCOME_UNKNOWN: "bold red",
}


def session_table(sessions: Sequence[SessionSummary]) -> Table | Text:
    """One row for each session."""
    if not sessions:
        return Text("no sessions", style="dim")
    table = plain_table("session", "flow", "status", "turns", "asks", "queued", "changed")
    for one in sessions:
        table.add_row(
            Text(one.session_id),
            Text(one.flow_type),
            Text(one.status.value, style=STATUS_STYLES[one.status]),
            str(one.turns),
            str(one.pending_interrupts or ""),
            str(one.queued_messages or ""),
            local_time(one.updated_at),
        )
    return table


def messages_text(messages: Sequence[Message]) -> Text:
    """A conversation."""
    if not messages:
        return Text("no messages", style="dim")
    text = Text()
    for message in messages:
        text.append_text(message_text(message)).append("\n")
    text.rstrip()
    return text


def step_table(steps: Sequence[StepRecord]) -> Table | Text:
    """One row for each step, in the order in which they came up."""
    if not steps:
        return Text("no steps", style="dim")
    table = plain_table("step", "tool", "status", "tries", "effect", "started", "took", "error")
    for step in steps:
        table.add_row(
            step.name.value,
            Text(clean(step.tool_name or "")),
            Text(step.status.value, style=STEP_STYLES.get(step.status, "")),
            str(step.attempts or ""),
            step.effect or "",
            local_time(step.started_at) if step.started_at is not None else "",
            _took(step.started_at, step.settled_at),
            Text(cut(step.error.message) if step.error is not None else ""),
        )
    return table


def event_line(event: AgentEvent) -> Text:
    """One event on one line."""
    line = Text.assemble((event.cursor, "dim"), " ", local_time(event.created_at), " ", (event.type.value, "bold"))
    if event.attempt is not None and event.attempt > 1:
        line.append(f" (attempt {event.attempt})")
    detail = _detail(event)
    return line.append(f" {detail}") if detail else line


def _detail(event: AgentEvent) -> str:
    data = event.data
    match event.type:
        case AgentEventType.TEXT_DELTA | AgentEventType.REASONING_DELTA:
            return clean(json.dumps(event.text, ensure_ascii=False))
        case AgentEventType.TOOL_CALL_STARTED:
            return call_text(data["tool_name"], data["arguments"])
        case AgentEventType.TOOL_CALL_FINISHED:
            return f"{cut(data['tool_name'])} {data['status']}"
        case AgentEventType.INTERRUPT_REQUESTED:
            return call_text(data["tool_name"], data["arguments"])
        case AgentEventType.INTERRUPT_RESOLVED:
            return f"{cut(data['tool_name'])} {data['status']}"
        case AgentEventType.MESSAGE:
            return f"#{data['index']}"
        case AgentEventType.TURN_FAILED:
            return cut(error_text(ErrorInfo.model_validate(data["error"])), 200)
        case _:
            return ""


def _took(started: datetime | None, settled: datetime | None) -> str:
    if started is None or settled is None:
        return ""
    return f"{(settled - started).total_seconds():.3f} s"
