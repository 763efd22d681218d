"""What a measure hands back, and how it is shown: one table for people, one JSON file for machines."""

from __future__ import annotations

import json
import os
import platform
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from importlib.metadata import version
from pathlib import Path

from rich.console import Console
from rich.table import Table

import perdure
from perdure.session.model import JsonObject, JsonValue

RESULTS = Path(__file__).parent / "results" / "latest.json"


@dataclass(frozen=True, slots=True)
class Target:
    """What a measure must reach: at most ``limit``, or at least."""

    limit: float
    at_least: bool = False

    def met_by(self, value: float) -> bool:
        return value >= self.limit if self.at_least else value <= self.limit

    def __str__(self) -> str:
        return f"{'≥' if self.at_least else '≤'} {self.limit:g}"


@dataclass(frozen=True, slots=True)
class Row:
    """One line of the report.

    Attributes:
        name: stable; what ``--only`` takes is the measure that it belongs to.
        what: what was run and compared, in a few words.
        unit: of ``ours`` and ``raw``.
        ours, raw: medians; ``raw`` is ``None`` where raw ADK has no such thing.
        measured: the number that is held against the target.
        note: what a reader must know to judge the number.
        detail: further numbers, for the JSON file only.
    """

    name: str
    what: str
    unit: str
    ours: float
    raw: float | None
    measured: float
    target: Target
    note: str = ""
    detail: dict[str, JsonValue] = field(default_factory=dict[str, JsonValue])

    @property
    def met(self) -> bool:
        return self.target.met_by(self.measured)


def table_of(rows: Sequence[Row]) -> Table:
    """The table for people."""
    table = Table(title="perdure against raw ADK, in one run", title_justify="left", show_lines=False)
    table.add_column("measure", no_wrap=True)
    table.add_column("what")
    for heading in ("perdure", "raw ADK", "measured", "target"):
        table.add_column(heading, justify="right", no_wrap=True)
    table.add_column("met")
    for row in rows:
        table.add_row(
            row.name,
            row.what + (f" [dim]({row.note})[/dim]" if row.note else ""),
            _figure(row.ours, row.unit),
            "" if row.raw is None else _figure(row.raw, row.unit),
            f"{row.measured:.2f}",
            str(row.target),
            "[green]yes[/green]" if row.met else "[red]no[/red]",
        )
    return table


def _figure(value: float, unit: str) -> str:
    return f"{value:.3g} {unit}" if abs(value) < 1000 else f"{value:,.0f} {unit}"


@dataclass(frozen=True, slots=True)
class Run:
    """What a reader must know of the run as a whole.

    Attributes:
        quick: too few samples to mean anything.
        seconds: how long it took.
        commit_ms: how long the disk took for one commit at full safety, before and after the measures.
    """

    quick: bool
    seconds: float
    commit_ms: tuple[float, float]


def document_of(rows: Sequence[Row], run: Run) -> JsonObject:
    """The whole report as JSON."""
    return {
        "perdure": perdure.__version__,
        "google_adk": version("google-adk"),
        "python": platform.python_version(),
        "machine": f"{platform.system()} {platform.machine()}",
        "cores": os.cpu_count(),
        "quick": run.quick,
        "seconds": round(run.seconds, 1),
        "commit_ms": [round(value, 3) for value in run.commit_ms],
        "measures": [
            {**asdict(row), "target": str(row.target), "limit": row.target.limit, "met": row.met} for row in rows
        ],
    }


REPORT_WIDTH = 150
"""Columns of a table that goes into a file or a pipe."""


def report_console() -> Console:
    """As wide as the terminal, or wide enough for a table where there is none."""
    console = Console()
    return console if console.is_terminal else Console(width=REPORT_WIDTH)


def publish(rows: Sequence[Row], run: Run, path: Path, console: Console) -> None:
    """Prints the table and writes the JSON file."""
    console.print(table_of(rows))
    before, after = run.commit_ms
    console.print(f"one commit at synchronous=FULL on this disk: {before:.2f} ms before, {after:.2f} ms after")
    if run.quick:
        console.print("[yellow]--quick: too few samples to mean anything[/yellow]")
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(document_of(rows, run), indent=2) + "\n", encoding="utf-8")
    console.print(f"[dim]{path}[/dim]", highlight=False)
