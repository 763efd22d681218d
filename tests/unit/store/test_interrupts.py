"""An interrupt is answered at most once (J6), by whoever is first, in one transaction with the inbox item."""

from __future__ import annotations

import asyncio

import pytest
from tests.unit.store.builders import BLOCKED, FLOW, IDLE, NOW, claim, open_turn, request

from perdure.errors import (
    InterruptAlreadyResolved,
    InterruptExpired,
    InterruptNotFound,
    InterruptWithdrawn,
    RequestConflict,
    SessionBlocked,
    SessionNotFound,
)
from perdure.session.model import InterruptStatus, SessionStatus
from perdure.session.runner import Approval
from perdure.store.base import Answer, InboxKind, InterruptEnd, SessionPut
from perdure.store.sql.store import SqlStore

YES = Answer(True, payload={"limit": 3}, resolved_by="ann")
NO = Answer(False, message="too much", resolved_by="bob")


async def test_a_pending_interrupt_shows_the_call_it_is_about(store: SqlStore) -> None:
    owner = await open_turn(store)
    await owner.ask("c1", deadline_ms=NOW + 60_000)
    await owner.ask("c2")
    first, second = (await store.read_snapshot("s", NOW)).pending_interrupts
    assert (first.interrupt_id, first.tool_name, first.tool_call_id, first.turn_id) == (
        "t1:c1",
        "refund_order",
        "c1",
        "t1",
    )
    assert (first.arguments, first.hint, first.payload) == ({"order": 7}, "really?", {"limit": 5})
    assert first.deadline is not None
    assert first.deadline.timestamp() * 1000 == NOW + 60_000
    assert second.deadline is None
    assert await store.read_interrupt("s", "t1:c1") == first


async def test_a_yes_is_kept_with_its_payload_and_reaches_the_owner(store: SqlStore) -> None:
    owner = await open_turn(store)
    await owner.ask()
    await owner.suspend()
    answered = await store.answer_interrupt("s", "t1:c1", YES, request(), NOW + 5)
    assert (answered.status, answered.resolved_by) == (InterruptStatus.APPROVED, "ann")
    assert answered.response == {"approved": True, "payload": {"limit": 3}, "message": None}
    again = (await claim(store)).claimed
    (item,) = again.inbox
    assert (item.kind, item.interrupt_id, item.approved, item.payload) == (
        InboxKind.ANSWER,
        "t1:c1",
        True,
        {"limit": 3},
    )
    assert again.calls[0].approval == Approval({"limit": 3})
    (recorded,) = (await store.read_recorded_turn("s", "t1")).calls
    assert recorded.approval == Approval({"limit": 3})
    assert (await store.read_snapshot("s", NOW)).pending_interrupts == ()


async def test_a_no_is_kept_with_its_words(store: SqlStore) -> None:
    owner = await open_turn(store)
    await owner.ask()
    await owner.suspend()
    await store.answer_interrupt("s", "t1:c1", NO, request(), NOW)
    again = (await claim(store)).claimed
    assert (again.inbox[0].approved, again.inbox[0].rejection) == (False, "too much")
    assert again.calls[0].approval is None
    found = await store.read_interrupt("s", "t1:c1")
    assert found.status is InterruptStatus.REJECTED
    assert found.response == {"approved": False, "payload": None, "message": "too much"}


async def test_the_same_answer_again_changes_nothing_whoever_gives_it(store: SqlStore) -> None:
    owner = await open_turn(store)
    await owner.ask()
    first = await store.answer_interrupt("s", "t1:c1", YES, request(), NOW)
    before = store.commits
    same = Answer(True, payload={"limit": 3}, resolved_by="carol")
    assert await store.answer_interrupt("s", "t1:c1", same, request(), NOW + 99) == first
    assert store.commits == before
    assert len(await store.read_inbox(owner.lease)) == 1


@pytest.mark.parametrize(
    "other", [NO, Answer(True), Answer(True, payload={"limit": 4}), Answer(True, payload={"limit": 3}, message="x")]
)
async def test_another_answer_is_refused_and_says_who_was_first(store: SqlStore, other: Answer) -> None:
    owner = await open_turn(store)
    await owner.ask()
    await store.answer_interrupt("s", "t1:c1", YES, request(), NOW)
    with pytest.raises(InterruptAlreadyResolved) as caught:
        await store.answer_interrupt("s", "t1:c1", other, request(), NOW)
    assert caught.value.resolved_by == "ann"
    assert str(caught.value.resolved_at).startswith("2025-06-15T")


async def test_true_is_not_one(store: SqlStore) -> None:
    owner = await open_turn(store)
    await owner.ask()
    await store.answer_interrupt("s", "t1:c1", Answer(True, payload=1), request(), NOW)
    with pytest.raises(InterruptAlreadyResolved):
        await store.answer_interrupt("s", "t1:c1", Answer(True, payload=True), request(), NOW)


