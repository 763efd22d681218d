"""Whatever is wrong with the server, the error says what, where and what to do, and never a password."""

from __future__ import annotations

import socket
import sys
from collections.abc import Iterator
from unittest.mock import patch

import psycopg
import pytest
from tests.support.postgres import Server
from tests.support.stores import PostgresBackend
from tests.unit.store.builders import NOW, new_session, request, text_message
from tests.unit.store.postgres.conftest import OpenStore

from perdure import open_engine
from perdure.errors import (
    PayloadTooLarge,
    StoreAccessDenied,
    StoreBusy,
    StoreCorrupt,
    StoreError,
    StoreFull,
    StoreReadOnly,
    StoreUnavailable,
    UsageError,
)
from perdure.store.base import SessionFilter
from perdure.store.postgres import PostgresStore, schema
from perdure.store.postgres.errors import translate

SECRET = "hunter2"


def _free_port() -> int:
    with socket.socket() as ours:
        ours.bind(("127.0.0.1", 0))
        port: int = ours.getsockname()[1]
        return port


# ---------------------------------------------------------------- addresses


@pytest.mark.parametrize(
    ("address", "shown"),
    [
        ("postgresql://ann:hunter2@db.example.com:5433/prod", "postgresql://ann@db.example.com:5433/prod"),
        ("postgres://ann:hunter2@db.example.com/prod?schema=a1", "postgresql://ann@db.example.com/prod?schema=a1"),
        ("postgresql:///prod?host=db&password=hunter2&sslmode=require", "postgresql://db/prod"),
        ("postgresql://ann:p%40ss@[::1]/prod", "postgresql://ann@%3A%3A1/prod"),
    ],
)
def test_an_address_is_shown_without_its_password(address: str, shown: str) -> None:
    store = PostgresStore(address)
    assert store.address == shown
    assert SECRET not in repr(store._database)


@pytest.mark.parametrize(
    "address",
    [
        "postgresql://ann:hunter2%@host/db",
        "postgresql://ann:hunter2@host/db?nonsense=1",
        "postgresql://ann:hunter2@host/db?schema=No-Name",
        "postgresql://ann:hunter2@host/db?schema=" + "x" * 49,
    ],
)
def test_an_address_that_is_none_is_refused_without_being_repeated(address: str) -> None:
    with pytest.raises(UsageError) as caught:
        PostgresStore(address)
    assert SECRET not in str(caught.value)
    assert caught.value.__cause__ is None


def test_an_option_that_nobody_knows_is_named() -> None:
    with pytest.raises(UsageError, match=r"no option 'nonsense' \(there are 'schema' and libpq's\)"):
        PostgresStore("postgresql://ann:hunter2@host/db?sslmode=require&nonsense=1")


def test_a_password_with_a_question_mark_is_not_taken_for_an_option() -> None:
    with pytest.raises(UsageError) as caught:
        PostgresStore("postgresql://ann:what?hunter2=1@host/db")
    assert SECRET not in caught.value.message


def test_an_engine_takes_the_address_or_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    assert open_engine("postgresql://ann@host/db").address == "postgresql://ann@host/db"
    for name in [name for name in sys.modules if name.startswith("perdure.store.postgres")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "psycopg", None)
    with pytest.raises(UsageError, match=r"perdure\[postgres\]"):
        open_engine("postgresql://ann@host/db")


def test_durability_has_two_values() -> None:
    with pytest.raises(UsageError, match="must be 'power' or 'process'"):
        PostgresStore("postgresql://host/db", durability="none")  # type: ignore[arg-type]  # the mistake


# ---------------------------------------------------------------- servers that are not there, or say no


async def _refused(address: str, **options: float) -> StoreError:
    with pytest.raises(StoreError) as caught:
        await PostgresStore(address, patience=0.2, **options).open()  # type: ignore[arg-type]  # only floats here
    assert SECRET not in str(caught.value)
    return caught.value


async def test_a_server_that_is_not_up_is_unavailable() -> None:
    error = await _refused(f"postgresql://ann:{SECRET}@127.0.0.1:{_free_port()}/db")
    assert isinstance(error, StoreUnavailable)
    assert "refused" in error.message


async def test_a_host_that_does_not_exist_is_unavailable() -> None:
    assert isinstance(await _refused(f"postgresql://ann:{SECRET}@nowhere.invalid/db"), StoreUnavailable)


async def test_a_database_that_does_not_exist_is_named(postgres: Server) -> None:
    address = postgres.address("x").replace("/postgres?", "/absent?")
    error = await _refused(address)
    assert isinstance(error, StoreUnavailable)
    assert "create the database" in error.message


@pytest.fixture
def strict(postgres: Server) -> Iterator[Server]:
    """The server asks for passwords from users other than ``postgres``."""
    rules = postgres.folder / "pg_hba.conf"
    before = rules.read_text()
    rules.write_text("local all postgres trust\nlocal all guest scram-sha-256\nlocal all locked reject\n")
    postgres.run(f"CREATE ROLE guest LOGIN PASSWORD '{SECRET}'")
    postgres.run("SELECT pg_reload_conf()")
    yield postgres
    rules.write_text(before)
    postgres.run("SELECT pg_reload_conf()")
    postgres.run("DROP OWNED BY guest")
    postgres.run("DROP ROLE guest")


