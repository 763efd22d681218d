"""What a measure is."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from pathlib import Path

from bench.report import Row


@dataclass(frozen=True, slots=True)
class Conditions:
    """Where and how thoroughly to measure.

    Attributes:
        folder: an empty folder of this measure's own, on the disk that is to be measured.
        quick: only see whether it works.
    """

    folder: Path
    quick: bool

    def count(self, full: int, quick: int) -> int:
        """How many samples (or sessions, or turns) to take."""
        return quick if self.quick else full


Work = Callable[[], Awaitable[int]]
"""Runs the durable side's turns and gives their number."""


@dataclass(frozen=True, slots=True)
class Measure:
    """One subject.

    Attributes:
        name: what ``--only`` takes.
        run: measures; gives one row or more.
        durable: sets up the durable side alone, for a profile of its work.  ``None`` where that is in other processes.
    """

    name: str
    run: Callable[[Conditions], Awaitable[Sequence[Row]]]
    durable: Callable[[Conditions], AbstractAsyncContextManager[Work]] | None = None
