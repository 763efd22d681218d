"""What a workflow is handed when a worker takes its session: a state of which all is stored, and nothing twice."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from datetime import timedelta

import pytest
from temporalio import activity
from tests.support.play import Play, PlayCall, Script
from tests.temporal.conftest import Playhouse, link_of

from perdure import AgentSessionClient, SessionStatus
from perdure.engine.temporal import host
from perdure.engine.temporal.host import HostedSession
from perdure.engine.temporal.wire import ADOPT
from perdure.faults import DurableWrite
from perdure.store.base import ClaimedSession, Lease, Ownership, SessionWrite


def that_looks(look: Callable[[str, int], Awaitable[object]]) -> Script:
    async def script(play: Play) -> None:
        await play.model("first")
        await play.tools("first", {"r": PlayCall("look", look)})
        play.say("done")

    return script


async def test_j15_what_is_being_written_when_a_session_is_taken_is_reported_once(
    house: Playhouse, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else the call that the model step asks for is ordered by nobody."""
    monkeypatch.setattr(host, "PATIENCE", timedelta(minutes=5))  # nobody makes it good meanwhile
    about_to_hand_over = asyncio.Event()
    quiet = HostedSession._quiet

    async def quiet_and_say_so(self: HostedSession, adoption: int) -> None:
        await quiet(self, adoption)
        about_to_hand_over.set()

    monkeypatch.setattr(HostedSession, "_quiet", quiet_and_say_so)

    async def look(call_id: str, attempt: int) -> object:
        if attempt == 1:
            raise ConnectionError("not yet")
        return "seen"

    flow = house.flow(that_looks(look))
    async with house.engine(flow) as engine, engine.worker():
        commit = engine.store.commit

        async def slowly(lease: Lease, write: SessionWrite, now_ms: int) -> None:
            if DurableWrite.MODEL_STEP_SETTLED in write.kinds:
                await about_to_hand_over.wait()
            await commit(lease, write, now_ms)

        monkeypatch.setattr(engine.store, "commit", slowly)
        client = AgentSessionClient(engine, flow)
        await client.start_session("s", "go")
        assert (await client.wait("s", timeout=30)).status is SessionStatus.IDLE


@pytest.mark.parametrize("asked_before", [False, True])
async def test_an_adoption_that_a_process_slept_over_takes_nothing_from_the_worker_that_has_the_session(
    house: Playhouse, monkeypatch: pytest.MonkeyPatch, asked_before: bool
) -> None:
    """Whether it stood still before it asked the server if it is still to adopt the session, or after.

    What a stopped process finds in its sockets when it goes on was given to another one long ago.
    """
    asleep, awake, late = asyncio.Event(), asyncio.Event(), asyncio.Event()
    beat = activity.heartbeat

    def heartbeat() -> None:
        info = activity.info()
        if awake.is_set() or (info.activity_type, info.attempt) != (ADOPT, 1):
            beat()

    monkeypatch.setattr(activity, "heartbeat", heartbeat)
    begun = 0
    reading, done = asyncio.Event(), asyncio.Event()

    async def look(call_id: str, attempt: int) -> object:
        nonlocal begun
        begun += 1
        reading.set()
        await done.wait()
        return "seen"

    flow = house.flow(that_looks(look))
    async with house.engine(flow) as sleeper, sleeper.worker():
        read_ownership, adopt = sleeper.store.read_ownership, sleeper.store.adopt
        waits_for = link_of(sleeper).waits_for

        async def sleep_once() -> None:
            if not asleep.is_set():
                asleep.set()
                await awake.wait()

        async def sleep_and_read(session_id: str) -> Ownership:
            if activity.in_activity():
                await sleep_once()
            return await read_ownership(session_id)

        async def ask_late(attempt: bytes) -> bool:
            waited_for = await waits_for(attempt)
            if not waited_for:
                late.set()
            return waited_for

        async def sleep_and_adopt(worker_id: str, session_id: str, fence: int, now_ms: int) -> ClaimedSession | None:
            await sleep_once()
            claimed = await adopt(worker_id, session_id, fence, now_ms)
            if claimed is None:
                late.set()
            return claimed

        if asked_before:
            monkeypatch.setattr(sleeper.store, "adopt", sleep_and_adopt)
        else:
            monkeypatch.setattr(sleeper.store, "read_ownership", sleep_and_read)
            monkeypatch.setattr(link_of(sleeper), "waits_for", ask_late)
        client = AgentSessionClient(sleeper, flow)
        await client.start_session("s", "go")
        await asyncio.wait_for(asleep.wait(), 30)
        async with house.engine(flow) as other, other.worker():
            await asyncio.wait_for(reading.wait(), 30)
            before = await read_ownership("s")
            awake.set()
            await asyncio.wait_for(late.wait(), 30)
            await client.start_session("another", None)  # The stale adoption is over by the end of a few writes.
            await client.delete_session("another")
            assert await read_ownership("s") == before
            done.set()
            assert (await client.wait("s", timeout=30)).status is SessionStatus.IDLE
    assert begun == 1
