"""The command line: ``python -m bench [--quick] [--only NAME]...`` and ``python -m bench profile NAME``."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path
from tempfile import TemporaryDirectory

import click
from rich.console import Console
from rich.table import Table

from bench.measures import MEASURES, Conditions, Measure
from bench.profiler import Profile, Sampler, largest
from bench.quiet import be_quiet
from bench.report import RESULTS, Row, publish

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
@click.pass_context
def main(context: click.Context, quick: bool, only: tuple[str, ...], result: Path, folder: Path | None) -> None:
    """Measures durable turns against the same turns on raw ADK, in one run, as ratios."""
    be_quiet()
    if context.invoked_subcommand is not None:
        return
    console = Console()
    begun = time.perf_counter()
    rows: list[Row] = []
    for name in only or MEASURES:
        with console.status(f"measuring {name}"), TemporaryDirectory(prefix="bench-", dir=folder) as scratch:
            rows += asyncio.run(_rows(MEASURES[name], Conditions(Path(scratch), quick)))
    publish(rows, result, console, quick=quick, seconds=time.perf_counter() - begun)


async def _rows(measure: Measure, conditions: Conditions) -> list[Row]:
    return [*await measure.run(conditions)]


@main.command()
@click.argument("name", type=click.Choice([name for name, measure in MEASURES.items() if measure.durable is not None]))
@click.option("--top", default=40, show_default=True, help="How many functions to show.")
@click.option("--quick", is_flag=True, help="Very few turns.")
@click.option("--all", "everyone", is_flag=True, help="Also ADK's own functions, not only perdure's.")
def profile(name: str, top: int, quick: bool, everyone: bool) -> None:
    """Shows where the CPU time of a measure's durable side goes, in ms per turn."""
    with TemporaryDirectory(prefix="bench-") as scratch:
        found, turns = asyncio.run(_profile(MEASURES[name], Conditions(Path(scratch), quick)))
    console = Console()
    console.print(_by_thread(found, turns))
    console.print(_by_place(found, turns, top, everyone))


async def _profile(measure: Measure, conditions: Conditions) -> tuple[Profile, int]:
    assert measure.durable is not None
    async with measure.durable(conditions) as work:
        with Sampler() as found:
            turns = await work()
    return found, turns


def _by_thread(found: Profile, turns: int) -> Table:
    table = Table(title=f"CPU by thread and owner, ms per turn ({turns} turns)", title_justify="left")
    owners = sorted({owner for _, owner in found.threads})
    table.add_column("thread")
    for owner in (*owners, "sum"):
        table.add_column(owner, justify="right")
    for thread in sorted({thread for thread, _ in found.threads}):
        spent = [found.threads.get((thread, owner), 0.0) / turns * 1000 for owner in owners]
        table.add_row(thread, *(f"{value:.2f}" for value in (*spent, sum(spent))))
    waiting = found.waiting / turns * 1000
    table.caption = f"wall {found.wall / turns * 1000:.2f} ms per turn, of which the event loop waited {waiting:.2f}"
    return table


def _by_place(found: Profile, turns: int, top: int, everyone: bool) -> Table:
    table = Table(title="own CPU time with the libraries called, ms per turn", title_justify="left")
    for heading in ("ms", "owner", "function", "mostly in"):
        table.add_column(heading, justify="right" if heading == "ms" else "left", no_wrap=heading != "mostly in")
    chosen = {place: spent for place, spent in found.own.items() if everyone or place.owner == "perdure"}
    for place, spent in largest(chosen, top):
        leaves = ", ".join(f"{leaf} {part / spent:.0%}" for leaf, part in largest(found.leaves[place], 3))
        table.add_row(f"{spent / turns * 1000:.3f}", place.owner, str(place), leaves)
    return table


if __name__ == "__main__":
    main()
