"""A worker outlives what goes wrong around it: a lease that is lost, a store that fails, a session that fails."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from contextlib import AsyncExitStack
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest
from tests.support.balky import BalkyStore
from tests.support.play import Play, PlayCall, PlayRunner
from tests.support.session_rules import check_rules, read_stored
from tests.support.troupe import World, until

from perdure import AgentSessionClient, RetryPolicy, SessionStatus, StoreBusy, StoreFull, TurnStatus, WorkerOptions
from perdure.clock import SystemClock
from perdure.engine import actor, trouble
from perdure.session.runner import AgentSessionFlow

FAR_FUTURE_MS = 2**41

NEVER_RENEWS = WorkerOptions(lease=timedelta(hours=1))
RENEWS_SOON = WorkerOptions(lease=timedelta(milliseconds=200))


async def declare_dead(world: World) -> None:
    """What another worker does that finds the lease of this one run out."""
    async with world.engine() as other:
        assert await other.store.reap_workers(FAR_FUTURE_MS) == 1


async def run_one(client: AgentSessionClient, session_id: str, text: str = "model read model") -> None:
    await client.start_session(session_id, text)
    assert (await client.wait(session_id, timeout=20)).status is SessionStatus.IDLE


async def test_a_claim_that_finds_the_lease_lost_makes_the_worker_start_anew(tmp_path: Path) -> None:
    world = World(tmp_path)
    flow = world.flow()
    async with world.engine(flow, options=NEVER_RENEWS) as engine, engine.worker():
        client = AgentSessionClient(engine, flow)
        await run_one(client, "before")
        for number in range(3):
            await declare_dead(world)
            await run_one(client, f"after {number}")


async def test_a_renewal_that_finds_the_lease_lost_drops_what_runs(tmp_path: Path) -> None:
    world = World(tmp_path)
    flow = world.flow()
    async with world.engine(flow, options=RENEWS_SOON) as engine, engine.worker():
        client = AgentSessionClient(engine, flow)
        await client.start_session("s", "par:door model")
        await world.reached("at door", 3)
        await declare_dead(world)
        await world.reached("at door", 5)  # read and idempotent write run again, the other one does not
        world.open("door")
        assert (await client.wait("s", timeout=20)).status is SessionStatus.IDLE
        stored = await read_stored(client, "s")
        check_rules(stored, world)
        assert stored.shape()[2:5] == [
            "CallTool succeeded",
            "CallTool succeeded",
            "CallSingleAttemptTool outcome_unknown",
        ]
        assert len(world.lines("end s")) == 2, "the bodies of the first ownership were stopped"


class JumpingClock(SystemClock):
    """What a machine that stood still sees of the time."""

    def __init__(self) -> None:
        self.ahead_ms = 0

    def now_ms(self) -> int:
        return super().now_ms() + self.ahead_ms


async def test_workers_that_stood_still_together_do_not_take_each_other_for_dead(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    world, clock = World(tmp_path), JumpingClock()
    options = replace(RENEWS_SOON, lease=timedelta(seconds=1), max_sessions=1)
    stores = [BalkyStore(tmp_path / "play.db") for _ in range(2)]
    flow = world.flow()
    async with AsyncExitStack() as stack:
        engines = [store.engine(flow, options=options, clock=clock) for store in stores]
        for engine in engines:
            await stack.enter_async_context(engine)
            await stack.enter_async_context(engine.worker())
        client = AgentSessionClient(engines[0], flow)
        for session_id in ("a", "b"):
            await client.start_session(session_id, "write:door")
        await world.reached("at door", 2)
        for _ in range(3):
            clock.ahead_ms += 3_600_000
            for store in stores:
                looks = store.calls["reap_workers"] + 4
                await until(lambda: store.calls["reap_workers"] >= looks, "workers to look")  # noqa: B023 - used at once
        world.open("door")
        for session_id in ("a", "b"):
            assert (await client.wait(session_id, timeout=20)).status is SessionStatus.IDLE
            assert (await read_stored(client, session_id)).shape()[2] == "CallSingleAttemptTool succeeded"
    assert not [record for record in caplog.records if record.name == "perdure.worker"]


async def test_starting_anew_is_tried_until_it_works(tmp_path: Path) -> None:
    world, balky = World(tmp_path), BalkyStore(tmp_path / "play.db")
    flow = world.flow()
    async with balky.engine(flow, options=RENEWS_SOON) as engine, engine.worker():
        client = AgentSessionClient(engine, flow)
        balky.failures["register_worker"] = [_busy(), _busy(), _busy()]
        balky.failures["unregister_worker"] = [_busy()]
        await declare_dead(world)
        await run_one(client, "s")
        assert not balky.failures["register_worker"]
        assert not balky.failures["unregister_worker"]


@pytest.mark.parametrize("method", ["claim", "free_unheld", "next_wake_ms", "renew_worker", "reap_workers"])
@pytest.mark.parametrize("problem", [StoreFull, RuntimeError])
async def test_no_failure_of_the_store_ends_a_loop(
    tmp_path: Path, method: str, problem: Callable[[str], Exception]
) -> None:
    world, balky = World(tmp_path), BalkyStore(tmp_path / "play.db")
    flow = world.flow()
    balky.failures[method] = [problem("injected") for _ in range(3)]
    if method == "free_unheld":
        balky.failures["claim"] = [StoreFull("injected")]
    async with balky.engine(flow, options=RENEWS_SOON) as engine, engine.worker():
        client = AgentSessionClient(engine, flow)
        await run_one(client, "s")
        await until(lambda: not balky.failures[method], "all failures to be met")
        calls = balky.calls[method]
        await run_one(client, "t")
        if method not in ("free_unheld", "claim", "next_wake_ms"):  # those that come by themselves
            await until(lambda: balky.calls[method] >= calls + 2, "the loop to go on")


async def test_what_a_claim_took_whose_answer_was_lost_is_run_all_the_same(tmp_path: Path) -> None:
    world, balky = World(tmp_path), BalkyStore(tmp_path / "play.db")
    flow = world.flow()
    async with balky.engine(flow, options=NEVER_RENEWS) as engine, engine.worker():
        client = AgentSessionClient(engine, flow)
        balky.lost_answers["claim"] = [_busy()]
        await run_one(client, "s")
        check_rules(await read_stored(client, "s"), world)


async def test_a_store_that_stays_down_does_not_fill_the_log(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    caplog.set_level(logging.INFO)
    monkeypatch.setattr(trouble, "_PAUSES", RetryPolicy(first_delay=timedelta(milliseconds=1), backoff=1))
    world, balky = World(tmp_path), BalkyStore(tmp_path / "play.db")
    flow = world.flow()
    ids = [f"s{number}" for number in range(20)]
    async with balky.engine(flow, options=RENEWS_SOON) as engine, engine.worker():
        client = AgentSessionClient(engine, flow)
        for session_id in ids:
            await client.start_session(session_id, "model read:door model")
        await world.reached("at door", len(ids))
        for method in ("commit", "claim", "renew_worker", "reap_workers", "next_wake_ms"):
            balky.broken[method] = StoreFull("no space is left")
        before = balky.calls.total()
        world.open("door")
        await until(lambda: balky.calls.total() >= before + 2000, "many tries")
        balky.broken.clear()
        for session_id in ids:
            assert (await client.wait(session_id, timeout=20)).status is SessionStatus.IDLE
            check_rules(await read_stored(client, session_id), world)
    lines = [record.getMessage() for record in caplog.records if record.name.startswith("perdure")]
    assert len(lines) <= 3, lines
    assert any("no space is left" in line for line in lines)


async def test_a_session_that_fails_again_and_again_is_tried_ever_more_slowly(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    pauses: list[float] = []
    pause_after = trouble.pause_after

    def no_pause(failures: int, longest: timedelta = trouble.LONGEST_PAUSE) -> float:
        pauses.append(pause_after(failures, longest))
        return 0

    monkeypatch.setattr("perdure.engine.crew.pause_after", no_pause)
    apply = actor.SessionActor._apply

    async def broken(self: actor.SessionActor, arrival: object) -> None:
        if self.session_id == "poison" and len(pauses) < 60:
            raise ZeroDivisionError("a fault of perdure's own")
        await apply(self, arrival)  # type: ignore[arg-type]  # passed on as it is

    monkeypatch.setattr(actor.SessionActor, "_apply", broken)
    world = World(tmp_path)
    flow = world.flow()
    async with world.engine(flow) as engine, engine.worker():
        client = AgentSessionClient(engine, flow)
        await client.start_session("poison", "model")
        await run_one(client, "healthy")
        assert (await client.wait("poison", timeout=20)).status is SessionStatus.IDLE
    distinct = list(dict.fromkeys(pauses))
    assert distinct[0] == 0.05
    assert distinct == sorted(distinct)
    assert distinct[-1] == 10
    told = [record for record in caplog.records if record.exc_info]
    assert 1 <= len(told) <= 6, "with the cause, and not each time"


async def test_a_cancellation_that_leaks_out_of_the_agents_code_is_a_failure_not_the_end(tmp_path: Path) -> None:
    async def leaks(call_id: str, attempt: int) -> object:
        raise asyncio.CancelledError

    async def script(play: Play) -> None:
        if play.start.message.text == "tool":
            (record,) = await play.tools("g", {"c1": PlayCall("leaks", leaks)})
            play.say(record.status.value)
        else:
            raise asyncio.CancelledError

    runner = PlayRunner(script)
    flow = AgentSessionFlow("Play", runner, "Play")
    async with World(tmp_path).engine(flow) as engine, engine.worker():
        client = AgentSessionClient(engine, flow)
        await client.start_session("s", "tool")
        assert (await client.wait("s", timeout=20)).status is SessionStatus.IDLE
        assert (await client.list_messages("s")).items[-1].text == "failed"
        await client.send_user_message("s", "model")
        snapshot = await client.wait("s", timeout=20)
        assert snapshot.turn is not None
        assert snapshot.turn.error is not None
        assert (snapshot.turn.status, snapshot.turn.error.code) == (TurnStatus.FAILED, "CancelledError")
    assert runner.opened == 2, "nothing had to be recovered"


def _busy() -> StoreBusy:
    return StoreBusy("injected")
