"""``open_engine``: picks engine and store by their addresses."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Literal

from perdure.arguments import expect
from perdure.clock import Clock, SystemClock
from perdure.engine.base import Engine
from perdure.engine.local import LocalEngine
from perdure.engine.worker import WorkerOptions
from perdure.errors import UsageError
from perdure.ids import IdSource, RandomIds
from perdure.session.runner import AgentSessionFlow
from perdure.store.sqlite import SqliteStore

Durability = Literal["power", "process"]
"""What a finished write survives: a power failure of the machine, or only the death of the process."""

SQLITE_PREFIX = "sqlite:///"


def open_engine(
    address: str,
    *,
    flows: Iterable[AgentSessionFlow] = (),
    durability: Durability = "power",
    options: WorkerOptions | None = None,
    clock: Clock | None = None,
    ids: IdSource | None = None,
) -> Engine:
    """An engine for this address.  Nothing is opened before ``async with`` (or ``open``).

    Args:
        address: ``sqlite:///support.db`` (relative to the working directory), ``sqlite:////var/lib/support.db``
            (absolute).
        flows: the agents that this process knows.  Without any it can read, send and answer, but not work.
        durability: ``"power"`` flushes each write to the disk; ``"process"`` leaves that to the operating system.
        options: how workers behave.
        clock, ids: for tests.

    Raises:
        UsageError: the address is of no known kind, or another argument is of the wrong type.
    """
    expect(options, WorkerOptions, "options", "a WorkerOptions", optional=True)
    expect(clock, Clock, "clock", "a Clock", optional=True)
    expect(ids, IdSource, "ids", "an IdSource", optional=True)
    clock = clock or SystemClock()
    ids = ids or RandomIds()
    store = SqliteStore(sqlite_path(address), durability=durability, clock=clock, ids=ids)
    return LocalEngine(store, flows, clock=clock, ids=ids, options=options)


def sqlite_path(address: str) -> str:
    """The file that a ``sqlite:///`` address names.

    Raises:
        UsageError: the address is of another kind, or names no file.
    """
    expect(address, str, "address", "a str, such as 'sqlite:///support.db'")
    path = address.removeprefix(SQLITE_PREFIX)
    if path == address or not Path(path).name or path == ":memory:":
        raise UsageError(
            f"{address!r} is no address of an engine; use sqlite:///FILE, for example sqlite:///support.db",
            address=address,
        )
    return path
