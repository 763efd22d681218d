"""Engines with a play for an agent, in this process (``stage``) or in several (``world``).

Whatever an engine does is shown over both, and whatever a store has a part in over both stores.  Each test runs over
the local engine and a SQLite file; beside that, those in one process run over Temporal, and those in several over
PostgreSQL with either engine.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path

import pytest
from tests.support.play import PlayRunner, Script
from tests.support.troupe import World

from perdure import AgentSessionClient, Engine, StepRecord, TemporalOptions, WorkerOptions, open_engine
from perdure.session.runner import AgentSessionFlow

STAGES = ("local-sqlite", "temporal-sqlite")
WORLDS = ("local-sqlite", "local-postgresql", "temporal-postgresql")

local_only = pytest.mark.parametrize("world", ["local-sqlite", "local-postgresql"], indirect=True)
"""For what holds of the local engine only, or takes too long to be shown over both."""

over_sqlite = pytest.mark.parametrize("world", ["local-sqlite", "temporal-sqlite"], indirect=True)
"""For what turns the clock of leases, which PostgreSQL keeps by itself."""


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


@pytest.fixture(params=STAGES)
def stage(tmp_path: Path, request: pytest.FixtureRequest) -> Stage:
    stage = Stage(tmp_path / "play.db")
    if request.param.startswith("temporal"):
        server = request.getfixturevalue("temporal_server")
        stage.temporal, stage.prefix = server.address, server.new_prefix()
    return stage


@pytest.fixture(params=WORLDS)
def world(tmp_path: Path, request: pytest.FixtureRequest) -> World:
    world = World(tmp_path)
    if request.param.endswith("postgresql"):
        world.move_to_postgres(request.getfixturevalue("postgres"))
    if request.param.startswith("temporal"):
        world.move_to_temporal(request.getfixturevalue("temporal_server"))
    return world


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
