"""A turn that waits for an approval after a chain of tool calls is dropped from memory, and goes on by replay."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

from bench.measures.base import Conditions, Measure, Work
from bench.orders import chain, follow, refund
from bench.report import Row, Target
from bench.timing import cpu_note, in_turns, ratio_of_medians, spread
from bench.workload import DurableSide, RawSide

CHAIN = 20


async def measure_replay(conditions: Conditions) -> Sequence[Row]:
    """From the answer to the end of the turn, against the whole turn on raw ADK.

    The engine is closed in between, so nothing of the turn is in memory: its ``CHAIN`` calls and as many model calls
    are replayed; the approved call and the last model call run.
    """
    count, path = conditions.count(30, 2), conditions.folder / "replay.db"
    interrupts = await _waiting_turns(path, count)
    raw = RawSide(follow, refund)
    async with DurableSide(path, follow, refund) as ours:
        await raw.open("warm")
        await raw.turn("warm", chain(2))
        await ours.approve("s0", interrupts[0])
        taken = await in_turns(
            {
                "raw": lambda n: raw.turn(f"s{n}", chain(CHAIN)),
                "ours": lambda n: ours.approve(f"s{n + 1}", interrupts[n + 1]),
            },
            count - 1,
            prepare={"raw": lambda n: raw.open(f"s{n}"), "ours": _nothing},
        )
    return [
        Row(
            name="replay",
            what=f"replay of {CHAIN} tool steps and going on / the turn on raw ADK",
            unit="ms",
            ours=taken["ours"].median_ms,
            raw=taken["raw"].median_ms,
            measured=ratio_of_medians(taken["ours"], taken["raw"]),
            target=Target(1.2),
            note=cpu_note(taken["ours"], taken["raw"]),
            detail={"samples": count - 1, "ratio_quartiles": spread(taken["ours"], taken["raw"])},
        )
    ]


async def _waiting_turns(path: Path, count: int) -> list[str]:
    async with DurableSide(path, follow, refund) as side:
        return [await side.ask(f"s{number}", chain(CHAIN)) for number in range(count)]


async def _nothing(number: int) -> None:
    """There is nothing to prepare."""


@asynccontextmanager
async def _profiled(conditions: Conditions) -> AsyncGenerator[Work]:
    count, path = conditions.count(30, 2), conditions.folder / "profile.db"
    interrupts = await _waiting_turns(path, count)
    async with DurableSide(path, follow, refund) as side:

        async def work() -> int:
            for number, interrupt in enumerate(interrupts):
                await side.approve(f"s{number}", interrupt)
            return count

        yield work


REPLAY = Measure("replay", measure_replay, _profiled)
