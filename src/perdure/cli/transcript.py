"""A conversation as it happens: streamed text, tool lines, answers and ends of turns, on a terminal."""

from __future__ import annotations

from rich.console import Console
from rich.text import Text

from perdure.cli.output import call_text, clean, cut
from perdure.cli.views import error_text, message_text
from perdure.session.model import (
    AgentEvent,
    AgentEventType,
    ErrorInfo,
    InterruptStatus,
    JsonObject,
    Message,
    MessageRole,
    RecordStatus,
)

_RECORD_MARKS = {
    RecordStatus.SUCCEEDED.value: ("✓", "green"),
    RecordStatus.FAILED.value: ("✗", "red"),
    RecordStatus.REJECTED.value: ("✗", "yellow"),
    RecordStatus.OUTCOME_UNKNOWN.value: ("?", "bold red"),
}
_DELTAS = (AgentEventType.TEXT_DELTA, AgentEventType.REASONING_DELTA)


class Transcript:
    """Prints what a ``Follower`` shows it.

    Attributes:
        own_turns: turns whose user message is on the screen already, because it came from there.  What was told to
            such a turn on the way came from elsewhere.
    """

    def __init__(self, console: Console) -> None:
        self.own_turns: set[str] = set()
        self._console = console
        self._streamed = ""
        """Text shown as deltas that no message has confirmed yet."""
        self._mid_line = False
        self._delta: tuple[AgentEventType, str | None, int | None] | None = None
        """Kind, step and attempt of the last delta."""

    def event(self, event: AgentEvent) -> None:
        if event.type in _DELTAS:
            self._show_delta(event)
            return
        line = _line(event)
        if line is not None:
            self.line(line)

    def message(self, message: Message) -> None:
        """Prints a message unless its text was streamed before or typed here."""
        if message.role is MessageRole.USER:
            if message.turn_id not in self.own_turns or message.steered:
                self.line(message_text(message))
        elif message.role is MessageRole.ASSISTANT and message.text:
            before, found, after = self._streamed.partition(message.text)
            self._streamed = before + after
            if not found:
                self.line(Text(clean(message.text)))
            self.end_line()

    def line(self, text: Text) -> None:
        """Prints a line of its own."""
        self.end_line()
        self._console.print(text, soft_wrap=True)

    def end_line(self) -> None:
        """Ends the line that streamed text has begun, if any."""
        self._delta = None
        if self._mid_line:
            self._mid_line = False
            self._console.print()

    def _show_delta(self, event: AgentEvent) -> None:
        if not event.text:
            return
        text, delta = event.text, (event.type, event.step_execution_id, event.attempt)
        last, reasoning = self._delta, event.type is AgentEventType.REASONING_DELTA
        if last is not None and last != delta:
            self.end_line()
            if last[:2] == delta[:2]:
                self._streamed = ""
                self.line(Text("(interrupted; once more)", style="dim"))
        self._delta = delta
        self._mid_line = not text.endswith("\n")
        if not reasoning:
            self._streamed += text
        self._console.print(Text(clean(text), style="dim italic" if reasoning else ""), end="", soft_wrap=True)


def _line(event: AgentEvent) -> Text | None:
    """What an event is to people, on one line; ``None`` for what they need not see."""
    data = event.data
    match event.type:
        case AgentEventType.TOOL_CALL_STARTED:
            again = f"  (attempt {event.attempt})" if event.attempt is not None and event.attempt > 1 else ""
            return Text(f"→ {call_text(data['tool_name'], data['arguments'])}{again}", style="cyan")
        case AgentEventType.TOOL_CALL_FINISHED:
            return _finished(data)
        case AgentEventType.INTERRUPT_RESOLVED:
            return _resolved(data)
        case AgentEventType.TURN_FAILED:
            return Text(f"the turn failed: {error_text(ErrorInfo.model_validate(data['error']))}", style="red")
        case AgentEventType.TURN_CANCELLED:
            return Text("the turn was cancelled", style="yellow")
        case AgentEventType.SESSION_BLOCKED:
            return Text(f"blocked: {error_text(ErrorInfo.model_validate(data['error']))}", style="bold red")
        case AgentEventType.SESSION_CLOSED:
            return Text("the session was closed", style="dim")
        case _:
            return None


def _finished(data: JsonObject) -> Text:
    mark, style = _RECORD_MARKS[data["status"]]
    words = "" if data["status"] == RecordStatus.SUCCEEDED.value else f": {data['status'].replace('_', ' ')}"
    return Text(f"{mark} {cut(data['tool_name'])}{words}", style=style)


def _resolved(data: JsonObject) -> Text:
    by = f" by {cut(data['resolved_by'])}" if data["resolved_by"] else ""
    good = data["status"] in (InterruptStatus.APPROVED.value, InterruptStatus.ANSWERED.value)
    mark, style = ("✓", "green") if good else ("✗", "yellow")
    return Text(f"{mark} {cut(data['tool_name'])} {data['status']}{by}", style=style)
