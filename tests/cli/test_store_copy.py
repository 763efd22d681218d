"""``perdure store copy``: what it prints, and what it says when it cannot."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.cli.conftest import Cli, Sessions
from tests.support.postgres import Server

SOURCE = "sqlite:///perdure.db"
PASSWORD = "hunter2"


@pytest.fixture
def address(postgres: Server) -> Iterator[str]:
    """Of a schema that nobody has made yet; the password is not asked for."""
    schema = postgres.new_schema()
    yield postgres.address(schema).replace("postgres@", f"postgres:{PASSWORD}@", 1)
    postgres.drop(schema)


def test_a_store_is_moved_and_what_was_compared_is_printed(cli: Cli, sessions: Sessions, address: str) -> None:
    sessions.talk("talk", "refund it")
    done = cli.run("store", "copy", SOURCE, address)
    assert done.exit_code == 0, done.stderr
    lines = done.stdout.splitlines()
    assert lines[-1].startswith("1 sessions moved from sqlite:///")
    assert any(line.split()[1:4:2] == ["interrupts", "1"] for line in lines), done.stdout
    assert PASSWORD not in done.output
    assert cli.json("sessions", "list", "--engine", address)["items"][0]["session_id"] == "talk"
    refused = cli.run("sessions", "list", "--engine", SOURCE)
    assert refused.exit_code == 8
    assert "was moved to postgresql://postgres@" in refused.stderr
    assert PASSWORD not in refused.stderr
    again = cli.run("store", "copy", SOURCE, address)
    assert (again.exit_code, "nothing was left to do" in again.stdout) == (0, True)
    undone = cli.run("store", "copy", SOURCE, address, "--undo")
    assert (undone.exit_code, "finished" in undone.stderr) == (2, True)


def test_a_copy_for_programs(cli: Cli, sessions: Sessions, folder: Path) -> None:
    sessions.talk("talk", "refund it")
    copied = cli.json("store", "copy", SOURCE, "sqlite:///copy.db", "--keep-source")
    assert (copied["sessions"], copied["kept_source"], copied["before"]) == (1, True, False)
    compared = {one["table"]: one for one in copied["compared"]}
    assert compared["sessions"]["rows"] == 1
    assert len(compared["messages"]["sha256"]) == 64
    for address in (SOURCE, "sqlite:///copy.db"):
        assert len(cli.json("sessions", "list", "--engine", address)["items"]) == 1


def test_what_cannot_be_copied(cli: Cli, folder: Path) -> None:
    for arguments, code, words in (
        ((SOURCE, "sqlite:///new.db"), 8, "no store"),
        (("mysql://x", "sqlite:///new.db"), 2, "no address"),
        ((SOURCE, "sqlite:///new.db", "--undo", "--keep-source"), 2, "do not go together"),
    ):
        done = cli.run("store", "copy", *arguments)
        assert (done.exit_code, words in done.stderr) == (code, True), done.stderr
    assert not (folder / "new.db").exists()
