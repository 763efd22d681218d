"""The commands that answer what a session asks.  Each returns when the answer is on disk; ``--wait`` waits for more."""

from __future__ import annotations

import getpass
import json
import sys
from typing import cast

import click

from perdure.cli.base import command, run
from perdure.cli.output import answer_value, to_json
from perdure.cli.sessions.outcome import Change, How, change_options, changing
from perdure.client import AgentSessionClient
from perdure.errors import InterruptNotFound, UsageError
from perdure.session.model import JsonObject, JsonValue

_by_option = click.option(
    "--by", "resolved_by", metavar="NAME", default=None, help="Who decides; kept with the answer. Else your login name."
)


@command()
@click.argument("session")
@click.argument("interrupt", required=False)
@click.option("--payload", metavar="JSON", help="Reaches the tool as its confirmation's payload.")
@_by_option
@change_options
def approve(session: str, interrupt: str | None, payload: str | None, resolved_by: str | None, how: How) -> None:
    """Approve what a session waits for: a tool call, or a sign-in, whose response is the payload.

    INTERRUPT may be left out when only one thing is to be approved.

    \b
    Examples:
      perdure sessions approve chat-SupportAgent --wait
      perdure sessions approve chat-SupportAgent e-41:adk-7 --by ann --payload '{"amount": 20}'
    """
    value = json_value(payload, "--payload")

    async def work() -> None:
        async with changing(session, how) as change:
            await _resolve(change, session, interrupt, True, value, None, resolved_by, how.request_id)

    run(work())


@command()
@click.argument("session")
@click.argument("interrupt", required=False)
@click.option("--message", metavar="TEXT", help="What the agent's model is told. Else that the call is rejected.")
@_by_option
@change_options
def reject(session: str, interrupt: str | None, message: str | None, resolved_by: str | None, how: How) -> None:
    """Reject what a session waits for. INTERRUPT may be left out when only one thing is to be approved.

    \b
    Examples:
      perdure sessions reject chat-SupportAgent --message "Refund 20 at the most."
      perdure sessions reject chat-SupportAgent e-41:adk-7 --by ann --json
    """

    async def work() -> None:
        async with changing(session, how) as change:
            await _resolve(change, session, interrupt, False, None, message, resolved_by, how.request_id)

    run(work())


@command()
@click.argument("session")
@click.argument("answer", metavar="ANSWER")
@click.option("--to", "interrupt", metavar="INTERRUPT", help="Which question; needed when there are several.")
@click.option("--text", "as_text", is_flag=True, help="ANSWER is text, even if it reads as JSON.")
@_by_option
@change_options
def answer(session: str, answer: str, interrupt: str | None, as_text: bool, resolved_by: str | None, how: How) -> None:
    """Answer a question, a long-running call or a request for input; ANSWER "-" is read from stdin.

    ANSWER is JSON if it reads as JSON, and text otherwise. If the turn that asked has ended, the answer starts a turn.

    \b
    Examples:
      perdure sessions answer chat-SupportAgent "the blue one" --wait
      perdure sessions answer chat-SupportAgent '{"url": "https://example.com/7.png"}' --to e-41:adk-7
    """
    words = sys.stdin.read() if answer == "-" else answer
    value = words if as_text else answer_value(words)

    async def work() -> None:
        async with changing(session, how) as change:
            name = interrupt or await _only_interrupt(change.client, session, takes_value=True)
            by, request_id = resolved_by or getpass.getuser(), how.request_id
            done = await change.client.answer_question(session, name, value, resolved_by=by, request_id=request_id)
            change.done(f"{done.status.value}: {done.tool_name}", interrupt=to_json(done))

    run(work())


@command()
@click.argument("session")
@click.argument("answers", metavar="JSON")
@_by_option
@change_options
def resume(session: str, answers: str, resolved_by: str | None, how: How) -> None:
    """Answer everything that a session asks at once, all or nothing; JSON "-" is read from stdin.

    JSON is an object with an answer for each pending interrupt, by its id: true or false, or an object with "approved",
    "payload" and "message", for what is to be approved; any value but null for a question.

    \b
    Examples:
      perdure sessions resume chat-SupportAgent '{"e-41:adk-7": true, "e-41:adk-8": {"result": "blue"}}' --wait
    """
    given = json_value(sys.stdin.read() if answers == "-" else answers, "JSON")
    if not isinstance(given, dict):
        raise UsageError("give a JSON object: interrupt ids and their answers")

    async def work() -> None:
        async with changing(session, how) as change:
            by, request_id = resolved_by or getpass.getuser(), how.request_id
            done = await change.client.resume(session, cast("JsonObject", given), resolved_by=by, request_id=request_id)
            words = "\n".join(f"{one.status.value}: {one.tool_name}" for one in done)
            change.done(words, interrupts=[to_json(one) for one in done])

    run(work())


async def _resolve(
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
        interrupt_id or await _only_interrupt(change.client, session_id, takes_value=False),
        approved=approved,
        payload=payload,
        message=message,
        resolved_by=resolved_by or getpass.getuser(),
        request_id=request_id,
    )
    change.done(f"{answered.status.value}: {answered.tool_name}", interrupt=to_json(answered))


async def _only_interrupt(client: AgentSessionClient, session_id: str, *, takes_value: bool) -> str:
    """The id of the one pending interrupt that is answered so.

    Raises:
        InterruptNotFound: there is none.
        UsageError: there are several.
    """
    everything = (await client.get_agent_snapshot(session_id)).pending_interrupts
    pending = [one for one in everything if one.kind.takes_value is takes_value]
    if len(pending) == 1:
        return pending[0].interrupt_id
    if not pending:
        other = f"; use 'perdure sessions {'approve' if takes_value else 'answer'}'" if everything else ""
        raise InterruptNotFound(
            f"session {session_id!r} asks for {'nothing' if not everything else 'nothing of this kind'}{other}",
            session_id=session_id,
        )
    known = ", ".join(f"{one.interrupt_id} ({one.tool_name})" for one in pending)
    raise UsageError(
        f"session {session_id!r} asks for {len(pending)} things; name the one you mean: {known}",
        session_id=session_id,
        pending=[one.interrupt_id for one in pending],
    )


def json_value(text: str | None, option: str) -> JsonValue:
    """The value of an option that takes JSON.  Raises: UsageError"""
    if text is None:
        return None
    try:
        return json.loads(text)
    except ValueError as error:
        raise UsageError(f"{option} is no JSON: {error}; quote it for the shell, like '{{\"amount\": 20}}'") from None
