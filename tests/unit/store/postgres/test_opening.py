"""Opening a store waits for a server that is away, and for nothing that does not pass by itself."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator

import psycopg
import pytest
from tests.support.postgres import Server
from tests.support.stores import PostgresBackend

from perdure.errors import StoreError, StoreUnavailable
from perdure.store.opening import is_made
from perdure.store.postgres import PostgresStore
from perdure.store.postgres.connection import Raw
from perdure.store.postgres.errors import may_pass
from perdure.store.postgres.schema import Database


class Tries:
    """Counts tries to connect, and tells when the first one has failed."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.made = 0
        self.failed = threading.Event()
        connect = Database.connect

        def counted(database: Database, *, read_only: bool = False) -> Raw:
            self.made += 1
            try:
                return connect(database, read_only=read_only)
            except psycopg.Error:
                self.failed.set()
                raise

        monkeypatch.setattr(Database, "connect", counted)


@pytest.fixture
def tries(monkeypatch: pytest.MonkeyPatch) -> Tries:
    return Tries(monkeypatch)


class Away:
    """A server that is down, until somebody starts it."""

    def __init__(self, server: Server) -> None:
        self._server = server
        self._down = True
        server.stop()

    def start(self) -> None:
        if self._down:
            self._down = False
            self._server.start()


@pytest.fixture
def away(backend: PostgresBackend) -> Iterator[Away]:
    """The server, down when the test begins, and up when it ends."""
    away = Away(backend.server)
    yield away
    away.start()


async def test_a_server_that_comes_up_meanwhile(away: Away, backend: PostgresBackend, tries: Tries) -> None:
    store = backend.new_store(patience=60)
    opening = asyncio.ensure_future(store.open())
    await asyncio.to_thread(tries.failed.wait, 60)
    await asyncio.to_thread(away.start)
    await opening
    await store.close()


async def test_so_does_the_question_whether_there_is_a_store(
    away: Away, backend: PostgresBackend, tries: Tries
) -> None:
    asking = asyncio.ensure_future(asyncio.to_thread(is_made, backend.address))
    await asyncio.to_thread(tries.failed.wait, 60)
    await asyncio.to_thread(away.start)
    await asking


async def test_a_server_that_never_comes_is_given_up(away: Away, backend: PostgresBackend, tries: Tries) -> None:
    with pytest.raises(StoreUnavailable, match="cannot be reached"):
        await backend.new_store(patience=0.1).open()
    assert tries.made > 1


async def test_a_server_that_goes_between_two_connections(
    backend: PostgresBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[Raw] = []
    connect = Database.connect

    def fails_once(database: Database, *, read_only: bool = False) -> Raw:
        if len(made) == 1:
            made.append(made[0])
            raise psycopg.OperationalError("connection failed: FATAL:  the database system is shutting down")
        made.append(connect(database, read_only=read_only))
        return made[-1]

    monkeypatch.setattr(Database, "connect", fails_once)
    store = backend.new_store()
    await store.open()
    assert len(made) > 3, "it was prepared again"
    await store.close()


@pytest.mark.parametrize(("right", "wrong"), [("//postgres@", "//nobody@"), ("/postgres?", "/absent?")])
async def test_what_does_not_pass_is_said_at_the_first_try(
    postgres: Server, tries: Tries, right: str, wrong: str
) -> None:
    with pytest.raises(StoreError):
        await PostgresStore(postgres.address("x").replace(right, wrong), patience=60).open()
    assert tries.made == 1


@pytest.mark.parametrize(
    ("reason", "passes"),
    [
        ('connection to server at "127.0.0.1", port 1 failed: Connection refused', True),
        ("connection to server failed: FATAL:  the database system is starting up", True),
        ("connection to server failed: FATAL:  the database system is shutting down", True),
        ("connection to server failed: FATAL:  sorry, too many clients already", True),
        ("connection to server failed: SSL error: unexpected eof while reading", True),
        ("connection timeout expired", True),
        ('connection to server failed: FATAL:  password authentication failed for user "ann"', False),
        ('connection to server failed: FATAL:  database "absent" does not exist', False),
        ("connection to server failed: server does not support SSL, but SSL was required", False),
        ("connection to server failed: SSL error: certificate verify failed", False),
        ("failed to resolve host 'nowhere.invalid': [Errno -2] Name or service not known", False),
    ],
)
def test_what_passes_by_itself(reason: str, passes: bool) -> None:
    assert may_pass(psycopg.OperationalError(reason)) is passes


def test_a_statement_that_is_refused_does_not_pass() -> None:
    assert not may_pass(psycopg.errors.UndefinedTable("relation does not exist"))
    assert may_pass(psycopg.errors.AdminShutdown("terminating connection due to administrator command"))
    assert may_pass(psycopg.errors.TooManyConnections("sorry, too many clients already"))
