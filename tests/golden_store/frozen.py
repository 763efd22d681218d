"""Stores as earlier releases left them: schema, mark and rows, frozen in one folder for each schema version.

A folder holds

* ``sqlite.sql`` and ``postgres.sql``: the schema as it was;
* ``rows.jsonl``: the rows of a SQLite store, ``[table, {column: value}]`` in each line; ``{"sha256": ...}`` is a text
  that is kept apart, in the table of payloads;
* ``expected.json``: what the release that wrote it read of it.

Nothing here asks today's code how a store is written: what it does is what version 1 did.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from tests.support.stores import Backend, PostgresBackend, SqliteBackend

HERE = Path(__file__).parent

Row = dict[str, Any]
Line = tuple[str, Row]
"""A table, and a row of it."""

OF_SQLITE = {"payloads", "payload_refs"}
"""Tables that only SQLite has."""

SQLITE_MARK = 0x70657264
"""Its ``application_id``."""

COUNTED = {
    "sessions": "session_key",
    "turns": "turn_key",
    "calls": "call_key",
    "interrupts": "interrupt_key",
    "questions": "question_key",
}
"""Tables whose keys PostgreSQL gives out."""


@dataclass(frozen=True)
class Frozen:
    """The store of one schema version.

    Attributes:
        place: the folder of its folder.
    """

    version: int
    place: Path = HERE

    @property
    def folder(self) -> Path:
        return self.place / f"version_{self.version}"

    def schema(self, kind: str) -> str:
        """The schema; ``kind`` is ``sqlite`` or ``postgres``."""
        return (self.folder / f"{kind}.sql").read_text(encoding="utf-8")

    @cached_property
    def expected(self) -> Any:
        """What was read of it."""
        return json.loads((self.folder / "expected.json").read_text(encoding="utf-8"))

    def lines(self) -> list[Line]:
        """All rows, to keep or to change."""
        text = (self.folder / "rows.jsonl").read_text(encoding="utf-8")
        return [(table, row) for table, row in map(json.loads, text.splitlines())]

    def build(self, place: Backend, lines: list[Line] | None = None) -> None:
        """Makes the store in an empty place, of these rows or of its own."""
        lines = self.lines() if lines is None else lines
        if isinstance(place, SqliteBackend):
            self._build_sqlite(place, lines)
        else:
            assert isinstance(place, PostgresBackend)
            self._build_postgres(place, lines)

    def _build_sqlite(self, place: SqliteBackend, lines: list[Line]) -> None:
        with closing(sqlite3.connect(place.path, isolation_level=None)) as connection:
            connection.execute("PRAGMA journal_mode = WAL")
            connection.executescript(self.schema("sqlite"))
            connection.execute("DELETE FROM meta")
            for table, row in lines:
                marks = ", ".join("?" * len(row))
                values = [_digest(value) if isinstance(value, dict) else value for value in row.values()]
                connection.execute(f"INSERT INTO {table} ({', '.join(row)}) VALUES ({marks})", values)
            connection.execute(f"PRAGMA application_id = {SQLITE_MARK}")
            connection.execute(f"PRAGMA user_version = {self.version}")

    def _build_postgres(self, place: PostgresBackend, lines: list[Line]) -> None:
        texts = {row["sha256"]["sha256"]: row["text"] for table, row in lines if table == "payloads"}
        marks = {"format": "perdure", "schema_version": str(self.version)}
        lines = lines + [("meta", {"name": name, "value": value}) for name, value in marks.items()]
        place.server.run(f"CREATE SCHEMA {place.schema}")
        with place.server.connect(place.schema) as connection, connection.transaction():
            connection.execute(self.schema("postgres").encode())
            connection.execute(b"DELETE FROM meta")
            for table, row in lines:
                if table not in OF_SQLITE:
                    with connection.cursor().copy(f"COPY {table} ({', '.join(row)}) FROM STDIN".encode()) as copy:
                        copy.write_row([_as_in_postgres(value, texts) for value in row.values()])
            for table, key in COUNTED.items():
                sequence = f"pg_get_serial_sequence('{table}', '{key}')"
                connection.execute(f"SELECT setval({sequence}, max({key})) FROM {table}".encode())


def _digest(reference: dict[str, str]) -> bytes:
    return bytes.fromhex(reference["sha256"])


def _as_in_postgres(value: Any, texts: dict[str, str]) -> Any:
    """Long texts are in their rows, and NUL is escaped."""
    if isinstance(value, dict):
        value = texts.get(value["sha256"])
    return value.replace("\x10", "\x101").replace("\0", "\x100") if isinstance(value, str) else value


def frozen_stores() -> list[Frozen]:
    """All that there are, oldest first."""
    folders = HERE.glob("version_*")
    return [Frozen(version) for version in sorted(int(folder.name.removeprefix("version_")) for folder in folders)]


def lines_of(path: Path) -> Iterator[Line]:
    """The rows of a SQLite store, in a form that is frozen."""
    with closing(sqlite3.connect(path)) as connection:
        connection.row_factory = sqlite3.Row
        tables = connection.execute("SELECT name FROM sqlite_master WHERE type = 'table' ORDER BY rowid").fetchall()
        for (table,) in tables:
            (key,) = connection.execute(
                "SELECT group_concat(name) FROM (SELECT name FROM pragma_table_info(?) WHERE pk > 0 ORDER BY pk)",
                (table,),
            ).fetchone()
            for row in connection.execute(f"SELECT * FROM {table} ORDER BY {key}"):
                yield table, {name: _neutral(row[name]) for name in row.keys()}  # noqa: SIM118 - a Row has no items


def _neutral(value: Any) -> Any:
    return {"sha256": value.hex()} if isinstance(value, bytes) else value
