"""How long a session stands still when its worker is killed and another one is up."""

from __future__ import annotations

import asyncio
import statistics
import time
from collections.abc import Sequence
from pathlib import Path

from bench.children import WorkerChild, start_worker
from bench.measures.base import Conditions, Measure
from bench.report import Row, Target
from bench.workload import DurableSide, hold_order

LIMIT_SECONDS = 1.0


async def measure_takeover(conditions: Conditions) -> Sequence[Row]:
    """From SIGKILL of the owner, in the middle of a tool call, to the end of the turn as a third process sees it."""
    path, rounds = conditions.folder / "takeover.db", conditions.count(9, 1)
    seconds: list[float] = []
    async with DurableSide(path, worker=False) as side:
        children = [await _ready(path), await _ready(path)]
        try:
            for number in range(rounds):
                await side.client.start_session(f"s{number}", hold_order(number))
                owner = await _first_to_hold(children)
                start = time.perf_counter()
                owner.kill()
                await side.end_of_turn(f"s{number}")
                seconds.append(time.perf_counter() - start)
                children.remove(owner)
                await owner.end()
                children.append(await _ready(path))
        finally:
            for child in children:
                await child.end()
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
            note=f"slowest of {rounds}: {max(seconds):.2f} s",
            detail={"seconds": [round(value, 3) for value in seconds]},
        )
    ]


async def _ready(path: Path) -> WorkerChild:
    child = await start_worker(path, "lookup", "hold")
    await child.says("ready")
    return child


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
