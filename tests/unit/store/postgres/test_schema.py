"""Schema versions, and what each named query costs in a store with many idle sessions."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterator
from typing import Any

import psycopg
import pytest
from tests.support.postgres import Server
from tests.support.stores import PostgresBackend
from tests.unit.store.builders import NOW, new_session, request

from perdure.errors import StoreCorrupt, StoreError, StoreNotOurs, StoreTooNew
from perdure.store.postgres.connection import QUERIES
from perdure.store.postgres.schema import Database, parse_address, prepare, released_schema
from perdure.store.sql.schema import Schema

# ---------------------------------------------------------------- versions


def _next_schema(*migrations: str) -> Schema:
    released = released_schema()
    steps = {released.version + n: text for n, text in enumerate(migrations, start=1)}
    whole = released.create + "\n".join(migrations)
    return Schema(released.version + len(migrations), whole, {**released.migrations, **steps})


ADD_NOTES = """
CREATE TABLE notes (session_key bigint PRIMARY KEY, note text);
CREATE INDEX notes_by_note ON notes (note);
"""
FILL_NOTES = "INSERT INTO notes SELECT session_key, session_id FROM sessions;\n"


def _database(backend: PostgresBackend) -> Database:
    return parse_address(backend.server.address(backend.schema), "process", 5.0)


def _version(backend: PostgresBackend) -> int:
    return int(backend.run("SELECT value FROM meta WHERE name = 'schema_version'")[0][0])


async def test_a_store_of_an_earlier_version_is_brought_up_to_date(new_backend: PostgresBackend) -> None:
    store = new_backend.new_store()
    await store.open()
    await store.create_session(new_session(), None, request(), NOW)
    await store.close()
    newer = _next_schema(ADD_NOTES, FILL_NOTES)
    for _ in range(2):  # the second time nothing is left to do
        await asyncio.to_thread(prepare, _database(new_backend), newer, NOW)
        assert _version(new_backend) == newer.version
    assert new_backend.run("SELECT note FROM notes") == [("s",)]


async def test_a_migration_that_fails_leaves_the_old_version(new_backend: PostgresBackend) -> None:
    prepare(_database(new_backend), released_schema(), NOW)
    with pytest.raises(StoreError, match="does not exist"):
        prepare(_database(new_backend), _next_schema(ADD_NOTES, "INSERT INTO absent VALUES (1);"), NOW)
    assert _version(new_backend) == released_schema().version
    assert new_backend.run("SELECT to_regclass('notes')") == [(None,)]


async def test_many_may_open_a_new_or_an_old_store_at_once(new_backend: PostgresBackend) -> None:
    for schema in (released_schema(), _next_schema(ADD_NOTES)):
        database = _database(new_backend)
        await asyncio.gather(*(asyncio.to_thread(prepare, database, schema, NOW) for _ in range(8)))
        assert _version(new_backend) == schema.version


def test_migrating_ends_where_a_new_store_begins(postgres: Server) -> None:
    """Every released migration, from version 1 on; and the check itself notices a difference."""
    released, newer = released_schema(), _next_schema(ADD_NOTES)
    assert set(released.migrations) == set(range(2, released.version + 1))
    old, new, other = (PostgresBackend(postgres, postgres.new_schema()) for _ in range(3))
    prepare(_database(old), released, NOW)
    prepare(_database(old), newer, NOW)
    prepare(_database(new), newer, NOW)
    prepare(_database(other), released, NOW)
    assert _shape(old) == _shape(new)
    assert _shape(other) != _shape(new)
    for backend in (old, new, other):
        postgres.drop(backend.schema)


def _shape(backend: PostgresBackend) -> list[tuple[Any, ...]]:
    """All columns, indexes, checks and triggers of a schema, with their definitions."""
    found = backend.run(
        f"""
        SELECT table_name, column_name, domain_name, data_type, is_nullable, column_default, ''
        FROM information_schema.columns WHERE table_schema = '{backend.schema}'
        UNION ALL
        SELECT tablename, indexname, indexdef, '', '', '', '' FROM pg_indexes WHERE schemaname = '{backend.schema}'
        UNION ALL
        SELECT conrelid::regclass::text, conname, pg_get_constraintdef(oid), '', '', '', ''
        FROM pg_constraint WHERE connamespace = '{backend.schema}'::regnamespace
        UNION ALL
        SELECT tgrelid::regclass::text, tgname, pg_get_triggerdef(t.oid), '', '', '', ''
        FROM pg_trigger AS t JOIN pg_class AS c ON c.oid = t.tgrelid
        WHERE c.relnamespace = '{backend.schema}'::regnamespace
        """
    )
    return sorted(tuple(str(part).replace(backend.schema, "") for part in row) for row in found)


# ---------------------------------------------------------------- what is not ours


async def test_a_newer_store_is_refused_and_left_alone(new_backend: PostgresBackend) -> None:
    prepare(_database(new_backend), _next_schema(ADD_NOTES), NOW)
    with pytest.raises(StoreTooNew) as caught:
        await new_backend.new_store().open()
    assert (caught.value.found, caught.value.supported) == (released_schema().version + 1, released_schema().version)


@pytest.mark.parametrize(
    "made",
    [
        "CREATE TABLE things (x int)",
        "CREATE TABLE meta (x int)",
        "CREATE TABLE meta (name text, value text); INSERT INTO meta VALUES ('schema_version', '1')",
        "CREATE TABLE meta (name text, value text); INSERT INTO meta VALUES ('format', 'perdure')",
        "CREATE VIEW things AS SELECT 1",
    ],
)
async def test_a_schema_of_another_program_is_left_alone(new_backend: PostgresBackend, made: str) -> None:
    new_backend.server.run(f"CREATE SCHEMA {new_backend.schema}")
    for statement in made.split(";"):
        new_backend.run(statement)
    before = new_backend.tables()
    with pytest.raises(StoreNotOurs, match="another program"):
        await new_backend.new_store().open()
    assert new_backend.tables() == before


@pytest.mark.parametrize("version", ["0", "-1", "x", "", "1.5"])
async def test_a_version_that_is_none_is_said_and_left_alone(new_backend: PostgresBackend, version: str) -> None:
    store = new_backend.new_store()
    await store.open()
    await store.close()
    new_backend.run(f"UPDATE meta SET value = '{version}' WHERE name = 'schema_version'")
    with pytest.raises(StoreCorrupt, match=f"schema version is '{version}'.*Restore") as caught:
        await store.open()
    assert caught.value.where == "schema_version in meta"
    assert new_backend.run("SELECT value FROM meta WHERE name = 'schema_version'") == [(version,)]


async def test_an_empty_schema_becomes_ours(new_backend: PostgresBackend) -> None:
    new_backend.server.run(f"CREATE SCHEMA {new_backend.schema}")
    store = new_backend.new_store()
    await store.open()
    await store.close()
    assert _version(new_backend) == released_schema().version


# ---------------------------------------------------------------- queries


@pytest.fixture(scope="module")
def big(postgres: Server) -> Iterator[psycopg.Connection[tuple[Any, ...]]]:
    """A store with 20,000 sessions, a hundred of them blocked, three that are due, two that wake; each with a turn, a
    call, a question and an interrupt."""
    schema = postgres.new_schema()
    prepare(_database(PostgresBackend(postgres, schema)), released_schema(), NOW)
    with postgres.connect(schema) as connection:
        connection.execute(
            """
            INSERT INTO sessions (session_id, incarnation, fingerprint, flow_type, app_name, user_id, status,
                                  event_capacity, created_at_ms, updated_at_ms)
            SELECT 's' || n, '', '', CASE WHEN n % 500 = 0 THEN 'Rare' ELSE 'F' || n % 3 END, 'app', 'u' || n % 1000,
                   CASE WHEN n <= 100 THEN 'blocked' ELSE 'idle' END, 1, 0, n FROM generate_series(1, 20000) AS n;
            INSERT INTO turns (session_key, turn_id, number, status, started_at_ms, first_message, first_step, message)
            SELECT session_key, 't', 1, 'completed', 1, 0, 0, '' FROM sessions;
            INSERT INTO calls (turn_key, leg, call_id, step_id, phase, attempts, asks, tool_name, effect, request)
            SELECT turn_key, 1, 'c', 'c', 'due', 1, 0, 'tool', 'read', '{}' FROM turns;
            INSERT INTO questions (session_key, interrupt_id, turn_key, leg, step_id, wait, call_group, tool_name,
                                   request)
            SELECT session_key, 'q', turn_key, 1, 'q', 'live', 'm', 'tool', '{}' FROM turns;
            INSERT INTO interrupts (session_key, interrupt_id, turn_key, leg, call_id, kind, status, created_at_ms)
            SELECT session_key, 'q', turn_key, 1, 'c', 'input',
                   CASE WHEN session_key % 10 = 0 THEN 'pending' ELSE 'answered' END, 1 FROM turns;
            UPDATE sessions SET open_turn_key = session_key WHERE session_key % 100 = 0;
            """
        )
        connection.execute("UPDATE sessions SET due_since_ms = 1 WHERE session_key IN (5, 50, 500)")
        connection.execute("UPDATE sessions SET wake_at_ms = 1 WHERE session_key IN (7, 70)")
        for table in ("sessions", "turns", "calls", "questions", "interrupts"):
            connection.execute(f"VACUUM ANALYZE {table}".encode())
        # The other tables are empty; what is left with this is what there is no index for.
        connection.execute("SET enable_seqscan = off")
        yield connection
    postgres.drop(schema)


SMALL_TABLES = {"workers", "worker_flows", "writers", "meta"}


def _nodes(plan: dict[str, Any]) -> Iterator[dict[str, Any]]:
    yield plan
    for part in plan.get("Plans", ()):
        yield from _nodes(part)


def _plan(connection: psycopg.Connection[tuple[Any, ...]], query: str) -> list[dict[str, Any]]:
    row = connection.execute(f"EXPLAIN (GENERIC_PLAN, FORMAT JSON) {query}".encode()).fetchone()
    assert row is not None
    return list(_nodes(row[0][0]["Plan"]))


def _scanned(nodes: list[dict[str, Any]]) -> set[str]:
    """Tables that are read as a whole: without an index, or through one without a condition."""
    return {
        node["Relation Name"]
        for node in nodes
        if node["Node Type"] == "Seq Scan"
        or (node["Node Type"].startswith("Index") and "Relation Name" in node and "Index Cond" not in node)
    } - SMALL_TABLES


@pytest.mark.parametrize("name", sorted(QUERIES))
def test_no_query_looks_through_a_whole_table(big: psycopg.Connection[tuple[Any, ...]], name: str) -> None:
    assert _scanned(_plan(big, QUERIES[name].sql)) == set()


def test_the_plan_test_notices_a_scan(big: psycopg.Connection[tuple[Any, ...]]) -> None:
    assert _scanned(_plan(big, "SELECT * FROM sessions WHERE app_name = $1")) == {"sessions"}


@pytest.mark.parametrize(
    ("name", "index"),
    [
        ("due_sessions", "sessions_due"),
        ("waking_sessions", "sessions_wake"),
        ("next_wake", "sessions_wake"),
        ("sessions_to_check", "sessions_open"),
        ("lock_to_check", "sessions_open"),
        ("sessions_free", "sessions_owned"),
        ("lock_owned", "sessions_owned"),
        ("interrupts_pending", "interrupts_pending"),
    ],
)
def test_what_is_asked_often_uses_its_own_index(
    big: psycopg.Connection[tuple[Any, ...]], name: str, index: str
) -> None:
    nodes = _plan(big, QUERIES[name].sql)
    assert index in {node.get("Index Name") for node in nodes}, nodes


@pytest.mark.parametrize("name", ["due_sessions", "waking_sessions"])
def test_what_has_an_order_finds_it_in_the_index(big: psycopg.Connection[tuple[Any, ...]], name: str) -> None:
    big.execute("SET enable_sort = off")
    nodes = _plan(big, QUERIES[name].sql)
    big.execute("SET enable_sort = on")
    assert not any(node["Node Type"] == "Sort" for node in nodes)


@pytest.mark.parametrize(
    ("name", "facts"),
    [
        ("list_by_user", ("u7", None, None)),
        ("list_by_status", (None, "blocked", None)),
        ("list_by_flow", (None, None, "Rare")),
        ("list_by_change", (None, None, None)),
    ],
)
def test_lists_are_planned_for_what_is_asked_and_come_in_order(
    big: psycopg.Connection[tuple[Any, ...]], name: str, facts: tuple[str | None, ...]
) -> None:
    """They are not prepared: what is rare is found by another index than what is common."""
    literals = ["NULL" if fact is None else f"'{fact}'" for fact in facts] + [str(2**62), str(2**62), "10"]
    query = re.sub(r"\$(\d)", lambda found: literals[int(found[1]) - 1], QUERIES[name].sql)
    nodes = _plan(big, query)
    assert name.replace("list", "sessions") in {node.get("Index Name") for node in nodes}, nodes
    assert not any(node["Node Type"] == "Sort" for node in nodes)


def test_nothing_is_stored_but_texts_and_numbers(big: psycopg.Connection[tuple[Any, ...]]) -> None:
    kinds = big.execute("SELECT DISTINCT data_type FROM information_schema.columns WHERE table_schema = current_schema")
    assert {kind for (kind,) in kinds} == {"text", "bigint", "boolean"}
