"""Clients create sessions, send messages, cancel, close, delete; everybody reads snapshots and lists."""

from __future__ import annotations

import asyncio

import pytest
from tests.support.stores import Backend, SqliteBackend
from tests.unit.store.builders import (
    BLOCKED,
    FLOW,
    IDLE,
    NOW,
    Owner,
    claim,
    new_session,
    open_turn,
    request,
    text_message,
    worker,
)
from tests.unit.store.conftest import OpenStore

from perdure.errors import (
    LeaseLost,
    PayloadTooLarge,
    RequestConflict,
    SessionAlreadyExists,
    SessionClosed,
    SessionNotFound,
    TurnNotFound,
    UsageError,
    ValueNotStorable,
)
from perdure.session.model import AgentEventType, ImageInput, SessionStatus, StepStatus, TurnStatus, UserMessage
from perdure.store import codec
from perdure.store.base import InboxKind, Ownership, SessionFilter, SessionPut, SessionStore, SessionWrite
from perdure.store.sql.store import SqlStore


def test_the_store_fulfils_the_contract(backend: Backend) -> None:
    store: SessionStore = backend.new_store()
    assert store.address.startswith(("sqlite:///", "postgresql://"))


async def test_a_new_session_is_idle_and_empty(store: SqlStore) -> None:
    assert await store.create_session(new_session(state={"a": 1, "temp:b": 2}), None, request(), NOW) is None
    snapshot = await store.read_snapshot("s", NOW)
    assert snapshot.status is SessionStatus.IDLE
    assert snapshot.turn is None
    assert snapshot.state == {"a": 1}
    assert not snapshot.served
    steps = (await store.read_steps("s", None, 10)).items
    assert [(step.step_id, step.status) for step in steps] == [("await/1", StepStatus.PENDING)]


async def test_a_session_with_a_message_reads_as_running_before_any_worker_took_it(store: SqlStore) -> None:
    assert await store.create_session(new_session(), ("t1", text_message()), request(), NOW) == "t1"
    snapshot = await store.read_snapshot("s", NOW)
    assert (snapshot.status, snapshot.queued_messages) == (SessionStatus.RUNNING, 1)


async def test_the_same_creation_twice_is_one_session(store: SqlStore) -> None:
    first = await store.create_session(new_session(), ("t1", text_message()), request("r", "same"), NOW)
    second = await store.create_session(new_session(incarnation="x"), ("t2", text_message()), request("r", "same"), NOW)
    assert (first, second) == ("t1", "t1")
    assert (await store.read_snapshot("s", NOW)).queued_messages == 1


async def test_another_creation_under_a_taken_id_is_refused(store: SqlStore) -> None:
    await store.create_session(new_session(), None, request(None, "one"), NOW)
    with pytest.raises(SessionAlreadyExists) as caught:
        await store.create_session(new_session(), None, request(None, "two"), NOW)
    assert caught.value.session_id == "s"


async def test_a_repeated_message_request_is_accepted_once(store: SqlStore) -> None:
    await store.create_session(new_session(), None, request(), NOW)
    assert await store.accept_message("s", "t1", text_message(), request("r1", "x"), NOW) == "t1"
    assert await store.accept_message("s", "t2", text_message(), request("r1", "x"), NOW) == "t1"
    assert await store.accept_message("s", "t3", text_message(), request(None, "x"), NOW) == "t3"
    assert (await store.read_snapshot("s", NOW)).queued_messages == 2


async def test_one_request_id_for_two_requests_is_a_conflict(store: SqlStore) -> None:
    await store.create_session(new_session(), None, request("r0", "create"), NOW)
    await store.accept_message("s", "t1", text_message(), request("r1", "x"), NOW)
    for request_id, fingerprint in (("r1", "y"), ("r0", "send")):
        with pytest.raises(RequestConflict) as caught:
            await store.accept_message("s", "t2", text_message(), request(request_id, fingerprint), NOW)
        assert caught.value.request_id == request_id
    with pytest.raises(RequestConflict):
        await store.accept_cancel("s", None, request("r1", "z"), NOW)


