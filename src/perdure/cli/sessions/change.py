"""The commands that send, answer and end.  Each returns when what it asks for is on disk; ``--wait`` waits for more."""

from __future__ import annotations

import getpass
import json
import sys

import click

from perdure.cli.base import command, engine_option, json_option, open_client, run
from perdure.cli.output import print_json, to_json
from perdure.cli.sessions.outcome import Change, How, change_options, changing
from perdure.client import AgentSessionClient
from perdure.errors import InterruptNotFound, UsageError
from perdure.session.model import JsonValue

_by_option = click.option(
    "--by", "resolved_by", metavar="NAME", default=None, help="Who decides; kept with the answer. Else your login name."
)


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
@click.argument("interrupt", required=False)
@click.option("--payload", metavar="JSON", help="Reaches the tool as its confirmation's payload.")
@_by_option
@change_options
def approve(session: str, interrupt: str | None, payload: str | None, resolved_by: str | None, how: How) -> None:
    """Approve what a session waits for. INTERRUPT may be left out when there is only one.

    \b
    Examples:
      perdure sessions approve chat-SupportAgent --wait
      perdure sessions approve chat-SupportAgent e-41:adk-7 --by ann --payload '{"amount": 20}'
    """
    value = _json_value(payload)

    async def work() -> None:
        async with changing(session, how) as change:
            await _answer(change, session, interrupt, True, value, None, resolved_by, how.request_id)

    run(work())


@command()
@click.argument("session")
@click.argument("interrupt", required=False)
@click.option("--message", metavar="TEXT", help="What the agent's model is told. Else that the call is rejected.")
@_by_option
@change_options
def reject(session: str, interrupt: str | None, message: str | None, resolved_by: str | None, how: How) -> None:
    """Reject what a session waits for. INTERRUPT may be left out when there is only one.

    \b
    Examples:
      perdure sessions reject chat-SupportAgent --message "Refund 20 at the most."
      perdure sessions reject chat-SupportAgent e-41:adk-7 --by ann --json
    """

    async def work() -> None:
        async with changing(session, how) as change:
            await _answer(change, session, interrupt, False, None, message, resolved_by, how.request_id)

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


async def _answer(
    change: Change,
    session_id: str,
    interrupt_id: str | None,
    approved: bool,
    payload: JsonValue,
    message: str | None,
    resolved_by: str | None,
    request_id: str | None,
) -> None:
    answered = await change.client.resolve_interrupt(
        session_id,
        interrupt_id or await _only_interrupt(change.client, session_id),
        approved=approved,
        payload=payload,
        message=message,
        resolved_by=resolved_by or getpass.getuser(),
        request_id=request_id,
    )
    change.done(f"{answered.status.value}: {answered.tool_name}", interrupt=to_json(answered))


async def _only_interrupt(client: AgentSessionClient, session_id: str) -> str:
    """The id of the one pending interrupt.

    Raises:
        InterruptNotFound: there is none.
        UsageError: there are several.
    """
    pending = (await client.get_agent_snapshot(session_id)).pending_interrupts
    if len(pending) == 1:
        return pending[0].interrupt_id
    if not pending:
        raise InterruptNotFound(f"session {session_id!r} asks for nothing", session_id=session_id)
    known = ", ".join(f"{one.interrupt_id} ({one.tool_name})" for one in pending)
    raise UsageError(
        f"session {session_id!r} asks for {len(pending)} things; name the one you mean: {known}",
        session_id=session_id,
        pending=[one.interrupt_id for one in pending],
    )


def _json_value(text: str | None) -> JsonValue:
    if text is None:
        return None
    try:
        return json.loads(text)
    except ValueError as error:
        raise UsageError(f"--payload is no JSON: {error}; quote it for the shell, like '{{\"amount\": 20}}'") from None
