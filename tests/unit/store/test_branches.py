"""Messages that clients append to a session at rest, and sessions that branch off from another one's turns."""

from __future__ import annotations

import asyncio

import pytest
from tests.support.stores import Backend
from tests.unit.store.builders import (
    FLOW,
    IDLE,
    NOW,
    USAGE,
    Owner,
    claim,
    message,
    new_session,
    open_turn,
    request,
    text_message,
    worker,
)
from tests.unit.store.conftest import OpenStore

from perdure.errors import Conflict, LeaseLost, SessionAlreadyExists, SessionClosed, SessionNotFound, TurnNotFound
from perdure.session.model import AgentEventType, SessionStatus, TurnStatus, Usage
from perdure.session.runner import QuestionWait
from perdure.store.base import Fork, NewFork, TurnBegin
from perdure.store.sql.store import SqlStore

LONG = "x" * 40_000


async def _texts(store: SqlStore, session_id: str = "s") -> list[str]:
    return [one.text for one in (await store.list_messages(session_id, None, 100)).items]


async def _turn(owner: Owner, number: int, text: str, **state: int) -> None:
    """One whole turn that says a text and sets some state."""
    if number > 1:
        begin = TurnBegin(f"t{number}", number, NOW)
        await owner.store.accept_message("s", f"t{number}", text_message(), request(), NOW)
        await owner.commit(begin=begin, session=IDLE)
    await owner.commit(messages=(message(0, text, dict(state)),), usage=USAGE, turn_id=f"t{number}")
    await owner.end(f"t{number}", release=False)


async def _three_turns(store: SqlStore) -> Owner:
    owner = await open_turn(store)
    await _turn(owner, 1, "one", n=1, **{"app:price": 1})
    await _turn(owner, 2, LONG, n=2)
    await _turn(owner, 3, "three", n=3)
    await owner.release()
    return owner


# ---------------------------------------------------------------- appended messages


async def test_an_appended_message_is_a_completed_turn_of_its_own(store: SqlStore) -> None:
    await store.create_session(new_session(state={"tenant": "t1"}), None, request(), NOW)
    appended = message(0, "Welcome back.", {"mood": "calm", "app:motd": "hi", "user:name": "Ann"})
    await store.append_message("s", "a1", appended, NOW + 5)
    await store.append_message("s", "a2", message(0, LONG), NOW + 6)
    assert await _texts(store) == ["Welcome back.", LONG]
    snapshot = await store.read_snapshot("s", NOW)
    assert (snapshot.status, snapshot.queued_messages) == (SessionStatus.IDLE, 0)
    assert snapshot.turn is not None
    assert (snapshot.turn.turn_id, snapshot.turn.number, snapshot.turn.status) == ("a2", 2, TurnStatus.COMPLETED)
    assert snapshot.state == {"tenant": "t1", "mood": "calm", "app:motd": "hi", "user:name": "Ann"}
    assert await store.read_turn_state("s", 1) == {"tenant": "t1"}
    assert await store.read_turn_state("s", 2) == snapshot.state
    events = (await store.read_events("s", None, 10)).events
    kinds = (AgentEventType.TURN_STARTED, AgentEventType.MESSAGE, AgentEventType.TURN_COMPLETED)
    assert [(one.type, one.turn_id) for one in events] == [(kind, turn) for turn in ("a1", "a2") for kind in kinds]
    assert snapshot.cursor == events[-1].cursor


async def test_a_snapshot_without_events_has_no_cursor(store: SqlStore) -> None:
    await store.create_session(new_session(), None, request(), NOW)
    assert (await store.read_snapshot("s", NOW)).cursor is None


async def test_an_owner_that_is_about_to_leave_loses_a_session_that_was_appended_to(store: SqlStore) -> None:
    """With nothing counted against it, and the deadlines of what still waits are kept."""
    owner = await open_turn(store)
    await owner.ask_question("q1", QuestionWait.NEXT_TURN, deadline_ms=NOW + 50)
    await owner.end(release=False)
    await store.append_message("s", "a1", message(0), NOW)
    with pytest.raises(LeaseLost):
        await owner.release()
    assert await store.next_wake_ms([FLOW]) == NOW + 50
    (claimed,) = await store.claim("w1", [FLOW], 1, NOW + 50)
    assert (claimed.lost, claimed.turns, claimed.message_count) == (0, 2, 1)


async def test_nothing_is_appended_beside_a_turn_that_runs_waits_or_is_queued(store: SqlStore) -> None:
    owner = await open_turn(store)
    with pytest.raises(Conflict):
        await store.append_message("s", "a1", message(0), NOW)
    await owner.ask()
    await owner.suspend()
    with pytest.raises(Conflict):
        await store.append_message("s", "a1", message(0), NOW)
    await store.create_session(new_session("queued"), ("t2", text_message()), request(), NOW)
    with pytest.raises(Conflict):
        await store.append_message("queued", "a1", message(0), NOW)
    assert await _texts(store) == await _texts(store, "queued") == []