async def test_wrong_credentials_are_told_apart_from_a_server_that_is_away(strict: Server) -> None:
    users = ("guest", "locked", "nobody")
    addresses = [strict.address("denied", user=user) for user in users]
    for address in (*addresses, f"{addresses[0]}&password=wrong"):
        error = await _refused(address)
        assert isinstance(error, StoreAccessDenied), (address, error)
        assert "wrong" not in error.message


async def test_a_user_that_may_not_make_a_schema_is_told_what_to_grant(strict: Server) -> None:
    address = strict.address("denied", user="guest", password=SECRET)
    error = await _refused(address)
    assert isinstance(error, StoreAccessDenied)
    assert "CREATE" in error.message
    strict.run("CREATE SCHEMA denied AUTHORIZATION guest")
    store = PostgresStore(address)
    await store.open()
    await store.create_session(new_session(), None, request(), NOW)
    await store.close()
    strict.run("REVOKE ALL ON ALL TABLES IN SCHEMA denied FROM guest")
    strict.run("GRANT SELECT ON ALL TABLES IN SCHEMA denied TO guest")
    with pytest.raises(StoreAccessDenied, match="permission denied"):
        await store.open()
    strict.run("GRANT DELETE, INSERT, UPDATE ON denied.writers TO guest")
    await store.open()
    with pytest.raises(StoreAccessDenied, match="permission denied"):
        await store.create_session(new_session("other"), None, request(), NOW)
    await store.close()


async def test_an_old_server_and_a_foreign_encoding_are_refused(backend: PostgresBackend) -> None:
    with patch.object(schema, "OLDEST_SERVER", 990000):
        assert "PostgreSQL 99 or newer" in (await _refused(backend.server.address("x"))).message
    backend.server.run("CREATE DATABASE latin ENCODING 'LATIN1' LC_COLLATE 'C' LC_CTYPE 'C' TEMPLATE template0")
    address = backend.server.address("x").replace("/postgres?", "/latin?")
    assert "UTF8" in (await _refused(address)).message
    backend.server.run("DROP DATABASE latin")


async def test_a_store_that_is_not_open_says_so(backend: PostgresBackend) -> None:
    with pytest.raises(UsageError, match="not open"):
        await backend.new_store().read_snapshot("s", NOW)


# ---------------------------------------------------------------- while it is open


async def test_a_foreign_lock_is_waited_for_and_then_reported(
    open_store: OpenStore, backend: PostgresBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(schema, "LOCK_TIMEOUT_MS", 50)
    store = await open_store()
    await store.create_session(new_session(), None, request(), NOW)
    await store.create_session(new_session("free"), None, request(), NOW)
    with backend.server.connect(backend.schema) as foreign, foreign.transaction():
        foreign.execute("SELECT 1 FROM sessions WHERE session_id = 's' FOR UPDATE")
        with pytest.raises(StoreBusy, match="pg_stat_activity"):
            await store.accept_message("s", "t1", text_message(), request(), NOW)
        await store.accept_message("free", "t1", text_message(), request(), NOW)
    assert await store.accept_message("s", "t1", text_message(), request(), NOW) == "t1"


async def test_rows_that_make_no_sense_name_the_place(store: PostgresStore, backend: PostgresBackend) -> None:
    await store.create_session(new_session(state={"k": 1}), None, request(), NOW)
    backend.run("UPDATE session_state SET value = '{'")
    with pytest.raises(StoreCorrupt, match="state 'k'"):
        await store.read_snapshot("s", NOW)
    assert len((await store.list_sessions(SessionFilter(), None, 9)).items) == 1


async def test_a_name_that_no_index_takes_is_too_large(store: PostgresStore) -> None:
    name = "".join(chr(0x4E00 + n * n % 20_000) for n in range(5_000))
    with pytest.raises(PayloadTooLarge):
        await store.create_session(new_session(name), None, request(), NOW)
    with pytest.raises(PayloadTooLarge):
        await store.create_session(new_session(state={name: 1}), None, request(), NOW)


async def test_closing_twice_is_no_error_and_keeps_the_count(open_store: OpenStore) -> None:
    store = await open_store()
    await store.create_session(new_session(), None, request(), NOW)
    await store.close()
    await store.close()
    assert store.commits == 1


@pytest.mark.parametrize(
    ("error", "ours"),
    [
        (psycopg.errors.DiskFull("full"), StoreFull),
        (psycopg.errors.OutOfMemory("no memory"), StoreFull),
        (psycopg.errors.ReadOnlySqlTransaction("standby"), StoreReadOnly),
        (psycopg.errors.InsufficientPrivilege("no"), StoreAccessDenied),
        (psycopg.errors.TooManyConnections("sorry"), StoreUnavailable),
        (psycopg.errors.AdminShutdown("bye"), StoreUnavailable),
        (psycopg.errors.DataCorrupted("bits"), StoreCorrupt),
        (psycopg.errors.DeadlockDetected("circle"), StoreBusy),
        (OSError("no route"), StoreUnavailable),
        (psycopg.errors.SyntaxError("at or near"), StoreError),
    ],
)
def test_each_failure_has_a_kind(error: psycopg.Error | OSError, ours: type[StoreError]) -> None:
    found = translate(error, "postgresql://host/db")
    assert type(found) is ours
    assert str(found).startswith("postgresql://host/db")