async def test_what_is_unknown_is_not_found(store: SqlStore) -> None:
    with pytest.raises(SessionNotFound) as caught:
        await store.accept_message("nobody", "t", text_message(), request(), NOW)
    assert caught.value.session_id == "nobody"
    for read in (
        store.accept_cancel("nobody", None, request(), NOW),
        store.accept_close("nobody", request(), NOW),
        store.delete_session("nobody"),
        store.read_snapshot("nobody", NOW),
        store.read_interrupt("nobody", "i"),
        store.list_messages("nobody", None, 1),
        store.read_steps("nobody", None, 1),
        store.read_events("nobody", None, 1),
        store.read_recorded_turn("nobody", "t"),
        store.read_history("nobody", 0, 1),
        store.read_turn_state("nobody", 1),
    ):
        with pytest.raises(SessionNotFound):
            await read
    await store.create_session(new_session(), None, request(), NOW)
    with pytest.raises(TurnNotFound):
        await store.read_recorded_turn("s", "t9")


async def test_messages_come_out_of_the_inbox_as_they_went_in(store: SqlStore) -> None:
    await store.register_worker(worker(), NOW)
    rich = UserMessage(
        text="größe \x00 😀",
        images=(ImageInput(data=b"\x00\xff", mime_type="image/png"),),
        state_delta={"k": [1, None, {"x": 1.5}]},
        run_config={"max_llm_calls": 3},
    )
    await store.create_session(new_session(), ("t1", rich), request(), NOW)
    await store.accept_message("s", "t2", text_message("second"), request(), NOW)
    owner = await claim(store)
    assert [(item.kind, item.turn_id) for item in owner.claimed.inbox] == [
        (InboxKind.MESSAGE, "t1"),
        (InboxKind.MESSAGE, "t2"),
    ]
    assert owner.claimed.inbox[0].message == rich
    assert await store.read_inbox(owner.lease) == owner.claimed.inbox


async def test_cancel_reaches_the_open_turn_or_a_queued_message(store: SqlStore) -> None:
    owner = await open_turn(store)
    await store.accept_message("s", "t2", text_message(), request(), NOW)
    await store.accept_cancel("s", None, request(), NOW)
    await store.accept_cancel("s", "t1", request("r", "c"), NOW)
    await store.accept_cancel("s", "t1", request("r", "c"), NOW)
    await store.accept_cancel("s", "t2", request(), NOW)
    with pytest.raises(TurnNotFound) as caught:
        await store.accept_cancel("s", "t0", request(), NOW)
    assert caught.value.turn_id == "t0"
    cancels = [item.turn_id for item in await store.read_inbox(owner.lease) if item.kind is InboxKind.CANCEL]
    assert cancels == ["t1", "t1", "t2"], "the open turn, by its name: another may be open when the owner looks"


async def test_cancel_of_nothing_does_nothing(store: SqlStore) -> None:
    await store.create_session(new_session(), None, request(), NOW)
    before = store.commits
    await store.accept_cancel("s", None, request(), NOW)
    assert store.commits == before


async def test_an_idle_session_closes_without_a_worker(store: SqlStore) -> None:
    await store.create_session(new_session(), None, request(), NOW)
    await store.accept_close("s", request(), NOW)
    await store.accept_close("s", request(), NOW)
    assert (await store.read_snapshot("s", NOW)).status is SessionStatus.CLOSED
    (step,) = (await store.read_steps("s", None, 10)).items
    assert step.status is StepStatus.CANCELLED
    (closed,) = (await store.read_events("s", None, 10)).events
    assert closed.type is AgentEventType.SESSION_CLOSED
    with pytest.raises(SessionClosed):
        await store.accept_message("s", "t1", text_message(), request(), NOW)


async def test_a_busy_session_leaves_closing_to_its_owner(store: SqlStore) -> None:
    owner = await open_turn(store)
    await store.accept_close("s", request(), NOW)
    with pytest.raises(SessionClosed):
        await store.accept_message("s", "t2", text_message(), request(), NOW)
    assert (await store.read_snapshot("s", NOW)).status is SessionStatus.RUNNING
    assert [item.kind for item in await store.read_inbox(owner.lease)] == [InboxKind.CLOSE]
    await owner.end(status=TurnStatus.CANCELLED, session=SessionPut(SessionStatus.CLOSED, closed=True))
    assert (await store.read_snapshot("s", NOW)).status is SessionStatus.CLOSED
    assert await store.claim("w1", [FLOW], 10, NOW) == ()


