"""Synchronous tools that block: they hold up neither other sessions, nor the worker, nor their own session for ever."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from datetime import timedelta

import pytest
from tests.field.support import AT_ONCE, ONCE, PATIENCE, READ, SESSION, Field, at_rest, call_steps, say, turn_of, until

from perdure import SessionStatus, ToolEffect, ToolPolicy, TurnStatus
from perdure.engine import steps
from perdure.testing import by_message, call, reply, text


@pytest.fixture
def door() -> Iterator[threading.Event]:
    """What a blocking tool waits for; opened in the end, so that no thread stays behind."""
    event = threading.Event()
    yield event
    event.set()


async def test_a_blocking_tool_does_not_stall_other_sessions(field: Field, door: threading.Event) -> None:
    """The one waits for what the other one's tool does; in the event loop, as on plain ADK, it would wait for ever."""

    def wait_for_it() -> str:
        """Blocks."""
        return "came" if door.wait(PATIENCE) else "never came"

    def do_it() -> str:
        """Lets the other one go."""
        door.set()
        return "done"

    script = by_message({"wait": [call("wait_for_it"), text("Good.")], "do": [call("do_it"), text("Done.")]})
    policies = {"wait_for_it": READ, "do_it": READ}
    async with field.working(field.flow(script, [wait_for_it, do_it], policies)) as client:
        await client.start_session("waiting", "wait")
        await client.start_session("doing", "do")
        for session_id in ("waiting", "doing"):
            await client.wait(session_id, timeout=PATIENCE)
        assert (await call_steps(client, "waiting"))["wait_for_it"].result == {"result": "came"}


async def test_a_cancelled_session_is_usable_though_its_tool_blocks_on(field: Field, door: threading.Event) -> None:
    """A thread cannot be stopped, so nobody waits for it."""

    def block() -> str:
        """Blocks."""
        field.note("block")
        door.wait(PATIENCE)
        field.note("out")
        return "late"

    script = by_message({"go": [call("block"), text("?")], "hello": text("Hi.")})
    async with field.working(field.flow(script, [block], {"block": ONCE})) as client:
        await client.start_session(SESSION, "go")

        async def blocks() -> bool:
            return field.world == ["block"]

        await until(blocks)
        await client.cancel_turn(SESSION)
        snapshot = await at_rest(client, SessionStatus.IDLE)
        assert turn_of(snapshot).status is TurnStatus.CANCELLED
        assert (await call_steps(client))["block"].status.value == "outcome_unknown"
        snapshot = await say(client, "hello")
        assert (turn_of(snapshot).number, turn_of(snapshot).status) == (2, TurnStatus.COMPLETED)
        assert field.world == ["block"], "the old tool still blocks"


async def test_a_tool_that_blocks_beyond_its_time_does_not_block_its_turn(
    field: Field, door: threading.Event, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its attempts time out one after the other, and the other tools of the turn run."""
    monkeypatch.setattr(steps, "CANCEL_GRACE", timedelta(milliseconds=20))

    def block() -> str:
        """Blocks."""
        field.note("block")
        door.wait(PATIENCE)
        return "late"

    def look() -> str:
        """Looks."""
        field.note("look")
        return "seen"

    script = [reply(call("block"), call("look")), call("look"), text("Done.")]
    policies = {"block": ToolPolicy(ToolEffect.READ, timeout=timedelta(milliseconds=50), retry=AT_ONCE), "look": READ}
    async with field.working(field.flow(script, [block, look], policies)) as client:
        snapshot = await say(client, "go")
        assert turn_of(snapshot).status is TurnStatus.COMPLETED
        step = (await call_steps(client))["block"]
        assert step.error is not None
        assert (step.status.value, step.attempts, step.error.code) == ("failed", 3, "tool_timeout")
        assert field.world.count("look") == 2
        assert (await say(client, "go")).status is SessionStatus.IDLE
