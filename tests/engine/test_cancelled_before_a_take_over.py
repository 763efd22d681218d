"""A cancel that is accepted while nobody has the session is heard before its next owner goes on with the turn."""

from __future__ import annotations

import asyncio
from datetime import timedelta

import pytest
from tests.engine.conftest import Stage, history
from tests.support.play import Play, PlayCall, PlayRunner

from perdure import AgentSessionClient, SessionStatus, ToolEffect, TurnStatus, WorkerOptions


@pytest.mark.parametrize("way", ["cancel", "close"])
async def test_nothing_goes_on_when_the_turn_was_cancelled_before(stage: Stage, way: str) -> None:
    under_way = asyncio.Event()

    async def script(play: Play) -> None:
        async def write(call_id: str, attempt: int) -> object:
            under_way.set()
            return await asyncio.Event().wait()

        await play.model("first")
        await play.tools("first", {"w": PlayCall("write", write, ToolEffect.NON_IDEMPOTENT_WRITE)})
        await play.model("second")

    flow = stage.flow(script)
    hasty = WorkerOptions(drain_grace=timedelta(0))
    async with stage.engine(flow, options=hasty) as engine:
        client = AgentSessionClient(engine, flow)
        async with engine.worker():
            await client.start_session("s", "go")
            await client.send_user_message("s", "queued before the cancel")
            await under_way.wait()
        if way == "cancel":
            await client.cancel_turn("s")
        else:
            await client.close_session("s")
        assert isinstance(flow.runner, PlayRunner)
        flow.runner.model_calls.clear()
        under_way.clear()
        async with engine.worker():
            if way == "cancel":
                await under_way.wait()  # of the queued message's turn
                await client.cancel_turn("s")
            snapshot = await client.wait("s", timeout=30)
        assert snapshot.turn is not None
        assert snapshot.turn.status is TurnStatus.CANCELLED
        assert snapshot.status is (SessionStatus.IDLE if way == "cancel" else SessionStatus.CLOSED)
        assert flow.runner.model_calls == (["first"] if way == "cancel" else [])
        outcomes = [step.status.value for step in await history(client, "s") if step.tool_name]
        assert outcomes == ["outcome_unknown"] * (2 if way == "cancel" else 1)
