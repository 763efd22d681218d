"""Workers and what they own: registration, leases, reaping.  What they take is in ``claims``.

Each function returns a write for the writer's thread; what only looks takes a reader's connection.
"""

from __future__ import annotations

import os
from collections.abc import Sequence

from perdure.errors import LeaseLost
from perdure.store.base import Worker
from perdure.store.sql.transaction import Transaction, Write


def worker_lost(worker_id: str) -> LeaseLost:
    return LeaseLost(
        f"worker {worker_id} is not registered (any more): it was given up for dead and owns nothing; register it anew",
        worker_id=worker_id,
        session_id=None,
    )


def register_worker(worker: Worker, now_ms: int, lease_now_ms: int | None) -> Write[None]:
    """Makes the worker known, and due what was recorded under other code than it has.

    Args:
        lease_now_ms: the time by which leases are kept, if that is not the database's own.
    """

    definitions = dict(worker.definitions)

    def write(transaction: Transaction) -> None:
        row = (worker.worker_id, os.getpid(), worker.lease_ms, lease_now_ms)
        transaction.execute("worker_insert", row)
        transaction.execute("worker_flows_delete", (worker.worker_id,))
        array = transaction.connection.array
        transaction.lock("lock_to_check", (array(definitions), array(definitions.values())))
        for flow_type, definition in definitions.items():
            transaction.execute("worker_flow_insert", (flow_type, worker.worker_id, definition))
            to_check = transaction.execute("sessions_to_check", (now_ms, flow_type, definition)).fetchall()
            transaction.changed((session_id for (session_id,) in to_check), work=bool(to_check))

    return write


def renew_worker(worker_id: str, lease_now_ms: int | None) -> Write[None]:
    """Moves the end of the worker's lease."""

    def write(transaction: Transaction) -> None:
        if transaction.execute("worker_renew", (lease_now_ms, worker_id)).fetchone() is None:
            raise worker_lost(worker_id)

    return write


def remove_workers(worker_ids: Sequence[str], now_ms: int, *, orderly: bool = False) -> Write[int]:
    """Takes workers out and frees what they own; their leases are void from then on.  Returns how many there were.

    A store in which several processes write at once hands them in one by one, so that all sessions that one write locks
    are locked in the same order everywhere.

    Args:
        orderly: they leave by themselves, so what they still own is given back, not lost.
    """

    def write(transaction: Transaction) -> int:
        removed = 0
        for worker_id in worker_ids:
            # First the worker: who claims for it at this moment keeps it, and is waited for.
            removed += len(transaction.execute("worker_delete", (worker_id,)).fetchall())
            transaction.execute("worker_flows_delete", (worker_id,))
            _free(transaction, worker_id, (), now_ms, orderly=orderly)
        return removed

    return write


def free_unheld(worker_id: str, held: Sequence[str], now_ms: int) -> Write[int]:
    """Frees what a live worker owns but does not run.  Returns how many sessions that were."""
    return lambda transaction: _free(transaction, worker_id, held, now_ms, orderly=True)


def _free(transaction: Transaction, worker_id: str, held: Sequence[str], now_ms: int, *, orderly: bool) -> int:
    kept = transaction.connection.array(held)
    transaction.lock("lock_owned", (worker_id, kept))
    freed = transaction.execute("sessions_free", (worker_id, now_ms, kept, int(orderly))).fetchall()
    transaction.changed((session_id for (session_id,) in freed), work=bool(freed))
    return len(freed)
