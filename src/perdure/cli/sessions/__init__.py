"""``perdure sessions``: read sessions and answer them, from any process that reaches the store."""

from __future__ import annotations

import click

from perdure.cli.sessions.answers import answer, approve, reject, resume
from perdure.cli.sessions.change import cancel, close, delete, send, steer
from perdure.cli.sessions.read import events, history, list_sessions, messages, show


@click.group()
def sessions() -> None:
    """Read sessions and answer them.

    No agent is loaded: messages and answers are stored, and a worker ('perdure serve', 'perdure chat') takes them up.

    \b
    Examples:
      perdure sessions list --status waiting
      perdure sessions show chat-SupportAgent
      perdure sessions approve chat-SupportAgent --by ann
      perdure sessions answer chat-SupportAgent "the blue one"
      perdure sessions send chat-SupportAgent "And the other order?" --wait
      perdure sessions steer chat-SupportAgent "The newer of the two."
      perdure sessions events chat-SupportAgent --follow --json
    """


READING = (list_sessions, show, messages, history, events)
CHANGING = (send, steer, approve, reject, answer, resume, cancel, close, delete)

for command in (*READING, *CHANGING):
    sessions.add_command(command)
