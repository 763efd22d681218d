"""The race's tables for people, and its document for machines."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import asdict

from rich.table import Table

from bench.peers.entries import RAW
from bench.peers.race import Comparison, Standing


def table_of_standings(standings: Sequence[Standing]) -> Table:
    """One line for each contender."""
    raw = next((standing for standing in standings if standing.entry is RAW), None)
    table = Table(title="one course, each in a process of its own", title_justify="left")
    table.add_column("who", no_wrap=True)
    headings = (
        "a turn",
        "its CPU",
        "added per step",
        "8 calls at once",
        "last 10 / first 10 turns",
        "50 sessions",
        "failed",
    )
    for heading in (*headings, "history per turn"):
        table.add_column(heading, justify="right")
    for standing in standings:
        table.add_row(
            standing.entry.label,
            f"{standing.turn_ms:.1f} ms",
            f"{standing.cpu_ms:.1f} ms",
            "" if raw is None or standing is raw else f"{standing.overhead_ms(raw):.1f} ms",
            f"{standing.parallel_ms:.1f} ms",
            f"{standing.growth:.2f}",
            f"{standing.turns_per_s:.0f} turns/s",
            str(standing.failed),
            _history(standing),
        )
    return table


def _history(standing: Standing) -> str:
    if standing.bytes_per_turn is None or standing.events_per_turn is None:
        return ""
    return f"{standing.events_per_turn:.0f} events, {standing.bytes_per_turn / 1000:.1f} kB"


def table_of_comparisons(comparisons: Sequence[Comparison]) -> Table:
    """Each of ours as ratios to its rival."""
    table = Table(title="perdure / peer, on the same servers", title_justify="left")
    for heading in ("who", "against"):
        table.add_column(heading, no_wrap=True)
    for heading in ("added per step", "turns/s", "history bytes per turn"):
        table.add_column(heading, justify="right")
    for found in comparisons:
        table.add_row(
            found.ours.entry.label,
            found.rival.entry.label,
            f"{found.overhead:.2f}",
            f"{found.turns_per_s:.2f}",
            "" if found.bytes_per_turn is None else f"{found.bytes_per_turn:.3f}",
        )
    return table


def document_of(standings: Sequence[Standing], comparisons: Sequence[Comparison]) -> dict[str, object]:
    """Everything as JSON."""
    return {
        "contenders": [
            {
                "name": standing.entry.name,
                "turn_ms": round(standing.turn_ms, 2),
                "turn_ms_p90": round(_p90([ms for result in standing.results for ms in result.turn_ms]), 2),
                "cpu_ms": round(standing.cpu_ms, 2),
                "parallel_ms": round(standing.parallel_ms, 2),
                "growth": round(standing.growth, 2),
                "turns_per_s": [round(result.turns_per_s, 1) for result in standing.results],
                "failed": standing.failed,
                "first_failure": next((result.first_failure for result in standing.results if result.failed), ""),
                "history": standing.results[-1].history,
            }
            for standing in standings
        ],
        "ratios": [
            {
                "ours": found.ours.entry.name,
                "rival": found.rival.entry.name,
                "overhead_per_step": round(found.overhead, 3),
                "turns_per_s": round(found.turns_per_s, 3),
                "history_bytes_per_turn": found.bytes_per_turn,
            }
            for found in comparisons
        ],
        "environments": {standing.entry.name: asdict(standing.entry) for standing in standings},
    }


def _p90(values: Sequence[float]) -> float:
    return statistics.quantiles(values, n=10, method="inclusive")[-1]
