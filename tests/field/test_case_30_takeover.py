"""Field case 30: the owner of a session dies, stalls, or cannot reach its database; nothing is stranded."""

from __future__ import annotations

import logging
import sqlite3
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, closing
from datetime import timedelta

import pytest
from tests.field.lives import GO_ON, Hold, life
from tests.field.support import (
    ONCE,
    PATIENCE,
    READ,
    SESSION,
    Field,
    answers_in,
    call_steps,
    durable,
    messages_of,
    steps_of,
    turn_of,
    until,
)

from perdure import (
    OUTCOME_UNKNOWN_TOOL_RESULT,
    AgentSessionClient,
    AgentSessionFlow,
    SessionStatus,
    TurnStatus,
    WaitTimeout,
)
from perdure.clock import SystemClock
from perdure.engine.local import LocalEngine
from perdure.engine.worker import WorkerOptions
from perdure.ids import RandomIds
from perdure.store.sqlite import SqliteStore
from perdure.testing import by_message, call, text


def reading(field: Field, hold: Hold) -> AgentSessionFlow:
    async def look() -> str:
        """Looks."""
        field.note("look")
        await hold.here("look")
        return "seen"

    return field.flow([call("look"), text("Done.")], [look], {"look": READ})


async def test_a_second_worker_takes_over_from_a_dead_one_without_a_call(field: Field) -> None:
    """Case 30.  The leases last an hour: the death itself is noticed (within a second, design section 7)."""
    hour = timedelta(hours=1)
    with life(reading, field, lease=hour.total_seconds()) as child:
        async with field.asking() as client:
            await client.start_session(SESSION, "go")
            await child.wait_for_async("in look")
        async with field.working(reading(field, GO_ON), lease=hour) as client:
            assert (await client.get_agent_snapshot(SESSION)).status is SessionStatus.RUNNING
            assert field.world == ["look"], "a live owner keeps its session"
            child.kill()
            snapshot = await client.wait(SESSION, timeout=PATIENCE)
            assert (snapshot.status, turn_of(snapshot).status) == (SessionStatus.IDLE, TurnStatus.COMPLETED)
            assert field.world == ["look", "look"]
            assert (await call_steps(client))["look"].attempts == 2
            assert len(field.requests) == 2


async def test_who_waits_for_a_session_that_kills_its_workers_is_told_so(field: Field) -> None:
    async with field.asking() as client:
        await client.start_session(SESSION, "go")
        for _ in range(2):
            with life(reading, field) as child:
                await child.wait_for_async("in look")
                child.kill()
        with life(reading, field) as child:
            await child.wait_for_async("in look")
            assert (await client.get_agent_snapshot(SESSION)).lost_workers == 1, "the first one got somewhere"
            with pytest.raises(WaitTimeout, match="a worker died in its turn: look for a crash"):
                await client.wait(SESSION, timeout=0.01)
    async with field.working(reading(field, GO_ON)) as client:
        snapshot = await client.wait(SESSION, timeout=PATIENCE)
        assert (snapshot.status, snapshot.lost_workers) == (SessionStatus.IDLE, 0)


def stalling(field: Field, hold: Hold) -> AgentSessionFlow:
    """The tool of the first life goes on when the file ``go`` is there."""

    async def pay() -> str:
        """Pays."""
        field.note("pay")
        if hold.holds:
            print("in pay", flush=True)

            async def told() -> bool:
                return (field.folder / "go").exists()

            await until(told)
            print("out of pay", flush=True)
        return "paid"

    return field.flow(by_message({"pay": [call("pay"), text("Done.")], "hello": text("Hi.")}), [pay], {"pay": ONCE})


async def test_a_stalled_owner_that_wakes_up_cannot_write(field: Field) -> None:
    """Case 30, fencing: a stopped process holds its lock, so its lease has to run out; then it owns nothing more."""
    with life(stalling, field, lease=0.5) as child:
        async with field.asking() as client:
            await client.start_session(SESSION, "pay")
            await child.wait_for_async("in pay")
            child.stop()
        async with field.working(stalling(field, GO_ON)) as client:
            snapshot = await client.wait(SESSION, timeout=PATIENCE)
            assert turn_of(snapshot).status is TurnStatus.COMPLETED
            assert answers_in(field.requests[-1]) == {"pay": {"error": OUTCOME_UNKNOWN_TOOL_RESULT}}
            before = await stored(client)
            (field.folder / "go").touch()
            child.resume()
            await child.wait_for_async("given up for dead")
            assert await stored(client) == before, "what the stalled worker found out is refused"
            assert field.world == ["pay"]
        async with field.asking() as client:
            await client.start_session("another", "hello")
            snapshot = await client.wait("another", timeout=PATIENCE)
            assert turn_of(snapshot).status is TurnStatus.COMPLETED, "the worker that woke up works on"
            assert await stored(client) == before


async def stored(client: AgentSessionClient) -> tuple[object, ...]:
    snapshot = await client.get_agent_snapshot(SESSION)
    return snapshot, await steps_of(client), await messages_of(client)


@asynccontextmanager
async def impatient(field: Field, flow: AgentSessionFlow) -> AsyncIterator[AgentSessionClient]:
    """A worker whose writes are refused when the database is locked for a tenth of a second."""
    store = SqliteStore(field.folder / "field.db", durability="process", busy_timeout=0.1)
    options = WorkerOptions(drain_grace=timedelta(seconds=5))
    engine = LocalEngine(store, [flow], clock=SystemClock(), ids=RandomIds(), options=options)
    async with engine, engine.worker():
        yield AgentSessionClient(engine, flow)


@pytest.mark.usefixtures("loud")
async def test_a_database_that_refuses_during_recovery_strands_nothing(
    field: Field, caplog: pytest.LogCaptureFixture
) -> None:
    """Case 30: another program keeps the database locked when the death is noticed, and again when a result comes."""
    caplog.set_level(logging.DEBUG, "perdure")  # after the first line, the worker only counts
    locker = sqlite3.connect(field.folder / "field.db", isolation_level=None, check_same_thread=False)

    async def refused(what: str) -> None:
        async def logged() -> bool:
            return any(what in record.getMessage() for record in caplog.records)

        await until(logged)

    def locking(field: Field) -> AgentSessionFlow:
        async def look() -> str:
            """Looks, while somebody locks the database."""
            field.note("look")
            if len(field.world) == 2:
                locker.execute("BEGIN IMMEDIATE")
            return "seen"

        return durable(field.agent([call("look"), text("Done.")], [look]), {"look": READ})

    with closing(locker):
        async with field.asking() as client:
            with life(reading, field) as child:
                await client.start_session(SESSION, "go")
                await child.wait_for_async("in look")
                async with impatient(field, locking(field)) as ours:
                    locker.execute("BEGIN IMMEDIATE")
                    child.kill()
                    await refused("looking for dead workers failed")
                    locker.execute("ROLLBACK")
                    await refused(f"session {SESSION} failed")
                    await refused(f"freeing session {SESSION} failed")
                    locker.execute("ROLLBACK")
                    snapshot = await ours.wait(SESSION, timeout=PATIENCE)
        assert turn_of(snapshot).status is TurnStatus.COMPLETED
        assert field.world == ["look"] * 3
        assert snapshot.usage.model_calls == 2
    await until(field.nobody_owns_a_session)
