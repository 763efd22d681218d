"""What the commands that change a session have in common: their options, waiting, and what they print at the end."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import click

from perdure.cli.base import Seconds, engine_option, json_option, open_existing, suggest
from perdure.cli.output import print_json, terminal, to_json
from perdure.cli.stream import Follower, end_of_stream
from perdure.cli.transcript import Transcript
from perdure.cli.views import print_answers, print_interrupt
from perdure.client import AgentSessionClient
from perdure.engine.base import Engine
from perdure.errors import ERROR_TABLE, SessionBlocked, WaitTimeout
from perdure.session.model import AgentSnapshot, JsonValue, SessionStatus, TurnStatus

TURN_FAILED = 1
"""Exit code when the turn that one waited for failed."""


@dataclass(frozen=True, slots=True)
class How:
    """The options of every command that changes a session.

    Attributes:
        timeout: seconds to wait; ``None`` for ever.
    """

    wait: bool
    timeout: float | None
    request_id: str | None
    address: str
    as_json: bool


def change_options(command: Callable[..., None]) -> Callable[..., None]:
    """``--wait``, ``--timeout``, ``--request-id``, ``--engine`` and ``--json``, handed over as ``how``."""

    @click.option("--wait", is_flag=True, help="Wait until the session rests, and show what happens until then.")
    @click.option("--timeout", type=Seconds(), metavar="SECONDS", help="Wait no longer (exit code 6).")
    @click.option("--request-id", metavar="ID", help="Sent again under the same id, the command is done once.")
    @engine_option
    @json_option
    @functools.wraps(command)
    def with_how(
        *, wait: bool, timeout: float | None, request_id: str | None, address: str, as_json: bool, **others: Any
    ) -> None:
        command(**others, how=How(wait or timeout is not None, timeout, request_id, address, as_json))

    return with_how


@dataclass(slots=True)
class Change:
    """A change under way.  The command says with ``done`` what came of it."""

    client: AgentSessionClient
    words: str = ""
    values: dict[str, JsonValue] = field(default_factory=dict[str, JsonValue])

    def done(self, words: str, **values: JsonValue) -> None:
        """``words`` are for people, ``values`` for programs."""
        self.words, self.values = words, values


@asynccontextmanager
async def changing(session_id: str, how: How) -> AsyncGenerator[Change, None]:
    """Opens the store for a change; when the block is over, waits if told to and prints what came of it.

    Raises:
        WaitTimeout, SessionNotFound, StoreError
        click.exceptions.Exit: the turn failed, or the session is blocked.
    """
    async with open_existing(how.address) as engine:
        change = Change(AgentSessionClient(engine))
        before = await end_of_stream(engine.store, session_id, None)
        yield change
        snapshot = await change.client.get_agent_snapshot(session_id)
        if how.wait:
            if snapshot.status is SessionStatus.RUNNING and not snapshot.served:
                click.echo(f"no worker is alive for {snapshot.flow_type}; waiting for one ('perdure serve')", err=True)
            snapshot = await _wait(engine, session_id, before, how)
    if how.as_json:
        print_json({**change.values, "snapshot": to_json(snapshot)})
    elif not how.wait:
        click.echo(change.words)
    if how.wait:
        raise click.exceptions.Exit(exit_code_of(snapshot))


async def _wait(engine: Engine, session_id: str, after: str | None, how: How) -> AgentSnapshot:
    """Waits until the session rests; shows people what happens until then, and what the session asks for at the end."""
    if how.as_json:
        return await AgentSessionClient(engine).wait(session_id, timeout=how.timeout)
    console = terminal()
    transcript = Transcript(console)
    try:
        async with asyncio.timeout(how.timeout):
            snapshot = await Follower(engine, session_id, transcript, after).until_rest()
    except TimeoutError:
        raise WaitTimeout(
            f"session {session_id!r} did not come to rest within {how.timeout:g} s. It goes on; look again with "
            f"'{suggest('sessions', 'show', session_id)}'",
            session_id=session_id,
            timeout=how.timeout,
        ) from None
    transcript.end_line()
    for interrupt in snapshot.pending_interrupts:
        print_interrupt(console, interrupt)
        print_answers(console, snapshot, interrupt)
    return snapshot


def exit_code_of(snapshot: AgentSnapshot) -> int:
    """What a session that came to rest means for the program that waited for it."""
    if snapshot.status is SessionStatus.BLOCKED:
        return ERROR_TABLE[SessionBlocked.code].exit_code
    turn = snapshot.turn
    return TURN_FAILED if turn is not None and turn.status is TurnStatus.FAILED else 0
