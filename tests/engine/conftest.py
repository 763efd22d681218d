"""An engine on a fresh SQLite file, with a play for an agent: the local one, and Temporal's."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path

import pytest
from tests.support.play import PlayRunner, Script
from tests.support.temporal_server import TemporalServer
from tests.support.troupe import World

from perdure import AgentSessionClient, Engine, StepRecord, TemporalOptions, WorkerOptions, open_engine
from perdure.session.runner import AgentSessionFlow


@dataclass
class Stage:
    """One database, and what is needed to open engines on it.  ``temporal``: its server's address; ``None``: local."""

    path: Path
    options: WorkerOptions = field(default_factory=WorkerOptions)
    temporal: str | None = None
    prefix: str = ""

    def flow(self, script: Script, *, definition: str = "play", deadline: timedelta | None = None) -> AgentSessionFlow:
        runner = PlayRunner(script, definition)
        return AgentSessionFlow("Play", runner, "Play", interrupt_deadline=deadline)

    def engine(self, *flows: AgentSessionFlow, options: WorkerOptions | None = None) -> Engine:
        store, options = f"sqlite:///{self.path}", options or self.options
        if self.temporal is None:
            return open_engine(store, flows=flows, durability="process", options=options)
        temporal = TemporalOptions(prefix=self.prefix)
        return open_engine(
            self.temporal, store=store, flows=flows, durability="process", options=options, temporal=temporal
        )


@pytest.fixture(params=["local", "temporal"])
def stage(tmp_path: Path, request: pytest.FixtureRequest) -> Stage:
    if request.param == "local":
        return Stage(tmp_path / "play.db")
    server: TemporalServer = request.getfixturevalue("temporal_server")
    return Stage(tmp_path / "play.db", temporal=server.address, prefix=server.new_prefix())


@pytest.fixture(params=["local", "temporal"])
def world(tmp_path: Path, request: pytest.FixtureRequest) -> World:
    """A world whose engines are local, or Temporal's."""
    world = World(tmp_path)
    return world if request.param == "local" else world.move_to_temporal(request.getfixturevalue("temporal_server"))


@pytest.fixture
def local_world(tmp_path: Path) -> World:
    """For what takes too long to be shown over both."""
    return World(tmp_path)


@pytest.fixture
def local_stage(tmp_path: Path) -> Stage:
    """For what holds of the local engine only."""
    return Stage(tmp_path / "play.db")


Shape = Callable[[AgentSessionClient, str], object]


async def history(client: AgentSessionClient, session_id: str) -> list[StepRecord]:
    """All steps of a session."""
    return list((await client.read_step_history(session_id, limit=1000)).items)


async def shape(client: AgentSessionClient, session_id: str) -> list[str]:
    """The names and statuses of all steps of a session."""
    return [f"{step.name.value} {step.status.value}" for step in await history(client, session_id)]
