"""The ``perdure serve`` command: a worker that runs until it is told to stop."""

from __future__ import annotations

import asyncio
import os
import signal
from datetime import timedelta
from types import FrameType

import click

from perdure.cli.base import Seconds, check_addresses, command, engine_option, open_at, run
from perdure.cli.leaving import leave_within
from perdure.cli.logs import log_to_stderr
from perdure.cli.target import flow_type_option, load_flow
from perdure.engine.base import Engine
from perdure.engine.worker import WorkerOptions
from perdure.errors import UsageError
from perdure.session.runner import AgentSessionFlow

THREAD_GRACE = timedelta(seconds=1)
"""How long a tool that still runs in a thread may keep a stopped worker's process alive."""


@command()
@click.argument("targets", metavar="TARGET...", nargs=-1, required=True)
@flow_type_option
@engine_option
@click.option(
    "--max-sessions",
    type=click.IntRange(1),
    default=WorkerOptions().max_sessions,
    show_default=True,
    help="Sessions that it works on at one time.",
)
@click.option(
    "--drain-grace",
    metavar="SECONDS",
    type=Seconds(),
    default=WorkerOptions().drain_grace.total_seconds(),
    show_default=True,
    help="How long running steps may take to finish when it is told to stop.",
)
@click.option("--verbose", "-v", is_flag=True, help="Log more than warnings, on stderr.")
def serve(
    targets: tuple[str, ...],
    flow_type: str | None,
    address: str,
    max_sessions: int,
    drain_grace: float,
    verbose: bool,
) -> None:
    """Work on the sessions of one or more agents.

    TARGET is what 'perdure chat' takes. Any number of workers may share a store. SIGTERM or Ctrl-C drains: no new work,
    running steps finish, sessions go to other workers. A second signal stops at once; what it cuts off is recovered by
    the next worker. Exit code 0 after a drain, 128 and the signal's number when it was cut short.

    \b
    Examples:
      perdure serve examples/support
      perdure serve my_package.support my_package.billing --engine sqlite:////var/lib/agents.db
      perdure serve agent.py --flow-type SupportAgent --drain-grace 120
    """
    if flow_type is not None and len(targets) > 1:
        raise UsageError("--flow-type names one agent; serve each TARGET with a process of its own, or leave it out")
    check_addresses(address)
    log_to_stderr("INFO" if verbose else "WARNING")
    flows = [load_flow(target, flow_type) for target in targets]
    options = WorkerOptions(max_sessions=max_sessions, drain_grace=timedelta(seconds=drain_grace))
    code = run(_serve(flows, address, options))
    click.get_current_context().exit(code)


async def _serve(flows: list[AgentSessionFlow], address: str, options: WorkerOptions) -> int:
    """Serves until told to stop; returns the exit code."""
    signals = _Signals(options)
    async with open_at(address, flows=flows, options=options) as engine:
        await engine.serve(ready=lambda: _ready(engine, signals))
    code = signals.exit_code
    leave_within(THREAD_GRACE, code)
    return code


def _ready(engine: Engine, signals: _Signals) -> None:
    signals.watch()
    click.echo(f"serving {', '.join(sorted(engine.flows))} on {engine.address} (process {os.getpid()})")


class _Signals:
    """Counts the signals that the engine's ``serve`` obeys, to say what they do and to know how it ended."""

    def __init__(self, options: WorkerOptions) -> None:
        self._grace = options.drain_grace.total_seconds()
        self._seen: list[int] = []
        self._loop = asyncio.get_running_loop()

    @property
    def exit_code(self) -> int:
        return 128 + self._seen[1] if len(self._seen) > 1 else 0

    def watch(self) -> None:
        # The event loop learns of signals from its wake-up pipe, whatever handler is set here, so the engine gets them.
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._came)

    def _came(self, number: int, _frame: FrameType | None) -> None:
        self._seen.append(number)
        if len(self._seen) == 1:
            # Not in here: the signal may have come in the middle of a print, which cannot be entered twice.
            self._loop.call_soon_threadsafe(self._say_draining)

    def _say_draining(self) -> None:
        click.echo(f"draining for up to {self._grace:g} s; a second signal stops at once", err=True)