async def test_closing_takes_a_session_from_an_owner_that_only_keeps_it(store: SqlStore) -> None:
    owner = await open_turn(store)
    await owner.end(release=False)
    await store.accept_close("s", request(), NOW)
    assert (await store.read_snapshot("s", NOW)).status is SessionStatus.CLOSED
    with pytest.raises(LeaseLost):
        await owner.commit(session=IDLE, release=True)
    assert await store.claim("w1", [FLOW], 10, NOW) == ()


async def test_closing_under_an_owner_with_something_to_do_is_left_to_it_or_to_the_next_one(store: SqlStore) -> None:
    owner = await open_turn(store)
    await owner.end(release=False)
    await store.accept_message("s", "t2", UserMessage(text="more"), request("r"), NOW)
    await store.accept_close("s", request(), NOW)
    assert (await store.read_snapshot("s", NOW)).status is SessionStatus.RUNNING
    assert [item.kind for item in await store.read_inbox(owner.lease)] == [InboxKind.MESSAGE, InboxKind.CLOSE]
    await owner.commit(session=IDLE, release=True)  # it has not looked
    assert (await store.read_snapshot("s", NOW)).status is SessionStatus.RUNNING
    (claimed,) = await store.claim("w1", [FLOW], 10, NOW)
    assert [item.kind for item in claimed.inbox] == [InboxKind.MESSAGE, InboxKind.CLOSE]


async def test_ownership_says_who_has_a_session_and_which_leases_are_void(store: SqlStore) -> None:
    await store.create_session(new_session("s"), None, request(), NOW)
    nobody = await store.read_ownership("s")
    assert nobody.owner is None
    await store.register_worker(worker("w1"), NOW)
    claimed = await store.adopt("w1", "s", nobody.fence, NOW)
    assert claimed is not None
    assert await store.read_ownership("s") == Ownership(FLOW, "w1", claimed.lease.fence)
    await store.commit(claimed.lease, SessionWrite(kinds=(), release=True), NOW)
    assert await store.read_ownership("s") == Ownership(FLOW, None, claimed.lease.fence)
    with pytest.raises(SessionNotFound):
        await store.read_ownership("t")


async def test_deleting_leaves_no_row_and_no_payload_behind(store: SqlStore, backend: Backend) -> None:
    long = "x" * (codec.MAX_INLINE_BYTES + 1)
    shared = "y" * (codec.MAX_INLINE_BYTES + 1)
    owner = await open_turn(store)
    await owner.ask()
    await store.accept_message("s", "t2", UserMessage(text=long), request("r"), NOW)
    await store.accept_message("s", "t3", UserMessage(text=shared), request(), NOW)
    await store.create_session(new_session("other"), ("o1", UserMessage(text=shared)), request(), NOW)
    await store.delete_session("s")
    if isinstance(backend, SqliteBackend):
        assert backend.run("SELECT count(*) FROM payloads") == [(1,)]
    others = backend.run("SELECT session_key FROM sessions")
    for table, columns in backend.tables().items():
        if "session_key" in columns and table != "sessions":
            keys = backend.run(f"SELECT DISTINCT session_key FROM {table}")
            assert set(keys) <= set(others), table
    assert backend.run("SELECT count(*) FROM calls") == [(0,)]
    with pytest.raises(SessionNotFound):
        await store.read_snapshot("s", NOW)
    assert (await store.read_snapshot("other", NOW)).queued_messages == 1


async def test_a_deleted_id_can_be_used_again_from_scratch(store: SqlStore) -> None:
    stale = await open_turn(store)
    await store.delete_session("s")
    await store.create_session(new_session(incarnation="second"), ("t1", text_message()), request(), NOW)
    owner = await claim(store)
    assert owner.claimed.incarnation == "second"
    assert owner.claimed.turn is None
    assert owner.lease.worker_id == stale.lease.worker_id
    with pytest.raises(LeaseLost):
        await stale.commit(session=IDLE)


async def test_lists_page_from_the_most_recently_changed(store: SqlStore) -> None:
    await store.register_worker(worker(), NOW)
    for n in range(5):
        await store.create_session(new_session(f"s{n}", user_id=f"u{n % 2}"), None, request(), NOW + n)
    await store.accept_message("s1", "t", text_message(), request(), NOW + 100)
    pages: list[list[str]] = []
    cursor: str | None = None
    while True:
        page = await store.list_sessions(SessionFilter(), cursor, 2)
        pages.append([item.session_id for item in page.items])
        cursor = page.next_cursor
        if cursor is None:
            break
    assert pages == [["s1", "s4"], ["s3", "s2"], ["s0"]]


