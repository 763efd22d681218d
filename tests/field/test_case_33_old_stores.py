"""Field case 33: a store that an earlier release left is read whole by today's code, and its sessions go on.

The stores are in ``tests/golden_store``, one for each schema version.
"""

from __future__ import annotations

import copy
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from tests.field.support import PATIENCE, prompt, until
from tests.golden_store.cast import CHRONICLE, DESK, MANUAL, RENAMED, REVIEW, Cast
from tests.golden_store.frozen import Frozen, Line, frozen_stores
from tests.golden_store.reading import lost, plain, seen, seen_session
from tests.golden_store.record import BEGINNING_MS, interrupts_in, write
from tests.support.postgres import Server
from tests.support.stores import Backend, PostgresBackend, SqliteBackend

from perdure import (
    AgentSessionClient,
    AgentSnapshot,
    Engine,
    SessionClosed,
    SessionStatus,
    StoreCorrupt,
    TurnStatus,
    open_engine,
)
from perdure.store.base import SessionStore

EARLIER = {one.version: one for one in frozen_stores()}


@pytest.fixture(params=["sqlite", "postgresql"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Backend]:
    """An empty place."""
    if request.param == "sqlite":
        yield SqliteBackend(tmp_path / "old.db", tmp_path)
        return
    server: Server = request.getfixturevalue("postgres")
    schema = server.new_schema()
    yield PostgresBackend(server, schema)
    server.drop(schema)


@pytest.fixture(params=list(EARLIER), ids=lambda version: f"version {version}")
def frozen(request: pytest.FixtureRequest) -> Frozen:
    return EARLIER[request.param]


@pytest.fixture
def cast() -> Cast:
    return Cast()


@asynccontextmanager
async def opened(place: Backend) -> AsyncIterator[SessionStore]:
    """Today's store on the place, without a worker."""
    async with open_engine(place.address, durability="process") as engine:
        yield engine.store


@asynccontextmanager
async def working(place: Backend, cast: Cast) -> AsyncIterator[Engine]:
    """Today's engine on the place, with a worker for all agents."""
    async with open_engine(place.address, flows=cast.flows(), durability="process") as engine, engine.worker():
        yield engine


async def rests(client: AgentSessionClient, session_id: str, status: SessionStatus) -> AgentSnapshot:
    """Waits until the session is there: a worker may have yet to look at it."""

    async def is_so() -> bool:
        return (await client.wait(session_id, timeout=PATIENCE)).status is status

    await until(is_so)
    return await client.get_agent_snapshot(session_id)


async def said(client: AgentSessionClient, session_id: str, frozen: Frozen) -> list[str]:
    """What the session's log holds now behind that of the frozen store, which is found unchanged."""
    now = plain((await client.list_messages(session_id, limit=1000)).items)
    before = frozen.expected["sessions"][session_id]["messages"]
    assert lost(before, now[: len(before)]) == []
    return [message["text"] for message in now[len(before) :] if message["text"]]


# ---------------------------------------------------------------- what is there


async def test_everything_is_read_as_it_was_written(place: Backend, frozen: Frozen) -> None:
    frozen.build(place)
    for _ in range(2):  # the second time nothing is left to bring up to date
        async with opened(place) as store:
            found = await seen(store, interrupts_in(frozen.lines()), BEGINNING_MS)
        assert lost(frozen.expected, found) == []
        assert found["sessions"].keys() == frozen.expected["sessions"].keys()


@pytest.mark.parametrize(
    ("where", "value"),
    [
        ("talk/snapshot/state/kept", None),
        ("talk/messages", []),
        ("approval/snapshot/pending_interrupts", []),
        ("late/steps/0/attempts", True),
        ("compacted/messages/4/framework_item/actions", {}),
    ],
)
def test_a_loss_is_noticed(frozen: Frozen, where: str, value: object) -> None:
    """The comparison is no formality."""
    changed = copy.deepcopy(frozen.expected["sessions"])
    *path, last = where.split("/")
    part: Any = changed
    for name in path:
        part = part[int(name)] if isinstance(part, list) else part[name]
    part[last] = value
    assert lost(frozen.expected["sessions"], frozen.expected["sessions"]) == []
    assert [line for line in lost(frozen.expected["sessions"], changed) if line.startswith(f"/{where}")]


def test_what_is_new_is_no_loss_and_what_is_gone_is_one() -> None:
    assert lost({"a": 1}, {"a": 1, "new": 2}) == []
    assert lost({"a": 1, "b": [1]}, {"b": [1, 2]}) == ["/a is gone", "/b was [1], is [1, 2]"]


def test_the_frozen_store_holds_something_of_everything(frozen: Frozen) -> None:
    tables = {table for table, _ in frozen.lines()}
    columns = {(table, name) for table, row in frozen.lines() for name, value in row.items() if value is not None}
    assert {"payloads", "payload_refs", "legs", "questions", "requests", "session_state", "shared_state"} <= tables
    assert tables.isdisjoint({"workers", "worker_flows"})
    wanted = {("calls", "asked"), ("calls", "error"), ("calls", "result"), ("turns", "error"), ("sessions", "blocked")}
    assert wanted | {("interrupts", "deadline_ms"), ("interrupts", "response"), ("turns", "shared_state")} <= columns
    kinds = {row["kind"] for table, row in frozen.lines() if table == "inbox"}
    assert kinds == {"message", "answer", "cancel", "close"}
    statuses = {row["status"] for table, row in frozen.lines() if table == "sessions"}
    assert statuses == {status.value for status in SessionStatus}


async def test_a_store_can_be_frozen_with_todays_code(tmp_path: Path) -> None:
    """The next version will need it; its sessions are those of the newest frozen one."""
    newest, today = frozen_stores()[-1], Frozen(frozen_stores()[-1].version, tmp_path)
    await write(today)
    statuses = [
        {name: (one["snapshot"]["status"], len(one["messages"])) for name, one in frozen.expected["sessions"].items()}
        for frozen in (newest, today)
    ]
    assert statuses[0] == statuses[1]
    assert {table for table, _ in today.lines()} == {table for table, _ in newest.lines()}


# ---------------------------------------------------------------- how it goes on


@pytest.mark.parametrize(
    ("flow_type", "session_id", "done"),
    [
        pytest.param(DESK, "approval", "pay 5", id="approval"),
        pytest.param(DESK, "confirmation", "wire 7", id="asked in the middle"),
        pytest.param(CHRONICLE, "compacted", "pay 5", id="approval behind a compaction"),
        pytest.param(RENAMED, "blocked", "pay 5", id="blocked until the right code is back"),
    ],
)
async def test_a_pending_approval_is_given_and_its_call_runs_once(
    place: Backend, frozen: Frozen, cast: Cast, flow_type: str, session_id: str, done: str
) -> None:
    frozen.build(place)
    async with working(place, cast) as engine:
        client = AgentSessionClient(engine, flow_type)
        snapshot = await rests(client, session_id, SessionStatus.WAITING)
        (asked,) = frozen.expected["sessions"][session_id]["snapshot"]["pending_interrupts"]
        assert [one.interrupt_id for one in snapshot.pending_interrupts] == [asked["interrupt_id"]]
        await client.resolve_interrupt(session_id, asked["interrupt_id"], approved=True)
        snapshot = await rests(client, session_id, SessionStatus.IDLE)
        assert snapshot.turn is not None
        assert (snapshot.turn.status, snapshot.pending_interrupts) == (TurnStatus.COMPLETED, ())
        assert cast.did(session_id) == [done], "and what the same response called beside it does not run again"
        assert (await said(client, session_id, frozen))[0] in ("It is done.", "Wired.")


async def test_the_model_is_shown_the_summary_and_not_what_it_stands_for(
    place: Backend, frozen: Frozen, cast: Cast
) -> None:
    frozen.build(place)
    async with working(place, cast) as engine:
        client = AgentSessionClient(engine, CHRONICLE)
        (asked,) = (await rests(client, "compacted", SessionStatus.WAITING)).pending_interrupts
        await client.resolve_interrupt("compacted", asked.interrupt_id, approved=True)
        await rests(client, "compacted", SessionStatus.IDLE)
    (shown,) = cast.models[CHRONICLE].requests
    assert prompt(shown)[:2] == ["model says 4 things happened", "user says Pay."]


async def test_a_late_answer_starts_a_turn(place: Backend, frozen: Frozen, cast: Cast) -> None:
    frozen.build(place)
    async with working(place, cast) as engine:
        client = AgentSessionClient(engine, DESK)
        (asked,) = (await client.get_agent_snapshot("late")).pending_interrupts
        await client.answer_question("late", asked.interrupt_id, {"film": "Up"})
        snapshot = await rests(client, "late", SessionStatus.IDLE)
        assert snapshot.turn is not None
        assert (snapshot.turn.number, snapshot.turn.status) == (2, TurnStatus.COMPLETED)
        assert snapshot.pending_interrupts == ()
        assert (await said(client, "late", frozen))[-1] == "The film is here."
    assert cast.did("late") == []


async def test_a_suspended_workflow_goes_on_where_it_asked(place: Backend, frozen: Frozen, cast: Cast) -> None:
    frozen.build(place)
    async with working(place, cast) as engine:
        client = AgentSessionClient(engine, REVIEW)
        (asked,) = (await rests(client, "review", SessionStatus.WAITING)).pending_interrupts
        await client.answer_question("review", asked.interrupt_id, {"word": "yes"})
        await rests(client, "review", SessionStatus.IDLE)
        await said(client, "review", frozen)
    assert cast.did("review") == ["publish yes"]


async def test_what_lay_in_the_inbox_is_done(place: Backend, frozen: Frozen, cast: Cast) -> None:
    frozen.build(place)
    async with working(place, cast) as engine:
        client = AgentSessionClient(engine, DESK)
        queued = await rests(client, "queued", SessionStatus.IDLE)
        assert queued.turn is not None
        assert (queued.turn.number, queued.queued_messages, queued.state["later"]) == (2, 0, True)
        assert await said(client, "queued", frozen) == [plain(f"hello {MANUAL}"), "Hello.", "Look.", "Seen."]
        await rests(client, "answered", SessionStatus.IDLE)
        assert await said(client, "answered", frozen) == ["It is done."]
        cancelled = await rests(client, "cancelling", SessionStatus.IDLE)
        assert cancelled.turn is not None
        assert cancelled.turn.status is TurnStatus.CANCELLED
        await rests(client, "closing", SessionStatus.CLOSED)
    assert (cast.did("queued"), cast.did("answered")) == (["look manual"], ["pay 5"])
    assert (cast.did("cancelling"), cast.did("closing")) == ([], [])


@pytest.mark.parametrize("session_id", ["talk", "fork", "failed", "rejected", "cancelled", "clouded", "idle"])
async def test_a_session_at_rest_takes_messages(place: Backend, frozen: Frozen, cast: Cast, session_id: str) -> None:
    frozen.build(place)
    async with working(place, cast) as engine:
        client = AgentSessionClient(engine, DESK)
        await client.send_user_message(session_id, "hello once more")
        await rests(client, session_id, SessionStatus.IDLE)
        assert await said(client, session_id, frozen) == ["hello once more", "Hello."]
    (shown,) = [one for one in cast.models[DESK].requests if prompt(one)[-1] == "user says hello once more"]
    words = {m["text"] for m in frozen.expected["sessions"][session_id]["messages"] if m["role"] == "user"}
    assert {f"user says {text}" for text in words} <= set(prompt(shown)), "the model knows what was said before"


async def test_what_was_accepted_before_is_not_accepted_again(place: Backend, frozen: Frozen) -> None:
    frozen.build(place)
    async with open_engine(place.address, durability="process") as engine:
        client = AgentSessionClient(engine, DESK)
        before = frozen.expected["sessions"]["talk"]["snapshot"]["turn"]["turn_id"]
        again = await client.send_user_message("talk", "hello", state_delta={"kept": 2}, request_id="r-2")
        assert (again, (await client.get_agent_snapshot("talk")).queued_messages) == (before, 0)
        with pytest.raises(SessionClosed):
            await client.send_user_message("closed", "hello")


# ---------------------------------------------------------------- what cannot be read


def damaged(lines: list[Line], session_id: str, table: str, column: str, value: str) -> list[Line]:
    """The rows, with another value in the last row that a session has in a table (and that has one in the column)."""
    (key,) = [row["session_key"] for name, row in lines if name == "sessions" and row["session_id"] == session_id]
    turns = {row["turn_key"] for name, row in lines if name == "turns" and row["session_key"] == key}
    *_, chosen = [
        row
        for name, row in lines
        if name == table
        and (row["session_key"] == key if "session_key" in row else row["turn_key"] in turns)
        and row[column] is not None
    ]
    chosen[column] = value
    return lines


NO_JSON = '{"text": '


@pytest.mark.parametrize(
    ("session_id", "table", "column", "value", "named"),
    [
        pytest.param("talk", "messages", "item", NO_JSON, "session 'talk', message 5", id="message"),
        pytest.param("talk", "messages", "role", "robot", "session 'talk', message 5", id="role of a message"),
        pytest.param("talk", "session_state", "value", NO_JSON, "session 'talk', state 'seen'", id="state"),
        pytest.param("talk", "events", "data", NO_JSON, "session 'talk', event", id="event"),
        pytest.param("failed", "turns", "error", NO_JSON, "session 'failed', turn", id="error of a turn"),
        pytest.param("approval", "calls", "request", NO_JSON, "session 'approval', interrupt", id="pending call"),
        pytest.param("approval", "interrupts", "kind", "whim", "session 'approval', interrupt", id="kind of a wait"),
        pytest.param("clouded", "calls", "error", NO_JSON, "session 'clouded', ", id="error of a call"),
        pytest.param("late", "questions", "request", "[]", "session 'late', interrupt", id="late question"),
        pytest.param("blocked", "sessions", "blocked", NO_JSON, "session 'blocked'", id="what blocks"),
        pytest.param("rejected", "interrupts", "response", NO_JSON, "session 'rejected', interrupt", id="answer"),
    ],
)
async def test_a_row_that_cannot_be_read_is_named_and_other_sessions_are_read(
    place: Backend, frozen: Frozen, session_id: str, table: str, column: str, value: str, named: str
) -> None:
    interrupts = interrupts_in(frozen.lines())
    frozen.build(place, damaged(frozen.lines(), session_id, table, column, value))
    async with opened(place) as store:
        with pytest.raises(StoreCorrupt) as refusal:
            await seen_session(store, session_id, interrupts.get(session_id, ()), BEGINNING_MS)
        assert named in str(refusal.value.facts["where"])
        assert named in str(refusal.value)
        for other, expected in frozen.expected["sessions"].items():
            if other != session_id:
                found = await seen_session(store, other, interrupts.get(other, ()), BEGINNING_MS)
                assert lost(expected, found) == []


async def test_a_long_text_that_is_gone_is_an_error_and_no_empty_text(tmp_path: Path, frozen: Frozen) -> None:
    place = SqliteBackend(tmp_path / "old.db", tmp_path)
    frozen.build(place, [(table, row) for table, row in frozen.lines() if table != "payloads"])
    async with opened(place) as store:
        with pytest.raises(StoreCorrupt, match=r"session 'talk', message 2 .*missing"):
            await store.list_messages("talk", None, 100)


@pytest.mark.usefixtures("loud")
@pytest.mark.parametrize(
    ("table", "column", "named"),
    [
        pytest.param("calls", "request", "session 'answered', call", id="call"),
        pytest.param("inbox", "content", "session 'answered', inbox item", id="inbox"),
        pytest.param("interrupts", "response", "session 'answered', call", id="answer"),
        pytest.param("turns", "message", "session 'answered', open turn", id="message of the turn"),
        pytest.param("messages", "item", "session 'answered', message", id="history"),
    ],
)
async def test_a_worker_says_what_it_cannot_read_and_goes_on_with_the_others(
    place: Backend, frozen: Frozen, cast: Cast, caplog: pytest.LogCaptureFixture, table: str, column: str, named: str
) -> None:
    frozen.build(place, damaged(frozen.lines(), "answered", table, column, NO_JSON))
    async with working(place, cast) as engine:
        client = AgentSessionClient(engine, DESK)
        await rests(client, "queued", SessionStatus.IDLE)
        await rests(client, "closing", SessionStatus.CLOSED)

        async def said_so() -> bool:
            lines = [record.getMessage() for record in caplog.records if record.name.startswith("perdure")]
            return any(named in line and "cannot be read" in line for line in lines)

        await until(said_so)
        snapshot = await client.get_agent_snapshot("answered")
        assert (snapshot.status, snapshot.lost_workers) == (SessionStatus.RUNNING, 0)
    assert cast.did("answered") == []


@pytest.mark.parametrize(
    ("table", "column", "named"),
    [
        pytest.param("model_calls", "response", "a response of a model", id="model call"),
        pytest.param("calls", "outcome", "a record of this call", id="call"),
    ],
)
async def test_a_record_of_the_turn_that_cannot_be_read_blocks_its_session(
    place: Backend, frozen: Frozen, cast: Cast, table: str, column: str, named: str
) -> None:
    """It is no failure of the model or of the tool, nothing that would end the turn, and nothing runs on top of it."""
    frozen.build(place, damaged(frozen.lines(), "answered", table, column, NO_JSON))
    async with working(place, cast) as engine:
        snapshot = await rests(AgentSessionClient(engine, DESK), "answered", SessionStatus.BLOCKED)
        assert snapshot.error is not None
        assert snapshot.error.facts["expected"] == named
        assert "none that it can read" in snapshot.error.message
        assert snapshot.turn is not None
        assert (snapshot.turn.status, cast.did("answered")) == (TurnStatus.RUNNING, [])


@pytest.mark.usefixtures("loud")
async def test_a_session_that_is_repaired_goes_on(
    place: Backend, frozen: Frozen, cast: Cast, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("perdure.store.sql.claims.SET_ASIDE_MS", 50)
    frozen.build(place, damaged(frozen.lines(), "answered", "turns", "message", NO_JSON))
    (whole,) = [
        row["message"]
        for table, row in frozen.lines()
        if table == "turns" and row["turn_id"] == frozen.expected["sessions"]["answered"]["snapshot"]["turn"]["turn_id"]
    ]
    async with working(place, cast) as engine:
        client = AgentSessionClient(engine, DESK)
        await rests(client, "queued", SessionStatus.IDLE)
        assert cast.did("answered") == []
        place.run(f"UPDATE turns SET message = '{whole}' WHERE message = '{NO_JSON}'")
        await rests(client, "answered", SessionStatus.IDLE)
    assert cast.did("answered") == ["pay 5"]
