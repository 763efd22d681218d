"""The commands that send and end.  Each returns when what it asks for is on disk; ``--wait`` waits for more."""

from __future__ import annotations

import sys

import click

from perdure.cli.base import command, engine_option, json_option, open_client, run
from perdure.cli.output import print_json
from perdure.cli.sessions.outcome import How, change_options, changing
from perdure.errors import UsageError


@command()
@click.argument("session")
@click.argument("text")
@change_options
def send(session: str, text: str, how: How) -> None:
    """Send a message to a session; TEXT "-" is read from stdin.

    While a turn runs the message is queued. Prints the id of the turn that it starts.

    \b
    Examples:
      perdure sessions send chat-SupportAgent "Where is order 1042?" --wait
      perdure sessions send chat-SupportAgent - --request-id mail-7731 < mail.txt
    """
    words = sys.stdin.read() if text == "-" else text

    async def work() -> None:
        async with changing(session, how) as change:
            turn_id = await change.client.send_user_message(session, words, request_id=how.request_id)
            change.done(turn_id, turn_id=turn_id)

    run(work())


@command()
@click.argument("session")
@click.argument("text")
@change_options
def steer(session: str, text: str, how: How) -> None:
    """Tell the running turn something; TEXT "-" is read from stdin.

    It sees the text at its next model call. If there is none, the text starts a turn of its own, as one that was sent.
    Prints the id of the message.

    \b
    Examples:
      perdure sessions steer chat-SupportAgent "The newer of the two orders."
    """
    words = sys.stdin.read() if text == "-" else text

    async def work() -> None:
        async with changing(session, how) as change:
            message_id = await change.client.steer_user_message(session, words, request_id=how.request_id)
            change.done(message_id, message_id=message_id)

    run(work())


@command()
@click.argument("session")
@click.option("--turn", "turn_id", metavar="ID", help="This turn only, be it open or queued.")
@change_options
def cancel(session: str, turn_id: str | None, how: How) -> None:
    """Cancel the turn that runs or waits. A worker carries it out.

    \b
    Examples:
      perdure sessions cancel chat-SupportAgent --wait
      perdure sessions cancel chat-SupportAgent --turn e-41
    """

    async def work() -> None:
        async with changing(session, how) as change:
            await change.client.cancel_turn(session, turn_id=turn_id, request_id=how.request_id)
            change.done("asked to cancel")

    run(work())


@command()
@click.argument("session")
@change_options
def close(session: str, how: How) -> None:
    """Close a session: it takes no more messages, and its open turn is cancelled. It can still be read.

    \b
    Examples:
      perdure sessions close chat-SupportAgent
    """

    async def work() -> None:
        async with changing(session, how) as change:
            await change.client.close_session(session, request_id=how.request_id)
            change.done("closed")

    run(work())


@command()
@click.argument("session")
@click.option("--yes", "-y", "sure", is_flag=True, help="Do not ask.")
@engine_option
@json_option
def delete(session: str, sure: bool, address: str, as_json: bool) -> None:
    """Delete a session and everything of it, at once and for good.

    \b
    Examples:
      perdure sessions delete chat-SupportAgent --yes
    """
    if not sure:
        if as_json or not sys.stdin.isatty():
            raise UsageError("deleting cannot be undone; add --yes")
        click.confirm(f"Delete session {session!r} for good?", abort=True, err=True)

    async def work() -> None:
        async with open_client(address) as client:
            await client.delete_session(session)
        if as_json:
            print_json({"session_id": session})
        else:
            click.echo("deleted")

    run(work())
