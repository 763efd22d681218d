"""What a session's next owner learns of the one before: how a turn was to end, and how many owners it has cost."""

from __future__ import annotations

import asyncio
import os
from datetime import timedelta
from pathlib import Path
from typing import NoReturn

from tests.engine.conftest import Stage, history
from tests.engine.test_what_is_on_disk import ask
from tests.support.play import Play, PlayCall, PlayRunner
from tests.support.troupe import until

from perdure import AgentSessionClient, InterruptKind, SessionStatus, ToolEffect, TurnStatus, WorkerOptions
from perdure.session.ownership import WORKERS_LOST
from perdure.session.runner import AgentSessionFlow, TurnLog, TurnStart
from perdure.session.state import MAX_MODEL_STEP_TAKEOVERS
from perdure.testing import WorkerChild

POISONED = 7
"""Exit status of a worker that its agent's code ended."""


async def refund(call_id: str, attempt: int) -> object:
    return "refunded"


async def asking(play: Play) -> None:
    await play.model("m1", "")
    await play.tools("m1", {"c1": PlayCall("refund", refund, ToolEffect.NON_IDEMPOTENT_WRITE, InterruptKind.APPROVAL)})
    play.say("done")


class PoisonedRunner(PlayRunner):
    """An agent whose code ends its process whenever a turn is taken up."""

    async def open_turn(self, start: TurnStart, log: TurnLog) -> NoReturn:
        os._exit(POISONED)


async def work_until_it_dies(path: str) -> None:
    flow = AgentSessionFlow("Play", PoisonedRunner(asking), "Play")
    async with Stage(Path(path)).engine(flow) as engine, engine.worker():
        await asyncio.Event().wait()


async def test_a_turn_that_ends_its_workers_before_any_step_starts_is_given_up(stage: Stage) -> None:
    flow = stage.flow(asking)
    async with stage.engine(flow) as engine, engine.worker():
        client = AgentSessionClient(engine, flow)
        await client.start_session("s", "refund it")
        (interrupt,) = (await client.wait("s", timeout=20)).pending_interrupts
    async with stage.engine() as engine:
        await AgentSessionClient(engine).resolve_interrupt("s", interrupt.interrupt_id, approved=True)
    # The first of them stores the answer before it dies; that is a step settled, so it does not count.
    for _ in range(1 + MAX_MODEL_STEP_TAKEOVERS):
        with WorkerChild.of(work_until_it_dies, str(stage.path)) as child:
            assert await child.wait_exit_async() == POISONED
    # Not even the code that would fit tries once more: who could know that it does?
    last = stage.flow(asking)
    async with stage.engine(last) as engine, engine.worker():
        client = AgentSessionClient(engine, last)
        snapshot = await client.wait("s", timeout=20)
        assert snapshot.turn is not None
        assert snapshot.turn.error is not None
        assert (snapshot.status, snapshot.turn.status) == (SessionStatus.IDLE, TurnStatus.FAILED)
        assert snapshot.turn.error.code == WORKERS_LOST
        (call,) = [
            step for step in await history(client, "s") if step.tool_name == "refund" and "Call" in step.name.value
        ]
        assert (call.status.value, call.attempts) == ("failed", 0), "it never ran, and says so"
    assert isinstance(last.runner, PlayRunner)
    assert last.runner.opened == 0


async def test_owners_that_leave_in_an_orderly_way_do_not_count(stage: Stage) -> None:
    interrupt_id = ""
    for life in range(MAX_MODEL_STEP_TAKEOVERS + 2):
        flow = stage.flow(asking, definition=f"code {life}")
        async with stage.engine(flow) as engine, engine.worker():
            client = AgentSessionClient(engine, flow)
            await client.start_session("s", "refund it")
            (interrupt,) = (await client.wait("s", timeout=20)).pending_interrupts
            interrupt_id = interrupt.interrupt_id
    flow = stage.flow(asking)
    async with stage.engine(flow) as engine, engine.worker():
        client = AgentSessionClient(engine, flow)
        await client.resolve_interrupt("s", interrupt_id, approved=True)
        snapshot = await client.wait("s", timeout=20)
        assert snapshot.turn is not None
        assert snapshot.turn.status is TurnStatus.COMPLETED


async def test_a_turn_that_was_ending_ends_so_though_its_worker_is_cut_off(stage: Stage) -> None:
    began = asyncio.Event()

    async def endless(call_id: str, attempt: int) -> object:
        began.set()
        return await asyncio.Event().wait()

    async def failing_beside_a_write(play: Play) -> None:
        write = PlayCall("write", endless, ToolEffect.NON_IDEMPOTENT_WRITE)
        writing = asyncio.ensure_future(play.tools("g", {"w": write}))
        try:
            await began.wait()
            play.nudge()
            raise RuntimeError("the model is gone")
        finally:
            writing.cancel()

    def ending() -> list[tuple[object, ...]]:
        return ask(stage, "SELECT ending FROM turns WHERE ending IS NOT NULL AND ended_at_ms IS NULL")

    flow = stage.flow(failing_beside_a_write)
    hasty = WorkerOptions(drain_grace=timedelta(0))
    async with stage.engine(flow, options=hasty) as engine, engine.worker():
        await AgentSessionClient(engine, flow).start_session("s", "go")
        await until(lambda: bool(ending()), "the end to be announced")
    assert ending(), "the worker was cut off before the write had its record"
    last = stage.flow(failing_beside_a_write)
    async with stage.engine(last) as engine, engine.worker():
        client = AgentSessionClient(engine, last)
        snapshot = await client.wait("s", timeout=20)
        assert snapshot.turn is not None
        assert snapshot.turn.error is not None
        assert snapshot.turn.status is TurnStatus.FAILED
        assert snapshot.turn.error.message == "the model is gone"
        assert [step.status.value for step in await history(client, "s") if step.tool_name] == ["outcome_unknown"]
    assert isinstance(last.runner, PlayRunner)
    assert last.runner.opened == 0, "nothing of the turn is run again"
