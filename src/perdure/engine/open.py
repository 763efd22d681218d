"""``open_engine``: picks engine and store by their addresses."""

from __future__ import annotations

from collections.abc import Iterable

from perdure.clock import Clock, SystemClock
from perdure.engine.base import Engine
from perdure.engine.local import LocalEngine
from perdure.engine.worker import WorkerOptions
from perdure.ids import IdSource, RandomIds
from perdure.session.runner import AgentSessionFlow
from perdure.store.opening import Durability, new_store


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
            (absolute), or ``postgresql://user:password@host/database`` (workers on any number of hosts; needs
            ``perdure[postgres]``).
        flows: the agents that this process knows.  Without any it can read, send and answer, but not work.
        durability: ``"power"`` flushes each write to the disk; ``"process"`` leaves that to the operating system, or
            to PostgreSQL's background.
        options: how workers behave.
        clock, ids: for tests.

    Raises:
        UsageError: the address is of no known kind, or what it needs is not installed.
    """
    clock = clock or SystemClock()
    ids = ids or RandomIds()
    store = new_store(address, durability=durability, clock=clock, ids=ids)
    return LocalEngine(store, flows, clock=clock, ids=ids, options=options)
