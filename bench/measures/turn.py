"""One turn of a fresh session, alone: two model calls and one read, and the same with eight reads in one response."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import asynccontextmanager

from bench.measures.base import Conditions, Measure, Work
from bench.orders import one_lookup, parallel_lookups
from bench.report import Row, Target
from bench.timing import Job, Samples, cpu_note, in_turns, ratio_of_medians, spread
from bench.workload import DurableSide, RawSide, Side

MessageFor = Callable[[int], str]


async def _fresh_turns(
    conditions: Conditions, sides: dict[str, Side], message_for: MessageFor, count: int
) -> dict[str, Samples]:
    """Each sample is the first turn of a session of its own: raw ADK gets slower with each further one."""
    for name, side in sides.items():
        for number in range(conditions.count(5, 1)):
            await side.open(f"{name} warm {number}")
            await side.turn(f"{name} warm {number}", message_for(number))
    turns = {name: _turns(side, message_for) for name, side in sides.items()}
    return await in_turns(turns, count, prepare={name: _openings(side) for name, side in sides.items()})


def _turns(side: Side, message_for: MessageFor) -> Job:
    return lambda number: side.turn(f"s{number}", message_for(number))


def _openings(side: Side) -> Job:
    return lambda number: side.open(f"s{number}")


def _row(name: str, what: str, ours: Samples, raw: Samples, limit: float) -> Row:
    return Row(
        name=name,
        what=what,
        unit="ms",
        ours=ours.median_ms,
        raw=raw.median_ms,
        measured=ratio_of_medians(ours, raw),
        target=Target(limit),
        note=cpu_note(ours, raw),
        detail={
            "samples": len(ours.wall),
            "ratio_quartiles": spread(ours, raw),
            "cpu_ms": round(ours.median_cpu_ms, 2),
            "raw_cpu_ms": round(raw.median_cpu_ms, 2),
        },
    )


async def measure_turn(conditions: Conditions) -> Sequence[Row]:
    """One durable turn at both safeties."""
    power = DurableSide(conditions.folder / "power.db", durability="power")
    process = DurableSide(conditions.folder / "process.db", durability="process")
    raw = RawSide()
    async with power, process:
        sides: dict[str, Side] = {"raw": raw, "power": power, "process": process}
        taken = await _fresh_turns(conditions, sides, one_lookup, conditions.count(150, 3))
    return [
        _row("turn", "a read-tool turn, synchronous=FULL", taken["power"], taken["raw"], 1.25),
        _row("turn_process", "a read-tool turn, durability=process", taken["process"], taken["raw"], 1.15),
    ]


async def measure_parallel(conditions: Conditions) -> Sequence[Row]:
    """One response with eight parallel read calls."""
    raw = RawSide()
    async with DurableSide(conditions.folder / "parallel.db") as ours:
        sides: dict[str, Side] = {"raw": raw, "ours": ours}
        taken = await _fresh_turns(conditions, sides, parallel_lookups, conditions.count(60, 3))
    return [_row("parallel", "a turn with 8 parallel read calls", taken["ours"], taken["raw"], 1.3)]


@asynccontextmanager
async def _profiled(conditions: Conditions, message_for: MessageFor, count: int) -> AsyncGenerator[Work]:
    async with DurableSide(conditions.folder / "profile.db") as side:
        for number in range(count):
            await side.open(f"s{number}")

        async def work() -> int:
            for number in range(count):
                await side.turn(f"s{number}", message_for(number))
            return count

        await side.open("warm")
        await side.turn("warm", message_for(0))
        yield work


TURN = Measure("turn", measure_turn, lambda given: _profiled(given, one_lookup, given.count(300, 3)))
PARALLEL = Measure("parallel", measure_parallel, lambda given: _profiled(given, parallel_lookups, given.count(100, 3)))
