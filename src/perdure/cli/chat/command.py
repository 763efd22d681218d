"""The ``perdure chat`` command: loads the agent, runs a worker beside the conversation, and leaves at Ctrl-C."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from contextlib import suppress
from datetime import timedelta
from types import FrameType
from typing import NoReturn

import click

from perdure.cli.base import INTERRUPTED, check_addresses, command, engine_option, open_at, run, suggest
from perdure.cli.chat.lines import Lines
from perdure.cli.chat.talk import Talk
from perdure.cli.leaving import TerminalKeeper, leave_now
from perdure.cli.logs import log_to_stderr
from perdure.cli.output import terminal
from perdure.cli.target import flow_type_option, load_flow
from perdure.engine.worker import WorkerOptions
from perdure.errors import UsageError
from perdure.ids import RandomIds
from perdure.session.runner import AgentSessionFlow

LEAVE_GRACE = timedelta(seconds=2)
"""How long the worker may take to sign off after Ctrl-C."""


@command()
@click.argument("target")
@click.option("--session", "session_id", metavar="ID", help="The session; else chat- and the flow type.")
@click.option("--new", is_flag=True, help="Begin a new session.")
@flow_type_option
@engine_option
@click.option("--verbose", "-v", is_flag=True, help="Show what the worker and ADK log, on stderr.")
def chat(target: str, session_id: str | None, new: bool, flow_type: str | None, address: str, verbose: bool) -> None:
    """Talk to an agent in a durable session.

    TARGET is a folder as ADK knows it (agent.py or __init__.py with root_agent or app), a Python file, a module, or
    module:object. A dict named perdure_options beside it holds keyword arguments for adk_agent_session_flow.

    Ctrl-C leaves at any point, also in the middle of an answer; the same command goes on there.

    Lines from a pipe are sent one by one; where the agent asks for approval the next line is the answer: y, n, or why
    not.

    \b
    Examples:
      perdure chat examples/support
      perdure chat my_package.agent --session order-1042
      perdure chat agent.py:root_agent --engine sqlite:////var/lib/support.db
      echo "Where is order 1042?" | perdure chat examples/support --new
    """
    if new and session_id is not None:
        raise UsageError("--new and --session exclude each other; a new session gets an id of its own")
    check_addresses(address)
    log_to_stderr("INFO" if verbose else None)
    keeper = TerminalKeeper()
    flow = load_flow(target, flow_type)
    named = session_id or f"chat-{flow.flow_type}" + (f"-{RandomIds().new_id()[:8]}" if new else "")
    back = ["chat", target, *(["--flow-type", flow_type] if flow_type else [])]
    goodbye = suggest(*back, *(["--session", named] if new or session_id else []))
    context = click.get_current_context()
    context.exit(run(_chat(flow, named, address, goodbye, keeper)))


async def _chat(flow: AgentSessionFlow, session_id: str, address: str, goodbye: str, keeper: TerminalKeeper) -> int:
    """Runs the conversation; returns the exit code."""
    interactive = sys.stdin.isatty() and sys.stdout.isatty()
    console = terminal(plain=not interactive)
    leave = _LeaveOnInterrupt(keeper, goodbye)
    # The grace is zero: leaving is meant to be at once, and what is cut off is recovered.
    options = WorkerOptions(drain_grace=timedelta(0))
    try:
        async with open_at(address, flows=[flow], options=options) as engine:
            talk = Talk(engine, flow, session_id, console, Lines(interactive=interactive))
            await talk.look()
            async with engine.worker():
                failed = await talk.run()
    except asyncio.CancelledError:
        if not leave.asked:
            raise
        leave.now()
    if interactive:
        click.echo(f"\nLeft. Come back with: {goodbye}")
    return 1 if failed and not interactive else 0


class _LeaveOnInterrupt:
    """Ctrl-C cancels the task that made this object; once more, or when that takes too long, it ends the process.

    Plain signal handlers, not those of the event loop: they also come through while a tool holds up the loop.
    """

    def __init__(self, keeper: TerminalKeeper, goodbye: str) -> None:
        self.asked = False
        self._keeper = keeper
        self._goodbye = goodbye
        self._loop = asyncio.get_running_loop()
        self._task = asyncio.current_task()
        signal.signal(signal.SIGINT, self._interrupted)

    def now(self, _number: int = 0, _frame: FrameType | None = None) -> NoReturn:
        """Ends the process: a tool may still be in a thread, and the line editor waits for a line."""
        self._keeper.restore()
        leave_now(INTERRUPTED)

    def _interrupted(self, _number: int, _frame: FrameType | None) -> None:
        if self.asked:
            self.now()
        self.asked = True
        with suppress(OSError):
            # Not with print, which may be what the signal has interrupted and cannot be entered twice.
            os.write(sys.stdout.fileno(), f"\nLeft. Come back with: {self._goodbye}\n".encode())
        signal.signal(signal.SIGALRM, self.now)
        signal.setitimer(signal.ITIMER_REAL, LEAVE_GRACE.total_seconds())
        self._loop.call_soon_threadsafe(self._cancel)

    def _cancel(self) -> None:
        if self._task is not None:
            self._task.cancel()
