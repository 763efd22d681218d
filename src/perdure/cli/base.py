"""What all commands share: options, the way into a store, and how an error leaves the program."""

from __future__ import annotations

import asyncio
import json
import math
import shlex
from collections.abc import AsyncGenerator, Callable, Coroutine, Iterable
from contextlib import asynccontextmanager
from typing import Any, TypeVar

import click
from click.core import ParameterSource

from perdure.client import AgentSessionClient
from perdure.engine.base import Engine
from perdure.engine.open import open_engine
from perdure.engine.temporal.options import TEMPORAL_PREFIX
from perdure.engine.worker import WorkerOptions
from perdure.errors import ERROR_TABLE, PerdureError, StoreUnavailable, UsageError
from perdure.session.runner import AgentSessionFlow
from perdure.store.opening import SQLITE_PREFIX, is_made, without_password

DEFAULT_ENGINE = "sqlite:///perdure.db"
ENGINE_VARIABLE = "PERDURE_ENGINE"
STORE_VARIABLE = "PERDURE_STORE"
_STORE = "perdure.store"
INTERRUPTED = 130
"""Exit code after Ctrl-C, as shells have it."""

MOST_SECONDS = 10**9
"""That an option takes: thirty years.  Python's own times end somewhere."""

T = TypeVar("T")
Decorated = TypeVar("Decorated", bound=Callable[..., Any])


class Seconds(click.FloatRange):
    """A number of seconds on the command line; "nan" and "inf" are numbers to Python, and none to us."""

    def __init__(self) -> None:
        super().__init__(0, MOST_SECONDS)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        seconds: float = super().convert(value, param, ctx)
        if math.isnan(seconds):
            self.fail(f"{value} is no number of seconds.", param, ctx)
        return seconds


class Command(click.Command):
    """A command whose ``PerdureError`` ends the program with a line on stderr and the exit code of the error table."""

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except PerdureError as error:
            report(error, as_json=bool(ctx.params.get("as_json")))
            ctx.exit(exit_code(error))
        except KeyboardInterrupt:
            ctx.exit(INTERRUPTED)


def command(name: str | None = None) -> Callable[[Callable[..., Any]], Command]:
    """Makes a ``Command`` of a function; the function's own name, if no other is given."""
    return click.command(name, cls=Command)


def exit_code(error: PerdureError) -> int:
    """The exit code that the error table gives."""
    return ERROR_TABLE.get(error.code, ERROR_TABLE[PerdureError.code]).exit_code


def report(error: PerdureError, *, as_json: bool) -> None:
    """Says on stderr what went wrong."""
    if as_json:
        shown = {"code": error.code, "message": error.message, "facts": error.facts}
        click.echo(json.dumps({"error": shown}, default=str, ensure_ascii=False), err=True)
    else:
        click.echo(f"error: {error.message} [{error.code}]", err=True)


def engine_option(command: Decorated) -> Decorated:
    """``--engine`` and ``--store``.  The second is kept for ``open_at``."""
    command = click.option(
        "--store",
        metavar="ADDRESS",
        envvar=STORE_VARIABLE,
        show_envvar=True,
        expose_value=False,
        callback=_keep_store,
        help="With --engine temporal://HOST:PORT/NAMESPACE: where the sessions are kept.",
    )(command)
    return click.option(
        "--engine",
        "address",
        metavar="ADDRESS",
        envvar=ENGINE_VARIABLE,
        show_envvar=True,
        default=DEFAULT_ENGINE,
        show_default="sqlite:///perdure.db, in the working directory",
        help="Where the sessions are.",
    )(command)


def _keep_store(context: click.Context, parameter: click.Parameter, value: str | None) -> None:
    source = context.get_parameter_source(parameter.name or "")
    context.meta[_STORE] = (value, source is ParameterSource.COMMANDLINE)


def _store() -> tuple[str | None, bool]:
    """What ``--store`` says, and whether it was typed."""
    found: tuple[str | None, bool] = click.get_current_context().meta.get(_STORE, (None, False))
    return found


def open_at(address: str, *, flows: Iterable[AgentSessionFlow] = (), options: WorkerOptions | None = None) -> Engine:
    """The engine that ``--engine`` and ``--store`` name; as ``open_engine``.

    Raises:
        UsageError
    """
    store = _kept_at(address)
    return open_engine(address, flows=flows, store=None if store == address else store, options=options)


def check_addresses(address: str) -> None:
    """Looks whether ``--engine`` and ``--store`` can be meant, before anything else is done.

    Raises:
        UsageError
    """
    open_at(address)  # It opens nothing yet.


def _kept_at(address: str) -> str:
    """Where the engine at this address keeps its sessions.

    Raises:
        UsageError: nobody says so, or --store says it of an engine that keeps them itself.
    """
    store, typed = _store()
    if not address.startswith(TEMPORAL_PREFIX):
        if typed:
            raise UsageError("--store belongs to --engine temporal://HOST:PORT/NAMESPACE; other engines keep sessions")
        return address
    if store is None:
        raise UsageError(
            f"{address} does not keep sessions; say with --store or {STORE_VARIABLE} where they are kept",
            address=address,
        )
    return store


def json_option(command: Decorated) -> Decorated:
    """``--json``."""
    return click.option("--json", "as_json", is_flag=True, help="Print JSON for programs; errors too, on stderr.")(
        command
    )


def engine_arguments() -> list[str]:
    """What a command that we suggest needs to reach the same store: nothing, when the environment says it anyway."""
    context = click.get_current_context()
    arguments: list[str] = []
    if context.get_parameter_source("address") is ParameterSource.COMMANDLINE:
        arguments += ["--engine", without_password(str(context.params["address"]))]
    store, typed = _store()
    if store is not None and typed:
        arguments += ["--store", without_password(store)]
    return arguments


def suggest(*words: str) -> str:
    """A command line that the user can copy."""
    return shlex.join(["perdure", *words, *engine_arguments()])


@asynccontextmanager
async def open_existing(address: str) -> AsyncGenerator[Engine, None]:
    """An open engine for sessions that exist already; it knows no flow, and never makes a store.

    Raises:
        StoreUnavailable: there is no store at the address.
        UsageError, StoreError
    """
    kept_at = _kept_at(address)
    if not is_made(kept_at):  # It blocks, and nothing else runs yet.
        place = without_password(kept_at).removeprefix(SQLITE_PREFIX)
        raise StoreUnavailable(
            f"there is no {place}, so no session either. Name the store with --engine or {ENGINE_VARIABLE}, or start a "
            "session with 'perdure chat'",
            address=without_password(kept_at),
        )
    async with open_at(address) as engine:
        yield engine


@asynccontextmanager
async def open_client(address: str) -> AsyncGenerator[AgentSessionClient, None]:
    """A client on ``open_existing``."""
    async with open_existing(address) as engine:
        yield AgentSessionClient(engine)


def run(work: Coroutine[Any, Any, T]) -> T:
    """The one place where a command becomes asynchronous."""
    return asyncio.run(work)
