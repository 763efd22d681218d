"""The root command, and the entry point of the ``perdure`` program."""

from __future__ import annotations

import io
import sys

import click

from perdure.cli.chat.command import chat
from perdure.cli.demo.command import demo
from perdure.cli.serve import serve
from perdure.cli.sessions import sessions
from perdure.cli.store import store


@click.group(context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.version_option(package_name="perdure", message="perdure %(version)s")
def perdure() -> None:
    """Runs Google ADK agents as durable sessions.

    \b
    Examples:
      perdure demo                         a crash in the middle of a refund, and what becomes of it
      perdure chat examples/support        talk to an agent; leave and come back at any point
      perdure serve my_package.agent       work on the sessions of an agent
      perdure sessions list                what there is, and who waits for an answer
      perdure store copy FROM TO           move all sessions to another database

    \b
    Exit codes: 0 done, 1 a turn failed, 2 wrong call, 3 not found, 4 conflict, 5 the agent's code no longer
    fits the session, 6 time-out, 7 engine, 8 store, 130 interrupted.
    """


perdure.add_command(demo)
perdure.add_command(chat)
perdure.add_command(serve)
perdure.add_command(sessions)
perdure.add_command(store)


def main() -> None:
    """Runs the program, and exits."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            # A terminal that cannot show a character gets a question mark, not a traceback.
            stream.reconfigure(errors="replace")
    perdure(prog_name="perdure")
