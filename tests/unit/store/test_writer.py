"""Group commit: one transaction for all that wait, order kept, each write on its own; and every fault point fires."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable

import pytest
from tests.support.stores import Backend
from tests.unit.store.builders import (
    FLOW,
    NOW,
    event,
    message,
    new_session,
    open_turn,
    request,
    text_message,
    worker,
    write,
)

from perdure.errors import LeaseLost, RequestConflict, StoreError
from perdure.faults import Action, DurableWrite, FaultPoint, InjectedFault, Moment, arm
from perdure.store.base import Answer, Change
from perdure.store.sql.store import SqlStore
from perdure.store.sql.transaction import Transaction


class Gate:
    """Holds the writer's thread, so that what is handed in meanwhile forms one group."""

    def __init__(self, store: SqlStore) -> None:
        self._open = threading.Event()
        self._held = store._submit(self._wait, "nobody")

    def _wait(self, _: Transaction) -> None:
        self._open.wait(10)

    async def release(self) -> None:
        self._open.set()
        await self._held


async def _hand_in(*writes: Awaitable[object]) -> list[asyncio.Future[object]]:
    """Starts the writes, in this order, without waiting for them."""
    tasks: list[asyncio.Future[object]] = [asyncio.ensure_future(one) for one in writes]
    await asyncio.sleep(0)
    return tasks


async def test_writes_that_wait_together_share_a_commit(store: SqlStore) -> None:
    gate = Gate(store)
    before = store.commits
    tasks = await _hand_in(
        *(store.create_session(new_session(f"s{n}"), None, request(), NOW) for n in range(20)),
    )
    await gate.release()
    await asyncio.gather(*tasks)
    assert store.commits == before + 1


async def test_writes_are_applied_in_the_order_they_were_handed_in(store: SqlStore) -> None:
    owner = await open_turn(store)
    gate = Gate(store)
    tasks = await _hand_in(
        *(owner.commit(turn_id="t1", messages=(message(n, str(n)),), events=(event(n + 1),)) for n in range(30))
    )
    await gate.release()
    await asyncio.gather(*tasks)
    assert [item.text for item in (await store.list_messages("s", None, 99)).items] == [str(n) for n in range(30)]


async def test_a_refused_write_leaves_the_rest_of_its_group_alone(store: SqlStore) -> None:
    owner = await open_turn(store)
    await store.create_session(new_session("other"), None, request("r", "one"), NOW)
    gate = Gate(store)
    before = store.commits
    good1, conflict, lost, good2 = await _hand_in(
        owner.commit(turn_id="t1", messages=(message(0),)),
        store.accept_message("other", "t", text_message(), request("r", "two"), NOW),
        store.commit(owner.lease.__class__("s", "w9", 1), write(), NOW),
        owner.commit(turn_id="t1", messages=(message(1),)),
    )
    await gate.release()
    with pytest.raises(RequestConflict):
        await conflict
    with pytest.raises(LeaseLost):
        await lost
    await asyncio.gather(good1, good2)
    assert store.commits == before + 1
    assert len((await store.list_messages("s", None, 9)).items) == 2


async def test_a_write_that_breaks_half_way_is_undone_alone(store: SqlStore, backend: Backend) -> None:
    owner = await open_turn(store)

    def break_half_way(transaction: Transaction) -> None:
        (key,) = transaction.execute("session_key", ("s",)).fetchone()
        transaction.execute("session_closing", (key,))
        transaction.execute("session_state_put", (key, "key", 1, 1, None))

    gate = Gate(store)
    good1, good2 = await _hand_in(
        owner.commit(turn_id="t1", messages=(message(0),)),
        owner.commit(turn_id="t1", messages=(message(1),)),
    )
    broken = store._submit(break_half_way, "s")
    (good3,) = await _hand_in(owner.commit(turn_id="t1", messages=(message(2),)))
    await gate.release()
    with pytest.raises(StoreError) as caught:
        await broken
    assert isinstance(caught.value.__cause__, backend.refusal)
    await asyncio.gather(good1, good2, good3)
    assert len((await store.list_messages("s", None, 9)).items) == 3
    assert await store.accept_message("s", "t2", text_message(), request(), NOW) == "t2", "the session is not closing"


async def test_a_write_whose_caller_was_cancelled_still_happens(store: SqlStore) -> None:
    gate = Gate(store)
    (task,) = await _hand_in(store.create_session(new_session(), None, request(), NOW))
    task.cancel()
    await gate.release()
    with pytest.raises(asyncio.CancelledError):
        await task
    await Gate(store).release()  # behind the write
    assert (await store.read_snapshot("s", NOW)).session_id == "s"


async def test_closing_finishes_what_was_handed_in(
    store: SqlStore, open_store: Callable[..., Awaitable[SqlStore]]
) -> None:
    tasks = await _hand_in(*(store.create_session(new_session(f"s{n}"), None, request(), NOW) for n in range(5)))
    await store.close()
    await asyncio.gather(*tasks)
    again = await open_store()
    assert (await again.read_snapshot("s4", NOW)).session_id == "s4"


async def test_listeners_hear_of_a_write_once_it_is_on_disk(store: SqlStore) -> None:
    heard: list[Change] = []
    stop = store.listen(heard.append)
    await store.create_session(new_session(), None, request(), NOW)
    assert heard == [Change(frozenset({"s"}), work=False)]
    await store.register_worker(worker(), NOW)
    await store.accept_message("s", "t1", text_message(), request(), NOW)
    assert heard[-1] == Change(frozenset({"s"}), work=True)
    (claimed,) = await store.claim("w1", [FLOW], 1, NOW)
    assert heard[-1] == Change(frozenset({"s"}), work=False)
    await store.commit(claimed.lease, write(events=(event(1),)), NOW)
    assert heard[-1] == Change(frozenset({"s"}), work=False)
    await store.commit(claimed.lease, write(release=True), NOW)
    assert heard[-1] == Change(frozenset({"s"}), work=True)
    stop()
    stop()
    count = len(heard)
    await store.delete_session("s")
    assert len(heard) == count


