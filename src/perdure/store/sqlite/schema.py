"""Opens connections, recognises our databases and brings their schema up to date.

A database is ours by its ``application_id`` and its ``meta`` table; ``user_version`` is the schema version.
"""

from __future__ import annotations

import os
import sqlite3
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, TypeVar

from perdure.store.sql.faults import no_version, too_new
from perdure.store.sql.marks import refuse_marked
from perdure.store.sql.schema import Schema, read_schema
from perdure.store.sqlite.connection import PACKAGE
from perdure.store.sqlite.errors import (
    address_of,
    no_directory,
    not_ours,
    read_only,
    translate,
    unavailable,
)

Durability = Literal["power", "process"]
"""What a finished write survives: a loss of power, or the end of the process only."""

APPLICATION_ID = 0x70657264
"""``perd`` in ASCII."""

SCHEMA_VERSION = 1

RETRY_PAUSE = 0.002
"""Seconds between two tries where SQLite does not wait by itself."""

T = TypeVar("T")


def released_schema() -> Schema:
    """The schema of this release."""
    return read_schema(PACKAGE, SCHEMA_VERSION)


@dataclass(frozen=True, slots=True)
class Database:
    """One database file and how it is used."""

    path: Path
    durability: Durability = "power"
    busy_timeout: float = 10.0
    """Seconds that a write waits for another program's lock."""

    @property
    def address(self) -> str:
        return address_of(self.path)

    def connect(self) -> sqlite3.Connection:
        """A connection in autocommit mode that may move to another thread."""
        connection = sqlite3.connect(
            self.path, timeout=self.busy_timeout, isolation_level=None, check_same_thread=False, cached_statements=256
        )
        synchronous = "FULL" if self.durability == "power" else "NORMAL"
        connection.execute(f"PRAGMA synchronous = {synchronous}")
        connection.execute("PRAGMA temp_store = MEMORY")
        return connection

    def reader(self) -> sqlite3.Connection:
        """A connection that cannot write."""
        connection = self.connect()
        connection.execute("PRAGMA query_only = ON")
        return connection


def prepare(database: Database, schema: Schema, now_ms: int, *, marked: bool = False) -> None:
    """Creates the database, or brings it up to date.  Any number of processes may do this at once.

    Args:
        marked: also one that was moved, or is an unfinished copy.

    Raises:
        StoreNotOurs, StoreTooNew, StoreCorrupt, StoreBusy, StoreReadOnly, StoreFull, StoreUnavailable, StoreMoved,
        StoreUnfinished
    """
    directory = database.path.parent
    if not directory.is_dir():
        raise no_directory(database.address, directory)
    if not os.access(directory, os.W_OK) or (database.path.exists() and not os.access(database.path, os.W_OK)):
        # SQLite would say "unable to open": it needs files of its own beside the database.
        raise read_only(database.address, "permission denied, or a read-only file system")
    deadline = time.monotonic() + database.busy_timeout
    try:
        connection = database.connect()
        try:
            _recognise_at_once(connection, database, schema)
            _patiently(lambda: _use_wal(connection, database), deadline)
            _patiently(lambda: _migrate(connection, database, schema, now_ms), deadline)
            if not marked:
                refuse_marked(database.address, dict(connection.execute("SELECT name, value FROM meta")))
        finally:
            connection.close()
    except sqlite3.Error as error:
        raise translate(error, database.address, waited=database.busy_timeout) from error


def _recognise_at_once(connection: sqlite3.Connection, database: Database, schema: Schema) -> None:
    """Looks at one state of the file: another process may be making it ours at this moment."""
    connection.execute("BEGIN")
    try:
        _recognise(connection, database, schema)
    finally:
        if connection.in_transaction:
            connection.execute("ROLLBACK")


def _recognise(connection: sqlite3.Connection, database: Database, schema: Schema) -> None:
    """Refuses a database that is not ours, too new, or of no version.  An empty one becomes ours."""
    application_id = _pragma(connection, "application_id")
    tables = {row[0] for row in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
    if application_id == 0 and not tables:
        return
    if application_id != APPLICATION_ID or "meta" not in tables:
        raise not_ours(database.address, "it is a database of another program")
    found = _pragma(connection, "user_version")
    if found < 1:
        raise no_version(database.address, found, "PRAGMA user_version", schema.version)
    if found > schema.version:
        raise too_new(database.address, found, schema.version)


def _use_wal(connection: sqlite3.Connection, database: Database) -> None:
    """Outside of any transaction, and only after the file turned out to be ours to change."""
    (mode,) = connection.execute("PRAGMA journal_mode").fetchone()
    if mode != "wal":
        (mode,) = connection.execute("PRAGMA journal_mode = WAL").fetchone()
    if mode != "wal":
        raise unavailable(database.address, "its file system cannot share memory (a network drive?), which WAL needs")


def _migrate(connection: sqlite3.Connection, database: Database, schema: Schema, now_ms: int) -> None:
    """One exclusive transaction: of several processes the first does the work, the others find it done."""
    connection.execute("BEGIN EXCLUSIVE")
    try:
        _recognise(connection, database, schema)
        found = _pragma(connection, "user_version")
        if found == 0:
            _run(connection, schema.create)
            connection.execute("INSERT INTO meta VALUES ('created_at_ms', ?)", (str(now_ms),))
            connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")
        for version in range(found + 1 if found else schema.version + 1, schema.version + 1):
            _run(connection, schema.migrations[version])
        if found != schema.version:
            connection.execute(f"PRAGMA user_version = {schema.version}")
        connection.execute("COMMIT")
    finally:
        if connection.in_transaction:
            connection.execute("ROLLBACK")


def statements(script: str) -> Iterator[str]:
    """The statements of a script.  (``executescript`` would commit the transaction under way.)"""
    pending = ""
    for line in script.splitlines(keepends=True):
        pending += line
        if sqlite3.complete_statement(pending):
            yield pending
            pending = ""


def _run(connection: sqlite3.Connection, script: str) -> None:
    for statement in statements(script):
        connection.execute(statement)


def _pragma(connection: sqlite3.Connection, name: str) -> int:
    value: int = connection.execute(f"PRAGMA {name}").fetchone()[0]
    return value


def _patiently(action: Callable[[], T], deadline: float) -> T:
    """Repeats what SQLite refuses at once while another process opens or recovers the same file."""
    while True:
        try:
            return action()
        except sqlite3.OperationalError as error:
            if (error.sqlite_errorcode & 0xFF) != sqlite3.SQLITE_BUSY or time.monotonic() > deadline:
                raise
            time.sleep(RETRY_PAUSE)
