"""``open_engine``: picks engine and store by their addresses."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from perdure.clock import Clock, SystemClock
from perdure.engine.base import Engine
from perdure.engine.local import LocalEngine
from perdure.engine.temporal.options import TEMPORAL_PREFIX, TemporalOptions, parse_address
from perdure.engine.worker import WorkerOptions
from perdure.errors import UsageError
from perdure.ids import IdSource, RandomIds
from perdure.session.runner import AgentSessionFlow
from perdure.store.base import SessionStore
from perdure.store.sqlite import SqliteStore

if TYPE_CHECKING:
    from perdure.engine.temporal.engine import TemporalEngine

Durability = Literal["power", "process"]
"""What a finished write survives: a power failure of the machine, or only the death of the process."""

SQLITE_PREFIX = "sqlite:///"


def open_engine(
    address: str,
    *,
    flows: Iterable[AgentSessionFlow] = (),
    store: str | None = None,
    durability: Durability = "power",
    options: WorkerOptions | None = None,
    temporal: TemporalOptions | None = None,
    clock: Clock | None = None,
    ids: IdSource | None = None,
) -> Engine:
    """An engine for this address.  Nothing is opened before ``async with`` (or ``open``).

    Args:
        address: ``sqlite:///support.db`` (relative to the working directory), ``sqlite:////var/lib/support.db``
            (absolute); or ``temporal://HOST:PORT/NAMESPACE``, of which what is left out comes from Temporal's own
            environment (``TEMPORAL_ADDRESS``, ``TEMPORAL_NAMESPACE``, its configuration file).
        flows: the agents that this process knows.  Without any it can read, send and answer, but not work.
        store: with ``temporal://``, where the sessions are kept: an address as above, but not of Temporal.
        durability: ``"power"`` flushes each write to the disk; ``"process"`` leaves that to the operating system.
        options: how workers behave.
        temporal: with ``temporal://``: credentials, and the names of its task queues.
        clock, ids: for tests.

    Raises:
        UsageError: the address is of no known kind; or the store is missing, or there is one too many; or what
            ``perdure[temporal]`` installs is missing.
    """
    clock = clock or SystemClock()
    ids = ids or RandomIds()
    if not address.startswith(TEMPORAL_PREFIX):
        if store is not None or temporal is not None:
            raise UsageError(f"store and temporal belong to temporal://; {address!r} is the store itself")
        kept = _store_at(address, durability=durability, clock=clock, ids=ids)
        return LocalEngine(kept, flows, clock=clock, ids=ids, options=options)
    where = parse_address(address)
    if store is None:
        raise UsageError(
            f"{address!r} schedules sessions and does not keep them; say where they are kept, for example "
            "store='sqlite:///support.db'",
            address=address,
        )
    kept = _store_at(store, durability=durability, clock=clock, ids=ids)
    engine = _temporal_engine()
    return engine(where, kept, flows, clock=clock, ids=ids, options=options, temporal=temporal)


def _temporal_engine() -> type[TemporalEngine]:
    try:
        from perdure.engine.temporal.engine import TemporalEngine  # only who uses Temporal has it
    except ModuleNotFoundError as error:
        if (error.name or "").split(".")[0] != "temporalio":
            raise
        raise UsageError("the Temporal engine needs the package temporalio: pip install 'perdure[temporal]'") from error
    return TemporalEngine


def _store_at(address: str, *, durability: Durability, clock: Clock, ids: IdSource) -> SessionStore:
    return SqliteStore(sqlite_path(address), durability=durability, clock=clock, ids=ids)


def sqlite_path(address: str) -> str:
    """The file that a ``sqlite:///`` address names.

    Raises:
        UsageError: the address is of another kind, or names no file.
    """
    path = address.removeprefix(SQLITE_PREFIX)
    if path == address or not Path(path).name or path == ":memory:":
        raise UsageError(
            f"{address!r} is no address of an engine; use sqlite:///FILE, for example sqlite:///support.db",
            address=address,
        )
    return path
