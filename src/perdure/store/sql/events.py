"""The ring of live events: appends within a byte budget, the oldest go first."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from perdure.session.model import AgentEvent
from perdure.store.sql.transaction import Transaction

TRIM_TO = 7 / 8
"""How full the ring is after it overflowed: room for the next writes, so that not each of them has to trim."""


@dataclass(slots=True)
class Ring:
    """The ring as the session's row describes it."""

    capacity: int
    size: int
    trimmed_fence: int
    trimmed_number: int
    newest: int
    """Number of the last event that is stored under the present fence; 0: none is."""


EventRow = tuple[int, int, str]
"""Number, size in bytes, JSON."""


def event_row(number: int, event: AgentEvent) -> EventRow:
    data = event.model_dump_json()
    return number, len(data) if data.isascii() else len(data.encode()), data


def append(transaction: Transaction, session_key: int, fence: int, ring: Ring, events: Sequence[EventRow]) -> None:
    """Adds events and drops the oldest beyond the budget.  An event that is stored already is not added again."""
    added = [row for row in events if row[0] > ring.newest]
    if not added:
        return
    transaction.executemany("event_insert", [(session_key, fence, *row) for row in added])
    ring.newest = added[-1][0]
    ring.size += sum(size for _, size, _ in added)
    if ring.size > ring.capacity:
        _trim(transaction, session_key, ring)


def _trim(transaction: Transaction, session_key: int, ring: Ring) -> None:
    goal = int(ring.capacity * TRIM_TO)
    for fence, number, size in transaction.execute("event_sizes", (session_key,)).fetchall():
        if ring.size <= goal:
            break
        ring.size -= size
        ring.trimmed_fence, ring.trimmed_number = fence, number
    transaction.execute("event_trim", (session_key, ring.trimmed_fence, ring.trimmed_number))
