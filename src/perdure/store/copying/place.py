"""One end of a copy: a store's tables, rows and marks, the same on every database.

Blocks, and is used by one thread.  Rows travel as tuples of whole numbers, texts and ``None``: truth values are 0 and
1, and long texts stand where they are referred to.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from contextlib import AbstractContextManager
from typing import cast

from perdure.store.copying.tables import OF_SESSION, SESSIONS, SHARED, Table
from perdure.store.sql.connection import Connection
from perdure.store.sql.marks import moved_words, unfinished_words

Value = int | str | None
Record = tuple[Value, ...]

Owned = tuple[int, Record]
"""Whose a row is (the key of a session; 0: everybody's), and the row."""

Span = tuple[int, int]
"""Sessions from one key to another, both included."""

EVERYTHING: Span = (0, 2**62)
"""All sessions that there may be."""

BAR = "barred"
"""How the triggers are called that refuse writes."""


class Place(ABC):
    """A store, past its own writer and readers.

    Attributes:
        address: without a password.
    """

    def __init__(self, address: str) -> None:
        self.address = address
        self._columns: dict[str, tuple[str, ...]] = {}

    # ------------------------------------------------------------ what each database does its own way

    @abstractmethod
    def prepare(self, now_ms: int) -> None:
        """Makes the store, or brings it up to date."""

    @abstractmethod
    def open(self) -> None:
        """Connects."""

    @abstractmethod
    def close(self) -> None:
        """Lets go of the connection."""

    @abstractmethod
    def transaction(self) -> AbstractContextManager[None]:
        """All that the block writes is on disk when it ends, or nothing; nobody else copies meanwhile."""

    @abstractmethod
    def snapshot(self) -> AbstractContextManager[None]:
        """All that the block reads is of one state."""

    @abstractmethod
    def reporting(self) -> AbstractContextManager[None]:
        """What the database raises in the block leaves it as one of our errors."""

    @abstractmethod
    def run(self, text: str, facts: Sequence[Value] = ()) -> Iterable[Record]:
        """Carries out a statement."""

    @abstractmethod
    def stream(self, text: str, facts: Sequence[Value] = ()) -> Iterable[Record]:
        """Carries out a statement whose rows may be many and large.  Nothing else may run before its last row."""

    @abstractmethod
    def connection(self) -> Connection:
        """The connection as the store itself uses it."""

    @abstractmethod
    def find_columns(self, table: str) -> tuple[str, ...]:
        """The columns of a table."""

    @abstractmethod
    def insert(self, table: Table, rows: Iterable[Owned]) -> None:
        """Adds rows with all columns."""

    @abstractmethod
    def set_bar(self, table: str, events: Sequence[str], words: str) -> None:
        """Refuses these kinds of writes to a table from now on, with these words."""

    @abstractmethod
    def lift_bar(self, table: str, events: Sequence[str]) -> None:
        """Allows them again."""

    @abstractmethod
    def take_note(self) -> None:
        """The database takes note of what came in: the numbers that it gives out go on behind those that are there."""

    # ------------------------------------------------------------ rows

    def columns(self, table: Table) -> tuple[str, ...]:
        """The columns of a table, in an order that is the same everywhere."""
        if table.name not in self._columns:
            self._columns[table.name] = tuple(sorted(self.find_columns(table.name)))
        return self._columns[table.name]

    def rows(self, table: Table, span: Span) -> Iterable[Owned]:
        """The rows of some sessions, session by session and in order; or all of a table that sessions share."""
        own = table.name
        names = ", ".join(f"{own}.{name}" for name in self.columns(table))
        order = ", ".join(f"{own}.{name}" for name in table.order)
        if table is SHARED:
            found = self.stream(f"SELECT 0, {names} FROM {own} ORDER BY {order}")
        else:
            via = f"{own} JOIN turns ON turns.turn_key = {own}.turn_key" if table.of_turns else own
            key = "turns.session_key" if table.of_turns else f"{own}.session_key"
            found = self.stream(
                f"SELECT {key}, {names} FROM {via} WHERE {key} BETWEEN $1 AND $2 ORDER BY {key}, {order}", span
            )
        return ((cast(int, row[0]), row[1:]) for row in found)

    def session_keys(self) -> list[int]:
        """The keys of all sessions, in order."""
        return [int(str(key)) for (key,) in self.run("SELECT session_key FROM sessions ORDER BY session_key")]

    def copy_sessions(self, source: Place, span: Span) -> None:
        """Takes sessions over from another place.  Those that are here as they are there already stay."""
        here, there = (dict(place.rows(SESSIONS, span)) for place in (self, source))
        for key in here:
            if here[key] != there.get(key):
                self.drop_session(key)
        wanted = {key for key in there if there[key] != here.get(key)}
        if wanted:
            for table in OF_SESSION:
                self.insert(table, ((key, row) for key, row in source.rows(table, span) if key in wanted))

    def drop_session(self, session_key: int) -> None:
        """Removes a session, if it is there."""
        connection = self.connection()
        for statement in connection.deletions:
            if statement != "fence_floor_raise":  # The source's own floor is taken over at the end.
                connection.execute(statement, (session_key,))

    def copy_shared(self, source: Place) -> None:
        """Takes over what sessions share."""
        self.run(f"DELETE FROM {SHARED.name}")
        self.insert(SHARED, source.rows(SHARED, EVERYTHING))

    # ------------------------------------------------------------ marks

    def meta(self) -> dict[str, str]:
        """The facts of the store about itself."""
        return {str(name): str(value) for name, value in self.run("SELECT name, value FROM meta")}

    def put_meta(self, name: str, value: str) -> None:
        """Sets one of them."""
        self.run(
            "INSERT INTO meta VALUES ($1, $2) ON CONFLICT (name) DO UPDATE SET value = excluded.value", (name, value)
        )

    def drop_meta(self, name: str) -> None:
        """Takes one away."""
        self.run("DELETE FROM meta WHERE name = $1", (name,))

    def workers(self) -> list[str]:
        """The ids of workers that are registered, or own a session."""
        found = self.run(
            "SELECT worker_id FROM workers UNION SELECT owner FROM sessions WHERE owner IS NOT NULL ORDER BY worker_id"
        )
        return [str(worker_id) for (worker_id,) in found]

    def is_empty(self) -> bool:
        """Whether nothing is stored here."""
        return not any(list(self.run(f"SELECT 1 FROM {table} LIMIT 1")) for table in ("sessions", "shared_state"))

    def freeze(self, moved_to: str) -> None:
        """Refuses all writes: each one writes a session or a worker."""
        words = moved_words(moved_to)
        self.set_bar("sessions", ("INSERT", "UPDATE", "DELETE"), words)
        self.set_bar("workers", ("INSERT", "UPDATE"), words)

    def thaw(self) -> None:
        """Allows them again."""
        self.lift_bar("sessions", ("INSERT", "UPDATE", "DELETE"))
        self.lift_bar("workers", ("INSERT", "UPDATE"))

    def keep_workers_out(self, copy_of: str) -> None:
        """Refuses workers."""
        self.set_bar("workers", ("INSERT",), unfinished_words(copy_of))

    def let_workers_in(self) -> None:
        """Allows them again."""
        self.lift_bar("workers", ("INSERT",))
