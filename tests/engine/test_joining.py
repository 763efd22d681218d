"""A message that steers joins a turn at the very moment at which somebody takes it back."""

from __future__ import annotations

import asyncio

import pytest
from tests.engine.conftest import Stage
from tests.support.play import Play, PlayCall

from perdure import AgentSessionClient, TurnNotFound, TurnStatus
from perdure.session.model import MAX_STEERING_BYTES
from perdure.store.base import Lease, SessionWrite
from perdure.store.sql.store import SqlStore

HEARING_TIME = 0.5
"""Seconds in which an owner has heard of what was accepted: nothing else shows that it has."""


@pytest.mark.parametrize("when", ["before", "after"])
async def test_a_cancel_that_is_accepted_counts_and_one_that_comes_too_late_says_so(
    stage: Stage, monkeypatch: pytest.MonkeyPatch, when: str
) -> None:
    """It is in the queue up to the write that takes it out, and that write sees the cancel."""
    commit, told, refused = SqlStore.commit, asyncio.Event(), list[str]()
    ids: list[str] = []

    async def cancel() -> None:
        try:
            await client.cancel_turn("s", turn_id=ids[0])
        except TurnNotFound as refusal:
            refused.append(refusal.message)

    async def crossing(self: SqlStore, lease: Lease, write: SessionWrite, now_ms: int) -> None:
        first = bool(write.joined) and not cancelled
        cancelled.extend(write.joined)
        if first and when == "before":
            await cancel()
        await commit(self, lease, write, now_ms)
        if first and when == "after":
            await cancel()

    async def look(call_id: str, attempt: int) -> object:
        await told.wait()
        return "seen"

    async def script(play: Play) -> None:
        await play.model("m1", "")
        await play.tools("m1", {"c1": PlayCall("look", look)})
        for words in await play.join("m2"):
            play.say(words)
        await play.model("m2", "done")
        play.say("done")

    cancelled: list[str] = []
    monkeypatch.setattr(SqlStore, "commit", crossing)
    flow = stage.flow(script)
    async with stage.engine(flow) as engine, engine.worker():
        client = AgentSessionClient(engine, flow)
        await client.start_session("s", "hello")
        ids += [await client.steer_user_message("s", words) for words in ("never", "blue")]
        await asyncio.sleep(HEARING_TIME)
        told.set()
        snapshot = await client.wait("s", timeout=20)
        texts = [message.text for message in (await client.list_messages("s")).items]
        with pytest.raises(TurnNotFound):
            await client.cancel_turn("s", turn_id=ids[1])
    assert snapshot.turn is not None
    assert (snapshot.turn.number, snapshot.turn.status) == (1, TurnStatus.COMPLETED)
    assert texts[-2:] == ["blue", "done"]
    assert ("never" in texts) == bool(refused) == (when == "after")


async def test_of_many_long_messages_those_join_that_fit_and_the_others_at_the_next_call(stage: Stage) -> None:
    told = asyncio.Event()

    async def look(call_id: str, attempt: int) -> object:
        await told.wait()
        return "seen"

    async def script(play: Play) -> None:
        await play.model("m1", "")
        await play.tools("m1", {"c1": PlayCall("look", look)})
        for request in ("m2", "m3", "m4"):
            joined.append([words[0] for words in await play.join(request)])
            await play.model(request, "done")
        play.say("done")

    joined: list[list[str]] = []
    flow = stage.flow(script)
    async with stage.engine(flow) as engine, engine.worker():
        client = AgentSessionClient(engine, flow)
        await client.start_session("s", "hello")
        for letter in "abc":
            await client.steer_user_message("s", letter * 500_000)
        await client.steer_user_message("s", "d" * MAX_STEERING_BYTES)
        await asyncio.sleep(HEARING_TIME)
        told.set()
        snapshot = await client.wait("s", timeout=20)
    assert snapshot.queued_messages == 0
    assert joined == [["a", "b"], ["c"], ["d"]]
