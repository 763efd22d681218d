"""Following a session: to its rest, from a place that is gone, to its deletion."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path

import pytest
from tests.support import play_agent

from perdure import AgentEvent, AgentSessionClient, Message, SessionNotFound, SessionStatus, open_engine
from perdure.cli.stream import Follower, behind_last_message, end_of_stream


class Seen:
    """Keeps what it is shown."""

    def __init__(self) -> None:
        self.shown: list[str] = []

    def event(self, event: AgentEvent) -> None:
        self.shown.append(event.type.value)

    def message(self, message: Message) -> None:
        self.shown.append(message.text)


async def test_each_rest_goes_on_where_the_last_one_ended(folder: Path) -> None:
    flow = play_agent.flow
    async with open_engine("sqlite:///x.db", flows=[flow]) as engine, engine.worker():
        client, seen = AgentSessionClient(engine, flow), Seen()
        await client.start_session("s", "refund it")
        follower = Follower(engine, "s", seen, None)
        waiting = await follower.until_rest()
        assert waiting.status is SessionStatus.WAITING
        assert seen.shown[-2:] == ["interrupt_requested", "turn_suspended"]
        before = len(seen.shown)
        (interrupt,) = waiting.pending_interrupts
        await client.resolve_interrupt("s", interrupt.interrupt_id, approved=True)
        assert (await follower.until_rest()).status is SessionStatus.IDLE
        assert seen.shown[before] == "interrupt_resolved"
        assert seen.shown[-2:] == ["The refund: succeeded.", "turn_completed"]
        assert (await follower.until_rest()).status is SessionStatus.IDLE
        assert seen.shown.count("turn_completed") == 1


async def test_a_follower_that_fell_behind_goes_on_with_what_is_left(folder: Path) -> None:
    flow = replace(play_agent.flow, event_stream_capacity_bytes=2000)
    async with open_engine("sqlite:///x.db", flows=[flow]) as engine, engine.worker():
        client, seen = AgentSessionClient(engine, flow), Seen()
        await client.start_session("s", "first")
        await client.wait("s")
        follower = Follower(engine, "s", seen, None)
        await follower.until_now()
        for number in range(20):
            await client.send_user_message("s", f"message {number}")
        await client.wait("s")
        await follower.until_rest()
        assert "first" in seen.shown
        assert "You said: message 19" in seen.shown
        assert "You said: message 2" not in seen.shown


async def test_a_session_that_is_deleted_ends_it(folder: Path) -> None:
    async with open_engine("sqlite:///x.db") as engine:
        client = AgentSessionClient(engine, "Play")
        await client.start_session("s", "nobody works on this")
        following = asyncio.create_task(Follower(engine, "s", Seen(), None).until_rest())
        await client.delete_session("s")
        with pytest.raises(SessionNotFound):
            await following


async def test_where_an_open_turn_is_followed_from(folder: Path) -> None:
    flow = play_agent.flow
    async with open_engine("sqlite:///x.db", flows=[flow]) as engine, engine.worker():
        client, store = AgentSessionClient(engine, flow), engine.store
        await client.start_session("s", "hello")
        first = await client.wait("s")
        end_of_first = await end_of_stream(store, "s", None)
        await client.send_user_message("s", "refund it")
        second = await client.wait("s")
        assert first.turn is not None
        assert second.turn is not None
        seen = Seen()
        await Follower(engine, "s", seen, await behind_last_message(store, "s", second.turn.turn_id)).until_now()
        assert seen.shown[:2] == ["tool_call_started", "tool_call_finished"]
        assert await behind_last_message(store, "s", "no-such-turn") == await end_of_stream(store, "s", None)
        assert await end_of_stream(store, "s", end_of_first) == await end_of_stream(store, "s", None)
