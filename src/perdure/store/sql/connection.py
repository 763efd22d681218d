"""What the modules here see of a database: statements by name, and a place for long texts.

Each store has a ``queries.sql`` of its own with the same names; a name stands for the same facts in and the same
columns out, whatever the database makes of it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Protocol

from perdure.store.codec import Packed

Row = Any
"""A row as a driver gives it: a tuple of what the statement selects."""

Fact = str | int | bytes | list[str] | None
"""What a column holds, or a list of texts as ``Connection.array`` makes it."""


class Rows(Protocol):
    """What a statement found.  It may still be on its way: asking waits for it."""

    def fetchone(self) -> Row: ...

    def fetchall(self) -> list[Row]: ...


class Connection(Protocol):
    """A connection to the database."""

    @property
    def deletions(self) -> Sequence[str]:
        """The statements that delete a session, in order; each takes its key."""
        ...

    def execute(self, name: str, facts: Sequence[Fact] = ()) -> Rows:
        """Carries out a statement of ``queries.sql``.

        It may return before the statement was carried out; one that fails is told of at the next answer that is asked
        for, or at the end of the transaction.
        """
        ...

    def executemany(self, name: str, rows: Sequence[Sequence[Fact]]) -> None:
        """Carries out a statement once for each row of facts."""
        ...

    def lock(self, name: str, facts: Sequence[Fact]) -> None:
        """Keeps others from writing the rows that a statement finds, until the end of the transaction.

        Nothing to do for a database with one writer at a time.
        """
        ...

    def array(self, texts: Iterable[str]) -> Fact:
        """A list as one fact."""
        ...

    def keep(self, session_key: int, text: Packed | None) -> str | bytes | None:
        """What goes into a column for this text: the text itself, or the digest of one that is kept apart."""
        ...

    def share(self, session_key: int, other_key: int) -> None:
        """Whatever long texts the first session refers to, the other one may refer to as well."""
        ...
