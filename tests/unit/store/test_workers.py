"""Who may write a session: claims, leases, fences, releases; and who notices that a worker is gone."""

from __future__ import annotations

import os

import pytest
from tests.support.stores import Backend, SqliteBackend
from tests.unit.store.builders import (
    BLOCKED,
    FLOW,
    LEASE_MS,
    NOW,
    RUNNING,
    Owner,
    claim,
    new_session,
    open_turn,
    request,
    text_message,
    worker,
)
from tests.unit.store.conftest import OpenStore

from perdure.errors import LeaseLost, StoreUnavailable
from perdure.faults import DurableWrite, FaultPoint, InjectedFault, Moment, arm
from perdure.session.model import SessionStatus, TurnStatus
from perdure.store.base import InboxKind, SessionPut
from perdure.store.sql.store import SqlStore


async def _claim_ids(store: SqlStore, worker_id: str = "w1", limit: int = 10, now_ms: int = NOW) -> list[str]:
    return [found.lease.session_id for found in await store.claim(worker_id, [FLOW], limit, now_ms)]


async def _new(store: SqlStore, *session_ids: str) -> None:
    """Sessions with a message each, each a millisecond later than the one before."""
    for n, session_id in enumerate(session_ids):
        await store.create_session(new_session(session_id), (f"t-{session_id}", text_message()), request(), NOW + n)


# ---------------------------------------------------------------- claims


async def test_the_oldest_due_sessions_are_claimed_first_and_once(store: SqlStore) -> None:
    await store.register_worker(worker(), NOW)
    await _new(store, "b", "a", "c")
    assert await _claim_ids(store, limit=2) == ["b", "a"]
    assert await _claim_ids(store, limit=2) == ["c"]
    assert await _claim_ids(store) == []


async def test_a_claim_without_anything_due_writes_nothing(store: SqlStore) -> None:
    await store.register_worker(worker(), NOW)
    await store.create_session(new_session(), None, request(), NOW)
    before = store.commits
    assert await _claim_ids(store) == []
    assert store.commits == before


async def test_a_worker_that_is_not_registered_claims_nothing(store: SqlStore) -> None:
    await _new(store, "s")
    with pytest.raises(LeaseLost) as caught:
        await _claim_ids(store, "nobody")
    assert caught.value.worker_id == "nobody"


async def test_a_message_to_an_owned_session_does_not_make_it_due(store: SqlStore) -> None:
    owner = await open_turn(store)
    await store.accept_message("s", "t2", text_message(), request(), NOW)
    assert await _claim_ids(store) == []
    assert [item.turn_id for item in await store.read_inbox(owner.lease)] == ["t2"]


async def test_a_session_released_with_work_is_due_at_once(store: SqlStore) -> None:
    owner = await open_turn(store)
    await owner.release()
    assert await _claim_ids(store) == ["s"]


async def test_a_session_released_with_a_message_is_due_at_once(store: SqlStore) -> None:
    owner = await open_turn(store)
    await store.accept_message("s", "t2", text_message(), request(), NOW)
    await owner.end()
    assert await _claim_ids(store) == ["s"]


async def test_an_idle_session_is_not_due(store: SqlStore) -> None:
    owner = await open_turn(store)
    await owner.end()
    assert await _claim_ids(store) == []


async def test_a_suspended_session_is_due_when_something_comes(store: SqlStore) -> None:
    owner = await open_turn(store)
    await owner.suspend()
    assert await _claim_ids(store) == []
    await store.accept_cancel("s", "t1", request(), NOW)
    (claimed,) = await store.claim("w1", [FLOW], 1, NOW)
    assert [item.kind for item in claimed.inbox] == [InboxKind.CANCEL]
    assert claimed.turn is not None
    assert claimed.turn.status is TurnStatus.WAITING


async def test_a_suspended_session_is_due_at_its_time(store: SqlStore) -> None:
    owner = await open_turn(store)
    await owner.suspend(wake_at_ms=NOW + 100)
    assert await store.next_wake_ms([FLOW]) == NOW + 100
    assert await store.next_wake_ms(["Other"]) is None
    assert await _claim_ids(store, now_ms=NOW + 99) == []
    assert await _claim_ids(store, now_ms=NOW + 100) == ["s"]


async def test_of_what_is_due_and_what_wakes_the_older_comes_first(store: SqlStore) -> None:
    owner = await open_turn(store, "sleeper")
    await owner.suspend(wake_at_ms=NOW + 5)
    await store.create_session(new_session("late"), ("tl", text_message()), request(), NOW + 10)
    await store.create_session(new_session("early"), ("te", text_message()), request(), NOW)
    assert await _claim_ids(store, limit=3, now_ms=NOW + 20) == ["early", "sleeper", "late"]


async def test_consumed_items_do_not_come_back(store: SqlStore) -> None:
    owner = await open_turn(store)
    await store.accept_cancel("s", None, request(), NOW)
    await store.accept_cancel("s", "t1", request(), NOW)
    first, second = await store.read_inbox(owner.lease)
    await owner.commit(consumed=(first.position,))
    assert await store.read_inbox(owner.lease) == (second,)
    await owner.commit(consumed=(second.position,))
    await store.accept_cancel("s", None, request(), NOW)
    (third,) = await store.read_inbox(owner.lease)
    assert third.position > second.position


