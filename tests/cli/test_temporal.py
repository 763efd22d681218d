"""The command line on Temporal: ``--engine temporal://... --store ...``."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.cli.conftest import Cli
from tests.support.temporal_server import TemporalServer
from tests.support.terminal import run_program, start_program


@pytest.fixture
def where(folder: Path, temporal_server: TemporalServer) -> Iterator[list[str]]:
    """The options that name the engine; a worker runs there."""
    address = f"{temporal_server.address}?prefix={temporal_server.new_prefix()}"
    options = ["--engine", address, "--store", "sqlite:///kept.db"]
    with start_program("serve", "agent.py", *options, cwd=folder) as worker:
        try:
            assert worker.stdout is not None
            assert worker.stdout.readline() == f"serving Play on {address} (process {worker.pid})\n"
            yield options
            worker.terminate()
            assert worker.wait(30) == 0
        finally:
            worker.kill()


def test_a_session_is_served_and_read(where: list[str], folder: Path, cli: Cli) -> None:
    chat = run_program("chat", "agent.py", "--session", "talk", *where, cwd=folder, stdin="hello\n")
    assert (chat.returncode, "You said: hello" in chat.stdout) == (0, True), chat.stderr
    cli.text("sessions", "send", "talk", "again", "--wait", *where)
    shown = cli.json("sessions", "show", "talk", *where)
    assert (shown["status"], shown["turn"]["number"]) == ("idle", 2)


@pytest.mark.parametrize("where", [["--engine", "temporal://127.0.0.1:1/default"], ["--store", "sqlite:///kept.db"]])
def test_where_sessions_are_kept_is_said_for_temporal_and_for_nothing_else(cli: Cli, where: list[str]) -> None:
    refused = cli.run("sessions", "list", *where)
    assert refused.exit_code == 2
    assert "--store" in refused.stderr
