"""Runs the contenders in turns, each in its own process on servers of its own, and adds up what they say."""

from __future__ import annotations

import json
import statistics
import subprocess
from collections.abc import Generator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory

from bench.peers.child import Places
from bench.peers.course import STEPS_OF_A_TURN, Result
from bench.peers.entries import RAW, RIVALS, Entry
from bench.peers.venvs import ROOT, python_of
from bench.servers import postgres_server, temporal_server

CHILD_SECONDS = 900


@dataclass(slots=True)
class Standing:
    """What one contender has shown, over all rounds."""

    entry: Entry
    results: list[Result] = field(default_factory=list[Result])

    @property
    def turn_ms(self) -> float:
        """Median of the turns of one session."""
        return statistics.median(ms for result in self.results for ms in result.turn_ms)

    @property
    def cpu_ms(self) -> float:
        """CPU time of a turn, in the contender's own process."""
        return statistics.median(result.cpu_ms for result in self.results)

    @property
    def parallel_ms(self) -> float:
        """Median of the turns with eight calls at once."""
        return statistics.median(ms for result in self.results for ms in result.parallel_ms)

    @property
    def growth(self) -> float:
        """How much longer the last ten turns of a session take than its first ten."""
        return statistics.median(
            statistics.mean(result.turn_ms[-10:]) / statistics.mean(result.turn_ms[:10]) for result in self.results
        )

    @property
    def turns_per_s(self) -> float:
        return statistics.median(result.turns_per_s for result in self.results)

    @property
    def failed(self) -> int:
        return sum(result.failed for result in self.results)

    @property
    def bytes_per_turn(self) -> float | None:
        """Of the engine's history; ``None`` where there is none."""
        history = self.results[-1].history
        return None if history is None else history["bytes"] / history["turns"]

    @property
    def events_per_turn(self) -> float | None:
        history = self.results[-1].history
        return None if history is None else history["events"] / history["turns"]

    def overhead_ms(self, raw: Standing) -> float:
        """What a step takes longer than on raw ADK, in milliseconds."""
        return (self.turn_ms - raw.turn_ms) / STEPS_OF_A_TURN


@dataclass(frozen=True, slots=True)
class Comparison:
    """One of ours against its rival: ratios below 1 (times, bytes) or above it (turns per second) are good for us."""

    ours: Standing
    rival: Standing
    overhead: float
    turns_per_s: float
    bytes_per_turn: float | None


def run_race(entries: Sequence[Entry], rounds: int, quick: bool, folder: Path | None) -> list[Standing]:
    """Runs each contender once per round, each round beginning with the next of them.

    Raises:
        RuntimeError: a contender failed; the text has the end of what it said.
    """
    standings = [Standing(entry) for entry in entries]
    for number in range(rounds):
        first = number % len(standings)
        for standing in standings[first:] + standings[:first]:
            with _places(standing.entry, folder) as places:
                standing.results.append(_run(standing.entry, places, quick))
    return standings


def compare(standings: Sequence[Standing]) -> list[Comparison]:
    """Each of ours against the one that needs the same servers, where both ran, and raw ADK too."""
    by_name = {standing.entry.name: standing for standing in standings}
    raw = by_name.get(RAW.name)
    found: list[Comparison] = []
    for mine, other in RIVALS.items():
        ours, rival = by_name.get(mine), by_name.get(other)
        if raw is None or ours is None or rival is None:
            continue
        sizes = (ours.bytes_per_turn, rival.bytes_per_turn)
        found.append(
            Comparison(
                ours,
                rival,
                overhead=ours.overhead_ms(raw) / rival.overhead_ms(raw),
                turns_per_s=ours.turns_per_s / rival.turns_per_s,
                bytes_per_turn=None if sizes[0] is None or sizes[1] is None else sizes[0] / sizes[1],
            )
        )
    return found


@contextmanager
def _places(entry: Entry, folder: Path | None) -> Generator[Places]:
    with ExitStack() as stack:
        scratch = Path(stack.enter_context(TemporaryDirectory(prefix="peers-", dir=folder)))
        for name in ("own", "pg", "temporal"):
            (scratch / name).mkdir()
        postgres = stack.enter_context(postgres_server(scratch / "pg")) if entry.postgres else None
        temporal = stack.enter_context(temporal_server(scratch / "temporal")) if entry.temporal else None
        yield Places(scratch / "own", postgres, temporal)


def _run(entry: Entry, places: Places, quick: bool) -> Result:
    command = [python_of(entry.environment), "-m", "bench.peers.child", entry.module, "--folder", str(places.folder)]
    command += ["--postgres", places.postgres] if places.postgres else []
    command += ["--temporal", places.temporal] if places.temporal else []
    command += ["--quick"] if quick else []
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=CHILD_SECONDS, check=False)
    if done.returncode != 0:
        raise RuntimeError(f"{entry.label} failed:\n{done.stdout[-1000:]}\n{done.stderr[-3000:]}")
    return Result(**json.loads(done.stdout.splitlines()[-1]))
