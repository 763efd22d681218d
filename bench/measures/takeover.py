"""How long a session stands still when its worker is killed and another one is up."""

from __future__ import annotations

import asyncio
import statistics
import time
from collections.abc import Sequence
from pathlib import Path

from bench.children import WorkerChild, start_worker
from bench.measures.base import Conditions, Measure
from bench.orders import hold_order
from bench.report import Row, Target
from bench.workload import DurableSide

LIMIT_SECONDS = 1.0


async def measure_takeover(conditions: Conditions) -> Sequence[Row]:
    """From SIGKILL of the owner, in the middle of a tool call, to the end of the turn as a third process sees it."""
    rounds = conditions.count(7, 1)
    seconds = [await _one_takeover(conditions.folder / f"takeover{number}.db") for number in range(rounds)]
    median = statistics.median(seconds)
    return [
        Row(
            name="takeover",
            what="from SIGKILL of the owner in a tool call to the end of the turn elsewhere",
            unit="s",
            ours=median,
            raw=None,
            measured=median,
            target=Target(LIMIT_SECONDS),
            note=f"the other worker's first turn; slowest of {rounds}: {max(seconds):.2f} s",
            detail={"seconds": [round(value, 3) for value in seconds]},
        )
    ]


async def _one_takeover(path: Path) -> float:
    """Two workers that have not run a turn yet, one of which is killed in its first."""
    async with DurableSide(path, worker=False) as side:
        children = [await start_worker(path, "lookup", "hold") for _ in range(2)]
        try:
            for child in children:
                await child.says("ready")
            await side.client.start_session("s", hold_order(0))
            owner = await _first_to_hold(children)
            start = time.perf_counter()
            owner.kill()
            await side.end_of_turn("s")
            return time.perf_counter() - start
        finally:
            for child in children:
                await child.end()


async def _first_to_hold(children: Sequence[WorkerChild]) -> WorkerChild:
    """The child that took the session, once it is inside the tool."""
    waiting = {asyncio.create_task(child.says("holding")): child for child in children}
    done, others = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
    for task in others:
        task.cancel()
    await asyncio.gather(*others, return_exceptions=True)
    (task,) = done
    await task
    return waiting[task]


TAKEOVER = Measure("takeover", measure_takeover)