async def test_an_owner_reads_only_what_it_has_not_seen(store: SqlStore) -> None:
    owner = await open_turn(store)
    for number in range(3):
        await store.accept_message("s", f"m{number}", text_message(), request(), NOW)
    seen = (await store.read_inbox(owner.lease))[1].position
    assert [item.turn_id for item in await store.read_inbox(owner.lease, seen)] == ["m2"]


async def test_a_lease_that_ran_out_can_be_left_alone(open_store: OpenStore) -> None:
    ours, theirs = await open_store(), await open_store()
    await open_turn(theirs)
    assert await ours.reap_workers(NOW + LEASE_MS, expired=False) == 0
    assert await ours.reap_workers(NOW + LEASE_MS) == 1


# ---------------------------------------------------------------- other code, blocked sessions


async def test_a_worker_with_other_code_checks_open_turns(store: SqlStore) -> None:
    owner = await open_turn(store)
    await owner.suspend()
    await store.register_worker(worker("same"), NOW)
    assert await _claim_ids(store) == []
    await store.register_worker(worker("new", "code-2"), NOW)
    (claimed,) = await store.claim("new", [FLOW], 1, NOW)
    assert claimed.check


async def test_the_same_code_does_not_check(store: SqlStore) -> None:
    owner = await open_turn(store)
    await owner.release()
    (claimed,) = await store.claim("w1", [FLOW], 1, NOW)
    assert not claimed.check


async def test_idle_sessions_need_no_check(store: SqlStore) -> None:
    owner = await open_turn(store)
    await owner.end()
    await store.register_worker(worker("new", "code-2"), NOW)
    assert await _claim_ids(store, "new") == []


async def _block(owner: Owner) -> None:
    await owner.commit(
        DurableWrite.SESSION_BLOCKED, session=SessionPut(SessionStatus.BLOCKED, blocked=BLOCKED), release=True
    )


async def test_a_blocked_session_waits_for_a_new_worker_not_for_messages(store: SqlStore) -> None:
    owner = await open_turn(store)
    await store.accept_message("s", "t2", text_message(), request(), NOW)
    await _block(owner)
    await store.accept_message("s", "t3", text_message(), request(), NOW)
    assert await _claim_ids(store) == []
    await store.register_worker(worker("same-code"), NOW)
    (claimed,) = await store.claim("same-code", [FLOW], 1, NOW)
    assert claimed.check
    assert claimed.blocked == BLOCKED
    again = Owner(store, claimed)
    await again.commit(session=RUNNING)
    assert (await store.read_snapshot("s", NOW)).error is None


@pytest.mark.parametrize("kind", [InboxKind.CANCEL, InboxKind.CLOSE])
async def test_a_blocked_session_can_be_cancelled_and_closed(store: SqlStore, kind: InboxKind) -> None:
    owner = await open_turn(store)
    await _block(owner)
    if kind is InboxKind.CANCEL:
        await store.accept_cancel("s", None, request(), NOW)
    else:
        await store.accept_close("s", request(), NOW)
    (claimed,) = await store.claim("w1", [FLOW], 1, NOW)
    assert claimed.check
    assert [item.kind for item in claimed.inbox] == [kind]


async def test_a_blocked_session_does_not_wake_by_its_deadlines(store: SqlStore) -> None:
    owner = await open_turn(store)
    await owner.commit(session=SessionPut(SessionStatus.BLOCKED, blocked=BLOCKED), release=True, wake_at_ms=NOW + 1)
    assert await store.next_wake_ms([FLOW]) is None
    assert await _claim_ids(store, now_ms=NOW + 1) == []


# ---------------------------------------------------------------- workers that go


async def test_nobody_is_reaped_while_all_are_well_and_nothing_is_written(open_store: OpenStore) -> None:
    ours, theirs = await open_store(), await open_store()
    await ours.register_worker(worker("w1"), NOW)
    await theirs.register_worker(worker("w2"), NOW)
    before = ours.commits
    assert await ours.reap_workers(NOW) == 0
    assert await ours.reap_workers(NOW + LEASE_MS - 1) == 0
    assert ours.commits == before


async def test_a_worker_whose_lock_is_free_is_reaped_at_once(open_store: OpenStore, backend: Backend) -> None:
    """J9"""
    ours, theirs = await open_store(), await open_store()
    dead = await open_turn(theirs)
    await ours.register_worker(worker("w2"), NOW)
    await backend.die(theirs)
    assert await ours.reap_workers(NOW) == 1
    assert await ours.reap_workers(NOW) == 0
    alive = await claim(ours, "w2")
    assert alive.lease.fence == dead.lease.fence + 2, "one for the reaping, one for the claim"
    with pytest.raises(LeaseLost):
        await dead.commit(events=())
    with pytest.raises(LeaseLost):
        await theirs.renew_worker("w1", NOW)


