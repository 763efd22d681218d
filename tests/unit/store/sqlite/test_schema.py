"""Schema versions, the named queries, and what each of them costs in a store with many idle sessions."""

from __future__ import annotations

import asyncio
import re
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest
from tests.unit.store.builders import NOW, new_session, open_turn, request
from tests.unit.store.sqlite.conftest import OpenStore

from perdure.errors import StoreCorrupt
from perdure.store.sql.schema import Schema
from perdure.store.sqlite import SqliteStore
from perdure.store.sqlite.connection import QUERIES
from perdure.store.sqlite.schema import APPLICATION_ID, Database, prepare, released_schema, statements

# ---------------------------------------------------------------- versions


def _next_schema(*migrations: str) -> Schema:
    released = released_schema()
    steps = {released.version + n: text for n, text in enumerate(migrations, start=1)}
    whole = released.create + "\n".join(migrations)
    return Schema(released.version + len(migrations), whole, {**released.migrations, **steps})


ADD_NOTES = """
CREATE TABLE notes (session_key INTEGER PRIMARY KEY, note TEXT) STRICT;
CREATE TRIGGER notes_keep BEFORE UPDATE ON notes BEGIN
    SELECT RAISE(ABORT, 'no; never');
END;
"""
FILL_NOTES = "INSERT INTO notes SELECT session_key, session_id FROM sessions;\n"


def _version(path: Path) -> tuple[int, int]:
    connection = sqlite3.connect(path)
    found = tuple(connection.execute(f"PRAGMA {name}").fetchone()[0] for name in ("application_id", "user_version"))
    connection.close()
    return found[0], found[1]


async def test_a_new_database_says_what_it_is(store: SqliteStore, path: Path) -> None:
    assert store.commits == 0
    assert _version(path) == (APPLICATION_ID, released_schema().version)


async def test_a_database_of_an_earlier_version_is_brought_up_to_date(open_store: OpenStore, path: Path) -> None:
    store = await open_store()
    await store.create_session(new_session(), None, request(), NOW)
    await store.close()
    newer = _next_schema(ADD_NOTES, FILL_NOTES)
    for _ in range(2):  # the second time nothing is left to do
        prepare(Database(path), newer, NOW)
        assert _version(path)[1] == newer.version
    connection = sqlite3.connect(path)
    assert connection.execute("SELECT note FROM notes").fetchall() == [("s",)]
    connection.close()


@pytest.mark.parametrize("version", [0, -1])
async def test_a_version_that_is_none_is_said_and_left_alone(open_store: OpenStore, path: Path, version: int) -> None:
    store = await open_store()
    await store.close()
    with closing(sqlite3.connect(path)) as connection:
        connection.execute(f"PRAGMA user_version = {version}")
    with pytest.raises(StoreCorrupt, match=f"schema version is {version} .*Restore"):
        await store.open()
    assert _version(path)[1] == version


async def test_a_migration_that_fails_leaves_the_old_version(open_store: OpenStore, path: Path) -> None:
    await (await open_store()).close()
    with pytest.raises(Exception, match="no such table"):
        prepare(Database(path), _next_schema(ADD_NOTES, "INSERT INTO absent VALUES (1);"), NOW)
    assert _version(path)[1] == released_schema().version
    connection = sqlite3.connect(path)
    assert connection.execute("SELECT 1 FROM sqlite_master WHERE name = 'notes'").fetchone() is None
    connection.close()
    await open_store()


async def test_many_may_open_a_new_or_an_old_database_at_once(path: Path) -> None:
    newer = _next_schema(ADD_NOTES)
    for schema in (released_schema(), newer):
        await asyncio.gather(*(asyncio.to_thread(prepare, Database(path), schema, NOW) for _ in range(8)))
        assert _version(path)[1] == schema.version


def test_migrating_ends_where_a_new_database_begins(tmp_path: Path) -> None:
    """Every released migration, from version 1 on; and the check itself notices a difference."""

    def shape(schema: Schema, path: Path) -> list[tuple[str, str]]:
        prepare(Database(path), schema, NOW)
        connection = sqlite3.connect(path)
        rows = connection.execute("SELECT name, sql FROM sqlite_master WHERE sql IS NOT NULL ORDER BY name").fetchall()
        connection.close()
        return [(name, re.sub(r"\s+", " ", re.sub("--.*", "", text))) for name, text in rows]

    released = released_schema()
    assert set(released.migrations) == set(range(2, released.version + 1))
    newer = _next_schema(ADD_NOTES)
    shape(released, tmp_path / "old.db")
    assert shape(newer, tmp_path / "old.db") == shape(newer, tmp_path / "new.db")
    assert shape(newer, tmp_path / "new.db") != shape(released, tmp_path / "other.db")


def test_scripts_are_split_into_statements_that_stay_whole() -> None:
    found = [text.strip() for text in statements("SELECT 1;\n-- a; b\nSELECT ';';\n" + ADD_NOTES)]
    assert len(found) == 4
    assert found[-1].endswith("END;")


