"""What a person at ``perdure chat`` is asked: the prompt for each kind of interrupt, and the line as its answer."""

from __future__ import annotations

import getpass

from perdure.cli.output import answer_value
from perdure.client import AgentSessionClient
from perdure.session.model import Interrupt, InterruptKind

YES = ("y", "yes")
NO = ("n", "no")


def prompt_for(interrupt: Interrupt) -> str:
    """The prompt at which the answer is typed."""
    if interrupt.kind.takes_value:
        return "  your answer > "
    if interrupt.kind is InterruptKind.CREDENTIAL:
        return "  signed in? the response as JSON, y, n, or why not > "
    return "  run it? y, n, or why not > "


async def give(client: AgentSessionClient, session_id: str, interrupt: Interrupt, line: str) -> None:
    """Answers an interrupt with what was typed.

    Raises:
        UsageError: it is no answer.
        InterruptAlreadyResolved, InterruptExpired, InterruptWithdrawn
    """
    who = getpass.getuser()
    if interrupt.kind.takes_value:
        value = answer_value(line.strip())
        await client.answer_question(session_id, interrupt.interrupt_id, value, resolved_by=who)
        return
    word = line.strip().lower()
    response = answer_value(line) if interrupt.kind is InterruptKind.CREDENTIAL else None
    signed_in = isinstance(response, dict)
    approved = signed_in or word in YES
    await client.resolve_interrupt(
        session_id,
        interrupt.interrupt_id,
        approved=approved,
        payload=response if signed_in else None,
        message=None if approved or word in NO else line.strip(),
        resolved_by=who,
    )
