"""What the engine refuses: each a typed error that says what to do, and nothing is lost."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Iterator
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest
from temporalio import workflow
from temporalio.api.enums.v1 import EventType
from temporalio.client import WorkflowFailureError
from temporalio.exceptions import ApplicationError
from temporalio.service import RPCError, RPCStatusCode
from temporalio.worker import Worker
from tests.support.play import Play
from tests.support.temporal_server import TemporalServer
from tests.temporal.conftest import Playhouse, events_of, link_of, workflow_of

from perdure import (
    AgentSessionClient,
    Engine,
    EngineAccessDenied,
    EngineUnavailable,
    NamespaceNotFound,
    SessionStatus,
    StoreMismatch,
    TemporalOptions,
    WaitTimeout,
    open_engine,
)
from perdure.engine.temporal.errors import translate
from perdure.engine.temporal.wire import FORMAT, HISTORY_INCOMPATIBLE, POKE, WORKFLOW, Start


async def script(play: Play) -> None:
    play.say("done")


@pytest.fixture
def silent_port() -> Iterator[int]:
    """A port that accepts connections and never says a word."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server.getsockname()[1]


async def test_a_server_that_is_not_there(tmp_path: Path) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    impatient = TemporalOptions(connect_timeout=timedelta(seconds=0.3))
    engine = open_engine(
        f"temporal://127.0.0.1:{port}/default", store=f"sqlite:///{tmp_path / 'a.db'}", temporal=impatient
    )
    with pytest.raises(EngineUnavailable, match=f"127.0.0.1:{port}.*Is the server up") as caught:
        await engine.open()
    assert caught.value.retryable


async def test_a_server_that_does_not_answer_is_not_waited_for_for_ever(tmp_path: Path, silent_port: int) -> None:
    impatient = TemporalOptions(connect_timeout=timedelta(seconds=0.2))
    engine = open_engine(
        f"temporal://127.0.0.1:{silent_port}/default", store=f"sqlite:///{tmp_path / 'a.db'}", temporal=impatient
    )
    with pytest.raises(EngineUnavailable):
        await engine.open()


async def test_a_namespace_that_is_missing(tmp_path: Path, temporal_server: TemporalServer) -> None:
    engine = open_engine(f"temporal://{temporal_server.target}/nowhere", store=f"sqlite:///{tmp_path / 'a.db'}")
    with pytest.raises(NamespaceNotFound, match="no namespace 'nowhere'") as caught:
        await engine.open()
    assert caught.value.namespace == "nowhere"


@pytest.mark.parametrize("status", [RPCStatusCode.UNAUTHENTICATED, RPCStatusCode.PERMISSION_DENIED])
async def test_credentials_that_are_not_accepted(house: Playhouse, status: RPCStatusCode) -> None:
    async with house.engine() as engine:
        error = translate(RPCError("Request unauthorized.", status, b""), link_of(engine).client)
    assert isinstance(error, EngineAccessDenied)
    assert "TEMPORAL_API_KEY" in error.message


async def test_a_namespace_belongs_to_one_store(house: Playhouse, tmp_path: Path) -> None:
    async with house.engine():
        pass
    other = replace(house, store=f"sqlite:///{tmp_path / 'other.db'}")
    with pytest.raises(StoreMismatch, match=r"play\.db.*other\.db") as caught:
        await other.engine().open()
    assert caught.value.registered != caught.value.store
    async with house.engine():
        pass
    async with replace(other, prefix=f"{house.prefix}-other").engine():
        pass


async def test_a_flow_type_that_nobody_serves(house: Playhouse) -> None:
    flow = house.flow(script)
    async with house.engine() as engine:
        client = AgentSessionClient(engine, "Play")
        await client.start_session("s", "hello")
        with pytest.raises(WaitTimeout, match="no live worker serves the flow type 'Play'"):
            await client.wait("s", timeout=0.1)
    async with house.engine(flow) as engine, engine.worker():
        assert (await AgentSessionClient(engine).wait("s", timeout=30)).status is SessionStatus.IDLE


async def test_a_session_of_another_format_goes_on_from_its_store(house: Playhouse) -> None:
    """A client of another release started its workflow; it fails and says why, and a worker begins anew."""
    flow = house.flow(script)
    async with house.engine(flow) as engine:
        client, link = AgentSessionClient(engine, flow), link_of(engine)
        start = Start("s", link.store_id, link.queue("Play"), 4_000, FORMAT + 1)
        handle = await link.client.start_workflow(
            WORKFLOW, start, id=link.workflow_id("s"), task_queue=start.queue, start_signal=POKE
        )
        await client.start_session("s", "hello")
        async with engine.worker():
            with pytest.raises(WorkflowFailureError) as caught:
                await workflow_of(engine, "s", handle.first_execution_run_id).result()
            assert isinstance(caught.value.cause, ApplicationError)
            assert caught.value.cause.type == HISTORY_INCOMPATIBLE
            assert (await client.wait("s", timeout=30)).status is SessionStatus.IDLE


@workflow.defn(name=WORKFLOW, sandboxed=False)
class Foreign:
    """A workflow of the same name that begins with something else."""

    @workflow.run
    async def run(self, start: Start) -> None:
        await workflow.sleep(3600)


async def begun(engine: Engine) -> None:
    """Waits until the foreign workflow has done something."""

    async def timed() -> bool:
        return any(event.event_type == EventType.EVENT_TYPE_TIMER_STARTED for event in await events_of(engine, "s"))

    while not await timed():  # noqa: ASYNC110 - nobody tells us
        await asyncio.sleep(0.01)


async def test_j16_a_history_that_todays_workflow_does_not_repeat_is_given_up_for_a_new_one(house: Playhouse) -> None:
    flow = house.flow(script)
    async with house.engine(flow) as engine:
        client, link = AgentSessionClient(engine, flow), link_of(engine)
        await client.start_session("s", "hello")
        first = await workflow_of(engine, "s").describe()
        async with Worker(link.client, task_queue=link.queue("Play"), workflows=[Foreign]):
            await begun(engine)
        async with engine.worker():
            with pytest.raises(WorkflowFailureError, match="failed"):
                await workflow_of(engine, "s", first.run_id).result()
            assert (await client.wait("s", timeout=60)).status is SessionStatus.IDLE