# ---------------------------------------------------------------- queries


@pytest.fixture(scope="module")
def big(tmp_path_factory: pytest.TempPathFactory) -> Iterator[sqlite3.Connection]:
    """A store with 100,000 idle sessions, three that are due, two that wake, one of each worker."""
    path = tmp_path_factory.mktemp("big") / "big.db"
    prepare(Database(path, "process"), released_schema(), NOW)
    connection = sqlite3.connect(path, isolation_level=None)
    connection.execute("BEGIN")
    connection.executemany(
        "INSERT INTO sessions (session_id, incarnation, fingerprint, flow_type, app_name, user_id, status, "
        "event_capacity, created_at_ms, updated_at_ms) VALUES (?, '', '', ?, 'app', ?, 'idle', 1, 0, ?)",
        ((f"s{n}", f"F{n % 3}", f"u{n % 1000}", n) for n in range(100_000)),
    )
    connection.execute("UPDATE sessions SET due_since_ms = 1 WHERE session_key IN (5, 50, 500)")
    connection.execute("UPDATE sessions SET wake_at_ms = 1 WHERE session_key IN (7, 70)")
    connection.execute("COMMIT")
    yield connection
    connection.close()


SMALL_TABLES = {"workers", "worker_flows", "names", "json_each"}
"""A few rows, or made up by the query itself."""


def _plan(connection: sqlite3.Connection, query: str) -> list[str]:
    numbers = [int(n) for n in re.findall(r"\?(\d+)", query)]
    count = max(numbers, default=query.count("?"))
    return [row[3] for row in connection.execute(f"EXPLAIN QUERY PLAN {query}", (1,) * count)]


@pytest.mark.parametrize("name", sorted(QUERIES))
def test_no_query_looks_through_a_whole_table(big: sqlite3.Connection, name: str) -> None:
    for line in _plan(big, QUERIES[name].sql):
        scanned = re.match(r"SCAN (\w+)", line)
        if scanned is None or scanned[1] in SMALL_TABLES or scanned[1] == "CONSTANT":
            continue
        assert name == "list_by_change", f"{name}: {line}"
        assert "USING INDEX sessions_by_change" in line


def test_the_plan_test_notices_a_scan(big: sqlite3.Connection) -> None:
    assert any(line.startswith("SCAN sessions") for line in _plan(big, "SELECT * FROM sessions WHERE app_name = ?"))


@pytest.mark.parametrize(
    ("name", "index"),
    [
        ("due_sessions", "sessions_due"),
        ("waking_sessions", "sessions_wake"),
        ("next_wake", "sessions_wake"),
        ("sessions_to_check", "sessions_open"),
        ("sessions_free", "sessions_owned"),
        ("list_by_user", "sessions_by_user"),
        ("list_by_status", "sessions_by_status"),
        ("list_by_flow", "sessions_by_flow"),
        ("list_by_change", "sessions_by_change"),
        ("interrupts_pending", "interrupts_pending"),
    ],
)
def test_what_is_asked_often_uses_its_own_index(big: sqlite3.Connection, name: str, index: str) -> None:
    plan = _plan(big, QUERIES[name].sql)
    assert any(index in line for line in plan), plan


@pytest.mark.parametrize(
    "name", ["due_sessions", "waking_sessions", "list_by_user", "list_by_status", "list_by_flow", "list_by_change"]
)
def test_what_has_an_order_finds_it_in_the_index(big: sqlite3.Connection, name: str) -> None:
    assert not any("TEMP B-TREE" in line for line in _plan(big, QUERIES[name].sql))


def test_the_indexes_for_workers_hold_only_what_is_due(big: sqlite3.Connection) -> None:
    """A million idle sessions cost nothing: they are not even in these indexes."""
    counts = {
        name: big.execute(f"SELECT count(*) FROM sessions INDEXED BY {name} WHERE {condition}").fetchone()[0]
        for name, condition in (
            ("sessions_due", "due_since_ms IS NOT NULL"),
            ("sessions_wake", "wake_at_ms IS NOT NULL AND owner IS NULL AND blocked IS NULL"),
            ("sessions_open", "open_turn_key IS NOT NULL"),
            ("sessions_owned", "owner IS NOT NULL"),
        )
    }
    assert counts == {"sessions_due": 3, "sessions_wake": 2, "sessions_open": 0, "sessions_owned": 0}


async def test_nothing_is_stored_but_json_and_plain_values(store: SqliteStore, path: Path) -> None:
    await open_turn(store)
    connection = sqlite3.connect(path)
    tables = [name for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
    blobs = {
        (table, column[1])
        for table in tables
        for column in connection.execute(f"PRAGMA table_info({table})")
        if column[2] == "BLOB"
    }
    connection.close()
    assert blobs == {("payloads", "sha256"), ("payload_refs", "sha256")}


def test_a_schema_can_be_replaced_in_tests() -> None:
    assert replace(released_schema(), version=2).version == 2
