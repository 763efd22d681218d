"""A copy that is killed goes on where it was, wherever that is; and a turn that waits goes on in the new place."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.crash.copy_child import copy_and_die
from tests.support.copies import fill, seen
from tests.support.play import Play, PlayCall, PlayRunner
from tests.support.postgres import Server
from tests.support.stores import Backend, PostgresBackend, SqliteBackend

from perdure import (
    AgentSessionClient,
    InterruptKind,
    SessionStatus,
    StoreMoved,
    StoreUnfinished,
    ToolEffect,
    TurnStatus,
    open_engine,
)
from perdure.session.runner import AgentSessionFlow
from perdure.store.copying import copy_store
from perdure.testing import WorkerChild

POINTS = ("before _freeze", "after _freeze", "at 1", "at 4", "after _copy_rows", "after _compare", "before _finish")
"""Where the copy dies, one run after the other."""


@pytest.fixture
def server_place(postgres: Server) -> Iterator[Backend]:
    schema = postgres.new_schema()
    yield PostgresBackend(postgres, schema)
    postgres.drop(schema)


@pytest.fixture(params=["to PostgreSQL", "to SQLite"])
def ends(request: pytest.FixtureRequest, tmp_path: Path, server_place: Backend) -> tuple[Backend, Backend]:
    file = SqliteBackend(tmp_path / "sessions.db", tmp_path / "run")
    return (file, server_place) if request.param == "to PostgreSQL" else (server_place, file)


async def _killed(source: Backend, destination: Backend, point: str) -> None:
    with WorkerChild.of(copy_and_die, source.address, destination.address, point) as child:
        assert await child.wait_exit_async() == -signal.SIGKILL, point


async def test_a_copy_that_is_killed_again_and_again_loses_and_doubles_nothing(ends: tuple[Backend, Backend]) -> None:
    """J14."""
    source, destination = ends
    store = source.new_store()
    await store.open()
    await fill(store)
    before, store_id = await seen(store), await store.store_id()
    await store.close()
    for point in POINTS:
        await _killed(source, destination, point)
        with pytest.raises(StoreUnfinished):
            await destination.new_store().open()
        if point != "before _freeze":
            with pytest.raises(StoreMoved):
                await source.new_store().open()
    await _killed(source, destination, "after _finish")
    assert (await copy_store(source.address, destination.address)).before
    moved = destination.new_store()
    await moved.open()
    assert await seen(moved) == before
    assert await moved.store_id() == store_id
    await moved.close()


async def test_an_approval_that_is_waited_for_moves_with_its_turn(ends: tuple[Backend, Backend]) -> None:
    source, destination = ends
    ran: list[str] = []

    async def refund(call_id: str, attempt: int) -> object:
        ran.append(call_id)
        return "refunded"

    async def script(play: Play) -> None:
        await play.model("m1", "let me see")
        call = PlayCall("refund", refund, ToolEffect.NON_IDEMPOTENT_WRITE, InterruptKind.APPROVAL)
        (record,) = await play.tools("m1", {"c1": call})
        await play.model("m2", f"it {record.status.value}")
        play.say("done")

    first = AgentSessionFlow("Play", PlayRunner(script), "Play")
    async with open_engine(source.address, flows=[first], durability="process") as engine, engine.worker():
        client = AgentSessionClient(engine, first)
        await client.start_session("s", "refund it")
        (interrupt,) = (await client.wait("s", timeout=20)).pending_interrupts
        await client.send_user_message("s", "and then?")
    await copy_store(source.address, destination.address, patience=20)
    second = AgentSessionFlow("Play", PlayRunner(script), "Play")
    async with open_engine(destination.address, flows=[second], durability="process") as engine:
        client = AgentSessionClient(engine, second)
        assert (await client.get_agent_snapshot("s")).pending_interrupts == (interrupt,)
        await client.resolve_interrupt("s", interrupt.interrupt_id, approved=True)
        async with engine.worker():
            snapshot = await client.wait("s", timeout=20)
            assert snapshot.pending_interrupts
            (again,) = snapshot.pending_interrupts
            await client.resolve_interrupt("s", again.interrupt_id, approved=False)
            snapshot = await client.wait("s", timeout=20)
    assert snapshot.turn is not None
    assert (snapshot.status, snapshot.turn.number) == (SessionStatus.IDLE, 2)
    assert snapshot.turn.status is TurnStatus.COMPLETED
    assert ran == ["c1"], "once, in the first turn; the second one was refused"
    assert isinstance(second.runner, PlayRunner)
    assert second.runner.model_calls.count("m1") == 1, "what the first turn had a record of was not made again"