async def test_nothing_is_appended_to_what_is_closed_or_is_not_there(store: SqlStore) -> None:
    await store.create_session(new_session(), None, request(), NOW)
    await store.accept_close("s", request(), NOW)
    with pytest.raises(SessionClosed):
        await store.append_message("s", "a1", message(0), NOW)
    with pytest.raises(SessionNotFound):
        await store.append_message("absent", "a1", message(0), NOW)


# ---------------------------------------------------------------- forks


async def test_a_fork_has_what_the_session_had_before_a_turn(store: SqlStore) -> None:
    await _three_turns(store)
    before = [await store.read_snapshot("s", NOW), await _texts(store), await store.read_steps("s", None, 100)]
    assert await store.fork_session("s", NewFork("f", "inc-f", "t3"), NOW + 9) == Fork("f", "t2")
    assert await _texts(store, "f") == ["one", LONG]
    assert await store.read_history("f", 0, 9) == (await store.read_history("s", 0, 9))[:2]
    snapshot = await store.read_snapshot("f", NOW)
    assert (snapshot.status, snapshot.state) == (SessionStatus.IDLE, {"n": 2, "app:price": 1})
    assert snapshot.turn is not None
    assert (snapshot.turn.turn_id, snapshot.turn.number) == ("t2", 2)
    assert snapshot.usage == Usage(
        input_tokens=2 * USAGE.input_tokens, output_tokens=2 * USAGE.output_tokens, model_calls=2
    )
    assert snapshot.cursor is None
    assert [step.name.value for step in (await store.read_steps("f", None, 100)).items] == ["AwaitUserMessage"]
    after = [await store.read_snapshot("s", NOW), await _texts(store), await store.read_steps("s", None, 100)]
    assert after == before, "the session itself is as it was"


async def test_a_fork_goes_on_and_outlives_the_session_that_it_came_from(store: SqlStore) -> None:
    await _three_turns(store)
    await store.fork_session("s", NewFork("f", "inc-f", "t3"), NOW)
    await store.delete_session("s")
    await store.accept_message("f", "t9", text_message(), request(), NOW)
    owner = await claim(store)
    assert (owner.claimed.lease.session_id, owner.claimed.turns, owner.claimed.message_count) == ("f", 2, 2)
    await owner.begin("t9", 3)
    await owner.commit(messages=(message(0, "four"),), turn_id="t9")
    await owner.end("t9")
    assert await _texts(store, "f") == ["one", LONG, "four"]


async def test_a_fork_before_the_first_turn_has_what_the_session_was_created_with(store: SqlStore) -> None:
    await store.register_worker(worker(), NOW)
    await store.create_session(new_session(state={"tenant": "t1"}), ("t1", text_message()), request(), NOW)
    owner = await claim(store)
    await owner.begin()
    await owner.commit(messages=(message(0, "one", {"tenant": "t2"}),), turn_id="t1")
    assert await store.fork_session("s", NewFork("f", "inc-f", "t1"), NOW) == Fork("f", None)
    assert (await store.read_snapshot("f", NOW)).state == {"tenant": "t1"}
    assert await _texts(store, "f") == []
    await owner.end()


async def test_what_cannot_be_forked(store: SqlStore) -> None:
    await _three_turns(store)
    await store.accept_message("s", "queued", text_message(), request(), NOW)
    with pytest.raises(SessionNotFound):
        await store.fork_session("absent", NewFork("f", "inc-f", "t1"), NOW)
    for turn_id in ("absent", "queued"):
        with pytest.raises(TurnNotFound):
            await store.fork_session("s", NewFork("f", "inc-f", turn_id), NOW)
    for taken in ("s", "other"):
        if taken == "other":
            await store.create_session(new_session("other"), None, request(), NOW)
        with pytest.raises(SessionAlreadyExists):
            await store.fork_session("s", NewFork(taken, "inc-f", "t1"), NOW)
    with pytest.raises(SessionNotFound):
        await store.read_snapshot("f", NOW)


async def test_of_two_forks_under_one_id_one_is_made(open_store: OpenStore, backend: Backend) -> None:
    stores = [await open_store() for _ in range(4)]
    await _three_turns(stores[0])
    forks = (store.fork_session("s", NewFork("f", f"inc-{n}", "t3"), NOW) for n, store in enumerate(stores))
    results = await asyncio.gather(*forks, return_exceptions=True)
    assert sorted(type(result).__name__ for result in results) == ["Fork"] + 3 * ["SessionAlreadyExists"]
    assert backend.run("SELECT count(*) FROM turns JOIN sessions USING (session_key) WHERE session_id = 'f'") == [(2,)]
