"""The command line: ``python -m bench [--quick] [--only NAME]...``, ``... profile NAME`` and ``... peers``."""

from __future__ import annotations

import asyncio
import json
import time
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

import click

from bench.disk import commit_ms
from bench.measures import MEASURES, Conditions, Measure
from bench.peers.entries import ENTRIES
from bench.peers.race import compare, run_race
from bench.peers.report import document_of, table_of_comparisons, table_of_standings
from bench.quiet import be_quiet
from bench.report import RESULTS, Row, Run, publish, report_console
from bench.store import chosen

if TYPE_CHECKING:
    from bench.profiler import Profile

PEERS = RESULTS.with_name("peers.json")
NAMES = click.Choice(list(MEASURES))


@click.group(invoke_without_command=True)
@click.option("--quick", is_flag=True, help="Very few samples: only shows that it works.")
@click.option("--only", "only", multiple=True, type=NAMES, help="One measure; may be repeated.  Default: all.")
@click.option(
    "--json", "result", type=click.Path(path_type=Path), default=RESULTS, help="Where the numbers are written."
)
@click.option(
    "--folder",
    type=click.Path(path_type=Path, file_okay=False, exists=True),
    default=None,
    help="Where the databases go; the disk matters.  Default: the system's folder for temporary files.",
)
@click.option(
    "--store",
    default="sqlite",
    show_default=True,
    help="'sqlite', 'postgresql' for a server that is started in the folder, or postgresql://... for one that is up.",
)
@click.pass_context
def main(
    context: click.Context, quick: bool, only: tuple[str, ...], result: Path, folder: Path | None, store: str
) -> None:
    """Measures durable turns against the same turns on raw ADK, in one run, as ratios."""
    be_quiet()
    if context.invoked_subcommand is not None:
        return
    console = report_console()
    begun = time.perf_counter()
    before = _commit_ms(folder)
    rows: list[Row] = []
    with chosen(store, folder):
        for name in only or MEASURES:
            with console.status(f"measuring {name}"), TemporaryDirectory(prefix="bench-", dir=folder) as scratch:
                rows += asyncio.run(_rows(MEASURES[name], Conditions(Path(scratch), quick)))
    run = Run(quick, time.perf_counter() - begun, (before, _commit_ms(folder)))
    publish(rows, run, result, console)


def _commit_ms(folder: Path | None) -> float:
    with TemporaryDirectory(prefix="bench-", dir=folder) as scratch:
        return commit_ms(Path(scratch))


async def _rows(measure: Measure, conditions: Conditions) -> list[Row]:
    return [*await measure.run(conditions)]


@main.command()
@click.argument("name", type=click.Choice([name for name, measure in MEASURES.items() if measure.durable is not None]))
@click.option("--top", default=40, show_default=True, help="How many functions to show.")
@click.option("--quick", is_flag=True, help="Very few turns.")
@click.option("--all", "everyone", is_flag=True, help="Also ADK's own functions, not only perdure's.")
def profile(name: str, top: int, quick: bool, everyone: bool) -> None:
    """Shows where the CPU time of a measure's durable side goes, in ms per turn (needs yappi)."""
    from bench.profiler import show

    with TemporaryDirectory(prefix="bench-") as scratch:
        found, turns = asyncio.run(_profile(MEASURES[name], Conditions(Path(scratch), quick)))
    show(found, turns, report_console(), top=top, everyone=everyone)


async def _profile(measure: Measure, conditions: Conditions) -> tuple[Profile, int]:
    from bench.profiler import profiled

    assert measure.durable is not None
    async with measure.durable(conditions) as work:
        with profiled() as found:
            turns = await work()
    return found, turns


@main.command()
@click.option("--quick", is_flag=True, help="Very few turns: only shows that it works.")
@click.option("--rounds", default=3, show_default=True, help="How often each contender runs.")
@click.option("--only", multiple=True, type=click.Choice([entry.name for entry in ENTRIES]), help="May be repeated.")
@click.option("--json", "result", type=click.Path(path_type=Path), default=PEERS, help="Where the numbers are written.")
@click.option("--folder", type=click.Path(path_type=Path, file_okay=False, exists=True), default=None)
def peers(quick: bool, rounds: int, only: tuple[str, ...], result: Path, folder: Path | None) -> None:
    """Runs one course on perdure, DBOS and Temporal's ADK integration, each in an environment of its own."""
    chosen = [entry for entry in ENTRIES if not only or entry.name in only]
    console = report_console()
    standings = run_race(chosen, 1 if quick else rounds, quick, folder)
    comparisons = compare(standings)
    console.print(table_of_standings(standings))
    console.print(table_of_comparisons(comparisons))
    result.parent.mkdir(parents=True, exist_ok=True)
    result.write_text(json.dumps(document_of(standings, comparisons), indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
