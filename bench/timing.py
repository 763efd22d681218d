"""Measuring in turns: each side gets its samples in rotation, so that a noisy machine hurts all of them alike."""

from __future__ import annotations

import asyncio
import statistics
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field

SETTLE_SECONDS = 0.005
"""A pause after each sample, so that what a side still does in the background is not charged to the next one."""


@dataclass(slots=True)
class Samples:
    """What one side took, by sample: seconds on the clock, and CPU seconds of this process with all its threads."""

    wall: list[float] = field(default_factory=list[float])
    cpu: list[float] = field(default_factory=list[float])

    @property
    def median_ms(self) -> float:
        return statistics.median(self.wall) * 1000

    @property
    def median_cpu_ms(self) -> float:
        return statistics.median(self.cpu) * 1000


Job = Callable[[int], Awaitable[None]]
"""Runs sample number n of one side."""


async def in_turns(
    sides: Mapping[str, Job], count: int, *, prepare: Mapping[str, Job] | None = None
) -> dict[str, Samples]:
    """Runs ``count`` samples of each side, in rotation, each round beginning with the next side.

    Args:
        prepare: run before each sample of a side, without being measured.
    """
    samples = {name: Samples() for name in sides}
    names = list(sides)
    for number in range(count):
        first = number % len(names)
        for name in names[first:] + names[:first]:
            if prepare is not None:
                await prepare[name](number)
            await asyncio.sleep(SETTLE_SECONDS)
            await _sample(sides[name], number, samples[name])
    return samples


async def _sample(job: Job, number: int, into: Samples) -> None:
    cpu, start = time.process_time(), time.perf_counter()
    await job(number)
    into.wall.append(time.perf_counter() - start)
    await asyncio.sleep(SETTLE_SECONDS)
    into.cpu.append(time.process_time() - cpu)


def ratio_of_medians(ours: Samples, raw: Samples) -> float:
    return ours.median_ms / raw.median_ms


def cpu_note(ours: Samples, raw: Samples) -> str:
    """The ratio of CPU times, for a row's note: other work on the machine hardly moves it."""
    return f"CPU {ours.median_cpu_ms / raw.median_cpu_ms:.2f}"


def spread(ours: Samples, raw: Samples) -> list[float]:
    """Quartiles of the ratios of samples that were taken next to each other."""
    ratios = [own / other for own, other in zip(ours.wall, raw.wall, strict=True)]
    return quartiles(ratios)


def quartiles(values: Sequence[float]) -> list[float]:
    if len(values) < 2:
        return [round(value, 3) for value in values] * 3
    return [round(value, 3) for value in statistics.quantiles(values, n=4, method="inclusive")]
