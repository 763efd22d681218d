"""``python -m perdure.testing.conformance``: runs the suite over a target and prints a table."""

from __future__ import annotations

import asyncio
import logging
import sys
import warnings
from functools import partial

import click

from perdure.testing.conformance.case import ConformanceCase
from perdure.testing.conformance.catalogue import cases
from perdure.testing.conformance.run import CaseResult, run_suite
from perdure.testing.conformance.target import Target


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.option("--engine", required=True, metavar="ADDRESS", help="Where sessions are scheduled, as for open_engine.")
@click.option("--store", metavar="ADDRESS", help="Where they are kept, with an engine that only schedules.")
@click.option("--only", multiple=True, metavar="AREA", help="An area, or a whole name; may be given again.")
@click.option("--prefix", default="conformance", show_default=True, help="What all session ids begin with.")
@click.option("--jobs", default=3, show_default=True, type=click.IntRange(1), help="Cases at one time.")
@click.option("--opener", metavar="MODULE:FUNCTION", help="Makes the engine, if it is one of your own.")
@click.option("--restart", metavar="COMMAND", help="Restarts the servers, and returns when they are up.")
@click.option("--record", is_flag=True, help="Keep what is recorded as the references.  Review the change.")
@click.option("--verbose", is_flag=True, help="Show what is logged; the cases provoke much of it.")
@click.option("--list", "listing", is_flag=True, help="Print the cases and what they promise; run none.")
def main(
    engine: str,
    store: str | None,
    only: tuple[str, ...],
    prefix: str,
    jobs: int,
    opener: str | None,
    restart: str | None,
    record: bool,
    listing: bool,
    verbose: bool,
) -> None:
    """Runs the conformance suite of perdure over an engine and its store.

    Exit status: 0 when all cases pass, 1 when one fails.  The sessions are deleted at the end.
    """
    chosen = _chosen(only)
    if listing:
        for case in chosen:
            click.echo(f"{case.name:48} {case.promise}")
        return
    if not verbose:  # Cases fail on purpose, and workers die on purpose.
        warnings.simplefilter("ignore")
        logging.disable(logging.ERROR)
    target = Target(
        engine,
        store,
        prefix=prefix,
        opener=opener,
        restart_services=None if restart is None else partial(_run, restart),
    )
    click.echo(f"{len(chosen)} cases over {target.label}")
    results = asyncio.run(run_suite(chosen, target, jobs=jobs, record_anew=record, tell=_tell))
    sys.exit(_conclude(results, left_out=len(chosen) - len(results)))


def _chosen(only: tuple[str, ...]) -> list[ConformanceCase]:
    known = cases()
    areas = {case.area for case in known} | {case.name for case in known}
    for word in only:
        if word not in areas:
            raise click.BadParameter(f"{word!r} is no area and no case; --list shows them", param_hint="--only")
    return [case for case in known if not only or case.area in only or case.name in only]


def _tell(result: CaseResult) -> None:
    mark = "ok  " if result.failure is None else "FAIL"
    click.echo(f"{mark} {result.case.name:48} {result.seconds:6.1f} s")


async def _run(command: str) -> None:
    process = await asyncio.create_subprocess_shell(command)
    if status := await process.wait():
        raise click.ClickException(f"{command!r} ended with {status}, so the servers may be down")


def _conclude(results: list[CaseResult], *, left_out: int) -> int:
    failed = [result for result in results if result.failure is not None]
    for result in failed:
        click.echo(f"\n==== {result.case.name}: {result.case.promise}\n{result.failure}")
    more = f", {left_out} left out: they restart the servers, which needs --restart" if left_out else ""
    click.echo(f"\n{len(results) - len(failed)} passed, {len(failed)} failed{more}")
    return 1 if failed else 0


if __name__ == "__main__":
    main()
