"""Steps that are cut off, and what they leave: their clean-up is waited for, their attempts are counted right."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from pathlib import Path

import pytest
from tests.support.play import Play, PlayCall, PlayRunner
from tests.support.session_rules import check_rules, read_stored
from tests.support.troupe import World, crews_of, until_status

from perdure import AgentSessionClient, SessionStatus, ToolEffect, TurnStatus, Usage, WorkerOptions
from perdure.engine.actor import SessionActor
from perdure.engine.book import TurnBook
from perdure.engine.running import RunningSteps
from perdure.session.runner import AgentSessionFlow
from perdure.session.state import CheckCode, RunCall, RunModel


@pytest.mark.parametrize("timeout", [None, timedelta(hours=1)])
@pytest.mark.parametrize("how", ["cancel", "leave"])
async def test_a_tool_that_is_stopped_is_given_time_to_clean_up(
    tmp_path: Path, how: str, timeout: timedelta | None
) -> None:
    world = World(tmp_path)

    async def tidy(call_id: str, attempt: int) -> object:
        world.note("at work")
        try:
            return await asyncio.Event().wait()
        finally:
            await asyncio.sleep(0.05)
            world.note("cleaned up")

    async def script(play: Play) -> None:
        await play.tools("g", {"c1": PlayCall("tidy", tidy, timeout=timeout)})

    flow = AgentSessionFlow("Play", PlayRunner(script), "Play")
    async with world.engine(flow, options=WorkerOptions(drain_grace=timedelta(0))) as engine:
        client = AgentSessionClient(engine, flow)
        async with engine.worker():
            await client.start_session("s", "go")
            await world.reached("at work")
            if how == "cancel":
                await client.cancel_turn("s")
                await until_status(client, "s", SessionStatus.IDLE)
        assert world.lines("cleaned up")
        assert not [task for task in asyncio.all_tasks() if task.get_name().startswith("perdure s")]


async def test_a_call_that_the_code_never_came_to_costs_no_attempt(tmp_path: Path) -> None:
    world = World(tmp_path)
    attempts: list[int] = []
    fits = True

    async def slow(call_id: str, attempt: int) -> object:
        attempts.append(attempt)
        await world.pass_door("door")
        return "done"

    async def script(play: Play) -> None:
        await play.model("m1")
        # Not what the fingerprint of the code says: it is the same.
        await play.tools("m1", {"c1" if fits else "c2": PlayCall("slow", slow, ToolEffect.IDEMPOTENT_WRITE)})

    flow = AgentSessionFlow("Play", PlayRunner(script), "Play")
    async with world.engine(flow, options=WorkerOptions(drain_grace=timedelta(0))) as engine:
        client = AgentSessionClient(engine, flow)
        async with engine.worker():
            await client.start_session("s", "go")
            await world.reached("at door")
        for _ in range(4):
            fits = False
            async with engine.worker():
                snapshot = await until_status(client, "s", SessionStatus.BLOCKED)
                assert snapshot.error is not None
                assert snapshot.error.code == "non_determinism"
        fits = True
        world.open("door")
        async with engine.worker():
            assert (await until_status(client, "s", SessionStatus.IDLE)).error is None
        assert attempts == [1, 2]
        stored = await read_stored(client, "s")
        assert [step.attempts for step in stored.steps if step.tool_name] == [2]
        assert stored.shape()[2] == "CallTool succeeded"


async def test_a_model_call_that_was_recorded_while_the_session_was_given_up_is_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """J10: a branch that nobody drives may end its model call at the last moment."""
    release = SessionActor._release

    async def release_late(self: SessionActor) -> None:
        assert self._host.book is not None
        log = self._open_log(self._host.book)
        await log.record_model_call("late", "an answer", Usage(model_calls=1), log.now_ms())
        await release(self)

    monkeypatch.setattr(SessionActor, "_release", release_late)
    world = World(tmp_path)
    flow = world.flow()
    async with world.engine(flow) as engine:
        client = AgentSessionClient(engine, flow)
        async with engine.worker():
            turn_id = await client.start_session("s", "model ask")
            await until_status(client, "s", SessionStatus.WAITING)
        assert turn_id is not None
        recorded = await engine.store.read_recorded_turn("s", turn_id)
        assert [call.key for call in recorded.model_calls] == ["m1.0", "late"]
        assert (await client.get_agent_snapshot("s")).usage.model_calls == 2


async def test_a_turn_is_not_given_up_because_its_workers_leave_again_and_again(tmp_path: Path) -> None:
    """Workers that leave are not workers that die: neither attempts nor losses are counted."""
    world = World(tmp_path)
    flow = world.flow()
    async with world.engine(flow) as engine:
        client = AgentSessionClient(engine, flow)
        await client.start_session("s", "model " + " ".join(f"read:{door} model" for door in range(8)))
        for door in range(8):
            async with engine.worker():
                await world.reached(f"at {door}")
                (crew,) = crews_of(engine)
                crew.drain()
                world.open(str(door))
        async with engine.worker():
            snapshot = await until_status(client, "s", SessionStatus.IDLE)
        assert snapshot.turn is not None
        assert snapshot.turn.status is TurnStatus.COMPLETED
        stored = await read_stored(client, "s")
        check_rules(stored, world)
        assert {step.attempts for step in stored.steps} <= {0, 1}


async def test_a_step_that_got_lost_is_found_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A fault of perdure's own must not leave a session that waits for ever."""
    run, lost = RunningSteps.run, [True]

    def lose_one(self: RunningSteps, command: RunModel | RunCall | CheckCode, book: TurnBook) -> None:
        if isinstance(command, RunCall) and lost:
            lost.clear()
        else:
            run(self, command, book)

    monkeypatch.setattr(RunningSteps, "run", lose_one)
    world = World(tmp_path)
    flow = world.flow()
    async with world.engine(flow) as engine, engine.worker():
        client = AgentSessionClient(engine, flow)
        await client.start_session("s", "read model")
        assert (await client.wait("s", timeout=20)).status is SessionStatus.IDLE
        check_rules(await read_stored(client, "s"), world)
    assert not lost