async def test_a_worker_whose_lease_ran_out_is_reaped_though_it_holds_its_lock(open_store: OpenStore) -> None:
    """J9"""
    ours, theirs = await open_store(), await open_store()
    stopped = await open_turn(theirs)
    await theirs.renew_worker("w1", NOW + 1000)
    assert await ours.reap_workers(NOW + 1000 + LEASE_MS - 1) == 0
    assert await ours.reap_workers(NOW + 1000 + LEASE_MS) == 1
    with pytest.raises(LeaseLost):
        await stopped.release()
    with pytest.raises(LeaseLost):
        await theirs.renew_worker("w1", NOW)
    await theirs.register_worker(worker("w1"), NOW)
    assert await _claim_ids(theirs) == ["s"]
    assert await ours.reap_workers(NOW) == 0


async def test_a_worker_that_registered_anew_is_not_taken_for_its_dead_self(
    open_store: OpenStore, backend: Backend
) -> None:
    ours, theirs = await open_store(), await open_store()
    await theirs.register_worker(worker(), NOW)
    assert await ours.reap_workers(NOW) == 0  # from now on this lock file is watched
    await theirs.register_worker(worker(), NOW)
    assert await ours.reap_workers(NOW) == 0
    await backend.die(theirs)
    assert await ours.reap_workers(NOW) == 1


async def test_a_process_that_was_stalled_does_not_reap_itself(store: SqlStore) -> None:
    await store.register_worker(worker(), NOW)
    assert await store.reap_workers(NOW + 10 * LEASE_MS) == 0
    await store.renew_worker("w1", NOW + 10 * LEASE_MS)


async def test_a_reaped_idle_session_keeps_its_deadline(open_store: OpenStore, backend: Backend) -> None:
    ours, theirs = await open_store(), await open_store()
    dead = await open_turn(theirs)
    await dead.ask(deadline_ms=NOW + 700)
    await dead.commit(session=SessionPut(SessionStatus.WAITING))
    await backend.die(theirs)
    assert await ours.reap_workers(NOW) == 1
    assert await ours.next_wake_ms([FLOW]) == NOW + 700


async def test_what_a_worker_owns_but_does_not_run_is_freed(store: SqlStore) -> None:
    """The answer to a claim was lost: the write is on disk, and nobody knows of it."""
    await store.register_worker(worker(), NOW)
    await store.register_worker(worker("w2"), NOW)
    await _new(store, "held", "lost", "foreign")
    (held,) = await store.claim("w1", [FLOW], 1, NOW)
    with arm(FaultPoint(DurableWrite.SESSION_CLAIMED, Moment.AFTER)), pytest.raises(InjectedFault):
        await store.claim("w1", [FLOW], 1, NOW)
    assert await _claim_ids(store, "w2") == ["foreign"]
    assert await store.free_unheld("w1", ["held"], NOW) == 1
    assert await store.free_unheld("w1", ["held"], NOW) == 0
    assert await _claim_ids(store, "w2") == ["lost"]
    await Owner(store, held).release()


async def test_unregistering_frees_what_the_worker_owns(store: SqlStore, backend: Backend) -> None:
    owner = await open_turn(store)
    await store.unregister_worker("w1")
    with pytest.raises(LeaseLost):
        await owner.release()
    await store.register_worker(worker("w2"), NOW)
    assert await _claim_ids(store, "w2") == ["s"]
    if isinstance(backend, SqliteBackend):
        assert os.listdir(f"{backend.path}-locks") == ["w2.lock"]


async def test_what_is_given_back_in_order_is_no_lost_owner_and_what_a_dead_worker_had_is(
    open_store: OpenStore, backend: Backend
) -> None:
    ours, theirs = await open_store(), await open_store()
    await open_turn(ours)
    await ours.unregister_worker("w1")
    for _ in range(3):
        await theirs.register_worker(worker("w2"), NOW)
        assert (await claim(theirs, "w2")).claimed.lost == 0
        await theirs.unregister_worker("w2")
    await theirs.register_worker(worker("w3"), NOW)
    for _ in range(3):
        assert (await claim(theirs, "w3")).claimed.lost == 0
        assert await theirs.free_unheld("w3", [], NOW) == 1
    assert (await claim(theirs, "w3")).claimed.lost == 0
    await backend.die(theirs)
    assert await ours.reap_workers(NOW) == 1
    await ours.register_worker(worker("w4"), NOW)
    assert (await claim(ours, "w4")).claimed.lost == 1
    await ours.unregister_worker("w4")
    await ours.register_worker(worker("w5"), NOW)
    assert (await claim(ours, "w5")).claimed.lost == 1, "who leaves in order takes back its own claim, no more"


async def test_two_processes_cannot_be_the_same_worker(open_store: OpenStore) -> None:
    ours, theirs = await open_store(), await open_store()
    await theirs.register_worker(worker(), NOW)
    with pytest.raises(StoreUnavailable):
        await ours.register_worker(worker(), NOW)
    assert await ours.reap_workers(NOW) == 0
