"""A SQLite file as one end of a copy."""

from __future__ import annotations

import sqlite3
from collections.abc import Generator, Iterable, Sequence
from contextlib import contextmanager
from itertools import repeat
from pathlib import Path
from typing import cast

from perdure.store.codec import Unreadable, pack
from perdure.store.copying.place import BAR, Owned, Place, Record, Value
from perdure.store.copying.tables import Table
from perdure.store.sqlite.connection import SqliteConnection
from perdure.store.sqlite.errors import translate
from perdure.store.sqlite.schema import Database, prepare, released_schema

WHOLE_HERE = frozenset({"shared_state"})
"""Columns whose texts stay in the row, however long."""


class SqlitePlace(Place):
    """One file."""

    def __init__(self, path: Path) -> None:
        self._database = Database(path)
        super().__init__(self._database.address)
        self._raw: sqlite3.Connection | None = None
        self._kept_apart: dict[str, frozenset[str]] = {}

    @property
    def raw(self) -> sqlite3.Connection:
        """The open connection."""
        assert self._raw is not None
        return self._raw

    def prepare(self, now_ms: int) -> None:
        prepare(self._database, released_schema(), now_ms, marked=True)

    def open(self) -> None:
        with self.reporting():
            self._raw = self._database.connect()

    def close(self) -> None:
        if self._raw is not None:
            self._raw.close()
            self._raw = None

    @contextmanager
    def transaction(self) -> Generator[None]:
        self.raw.execute("BEGIN IMMEDIATE")
        try:
            yield
            self.raw.execute("COMMIT")
        finally:
            if self.raw.in_transaction:
                self.raw.execute("ROLLBACK")

    @contextmanager
    def snapshot(self) -> Generator[None]:
        self.raw.execute("BEGIN")
        try:
            yield
        finally:
            self.raw.execute("ROLLBACK")

    @contextmanager
    def reporting(self) -> Generator[None]:
        try:
            yield
        except sqlite3.Error as error:
            raise translate(error, self.address, waited=self._database.busy_timeout) from error

    def run(self, text: str, facts: Sequence[Value] = ()) -> Iterable[Record]:
        return map(self._whole, self.raw.execute(text.replace("$", "?"), facts))

    def _whole(self, row: tuple[object, ...]) -> Record:
        return cast(Record, tuple(self._text(value) if isinstance(value, bytes) else value for value in row))

    def _text(self, digest: bytes) -> str:
        row = self.raw.execute("SELECT text FROM payloads WHERE sha256 = ?", (digest,)).fetchone()
        if row is None:
            raise translate(Unreadable("a long text", f"its text {digest.hex()} is missing"), self.address)
        return str(row[0])

    def stream(self, text: str, facts: Sequence[Value] = ()) -> Iterable[Record]:
        return self.run(text, facts)

    def connection(self) -> SqliteConnection:
        return SqliteConnection(self.raw)

    def find_columns(self, table: str) -> tuple[str, ...]:
        found = self.raw.execute(f"PRAGMA table_info({table})").fetchall()
        kinds = {str(name): str(kind) for _, name, kind, *_ in found}
        self._kept_apart[table] = frozenset(name for name, kind in kinds.items() if kind == "ANY") - WHOLE_HERE
        return tuple(kinds)

    def insert(self, table: Table, rows: Iterable[Owned]) -> None:
        names, connection = self.columns(table), self.connection()
        apart = [name in self._kept_apart[table.name] for name in names]

        def stored(key: int, value: Value, is_apart: bool) -> str | bytes | int | None:
            if is_apart and isinstance(value, str):
                return connection.keep(key, pack(value, f"{table.name} of session {key}"))
            return value

        marks = ", ".join("?" * len(names))
        self.raw.executemany(
            f"INSERT INTO {table.name} ({', '.join(names)}) VALUES ({marks})",
            (tuple(map(stored, repeat(key), row, apart)) for key, row in rows),
        )

    def set_bar(self, table: str, events: Sequence[str], words: str) -> None:
        quoted = words.replace("'", "''")
        self.lift_bar(table, events)
        for event in events:
            self.raw.execute(
                f"CREATE TRIGGER {BAR}_{table}_{event} BEFORE {event} ON {table} "
                f"BEGIN SELECT RAISE(ABORT, '{quoted}'); END"
            )

    def lift_bar(self, table: str, events: Sequence[str]) -> None:
        for event in events:
            self.raw.execute(f"DROP TRIGGER IF EXISTS {BAR}_{table}_{event}")

    def take_note(self) -> None:
        """Nothing: SQLite goes on behind the greatest number that is there."""
