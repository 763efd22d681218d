"""How a session, a message and a question to a person look on a terminal."""

from __future__ import annotations

import json

from rich.console import Console
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from perdure.cli.base import suggest
from perdure.cli.output import clean, local_time
from perdure.session.model import (
    AgentSnapshot,
    ErrorInfo,
    Interrupt,
    InterruptKind,
    Message,
    MessageRole,
    SessionStatus,
)

STATUS_STYLES = {
    SessionStatus.IDLE: "",
    SessionStatus.RUNNING: "green",
    SessionStatus.WAITING: "yellow",
    SessionStatus.BLOCKED: "bold red",
    SessionStatus.CLOSED: "dim",
}


def plain_table(*columns: str) -> Table:
    """A table without lines.  Nothing in it is cut off: what is too long is folded."""
    table = Table(box=None, header_style="bold", pad_edge=False, padding=(0, 2, 0, 0))
    for column in columns:
        table.add_column(column, overflow="fold")
    return table


def print_snapshot(console: Console, snapshot: AgentSnapshot) -> None:
    """A session at this moment, and what one can do about it."""
    head = Text.assemble(
        (snapshot.session_id, "bold"), "  ", (snapshot.status.value, STATUS_STYLES[snapshot.status] or "default")
    )
    console.print(head, soft_wrap=True)
    table = plain_table("", "")
    table.show_header = False
    table.columns[0].style = "dim"
    for name, value in _facts(snapshot):
        table.add_row(name, Text(value))
    console.print(Padding(table, (0, 0, 0, 2), expand=False))
    for interrupt in snapshot.pending_interrupts:
        console.print()
        print_interrupt(console, interrupt)
        print_answers(console, snapshot, interrupt)


def _facts(snapshot: AgentSnapshot) -> list[tuple[str, str]]:
    usage, turn = snapshot.usage, snapshot.turn
    facts = [
        ("flow", snapshot.flow_type),
        ("user", snapshot.user_id),
        ("created", local_time(snapshot.created_at)),
        ("changed", local_time(snapshot.updated_at)),
    ]
    if turn is not None:
        facts.append(("turn", f"{turn.number} ({turn.status.value})"))
    if snapshot.queued_messages:
        facts.append(("queued", f"{snapshot.queued_messages} messages"))
    facts.append(
        ("usage", f"{usage.model_calls} model calls, {usage.input_tokens} + {usage.output_tokens} tokens in + out")
    )
    if snapshot.state:
        facts.append(("state", clean(json.dumps(snapshot.state, ensure_ascii=False))))
    if snapshot.error is not None:
        facts.append(("error", error_text(snapshot.error)))
    if not snapshot.served and snapshot.status is SessionStatus.RUNNING:
        facts.append(("worker", f"none is alive for {snapshot.flow_type}; start one with 'perdure serve'"))
    return facts


def print_interrupt(console: Console, interrupt: Interrupt) -> None:
    """What is asked, with all that the decision is about."""
    asked = Text.assemble(("? ", "yellow"), (interrupt.tool_name, "bold"), f"  ({interrupt.kind.value})")
    if interrupt.path:
        asked.append(f"  in {clean(interrupt.path)}", style="dim")
    if interrupt.deadline is not None:
        asked.append(f"  until {local_time(interrupt.deadline)}", style="dim")
    console.print(asked, soft_wrap=True)
    if interrupt.hint:
        console.print(Text(f"  {clean(interrupt.hint)}"), soft_wrap=True)
    for name, value in interrupt.arguments.items():
        shown = clean(json.dumps(value, ensure_ascii=False, indent=2)).replace("\n", "\n  ")
        console.print(Text(f"  {clean(name)} = {shown}"), soft_wrap=True)
    if interrupt.payload is not None:
        console.print(Text(f"  payload: {clean(json.dumps(interrupt.payload, ensure_ascii=False))}"), soft_wrap=True)


def print_answers(console: Console, snapshot: AgentSnapshot, interrupt: Interrupt) -> None:
    """The commands that answer an interrupt."""
    named = [interrupt.interrupt_id] if len(snapshot.pending_interrupts) > 1 else []
    where = [snapshot.session_id, *named]
    if interrupt.kind.takes_value:
        to = ["--to", interrupt.interrupt_id] if named else []
        answer = suggest("sessions", "answer", snapshot.session_id, "your answer", *to)
        console.print(Text(f"  answer:  {answer}", style="dim"), soft_wrap=True)
        return
    response = ["--payload", "{...}"] if interrupt.kind is InterruptKind.CREDENTIAL else []
    console.print(Text(f"  approve: {suggest('sessions', 'approve', *where, *response)}", style="dim"), soft_wrap=True)
    reject = suggest("sessions", "reject", *where, "--message", "why not")
    console.print(Text(f"  reject:  {reject}", style="dim"), soft_wrap=True)


def message_text(message: Message) -> Text:
    """One message: who, then what."""
    style = "cyan" if message.role is MessageRole.USER else "green"
    text = Text.assemble((f"{message.author}: ", style if message.role is not MessageRole.TOOL else "dim"))
    if message.text:
        text.append(clean(message.text))
    else:
        what = message.tool_name or "several tools"
        arrow = "←" if message.role is MessageRole.TOOL else "→"
        text.append(f"{arrow} {clean(what)}", style="dim")
    for mime_type in message.images:
        text.append(f" [{clean(mime_type)}]", style="dim")
    return text


def error_text(error: ErrorInfo) -> str:
    """An error as data, in words."""
    return f"{clean(error.message)} [{clean(error.code)}]"
