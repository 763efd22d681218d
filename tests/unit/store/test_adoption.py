"""What an engine with a scheduler of its own needs of a store: its id, one session by name, and what is overdue."""

from __future__ import annotations

import pytest
from tests.unit.store.builders import FLOW, NOW, claim, new_session, open_turn, request, text_message, worker, write
from tests.unit.store.conftest import OpenStore

from perdure.errors import LeaseLost, SessionNotFound
from perdure.faults import DurableWrite
from perdure.store.base import DueSession
from perdure.store.sql.store import SqlStore


async def test_a_store_has_one_id_whoever_asks_first(store: SqlStore, open_store: OpenStore) -> None:
    other = await open_store()
    found = await store.store_id()
    assert found == await other.store_id() == await store.store_id()


async def test_an_adopted_session_has_a_new_owner_whether_it_had_one_or_something_to_do(store: SqlStore) -> None:
    owner = await open_turn(store)
    await store.register_worker(worker("w2"), NOW)
    adopted = await store.adopt("w2", "s", owner.lease.fence, NOW)
    assert adopted is not None
    assert adopted.lease.fence == owner.lease.fence + 1
    assert adopted.turn is not None
    assert adopted.turn.turn_id == "t1"
    with pytest.raises(LeaseLost):
        await owner.commit(DurableWrite.SESSION_RELEASED, release=True)
    await store.commit(adopted.lease, write(DurableWrite.SESSION_RELEASED, release=True, unfinished=True), NOW)
    await store.create_session(new_session("idle"), None, request(), NOW)
    idle = await store.adopt("w2", "idle", await _fence(store, "idle"), NOW)
    assert idle is not None
    assert idle.turn is None


async def test_nobody_adopts_by_a_fence_that_is_out_of_date(store: SqlStore) -> None:
    owner = await open_turn(store)
    for late in ("w2", "w3"):
        await store.register_worker(worker(late), NOW)
    taken = await store.adopt("w2", "s", owner.lease.fence, NOW)
    assert taken is not None
    assert await store.adopt("w3", "s", owner.lease.fence, NOW) is None
    await store.commit(taken.lease, write(DurableWrite.SESSION_RELEASED, release=True, unfinished=True), NOW)


async def test_only_a_registered_worker_adopts_and_only_what_there_is(store: SqlStore) -> None:
    await store.create_session(new_session(), None, request(), NOW)
    with pytest.raises(LeaseLost):
        await store.adopt("nobody", "s", await _fence(store, "s"), NOW)
    await store.register_worker(worker(), NOW)
    with pytest.raises(SessionNotFound):
        await store.adopt("w1", "other", 0, NOW)


async def test_what_has_been_due_for_a_while_is_listed_with_its_fence_oldest_first(store: SqlStore) -> None:
    await store.register_worker(worker(), NOW)
    for n, session_id in enumerate(("a", "b", "c")):
        await store.create_session(new_session(session_id), (f"t-{session_id}", text_message()), request(), NOW + n)
    due = await store.list_due(FLOW, NOW + 1, 10)
    assert [one.session_id for one in due] == ["a", "b"]
    assert await store.list_due(FLOW, NOW + 1, 1) == due[:1]
    assert await store.list_due("Other", NOW + 9, 10) == ()
    owned = await store.adopt("w1", "a", await _fence(store, "a"), NOW)
    assert owned is not None
    assert [one.session_id for one in await store.list_due(FLOW, NOW + 1, 10)] == ["b"]
    await store.commit(owned.lease, write(DurableWrite.SESSION_RELEASED, release=True), NOW)
    assert DueSession("a", owned.lease.fence) in await store.list_due(FLOW, NOW + 1, 10)


async def test_a_session_whose_deadline_has_passed_is_listed(store: SqlStore) -> None:
    owner = await open_turn(store)
    await owner.suspend(wake_at_ms=NOW + 50)
    assert await store.list_due(FLOW, NOW + 49, 10) == ()
    (due,) = await store.list_due(FLOW, NOW + 50, 10)
    assert due == DueSession("s", owner.lease.fence)


async def test_a_session_that_was_freed_has_a_fence_above_its_lost_lease(store: SqlStore) -> None:
    await store.register_worker(worker(), NOW)
    await store.create_session(new_session(), ("t1", text_message()), request(), NOW)
    owner = await claim(store)
    await owner.begin()
    await store.unregister_worker("w1")
    (due,) = await store.list_due(FLOW, 2**53, 10)
    assert due.fence > owner.lease.fence


async def _fence(store: SqlStore, session_id: str) -> int:
    return (await store.read_ownership(session_id)).fence
