"""The command line on a PostgreSQL store."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from tests.cli.conftest import Cli, Sessions
from tests.support.postgres import Server

PASSWORD = "hunter2"


@pytest.fixture
def address(postgres: Server, sessions: Sessions) -> Iterator[str]:
    """Of a schema that nobody has made yet; the password is not asked for."""
    schema = postgres.new_schema()
    sessions.address = postgres.address(schema).replace("postgres@", f"postgres:{PASSWORD}@", 1)
    yield sessions.address
    postgres.drop(schema)


def test_reading_makes_no_store(cli: Cli, address: str, postgres: Server) -> None:
    schemas = "SELECT nspname FROM pg_namespace ORDER BY nspname"
    before = postgres.run(schemas)
    done = cli.run("sessions", "list", "--engine", address)
    assert done.exit_code == 8
    assert "no session either" in done.stderr
    assert PASSWORD not in done.stderr
    assert postgres.run(schemas) == before


def test_sessions_are_read_and_answered_and_no_password_is_shown(cli: Cli, sessions: Sessions, address: str) -> None:
    sessions.talk("talk", "refund it")
    shown = cli.run("sessions", "show", "talk", "--engine", address)
    assert shown.exit_code == 0
    assert PASSWORD not in shown.output
    (listed,) = cli.json("sessions", "list", "--engine", address)["items"]
    assert listed["session_id"] == "talk"
    (pending,) = sessions.snapshot("talk").pending_interrupts
    done = cli.run("sessions", "approve", "talk", pending.interrupt_id, "--engine", address)
    assert done.exit_code == 0, done.stderr
    assert sessions.snapshot("talk").pending_interrupts == ()


def test_a_server_that_is_away_is_an_error_of_the_store(cli: Cli) -> None:
    done = cli.run("sessions", "list", "--engine", f"postgresql://ann:{PASSWORD}@127.0.0.1:9/db")
    assert done.exit_code == 8
    assert "cannot be reached" in done.stderr
    assert PASSWORD not in done.stderr
