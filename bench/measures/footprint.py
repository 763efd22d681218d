"""What a worker takes when nothing happens: CPU and memory of an idle one, and memory for sessions that wait."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import psutil

from bench.children import worker_child
from bench.measures.base import Conditions, Measure
from bench.orders import refund_order
from bench.report import Row, Target
from bench.workload import DurableSide, many

MEGABYTE = 1024 * 1024
STARTED_AT_ONCE = 20


async def measure_idle(conditions: Conditions) -> Sequence[Row]:
    """A worker that has worked, and whose sessions are all idle."""
    path, seconds, sessions = conditions.folder / "idle.db", conditions.count(20, 1), conditions.count(50, 2)
    async with DurableSide(path, worker=False) as side, worker_child(path, "lookup") as child:
        ids = [f"s{number}" for number in range(sessions)]
        for session_id in ids:
            await side.open(session_id)
        await many(side, ids, 2)
        await asyncio.sleep(seconds / 10)
        process = psutil.Process(child.pid)
        cpu, rss = _cpu_seconds(process), process.memory_info().rss
        await asyncio.sleep(seconds)
        used, grown = _cpu_seconds(process) - cpu, process.memory_info().rss - rss
    return [
        Row(
            name="idle_cpu",
            what=f"CPU of an idle worker over {seconds} s",
            unit="% of a core",
            ours=used / seconds * 100,
            raw=None,
            measured=used / seconds * 100,
            target=Target(1.0),
        ),
        Row(
            name="idle_growth",
            what=f"growth of an idle worker over {seconds} s",
            unit="MB",
            ours=grown / MEGABYTE,
            raw=None,
            measured=grown / MEGABYTE,
            target=Target(0.1),
        ),
    ]


def _cpu_seconds(process: psutil.Process) -> float:
    times = process.cpu_times()
    return times.user + times.system


async def measure_waiting(conditions: Conditions) -> Sequence[Row]:
    """Memory of a worker per thousand sessions that wait for an approval.

    The first sessions fill what has a fixed size (SQLite's page cache, the turns that linger), so they do not count.
    """
    path = conditions.folder / "waiting.db"
    few, more = conditions.count(1000, 4), conditions.count(1000, 8)
    async with DurableSide(path, worker=False) as side, worker_child(path, "refund") as child:
        process = psutil.Process(child.pid)
        await start_waiting(side, range(few))
        before = process.memory_info().rss
        await start_waiting(side, range(few, few + more))
        after = process.memory_info().rss
    per_thousand = (after - before) / MEGABYTE / more * 1000
    return [
        Row(
            name="waiting",
            what=f"memory of a worker for {more} more waiting sessions",
            unit="MB/1000",
            ours=per_thousand,
            raw=None,
            measured=per_thousand,
            target=Target(5.0),
            detail={"rss_mb": [round(before / MEGABYTE, 1), round(after / MEGABYTE, 1)]},
        )
    ]


async def start_waiting(side: DurableSide, numbers: Sequence[int]) -> None:
    """Starts sessions ``w<number>`` that wait for an approval."""
    for first in range(0, len(numbers), STARTED_AT_ONCE):
        batch = numbers[first : first + STARTED_AT_ONCE]
        await asyncio.gather(*(side.ask(f"w{number}", refund_order(number)) for number in batch))
    await asyncio.sleep(0.5)


IDLE = Measure("idle", measure_idle)
WAITING = Measure("waiting", measure_waiting)
