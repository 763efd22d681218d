"""``perdure store``: what is done to a store as a whole."""

from __future__ import annotations

import sys
from dataclasses import asdict

import click
from rich.table import Table

from perdure.cli.base import command, json_option, run
from perdure.cli.output import print_json, terminal
from perdure.errors import UsageError
from perdure.store.copying import Copied, Stage, copy_store, undo_copy
from perdure.store.opening import without_password


@click.group()
def store() -> None:
    """Move all sessions from one database to another.

    \b
    Examples:
      perdure store copy sqlite:///support.db postgresql://perdure@db.example.com/agents
    """


@command()
@click.argument("source")
@click.argument("destination")
@click.option("--keep-source", is_flag=True, help="Make another store with the same sessions; SOURCE stays in use.")
@click.option("--undo", is_flag=True, help="Give up a move that is not finished: SOURCE can be used again.")
@json_option
def copy(source: str, destination: str, keep_source: bool, undo: bool, as_json: bool) -> None:
    """Move all sessions from SOURCE to DESTINATION, which must be empty.

    Stop the workers of SOURCE first; they finish what runs and give their sessions back. Whoever opens SOURCE from then
    on is told where it went. Stopped at any moment, the same command goes on where it was. At the end both stores are
    compared, and what was compared is printed.

    \b
    Examples:
      perdure store copy sqlite:///support.db postgresql://perdure@db.example.com/agents
      perdure store copy postgresql://perdure@db.example.com/agents sqlite:///agents.db --keep-source
      perdure store copy sqlite:///support.db postgresql://perdure@db.example.com/agents --undo
    """
    if undo:
        if keep_source:
            raise UsageError(
                "--undo and --keep-source do not go together: a copy that keeps its source changes nothing"
            )
        run(undo_copy(source, destination))
        if as_json:
            print_json({"source": without_password(source)})
        else:
            click.echo(f"{without_password(source)} can be used again")
        return
    told = _show_progress if sys.stderr.isatty() and not as_json else _show_nothing
    copied = run(copy_store(source, destination, keep_source=keep_source, told=told))
    if as_json:
        print_json(asdict(copied))
    else:
        _print(copied)


def _show_progress(stage: Stage, done: int, of: int) -> None:
    end = "\n" if done == of else ""
    click.echo(f"\r{stage.value}: {done} of {of} sessions{end}", err=True, nl=False)


def _show_nothing(stage: Stage, done: int, of: int) -> None:
    pass


def _print(copied: Copied) -> None:
    if copied.before:
        click.echo(f"{copied.source} was moved to {copied.destination} before; nothing was left to do")
        return
    table = Table(title="the same in both stores")
    for name in ("table", "rows", "SHA-256"):
        table.add_column(name, justify="right" if name == "rows" else "left")
    for one in copied.compared:
        table.add_row(one.table, str(one.rows), one.sha256[:16])
    terminal().print(table)
    done = "copied" if copied.kept_source else "moved"
    click.echo(f"{copied.sessions} sessions {done} from {copied.source} to {copied.destination}")


store.add_command(copy)
