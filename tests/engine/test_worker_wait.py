"""``wait`` returns when a session rests, and only then, whichever process works on it."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from pathlib import Path

import pytest
from tests.support.balky import BalkyStore, Hold
from tests.support.play import Play, PlayRunner
from tests.support.troupe import World, until_status

from perdure import AgentSessionClient, SessionClosed, SessionNotFound, SessionStatus, TurnStatus, WaitTimeout
from perdure.session.runner import AgentSessionFlow
from perdure.store.sqlite import notices

ENDLESS = 3600.0
SOON = 0.05


async def still(client: AgentSessionClient, session_id: str, status: SessionStatus) -> None:
    """It goes on waiting."""
    with pytest.raises(WaitTimeout) as given_up:
        await client.wait(session_id, timeout=SOON)
    assert given_up.value.facts == {"session_id": session_id, "timeout": SOON, "status": status.value}


async def test_a_new_session_without_a_message_rests(tmp_path: Path) -> None:
    async with World(tmp_path).engine() as engine:
        client = AgentSessionClient(engine, "Play")
        await client.start_session("s")
        for timeout in (None, ENDLESS, 0.0):
            assert (await client.wait("s", timeout=timeout)).status is SessionStatus.IDLE
        with pytest.raises(SessionNotFound):
            await client.wait("nobody")


async def test_a_message_that_nobody_has_taken_is_waited_for(tmp_path: Path) -> None:
    world = World(tmp_path)
    async with world.engine() as engine:
        client = AgentSessionClient(engine, "Play")
        await client.start_session("s", "model")
        await still(client, "s", SessionStatus.RUNNING)
        with world.worker():
            snapshot = await client.wait("s", timeout=30)
        assert (snapshot.status, snapshot.queued_messages) == (SessionStatus.IDLE, 0)


async def test_every_queued_message_is_waited_for(tmp_path: Path) -> None:
    world = World(tmp_path)
    async with world.engine() as engine:
        client = AgentSessionClient(engine, "Play")
        await client.start_session("s", "read:door")
        for _ in range(5):
            await client.send_user_message("s", "fail")
        with world.worker():
            await world.reached("at door")
            await still(client, "s", SessionStatus.RUNNING)
            world.open("door")
            snapshot = await client.wait("s", timeout=30)
        assert snapshot.turn is not None
        assert (snapshot.turn.number, snapshot.turn.status) == (6, TurnStatus.FAILED)


@pytest.mark.parametrize("approved", [True, False])
async def test_an_answer_that_is_accepted_and_not_yet_applied_is_waited_for(tmp_path: Path, approved: bool) -> None:
    world = World(tmp_path)
    flow = world.flow()
    async with world.engine(flow) as engine:
        client = AgentSessionClient(engine, flow)
        async with engine.worker():
            await client.start_session("s", "ask")
            (interrupt,) = (await client.wait("s", timeout=20)).pending_interrupts
        # Nobody works now.
        assert (await client.wait("s", timeout=ENDLESS)).status is SessionStatus.WAITING
        await client.send_user_message("s", "model")
        assert (await client.wait("s", timeout=ENDLESS)).status is SessionStatus.WAITING, "a message changes nothing"
        await client.resolve_interrupt("s", interrupt.interrupt_id, approved=approved)
        await still(client, "s", SessionStatus.RUNNING)
        async with engine.worker():
            assert (await client.wait("s", timeout=20)).status is SessionStatus.IDLE


async def test_one_of_two_answers_leads_back_to_waiting_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("perdure.client.sessions.WATCH_INTERVAL", timedelta(hours=1))
    monkeypatch.setattr(notices, "SAFETY_POLL", 3600.0)
    world, balky = World(tmp_path), BalkyStore(tmp_path / "play.db")

    async def script(play: Play) -> None:
        calls = {name: world._call(play, "ask", "") for name in ("c1", "c2")}
        await play.tools("g", calls)

    flow = AgentSessionFlow("Play", PlayRunner(script), "Play")
    async with balky.engine(flow) as engine, engine.worker():
        client = AgentSessionClient(engine, flow)
        await client.start_session("s", "go")
        first, second = (await client.wait("s", timeout=20)).pending_interrupts
        looking = balky.holds["read_inbox"] = Hold()
        await client.resolve_interrupt("s", first.interrupt_id, approved=False)
        waiting = asyncio.create_task(client.wait("s"))
        await looking.reached.wait()
        await asyncio.sleep(0.01)  # it has found the session running, and waits
        del balky.holds["read_inbox"]
        looking.free.set()
        async with asyncio.timeout(20):
            assert (await waiting).pending_interrupts == (second,)
        await client.resolve_interrupt("s", second.interrupt_id, approved=True)
        assert (await client.wait("s", timeout=20)).status is SessionStatus.IDLE


async def test_a_cancel_that_is_accepted_and_not_yet_applied_is_waited_for(tmp_path: Path) -> None:
    world = World(tmp_path)
    flow = world.flow()
    async with world.engine(flow) as engine:
        client = AgentSessionClient(engine, flow)
        async with engine.worker():
            await client.start_session("s", "ask")
            await client.wait("s", timeout=20)
        await client.cancel_turn("s")
        await still(client, "s", SessionStatus.RUNNING)
        async with engine.worker():
            snapshot = await client.wait("s", timeout=20)
            assert snapshot.turn is not None
            assert (snapshot.status, snapshot.turn.status) == (SessionStatus.IDLE, TurnStatus.CANCELLED)


@pytest.mark.parametrize("close", [False, True])
async def test_a_blocked_session_rests_until_it_is_cancelled_or_closed(tmp_path: Path, close: bool) -> None:
    world = World(tmp_path)
    flow = world.flow()
    async with world.engine(flow) as engine, engine.worker():
        client = AgentSessionClient(engine, flow)
        await client.start_session("s", "model ask")
        await client.wait("s", timeout=20)

    async def other_script(play: Play) -> None:
        play.say("something else")

    other = AgentSessionFlow("Play", PlayRunner(other_script, "other code"), "Play")
    async with world.engine(other) as engine:
        client = AgentSessionClient(engine, other)
        async with engine.worker():
            snapshot = await until_status(client, "s", SessionStatus.BLOCKED)
            assert snapshot.error is not None
            assert snapshot.error.code == "non_determinism"
            await client.send_user_message("s", "later")
            assert (await client.wait("s", timeout=20)).status is SessionStatus.BLOCKED
        await (client.close_session("s") if close else client.cancel_turn("s"))
        await still(client, "s", SessionStatus.RUNNING)
        async with engine.worker():
            snapshot = await client.wait("s", timeout=20)
        assert snapshot.turn is not None
        if close:
            assert (snapshot.status, snapshot.turn.status) == (SessionStatus.CLOSED, TurnStatus.CANCELLED)
        else:
            assert (snapshot.status, snapshot.turn.status) == (SessionStatus.IDLE, TurnStatus.COMPLETED)


async def test_a_session_that_is_closed_rests(tmp_path: Path) -> None:
    world = World(tmp_path)
    async with world.engine() as engine:
        client = AgentSessionClient(engine, "Play")
        await client.start_session("idle")
        await client.close_session("idle")
        assert (await client.wait("idle", timeout=ENDLESS)).status is SessionStatus.CLOSED
        await client.start_session("busy", "read:door")
        await client.send_user_message("busy", "model")
        with world.worker():
            await world.reached("at door")
            await client.close_session("busy")
            with pytest.raises(SessionClosed):
                await client.send_user_message("busy", "one more")
            assert (await client.wait("busy", timeout=30)).status is SessionStatus.CLOSED


async def test_a_waiting_client_reads_the_store_only_when_something_may_have_changed(tmp_path: Path) -> None:
    world, balky = World(tmp_path), BalkyStore(tmp_path / "play.db")
    flow = world.flow()
    async with balky.engine(flow) as engine, engine.worker():
        client = AgentSessionClient(engine, flow)
        await client.start_session("s", "model " * 50 + "read:door model")
        waiting = [asyncio.create_task(client.wait("s", timeout=20)) for _ in range(3)]
        await world.reached("at door")
        before = balky.calls["read_snapshot"]
        assert before <= 3 * 10
        world.open("door")
        await asyncio.gather(*waiting)
        assert balky.calls["read_snapshot"] <= before + 3 * 3
