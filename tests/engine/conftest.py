"""A local engine on a fresh store, with a play for an agent."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path

import pytest
from tests.support.play import PlayRunner, Script
from tests.support.postgres import Server
from tests.support.troupe import World

from perdure import AgentSessionClient, Engine, StepRecord, WorkerOptions, open_engine
from perdure.session.runner import AgentSessionFlow


@dataclass
class Stage:
    """One database, and what is needed to open engines on it."""

    path: Path
    options: WorkerOptions = field(default_factory=WorkerOptions)

    def flow(self, script: Script, *, definition: str = "play", deadline: timedelta | None = None) -> AgentSessionFlow:
        runner = PlayRunner(script, definition)
        return AgentSessionFlow("Play", runner, "Play", interrupt_deadline=deadline)

    def engine(self, *flows: AgentSessionFlow, options: WorkerOptions | None = None) -> Engine:
        return open_engine(f"sqlite:///{self.path}", flows=flows, durability="process", options=options or self.options)


@pytest.fixture(params=["sqlite", "postgresql"])
def world(request: pytest.FixtureRequest, tmp_path: Path) -> World:
    """A folder for plays in several processes, with a store of each kind."""
    if request.param == "postgresql":
        server: Server = request.getfixturevalue("postgres")
        (tmp_path / "address").write_text(server.address(server.empty_schema()))
    return World(tmp_path)


@pytest.fixture
def stage(tmp_path: Path) -> Stage:
    return Stage(tmp_path / "play.db")


Shape = Callable[[AgentSessionClient, str], object]


async def history(client: AgentSessionClient, session_id: str) -> list[StepRecord]:
    """All steps of a session."""
    return list((await client.read_step_history(session_id, limit=1000)).items)


async def shape(client: AgentSessionClient, session_id: str) -> list[str]:
    """The names and statuses of all steps of a session."""
    return [f"{step.name.value} {step.status.value}" for step in await history(client, session_id)]
