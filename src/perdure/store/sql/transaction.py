"""What one write does to the database, seen from inside that write."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TypeVar

from perdure.faults import DurableWrite, Moment, reach
from perdure.store.base import Change
from perdure.store.sql.connection import Connection

T = TypeVar("T")


class Transaction:
    """One write under way.  Others may share its transaction of the database."""

    __slots__ = ("connection", "execute", "executemany", "keep", "kinds", "lock", "sessions", "work")

    def __init__(self, connection: Connection) -> None:
        self.connection = connection
        self.execute = connection.execute
        self.executemany = connection.executemany
        self.keep = connection.keep
        self.lock = connection.lock
        self.kinds: tuple[DurableWrite, ...] = ()
        self.sessions: set[str] = set()
        self.work = False

    def starts(self, *kinds: DurableWrite) -> None:
        """Says that these durable writes begin now; before anything of them is written."""
        for kind in kinds:
            reach(kind, Moment.BEFORE)
        self.kinds += kinds

    def changed(self, sessions: Iterable[str], *, work: bool) -> None:
        """Says what listeners hear once the write is on disk."""
        self.sessions.update(sessions)
        self.work = self.work or work


Write = Callable[[Transaction], T]
"""One write.  It may run twice (the first time rolled back), so it changes nothing but the database."""


def sum_of(transactions: Iterable[Transaction]) -> Change | None:
    """What several writes changed together; ``None``: nothing that anyone listens for."""
    sessions: set[str] = set()
    work = False
    for transaction in transactions:
        sessions |= transaction.sessions
        work = work or transaction.work
    return Change(frozenset(sessions), work) if sessions or work else None
