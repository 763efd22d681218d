"""A folder with an agent in it, sessions in various states, and the command line in this process."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from tests.support import play_agent

from perdure import AgentSessionClient, AgentSnapshot, open_engine
from perdure.cli.root import perdure

AGENT = Path(play_agent.__file__)


@pytest.fixture(autouse=True)
def forget_agents(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """What a test imports from its own folder, and what it sets in the environment, is gone when it ends."""
    environment, known = dict(os.environ), set(sys.modules)
    monkeypatch.setattr(sys, "path", [*sys.path])
    yield
    new = {name: module for name, module in sys.modules.items() if name not in known}
    places = {name: [module.__dict__.get("__file__"), *getattr(module, "__path__", ())] for name, module in new.items()}
    for name in new:
        if any(Path(place).is_relative_to(tmp_path) for place in places[name] if place is not None):
            del sys.modules[name]
    os.environ.clear()
    os.environ.update(environment)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The working directory, with ``agent.py`` in it."""
    (tmp_path / "agent.py").write_text(AGENT.read_text(encoding="utf-8"), encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("PERDURE_ENGINE", raising=False)
    return tmp_path


class Sessions:
    """The sessions of a store, made and looked at without the command line."""

    address = "sqlite:///perdure.db"

    def talk(self, session_id: str, *messages: str) -> AgentSnapshot:
        """Starts a session, or goes on with it, and works on it until it rests.

        Each message is sent when the one before is answered, or asks something.
        """

        async def work() -> AgentSnapshot:
            async with open_engine(self.address, flows=[play_agent.flow]) as engine, engine.worker():
                client = AgentSessionClient(engine, play_agent.flow)
                await client.start_session(session_id)
                for message in messages:
                    await client.send_user_message(session_id, message)
                    await client.wait(session_id, timeout=60)
                return await client.wait(session_id, timeout=60)

        return asyncio.run(work())

    def snapshot(self, session_id: str) -> AgentSnapshot:
        async def work() -> AgentSnapshot:
            async with open_engine(self.address) as engine:
                return await AgentSessionClient(engine).get_agent_snapshot(session_id)

        return asyncio.run(work())


@pytest.fixture
def sessions(folder: Path) -> Sessions:
    return Sessions()


class Cli:
    """The command line, run in this process."""

    def run(self, *arguments: str, stdin: str = "") -> Result:
        """Runs a command.  An exception that is no exit is the test's failure."""
        return CliRunner(catch_exceptions=False).invoke(perdure, arguments, input=stdin, prog_name="perdure")

    def text(self, *arguments: str) -> str:
        """What a command prints that succeeds."""
        done = self.run(*arguments)
        assert done.exit_code == 0, done.stderr
        return done.stdout

    def json(self, *arguments: str) -> Any:
        """The document that a command prints with ``--json``."""
        return json.loads(self.text(*arguments, "--json"))


@pytest.fixture
def cli(folder: Path) -> Cli:
    return Cli()