async def test_a_group_is_one_change_for_listeners(store: SqlStore) -> None:
    heard: list[Change] = []
    store.listen(heard.append)
    gate = Gate(store)
    tasks = await _hand_in(
        store.create_session(new_session("a"), None, request(), NOW),
        store.create_session(new_session("b"), ("t", text_message()), request(), NOW),
    )
    await gate.release()
    await asyncio.gather(*tasks)
    assert heard == [Change(frozenset({"a", "b"}), work=True)]


# ---------------------------------------------------------------- fault points

_CLIENT_WRITES: dict[DurableWrite, Callable[[SqlStore], Awaitable[object]]] = {
    DurableWrite.SESSION_CREATED: lambda store: store.create_session(new_session("new"), None, request(), NOW),
    DurableWrite.MESSAGE_ACCEPTED: lambda store: store.accept_message("s", "t9", text_message(), request(), NOW),
    DurableWrite.ANSWER_ACCEPTED: lambda store: store.answer_interrupt("s", "t1:c1", Answer(True), request(), NOW),
    DurableWrite.REQUEST_ACCEPTED: lambda store: store.accept_cancel("s", None, request(), NOW),
    DurableWrite.SESSION_CLAIMED: lambda store: store.claim("w1", [FLOW], 1, NOW),
    DurableWrite.SESSION_CLOSED: lambda store: store.accept_close("idle", request(), NOW),
}


def _marks(backend: Backend) -> list[object]:
    """All rows that a client's write could touch."""
    tables = ("sessions", "inbox", "interrupts", "steps", "events")
    return [backend.run(f"SELECT * FROM {table}") for table in tables]


async def _prepare(store: SqlStore) -> None:
    owner = await open_turn(store)
    await owner.ask()
    await owner.release()
    await store.create_session(new_session("idle"), None, request(), NOW)


@pytest.mark.parametrize("kind", list(_CLIENT_WRITES), ids=lambda kind: kind.value)
async def test_a_fault_before_a_clients_write_leaves_nothing(
    store: SqlStore, backend: Backend, kind: DurableWrite
) -> None:
    await _prepare(store)
    before = _marks(backend)
    with arm(FaultPoint(kind, Moment.BEFORE)) as armed, pytest.raises(InjectedFault):
        await _CLIENT_WRITES[kind](store)
    assert armed.fired
    assert _marks(backend) == before
    await _CLIENT_WRITES[kind](store)


@pytest.mark.parametrize("kind", list(_CLIENT_WRITES), ids=lambda kind: kind.value)
async def test_a_fault_after_a_clients_write_leaves_it_on_disk(
    store: SqlStore, backend: Backend, kind: DurableWrite
) -> None:
    await _prepare(store)
    before = _marks(backend)
    heard: list[Change] = []
    store.listen(heard.append)
    with arm(FaultPoint(kind, Moment.AFTER)) as armed, pytest.raises(InjectedFault):
        await _CLIENT_WRITES[kind](store)
    assert armed.fired
    assert _marks(backend) != before
    assert len(heard) == 1


async def test_a_message_that_comes_with_its_session_passes_its_own_fault_point(store: SqlStore) -> None:
    with arm(FaultPoint(DurableWrite.MESSAGE_ACCEPTED, Moment.BEFORE)) as armed, pytest.raises(InjectedFault):
        await store.create_session(new_session(), ("t", text_message()), request(), NOW)
    assert armed.fired


@pytest.mark.parametrize("kind", list(DurableWrite), ids=lambda kind: kind.value)
async def test_an_owners_write_passes_the_fault_points_of_its_kinds(store: SqlStore, kind: DurableWrite) -> None:
    owner = await open_turn(store)

    async def count() -> int:
        return len((await store.list_messages("s", None, 9)).items)

    with arm(FaultPoint(kind, Moment.BEFORE)) as before, pytest.raises(InjectedFault):
        await owner.commit(DurableWrite.EVENTS_APPENDED, kind, turn_id="t1", messages=(message(0),))
    assert before.fired
    assert await count() == 0
    with arm(FaultPoint(kind, Moment.AFTER)) as after, pytest.raises(InjectedFault):
        await owner.commit(DurableWrite.EVENTS_APPENDED, kind, turn_id="t1", messages=(message(0),))
    assert after.fired
    assert await count() == 1


async def test_no_fault_point_is_passed_when_nothing_is_written(store: SqlStore) -> None:
    await store.register_worker(worker(), NOW)
    with arm(FaultPoint(DurableWrite.SESSION_CLAIMED, Moment.BEFORE), Action.RAISE) as armed:
        assert await store.claim("w1", [FLOW], 1, NOW) == ()
    assert not armed.fired


async def test_a_fault_in_one_write_of_a_group_spares_the_others(store: SqlStore) -> None:
    owner = await open_turn(store)
    for moment, nth in ((Moment.BEFORE, 2), (Moment.AFTER, 2)):
        gate = Gate(store)
        first = len((await store.list_messages("s", None, 99)).items)
        with arm(FaultPoint(DurableWrite.STEP_SETTLED, moment), nth=nth) as armed:
            tasks = await _hand_in(
                *(owner.commit(DurableWrite.STEP_SETTLED, events=(event(first + n + 1),)) for n in range(3))
            )
            await gate.release()
            results = await asyncio.gather(*tasks, return_exceptions=True)
        assert armed.fired
        assert [type(result) for result in results] == [type(None), InjectedFault, type(None)]