async def test_of_answers_that_race_exactly_one_counts(store: SqlStore) -> None:
    """J6"""
    owner = await open_turn(store)
    await owner.ask()
    answers = [Answer(n % 2 == 0, payload=n) for n in range(8)]
    results = await asyncio.gather(
        *(store.answer_interrupt("s", "t1:c1", answer, request(), NOW) for answer in answers), return_exceptions=True
    )
    refused = [result for result in results if isinstance(result, InterruptAlreadyResolved)]
    assert len(refused) == 7
    assert len(await store.read_inbox(owner.lease)) == 1


async def test_a_deadline_counts_to_the_millisecond_even_if_nobody_noticed(store: SqlStore) -> None:
    owner = await open_turn(store)
    await owner.ask("c1", deadline_ms=NOW + 10)
    await owner.ask("c2", deadline_ms=NOW + 10)
    await store.answer_interrupt("s", "t1:c1", YES, request(), NOW + 9)
    with pytest.raises(InterruptExpired) as caught:
        await store.answer_interrupt("s", "t1:c2", YES, request(), NOW + 10)
    assert caught.value.interrupt_id == "t1:c2"


async def test_an_expired_or_withdrawn_interrupt_takes_no_answer(store: SqlStore) -> None:
    owner = await open_turn(store)
    await owner.ask("c1")
    await owner.ask("c2")
    await owner.commit(
        interrupt_ends=(
            InterruptEnd("t1:c1", InterruptStatus.EXPIRED),
            InterruptEnd("t1:c2", InterruptStatus.WITHDRAWN),
        )
    )
    with pytest.raises(InterruptExpired):
        await store.answer_interrupt("s", "t1:c1", YES, request(), NOW)
    with pytest.raises(InterruptWithdrawn):
        await store.answer_interrupt("s", "t1:c2", YES, request(), NOW)
    expired = await store.read_interrupt("s", "t1:c1")
    assert (expired.status, expired.resolved_by, expired.response) == (InterruptStatus.EXPIRED, None, None)
    assert expired.resolved_at is not None


async def test_an_answer_that_was_first_does_not_expire(store: SqlStore) -> None:
    owner = await open_turn(store)
    await owner.ask()
    answer = Answer(approved=True, resolved_by="ann")
    await store.answer_interrupt("s", "t1:c1", answer, request(), NOW)
    with pytest.raises(InterruptAlreadyResolved) as refused:
        await owner.commit(interrupt_ends=(InterruptEnd("t1:c1", InterruptStatus.EXPIRED),), session=IDLE)
    assert refused.value.resolved_by == "ann"
    assert (await store.read_interrupt("s", "t1:c1")).status is InterruptStatus.APPROVED
    assert (await store.read_snapshot("s", NOW)).status is SessionStatus.RUNNING, "nothing was written"
    await owner.commit(interrupt_ends=(InterruptEnd("t1:c1", InterruptStatus.WITHDRAWN),))
    assert (await store.read_interrupt("s", "t1:c1")).status is InterruptStatus.APPROVED


async def test_a_blocked_session_takes_no_answer(store: SqlStore) -> None:
    owner = await open_turn(store)
    await owner.ask()
    await owner.commit(session=SessionPut(SessionStatus.BLOCKED, blocked=BLOCKED), release=True)
    with pytest.raises(SessionBlocked) as caught:
        await store.answer_interrupt("s", "t1:c1", YES, request(), NOW)
    assert (caught.value.step, caught.value.expected, caught.value.found) == ("m1", "a", "b")
    assert (await store.read_interrupt("s", "t1:c1")).status is InterruptStatus.PENDING


async def test_unknown_interrupts_are_not_found(store: SqlStore) -> None:
    with pytest.raises(SessionNotFound):
        await store.answer_interrupt("s", "i", YES, request(), NOW)
    await open_turn(store)
    with pytest.raises(InterruptNotFound):
        await store.answer_interrupt("s", "i", YES, request(), NOW)
    with pytest.raises(InterruptNotFound):
        await store.read_interrupt("s", "i")


async def test_an_answer_under_a_request_id_is_idempotent(store: SqlStore) -> None:
    owner = await open_turn(store)
    await owner.ask()
    first = await store.answer_interrupt("s", "t1:c1", YES, request("r", "yes"), NOW)
    assert await store.answer_interrupt("s", "t1:c1", YES, request("r", "yes"), NOW) == first
    with pytest.raises(RequestConflict):
        await store.answer_interrupt("s", "t1:c1", NO, request("r", "no"), NOW)


async def test_the_earliest_deadline_wakes_a_suspended_session(store: SqlStore) -> None:
    owner = await open_turn(store)
    await owner.ask("c1", deadline_ms=NOW + 500)
    await owner.suspend(wake_at_ms=NOW + 500)
    assert await store.next_wake_ms([FLOW]) == NOW + 500
    assert await store.claim("w1", [FLOW], 10, NOW + 499) == ()
    (claimed,) = await store.claim("w1", [FLOW], 10, NOW + 500)
    assert claimed.next_deadline_ms == NOW + 500
    assert await store.next_wake_ms([FLOW]) is None