async def test_lists_filter_by_everything_at_once(store: SqlStore) -> None:
    await store.create_session(new_session("a", user_id="u1"), None, request(), NOW)
    await store.create_session(new_session("b", user_id="u1"), ("t", text_message()), request(), NOW)
    await store.create_session(new_session("c", user_id="u2", flow_type="Other"), None, request(), NOW)

    async def ids(**chosen: object) -> set[str]:
        page = await store.list_sessions(SessionFilter(**chosen), None, 10)  # type: ignore[arg-type]  # test brevity
        return {item.session_id for item in page.items}

    assert await ids(user_id="u1") == {"a", "b"}
    assert await ids(flow_type="Other") == {"c"}
    assert await ids(status=SessionStatus.RUNNING) == {"b"}
    assert await ids(status=SessionStatus.IDLE) == {"a", "c"}
    assert await ids(user_id="u1", flow_type=FLOW, status=SessionStatus.IDLE) == {"a"}
    assert await ids(user_id="u2", flow_type=FLOW) == set()


async def test_a_summary_counts_what_waits(store: SqlStore) -> None:
    owner = await open_turn(store)
    await owner.ask("c1")
    await owner.ask("c2")
    await store.accept_message("s", "t2", text_message(), request(), NOW)
    (summary,) = (await store.list_sessions(SessionFilter(), None, 10)).items
    assert (summary.turns, summary.pending_interrupts, summary.queued_messages) == (1, 2, 1)


async def test_a_foreign_list_cursor_is_refused(store: SqlStore) -> None:
    with pytest.raises(UsageError, match="no cursor of a session list"):
        await store.list_sessions(SessionFilter(), "7", 2)


async def test_a_blocked_session_shows_why(store: SqlStore) -> None:
    owner = await open_turn(store)
    await owner.commit(session=SessionPut(SessionStatus.BLOCKED, blocked=BLOCKED), release=True)
    snapshot = await store.read_snapshot("s", NOW)
    assert (snapshot.status, snapshot.error) == (SessionStatus.BLOCKED, BLOCKED)


async def test_served_follows_the_workers_that_are_up(store: SqlStore) -> None:
    await store.create_session(new_session(), None, request(), NOW)
    await store.register_worker(worker(flows=["Other"]), NOW)
    assert not (await store.read_snapshot("s", NOW)).served
    await store.register_worker(worker("w2"), NOW)
    assert (await store.read_snapshot("s", NOW)).served
    assert not (await store.read_snapshot("s", NOW + 10_000)).served
    await store.unregister_worker("w2")
    assert not (await store.read_snapshot("s", NOW)).served


async def test_what_cannot_be_stored_is_refused_and_names_the_place(
    store: SqlStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(ValueNotStorable) as caught:
        await store.create_session(new_session(state={"k": {"deep": [1, {2}]}}), None, request(), NOW)
    assert caught.value.path == "['deep'][1]"
    assert caught.value.type_name == "set"
    assert "'k'" in str(caught.value)
    await store.create_session(new_session(), None, request(), NOW)
    monkeypatch.setattr(codec, "MAX_PAYLOAD_BYTES", 100_000)
    with pytest.raises(PayloadTooLarge) as too_large:
        await store.accept_message("s", "t", UserMessage(text="x" * 100_001), request(), NOW)
    assert too_large.value.limit == 100_000


async def test_the_first_turn_of_two_owners_is_told_apart(store: SqlStore) -> None:
    first = await open_turn(store)
    await first.end()
    await store.accept_message("s", "t2", text_message(), request(), NOW)
    second: Owner = await claim(store)
    assert (first.lease.fence, second.lease.fence) == (1, 2)
    assert second.claimed.turns == 1


async def test_a_store_has_one_id_whoever_asks_first(open_store: OpenStore) -> None:
    store, other = await open_store(), await open_store()
    one, another = await asyncio.gather(store.store_id(), other.store_id())
    assert one == another == await store.store_id()
