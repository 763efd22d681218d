"""Worlds and plays on Temporal, and a way to look at what Temporal keeps."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

import pytest
from temporalio.api.history.v1 import HistoryEvent
from temporalio.client import WorkflowHandle
from tests.support.play import PlayRunner, Script
from tests.support.temporal_server import TemporalServer
from tests.support.troupe import World

from perdure import Engine, TemporalOptions, WorkerOptions, open_engine
from perdure.engine.temporal.engine import TemporalEngine
from perdure.engine.temporal.link import TemporalLink
from perdure.session.runner import AgentSessionFlow

BRIEFLY = WorkerOptions(linger=timedelta(milliseconds=100))
"""For tests that wait until a session that rests has no workflow any more."""


@dataclass
class Playhouse:
    """One store, and a place on Temporal's server that only this test has."""

    store: str
    server: TemporalServer
    prefix: str

    def flow(
        self, script: Script, flow_type: str = "Play", *, definition: str = "play", deadline: timedelta | None = None
    ) -> AgentSessionFlow:
        return AgentSessionFlow(flow_type, PlayRunner(script, definition), flow_type, interrupt_deadline=deadline)

    def engine(
        self, *flows: AgentSessionFlow, options: WorkerOptions | None = None, events_per_run: int = 4_000
    ) -> Engine:
        temporal = TemporalOptions(prefix=self.prefix, events_per_run=events_per_run)
        return open_engine(
            self.server.address,
            store=self.store,
            flows=flows,
            durability="process",
            options=options,
            temporal=temporal,
        )


@pytest.fixture
def house(tmp_path: Path, temporal_server: TemporalServer) -> Playhouse:
    return Playhouse(f"sqlite:///{tmp_path / 'play.db'}", temporal_server, temporal_server.new_prefix())


over_both_stores = pytest.mark.parametrize("world", ["sqlite", "postgresql"], indirect=True)


@pytest.fixture
def world(tmp_path: Path, temporal_server: TemporalServer, request: pytest.FixtureRequest) -> World:
    world = World(tmp_path).move_to_temporal(temporal_server)
    if getattr(request, "param", "sqlite") == "postgresql":
        world.move_to_postgres(request.getfixturevalue("postgres"))
    return world


def link_of(engine: Engine) -> TemporalLink:
    assert isinstance(engine, TemporalEngine)
    assert engine._link is not None
    return engine._link


def workflow_of(engine: Engine, session_id: str, run_id: str | None = None) -> WorkflowHandle[object, object]:
    link = link_of(engine)
    return link.client.get_workflow_handle(link.workflow_id(session_id), run_id=run_id)


async def events_of(engine: Engine, session_id: str, run_id: str | None = None) -> list[HistoryEvent]:
    """The history of the last run of a session's workflow, or of another run."""
    return list((await workflow_of(engine, session_id, run_id).fetch_history()).events)


async def asked_for(engine: Engine, session_id: str, name: str, times: int = 1) -> None:
    """Waits until the workflow ordered an activity; a second time it need not, if a heartbeat came through first."""
    for _ in range(100):
        events = await events_of(engine, session_id)
        names = [event.activity_task_scheduled_event_attributes.activity_type.name for event in events]
        if names.count(name) >= times:
            return
        await asyncio.sleep(0.1)
