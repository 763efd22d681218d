"""``open_engine``: picks engine and store by their addresses."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from perdure.arguments import expect, shown
from perdure.clock import Clock, SystemClock
from perdure.engine.base import Engine
from perdure.engine.local import LocalEngine
from perdure.engine.temporal.options import TEMPORAL_PREFIX, TemporalOptions, parse_address
from perdure.engine.worker import WorkerOptions
from perdure.errors import UsageError
from perdure.ids import IdSource, RandomIds
from perdure.session.runner import AgentSessionFlow
from perdure.store.opening import Durability, new_store, without_password

if TYPE_CHECKING:
    from perdure.engine.temporal.engine import TemporalEngine


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
            (absolute); ``postgresql://user:password@host/database`` (workers on any number of hosts; needs
            ``perdure[postgres]``); or ``temporal://HOST:PORT/NAMESPACE`` (needs ``perdure[temporal]``), of which what
            is left out comes from Temporal's own environment (``TEMPORAL_ADDRESS``, ``TEMPORAL_NAMESPACE``, its
            configuration file).
        flows: the agents that this process knows.  Without any it can read, send and answer, but not work.
        store: with ``temporal://``, where the sessions are kept: an address as above, but not of Temporal.
        durability: ``"power"`` flushes each write to the disk; ``"process"`` leaves that to the operating system, or
            to PostgreSQL's background.
        options: how workers behave.
        temporal: with ``temporal://``: credentials, and the names of its task queues.
        clock, ids: for tests.

    Raises:
        UsageError: the address is of no known kind; another argument is of the wrong type; the store is missing, or
            there is one too many; or what the engine or the store needs is not installed.
    """
    expect(address, str, "address", "a str, such as 'sqlite:///support.db'")
    expect(store, str, "store", "a str, such as 'sqlite:///support.db'", optional=True)
    expect(options, WorkerOptions, "options", "a WorkerOptions", optional=True)
    expect(temporal, TemporalOptions, "temporal", "a TemporalOptions", optional=True)
    expect(clock, Clock, "clock", "a Clock", optional=True)
    expect(ids, IdSource, "ids", "an IdSource", optional=True)
    clock = clock or SystemClock()
    ids = ids or RandomIds()
    if not address.startswith(TEMPORAL_PREFIX):
        for name, given in (("store", store and without_password(store)), ("temporal", temporal)):
            if given is not None:
                raise UsageError(
                    f"{name} is {shown(given)}; it belongs to temporal://, and {without_password(address)!r} is the "
                    f"store itself: leave {name} out",
                    argument=name,
                )
        kept = new_store(address, durability=durability, clock=clock, ids=ids)
        return LocalEngine(kept, flows, clock=clock, ids=ids, options=options)
    where = parse_address(address)
    if store is None:
        raise UsageError(
            f"{address!r} schedules sessions and does not keep them; say where they are kept, for example "
            "store='sqlite:///support.db'",
            address=address,
        )
    kept = new_store(store, durability=durability, clock=clock, ids=ids)
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
