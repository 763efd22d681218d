"""The commands that read sessions and change nothing."""

from __future__ import annotations

from typing import TypeVar

import click
from pydantic import BaseModel
from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from perdure.cli.base import command, engine_option, json_option, open_client, open_existing, run, suggest
from perdure.cli.output import print_json, print_json_line, terminal, to_json
from perdure.cli.sessions import tables
from perdure.cli.stream import end_of_stream
from perdure.cli.views import print_snapshot
from perdure.client import DEFAULT_PAGE, MAX_PAGE, AgentSessionClient
from perdure.session.model import Page, SessionStatus

T = TypeVar("T", bound=BaseModel)

_limit_option = click.option(
    "--limit", type=click.IntRange(1, MAX_PAGE), default=DEFAULT_PAGE, show_default=True, help="At most so many."
)
_after_option = click.option("--after", metavar="CURSOR", help="Go on behind an earlier page: its next_cursor.")


@command("list")
@click.option("--flow-type", metavar="TYPE", help="Only sessions of this flow.")
@click.option("--user", "user_id", metavar="ID", help="Only sessions of this user.")
@click.option("--status", type=click.Choice([status.value for status in SessionStatus]), help="Only these.")
@_after_option
@_limit_option
@engine_option
@json_option
def list_sessions(
    flow_type: str | None,
    user_id: str | None,
    status: str | None,
    after: str | None,
    limit: int,
    address: str,
    as_json: bool,
) -> None:
    """List sessions, the most recently changed first.

    \b
    Examples:
      perdure sessions list --status waiting
      perdure sessions list --flow-type SupportAgent --json
    """

    async def work() -> None:
        async with open_client(address) as client:
            page = await client.list_sessions(
                flow_type=flow_type,
                user_id=user_id,
                status=SessionStatus(status) if status is not None else None,
                after=after,
                limit=limit,
            )
        _print_page(page, as_json, tables.session_table(page.items), "list")

    run(work())


@command()
@click.argument("session")
@engine_option
@json_option
def show(session: str, address: str, as_json: bool) -> None:
    """Show a session: its state, what it waits for, and how to answer.

    \b
    Examples:
      perdure sessions show chat-SupportAgent
      perdure sessions show chat-SupportAgent --json | jq .pending_interrupts
    """

    async def work() -> None:
        async with open_client(address) as client:
            snapshot = await client.get_agent_snapshot(session)
        if as_json:
            print_json(to_json(snapshot))
        else:
            print_snapshot(terminal(), snapshot)

    run(work())


@command()
@click.argument("session")
@_after_option
@_limit_option
@engine_option
@json_option
def messages(session: str, after: str | None, limit: int, address: str, as_json: bool) -> None:
    """Print the conversation, oldest message first.

    \b
    Examples:
      perdure sessions messages chat-SupportAgent
      perdure sessions messages chat-SupportAgent --after 99 --json
    """

    async def work() -> None:
        async with open_client(address) as client:
            page = await client.list_messages(session, after=after, limit=limit)
        _print_page(page, as_json, tables.messages_text(page.items), "messages", session)

    run(work())


@command()
@click.argument("session")
@_after_option
@_limit_option
@engine_option
@json_option
def history(session: str, after: str | None, limit: int, address: str, as_json: bool) -> None:
    """Print every step: what it was, how often it was tried, how it ended.

    \b
    Examples:
      perdure sessions history chat-SupportAgent
      perdure sessions history chat-SupportAgent --json | jq '.items[] | select(.attempts > 1)'
    """

    async def work() -> None:
        async with open_client(address) as client:
            page = await client.read_step_history(session, after=after, limit=limit)
        _print_page(page, as_json, tables.step_table(page.items), "history", session)

    run(work())


@command()
@click.argument("session")
@click.option("--after", metavar="CURSOR", help="Begin behind this event; else with the oldest that is kept.")
@click.option("--limit", type=click.IntRange(1), help="Stop after so many events.")
@click.option("--follow", "-f", is_flag=True, help="Go on as events come; Ctrl-C ends it.")
@engine_option
@json_option
def events(session: str, after: str | None, limit: int | None, follow: bool, address: str, as_json: bool) -> None:
    """Print the live stream, one event on a line. With --json each line is one JSON document.

    \b
    Examples:
      perdure sessions events chat-SupportAgent --follow
      perdure sessions events chat-SupportAgent --json --after 0000000001-0000000004
    """

    async def work() -> None:
        async with open_existing(address) as engine:
            client = AgentSessionClient(engine)
            end = None if follow else await end_of_stream(engine.store, session, after)
            if not follow and end == after:
                return
            console, printed = terminal(), 0
            async for event in client.stream_events(session, after=after):
                if as_json:
                    print_json_line(event)
                else:
                    console.print(tables.event_line(event), soft_wrap=True)
                printed += 1
                if printed == limit or (end is not None and event.cursor >= end):
                    return

    run(work())


def _print_page(page: Page[T], as_json: bool, shown: RenderableType, *command: str) -> None:
    """A page for programs, or for people with the command that prints the next one."""
    if as_json:
        print_json({"items": [to_json(item) for item in page.items], "next_cursor": page.next_cursor})
        return
    console = terminal()
    console.print(shown, soft_wrap=not isinstance(shown, Table))
    if page.next_cursor is not None:
        console.print(Text(f"more: {suggest('sessions', *command, '--after', page.next_cursor)}", style="dim"))
