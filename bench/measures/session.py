"""Many turns of one session: what they cost together, and whether a turn gets dearer as the session grows."""

from __future__ import annotations

import statistics
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager

from bench.measures.base import Conditions, Measure, Work
from bench.orders import one_lookup
from bench.report import Row, Target
from bench.timing import Job, in_turns, quartiles
from bench.workload import DurableSide, RawSide, Side

TURNS = 100
BLOCK = 10
"""Turns of one side before it is the other's turn: what a turn leaves for later is paid by its own side."""


async def measure_hundred(conditions: Conditions) -> Sequence[Row]:
    """A hundred turns of one session, all together."""
    blocks = conditions.count(TURNS // BLOCK, 1)
    raw = RawSide()
    totals: dict[str, list[float]] = {"raw": [], "ours": []}
    cpu = {"raw": 0.0, "ours": 0.0}
    async with DurableSide(conditions.folder / "hundred.db") as ours:
        sides: dict[str, Side] = {"raw": raw, "ours": ours}
        await _warm_up(sides)
        for round_number in range(conditions.count(5, 1)):
            for side in sides.values():
                await side.open(f"r{round_number}")
            taken = await in_turns({name: _blocks(side, f"r{round_number}") for name, side in sides.items()}, blocks)
            for name, samples in taken.items():
                totals[name].append(sum(samples.wall))
                cpu[name] += sum(samples.cpu)
    ratios = [own / other for own, other in zip(totals["ours"], totals["raw"], strict=True)]
    return [
        Row(
            name="hundred",
            what=f"{blocks * BLOCK} such turns of one session, all together",
            unit="s",
            ours=statistics.median(totals["ours"]),
            raw=statistics.median(totals["raw"]),
            measured=statistics.median(ratios),
            target=Target(1.0),
            note=f"CPU {cpu['ours'] / cpu['raw']:.2f}",
            detail={"rounds": len(ratios), "ratio_quartiles": quartiles(ratios)},
        )
    ]


async def measure_growth(conditions: Conditions) -> Sequence[Row]:
    """The last ten of five hundred turns against the first ten."""
    blocks = conditions.count(500 // BLOCK, 3)
    raw = RawSide()
    async with DurableSide(conditions.folder / "growth.db") as ours:
        sides: dict[str, Side] = {"raw": raw, "ours": ours}
        await _warm_up(sides)
        for side in sides.values():
            await side.open("growing")
        taken = await in_turns({name: _blocks(side, "growing") for name, side in sides.items()}, blocks)
    growth = {name: samples.wall[-1] / samples.wall[0] for name, samples in taken.items()}
    return [
        Row(
            name="growth",
            what=f"the last {BLOCK} of {blocks * BLOCK} turns / the first {BLOCK}",
            unit="times",
            ours=growth["ours"],
            raw=growth["raw"],
            measured=growth["ours"],
            target=Target(1.2),
            note="without compaction, which the target presumes",
            detail={
                f"{name}_ms_per_turn": [round(seconds / BLOCK * 1000, 2) for seconds in samples.wall]
                for name, samples in taken.items()
            },
        )
    ]


def _blocks(side: Side, session_id: str) -> Job:
    return lambda block: _block(side, session_id, block)


async def _block(side: Side, session_id: str, block: int) -> None:
    for number in range(block * BLOCK, (block + 1) * BLOCK):
        await side.turn(session_id, one_lookup(number))


async def _warm_up(sides: dict[str, Side]) -> None:
    for side in sides.values():
        await side.open("warm")
        for number in range(3):
            await side.turn("warm", one_lookup(number))


@asynccontextmanager
async def _profiled(conditions: Conditions) -> AsyncGenerator[Work]:
    blocks = conditions.count(TURNS // BLOCK, 1)
    async with DurableSide(conditions.folder / "profile.db") as side:
        await _warm_up({"ours": side})
        await side.open("s")

        async def work() -> int:
            for block in range(blocks):
                await _block(side, "s", block)
            return blocks * BLOCK

        yield work


HUNDRED = Measure("hundred", measure_hundred, _profiled)
GROWTH = Measure("growth", measure_growth)
