"""What a workflow is handed when a worker takes its session: a state of which all is stored, and nothing twice."""

from __future__ import annotations

import asyncio
from datetime import timedelta

import pytest
from tests.support.play import Play, PlayCall
from tests.temporal.conftest import Playhouse

from perdure import AgentSessionClient, SessionStatus
from perdure.engine.temporal import host
from perdure.engine.temporal.host import HostedSession
from perdure.faults import DurableWrite
from perdure.store.base import Lease, SessionWrite


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

    async def script(play: Play) -> None:
        async def look(call_id: str, attempt: int) -> object:
            if attempt == 1:
                raise ConnectionError("not yet")
            return "seen"

        await play.model("first")
        await play.tools("first", {"r": PlayCall("look", look)})
        play.say("done")

    flow = house.flow(script)
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
