"""Fifty sessions at once, in one worker process and in two, against raw ADK in one process."""

from __future__ import annotations

import statistics
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager

from bench.children import worker_child
from bench.measures.base import Conditions, Measure, Work
from bench.report import Row, Target
from bench.timing import in_turns
from bench.workload import DurableSide, RawSide, Side, many


async def _open_all(side: Side, prefix: str, sessions: int) -> list[str]:
    ids = [f"{prefix}-{number}" for number in range(sessions)]
    for session_id in ids:
        await side.open(session_id)
    return ids


async def measure_throughput(conditions: Conditions) -> Sequence[Row]:
    """Turns per second; the client that sends and waits runs in the first worker's process."""
    sessions, turns, rounds = conditions.count(50, 4), conditions.count(10, 2), conditions.count(3, 1)
    rates: dict[str, list[float]] = {"raw": [], "one": [], "two": []}
    raw = RawSide()

    async def sample(name: str, side: Side, round_number: int) -> None:
        ids = await _open_all(side, f"{name}{round_number}", sessions)
        taken = await in_turns({name: lambda _: many(side, ids, turns)}, 1)
        rates[name].append(sessions * turns / taken[name].wall[0])

    one_file, two_file = conditions.folder / "one.db", conditions.folder / "two.db"
    for round_number in range(rounds):
        await sample("raw", raw, round_number)
        async with DurableSide(one_file) as ours:
            await sample("one", ours, round_number)
        async with DurableSide(two_file) as ours, worker_child(two_file, "lookup"):
            await sample("two", ours, round_number)
    base = statistics.median(rates["raw"])
    return [
        Row(
            name=name,
            what=f"{sessions} sessions at once, {label}",
            unit="turns/s",
            ours=statistics.median(rates[side]),
            raw=base,
            measured=statistics.median(rates[side]) / base,
            target=Target(limit, at_least=True),
            detail={"turns_per_s": [round(rate, 1) for rate in rates[side]]},
        )
        for name, side, label, limit in (
            ("throughput", "one", "one worker process", 0.9),
            ("throughput_two", "two", "two worker processes", 1.5),
        )
    ]


@asynccontextmanager
async def _profiled(conditions: Conditions) -> AsyncGenerator[Work]:
    sessions, turns = conditions.count(50, 4), conditions.count(10, 2)
    async with DurableSide(conditions.folder / "profile.db") as side:
        ids = await _open_all(side, "s", sessions)

        async def work() -> int:
            await many(side, ids, turns)
            return sessions * turns

        yield work


THROUGHPUT = Measure("throughput", measure_throughput, _profiled)
