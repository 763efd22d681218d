"""What an owner writes of a turn, and what a replay reads of it."""

from __future__ import annotations

import asyncio
from datetime import timedelta

import pytest
from tests.support.stores import Backend, SqliteBackend
from tests.unit.store.builders import (
    FLOW,
    IDLE,
    NOW,
    RUNNING,
    USAGE,
    Owner,
    call_request,
    claim,
    message,
    model_call,
    new_session,
    open_turn,
    record,
    request,
    step,
    text_message,
    worker,
    write,
)

from perdure.errors import Conflict, LeaseLost, PayloadTooLarge, TurnNotFound, UsageError
from perdure.faults import DurableWrite
from perdure.session.model import (
    ErrorInfo,
    InterruptKind,
    MessageRole,
    RecordStatus,
    SessionStatus,
    StepName,
    StepStatus,
    TurnStatus,
    Usage,
    UserMessage,
)
from perdure.session.policy import RetryPolicy, ToolEffect
from perdure.session.runner import CallRecord
from perdure.session.state import CallPhase
from perdure.store import codec
from perdure.store.base import Answer, CallPut, Lease, SessionPut, TurnBegin, TurnChange
from perdure.store.sql.store import SqlStore

STARTED = CallPut("t1", "c1", CallPhase.STARTED, 1, "t1/call/c1", request=call_request())


async def test_a_turn_begins_with_its_message(store: SqlStore) -> None:
    owner = await open_turn(store)
    snapshot = await store.read_snapshot("s", NOW)
    assert snapshot.turn is not None
    assert (snapshot.turn.turn_id, snapshot.turn.number, snapshot.turn.status) == ("t1", 1, TurnStatus.RUNNING)
    assert (snapshot.status, snapshot.queued_messages) == (SessionStatus.RUNNING, 0)
    assert await store.read_inbox(owner.lease) == ()


async def test_a_turn_needs_a_message_and_no_other_open_turn(store: SqlStore) -> None:
    owner = await open_turn(store)
    with pytest.raises(UsageError, match="is open"):
        await owner.begin("t2", 2)
    await owner.end(release=False)
    with pytest.raises(TurnNotFound):
        await owner.begin("t2", 2)


async def test_a_claimed_turn_comes_with_all_its_loop_needs(store: SqlStore) -> None:
    owner = await open_turn(store)
    await owner.ask("c2")
    await owner.commit(
        turn_id="t1",
        usage=USAGE,
        steps=(
            step("t1/model/1", StepStatus.SUCCEEDED, key="m1"),
            step("t1/model/2", StepStatus.RUNNING, attempts=2),
            step("t1/call/c1", StepStatus.RUNNING, name=StepName.CALL_TOOL, call_id="c1"),
        ),
        model_calls=(model_call("m1", 1),),
        calls=(STARTED,),
        messages=(message(0), message(1)),
    )
    await owner.release()
    again = (await claim(store)).claimed
    assert again.turn is not None
    assert again.turn.message == text_message()
    assert (again.turn.first_index, again.turn.stored_messages, again.message_count) == (0, 2, 2)
    assert again.turn.step_count >= 3
    assert again.turn.usage == USAGE
    assert again.model_step == ("t1/model/2", 2)
    assert again.max_sequence == 1
    assert again.lease.fence == owner.lease.fence + 1
    assert not again.check
    waiting, running = again.calls
    assert (waiting.phase, waiting.interrupt_id, waiting.approval) == (CallPhase.AWAITING, "t1:c2", None)
    assert (waiting.approval_step_id, waiting.request.ask) == ("t1/approve/c2", InterruptKind.APPROVAL)
    assert (running.phase, running.attempts, running.step_id) == (CallPhase.STARTED, 1, "t1/call/c1")


async def test_every_fact_of_a_call_request_survives(store: SqlStore) -> None:
    owner = await open_turn(store)
    full = call_request(
        effect=ToolEffect.IDEMPOTENT_WRITE,
        retry=RetryPolicy(5, timedelta(microseconds=1500), 1.5, timedelta(minutes=2)),
        timeout=timedelta(seconds=2.5),
        ask=InterruptKind.CONFIRMATION,
        hint="sure?",
        payload={"x": [None, True, 1.5, "ä"]},
        arguments={"nested": {"a": [1]}},
    )
    await owner.commit(calls=(CallPut("t1", "c1", CallPhase.DUE, 0, "s1", request=full),))
    (recorded,) = (await store.read_recorded_turn("s", "t1")).calls
    assert recorded.request == full


async def test_a_record_is_written_once(store: SqlStore) -> None:
    """J3"""
    owner = await open_turn(store)
    await owner.commit(calls=(STARTED,))
    await owner.commit(records=(record(result={"ok": True}),))
    failed = ErrorInfo(code="x", message="later")
    await owner.commit(
        records=(record(status=RecordStatus.FAILED, error=failed, sequence=9),),
        calls=(CallPut("t1", "c1", CallPhase.DUE, 7, "t1/call/c1"),),
    )
    (call,) = (await store.read_recorded_turn("s", "t1")).calls
    assert call.record == CallRecord("c1", 2, RecordStatus.SUCCEEDED, '{"o":1}', None, NOW)
    await owner.release()
    (stored,) = (await claim(store)).claimed.calls
    assert (stored.phase, stored.attempts, stored.record) == (CallPhase.SETTLED, 1, RecordStatus.SUCCEEDED)


async def test_a_model_call_is_recorded_once(store: SqlStore) -> None:
    """J3"""
    owner = await open_turn(store)
    await owner.commit(turn_id="t1", model_calls=(model_call("m1", 1, '"first"'),))
    await owner.commit(turn_id="t1", model_calls=(model_call("m1", 5, '"second"'), model_call("m0", 2)))
    recorded = await store.read_recorded_turn("s", "t1")
    assert [(call.key, call.sequence, call.response) for call in recorded.model_calls] == [
        ("m1", 1, '"first"'),
        ("m0", 2, '{"r":1}'),
    ]
    assert recorded.model_calls[0].usage == USAGE


async def test_a_settled_step_stays_as_it_is(store: SqlStore) -> None:
    """J3"""
    owner = await open_turn(store)
    await owner.commit(steps=(step("a", StepStatus.PENDING, key="k", started_at_ms=None),))
    await owner.commit(steps=(step("a", StepStatus.RUNNING, attempts=2, started_at_ms=NOW + 5),))
    await owner.commit(steps=(step("a", StepStatus.SUCCEEDED, attempts=3, started_at_ms=None),))
    await owner.commit(steps=(step("a", StepStatus.FAILED, attempts=9),))
    found = (await store.read_steps("s", None, 10)).items[-1]
    assert (found.status, found.attempts, found.key) == (StepStatus.SUCCEEDED, 3, "k")
    assert found.started_at is not None
    assert found.started_at.timestamp() * 1000 == NOW + 5


async def test_several_puts_of_one_step_in_one_write_act_one_after_the_other(store: SqlStore) -> None:
    owner = await open_turn(store)
    await owner.commit(
        steps=(
            step("a", StepStatus.PENDING, key="k"),
            step("b", StepStatus.PENDING),
            step("a", StepStatus.RUNNING),
            step("a", StepStatus.FAILED, error=ErrorInfo(code="c", message="m")),
            step("a", StepStatus.SUCCEEDED),
        )
    )
    a, b = (await store.read_steps("s", None, 10)).items[-2:]
    assert (a.step_id, a.status, a.key) == ("a", StepStatus.FAILED, "k")
    assert a.error == ErrorInfo(code="c", message="m")
    assert b.status is StepStatus.PENDING


@pytest.mark.parametrize(
    ("table", "change"),
    [
        ("steps", "status = 'failed'"),
        ("calls", "record = 'failed'"),
        ("model_calls", "response = 'x'"),
        ("interrupts", "status = 'expired'"),
    ],
)
async def test_even_foreign_sql_cannot_change_what_is_settled(
    store: SqlStore, backend: Backend, table: str, change: str
) -> None:
    """J3, J6"""
    owner = await open_turn(store)
    await owner.ask("c2", deadline_ms=NOW + 1)
    await owner.commit(
        turn_id="t1",
        steps=(step("a", StepStatus.SUCCEEDED),),
        calls=(STARTED,),
        records=(record(), record("c2")),
        model_calls=(model_call(),),
    )
    await store.answer_interrupt("s", "t1:c2", Answer(True), request(), NOW)
    with pytest.raises(backend.refusal, match=r"J[36]: "):
        backend.run(f"UPDATE {table} SET {change}" + (" WHERE status = 'succeeded'" if table == "steps" else ""))


async def test_steps_page_in_the_order_in_which_they_were_first_stored(store: SqlStore) -> None:
    owner = await open_turn(store)
    await owner.commit(steps=tuple(step(f"s{n}", StepStatus.PENDING) for n in range(4)))
    await owner.commit(steps=(step("s1", StepStatus.SUCCEEDED), step("s4", StepStatus.PENDING)))
    seen: list[str] = []
    after: int | None = None
    while True:
        page = await store.read_steps("s", after, 2)
        seen += [item.step_id for item in page.items]
        if page.next_cursor is None:
            break
        after = int(page.next_cursor)
    assert seen == ["await/1", "s0", "s1", "s2", "s3", "s4"]


async def test_a_tool_step_shows_its_call(store: SqlStore) -> None:
    owner = await open_turn(store)
    asked = call_request(ask=InterruptKind.APPROVAL)
    await owner.commit(
        calls=(CallPut("t1", "c1", CallPhase.STARTED, 1, "t1/call/c1", "t1/approve/c1", "i", asked),),
        steps=(
            step("t1/approve/c1", StepStatus.SUCCEEDED, name=StepName.AWAIT_TOOL_APPROVAL, call_id="c1"),
            step("t1/call/c1", StepStatus.SUCCEEDED, name=StepName.CALL_TOOL, call_id="c1", key="c1"),
        ),
        records=(record(result={"done": [1]}),),
    )
    approval, call = (await store.read_steps("s", None, 10)).items[-2:]
    assert (approval.tool_name, approval.tool_call_id, approval.result) == ("refund_order", "c1", None)
    assert (call.effect, call.result) == ("read", {"done": [1]})


async def test_messages_are_appended_once_in_order(store: SqlStore) -> None:
    """J5"""
    owner = await open_turn(store)
    await owner.commit(
        turn_id="t1", messages=(message(0, "a"), message(1, "b", role=MessageRole.USER, images=("x/y",)))
    )
    await owner.commit(turn_id="t1", messages=(message(0, "again"), message(1, "again"), message(2, "c")))
    page = await store.list_messages("s", None, 2)
    assert [(item.index, item.text, item.role, item.images) for item in page.items] == [
        (0, "a", MessageRole.ASSISTANT, ()),
        (1, "b", MessageRole.USER, ("x/y",)),
    ]
    assert page.next_cursor == "1"
    rest = await store.list_messages("s", 1, 2)
    assert [(item.index, item.turn_id, item.framework_item) for item in rest.items] == [
        (2, "t1", {"n": 2, "text": "c"})
    ]
    assert rest.next_cursor is None
    assert await store.read_history("s", 1, 3) == [{"n": 1, "text": "b"}, {"n": 2, "text": "c"}]


async def test_messages_of_later_turns_go_on_behind_the_earlier_ones(store: SqlStore) -> None:
    owner = await open_turn(store)
    await owner.end(messages=(message(0), message(1)))
    await store.accept_message("s", "t2", text_message(), request(), NOW)
    second = await claim(store)
    await second.begin("t2", 2)
    await second.commit(turn_id="t2", messages=(message(0), message(1), message(2)))
    assert [item.index for item in (await store.list_messages("s", None, 10)).items] == [0, 1, 2, 3, 4]
    assert (await store.read_recorded_turn("s", "t1")).stored_messages == 2
    assert (await store.read_recorded_turn("s", "t2")).stored_messages == 3


async def test_a_gap_in_the_log_is_refused(store: SqlStore) -> None:
    owner = await open_turn(store)
    with pytest.raises(UsageError, match="leaves a gap"):
        await owner.commit(turn_id="t1", messages=(message(1),))


async def test_usage_adds_up_per_turn_and_per_session(store: SqlStore) -> None:
    owner = await open_turn(store)
    await owner.commit(turn_id="t1", usage=USAGE)
    await owner.end(usage=USAGE)
    await store.accept_message("s", "t2", text_message(), request(), NOW)
    second = await claim(store)
    await second.begin("t2", 2)
    await second.commit(turn_id="t2", usage=USAGE)
    snapshot = await store.read_snapshot("s", NOW)
    assert snapshot.turn is not None
    assert snapshot.turn.usage == USAGE
    assert snapshot.usage == Usage(input_tokens=30, output_tokens=15, model_calls=3)


async def test_a_failed_turn_leaves_an_idle_session_with_its_error(store: SqlStore) -> None:
    owner = await open_turn(store)
    error = ErrorInfo(code="boom", message="it broke", facts={"n": 1})
    await owner.end(status=TurnStatus.FAILED, error=error)
    snapshot = await store.read_snapshot("s", NOW)
    assert snapshot.turn is not None
    assert (snapshot.status, snapshot.turn.status) == (SessionStatus.IDLE, TurnStatus.FAILED)
    assert (snapshot.error, snapshot.turn.error) == (error, error)


async def test_one_write_may_end_a_turn_and_begin_the_next(store: SqlStore) -> None:
    owner = await open_turn(store)
    await store.accept_message("s", "t2", text_message("second"), request(), NOW)
    await owner.commit(
        DurableWrite.TURN_ENDED,
        DurableWrite.TURN_STARTED,
        session=RUNNING,
        turn=TurnChange("t1", TurnStatus.CANCELLED, NOW),
        turn_id="t1",
        messages=(message(0, state={"k": 1, "app:a": 2}),),
        begin=TurnBegin("t2", 2, NOW),
        steps=(step("t2/model/1", StepStatus.RUNNING, "t2"),),
    )
    assert await store.read_turn_state("s", 2) == {"k": 1, "app:a": 2}
    await owner.release()
    again = (await claim(store)).claimed
    assert again.turn is not None
    assert (again.turn.turn_id, again.turn.first_index, again.turn.stored_messages) == ("t2", 1, 0)
    assert again.model_step == ("t2/model/1", 1)


async def test_a_dropped_message_is_a_cancelled_turn_that_never_began(store: SqlStore) -> None:
    owner = await open_turn(store)
    await store.accept_message("s", "t2", text_message(), request(), NOW)
    await owner.commit(dropped=("t2",))
    snapshot = await store.read_snapshot("s", NOW)
    assert snapshot.queued_messages == 0
    assert snapshot.turn is not None
    assert snapshot.turn.turn_id == "t1"
    with pytest.raises(TurnNotFound):
        await store.accept_cancel("s", "t2", request(), NOW)


async def test_j18_a_message_that_joins_a_turn_leaves_the_queue_unless_it_was_cancelled(store: SqlStore) -> None:
    owner = await open_turn(store)
    for turn_id in ("t2", "t3"):
        await store.accept_message("s", turn_id, text_message(), request(), NOW)
    await store.accept_cancel("s", "t2", request(), NOW)
    with pytest.raises(Conflict, match=r"'t2' .* was cancelled"):
        await owner.commit(joined=("t3", "t2"), model_calls=(model_call("joined|a|1"),), turn_id="t1")
    assert (await store.read_snapshot("s", NOW)).queued_messages == 2
    assert (await store.read_recorded_turn("s", "t1")).model_calls == ()
    await owner.commit(joined=("t3",), model_calls=(model_call("joined|a|1"),), turn_id="t1")
    assert (await store.read_snapshot("s", NOW)).queued_messages == 1
    assert [call.key for call in (await store.read_recorded_turn("s", "t1")).model_calls] == ["joined|a|1"]
    with pytest.raises(TurnNotFound):
        await store.accept_cancel("s", "t3", request(), NOW)


async def test_an_idle_write_that_crosses_a_new_message_reads_as_running(store: SqlStore) -> None:
    owner = await open_turn(store)
    await store.accept_message("s", "t2", text_message(), request(), NOW)
    await owner.end()
    assert (await store.read_snapshot("s", NOW)).status is SessionStatus.RUNNING


async def test_a_write_under_a_lost_lease_changes_nothing(store: SqlStore) -> None:
    """J9"""
    owner = await open_turn(store)
    stale = Lease("s", "w1", owner.lease.fence - 1)
    foreign = Lease("s", "w2", owner.lease.fence)
    gone = Lease("nobody", "w1", 1)
    before = store.commits
    for lease in (stale, foreign, gone):
        with pytest.raises(LeaseLost) as caught:
            await store.commit(lease, write(turn_id="t1", messages=(message(0),)), NOW)
        assert caught.value.session_id == lease.session_id
        with pytest.raises(LeaseLost):
            await store.read_inbox(lease)
    assert store.commits == before
    assert (await store.list_messages("s", None, 10)).items == ()


async def test_a_deleted_session_has_no_owner(store: SqlStore) -> None:
    owner = await open_turn(store)
    await store.delete_session("s")
    with pytest.raises(LeaseLost):
        await owner.commit(turn_id="t1", messages=(message(0),))


async def test_parts_of_a_turn_that_is_not_open_are_refused(store: SqlStore) -> None:
    owner = await open_turn(store)
    await owner.end(release=False)
    with pytest.raises(TurnNotFound):
        await owner.commit(records=(record(),))


async def test_long_texts_survive_everywhere(store: SqlStore, backend: Backend) -> None:
    long = "é" * codec.MAX_INLINE_BYTES
    await store.create_session(
        new_session(state={"big": long}),
        ("t1", UserMessage(text=long)),
        request(),
        NOW,
    )
    await store.register_worker(worker(), NOW)
    owner = await claim(store)
    assert owner.claimed.inbox[0].message == UserMessage(text=long)
    await owner.begin()
    await owner.commit(
        turn_id="t1",
        calls=(CallPut("t1", "c1", CallPhase.DUE, 0, "x", request=call_request(arguments={"a": long})),),
        records=(record(result=[long], outcome=f'"{long}"'),),
        model_calls=(model_call(response=f'"{long}"'),),
        messages=(message(0, long),),
        steps=(step("x", StepStatus.SUCCEEDED, name=StepName.CALL_TOOL, call_id="c1"),),
    )
    recorded = await store.read_recorded_turn("s", "t1")
    assert recorded.model_calls[0].response == f'"{long}"'
    assert recorded.calls[0].request.arguments == {"a": long}
    assert recorded.calls[0].record is not None
    assert recorded.calls[0].record.outcome == f'"{long}"'
    assert (await store.list_messages("s", None, 1)).items[0].text == long
    assert (await store.read_steps("s", None, 9)).items[-1].result == [long]
    assert (await store.read_turn_state("s", 1)) == {"big": long}
    assert (await store.read_snapshot("s", NOW)).state == {"big": long}
    if isinstance(backend, SqliteBackend):
        # Equal texts are kept once: the response, the outcome and the state are the same JSON.
        assert backend.run("SELECT count(*) FROM payloads") == [(6,)]


async def test_a_write_that_is_too_large_leaves_no_trace(store: SqlStore, monkeypatch: pytest.MonkeyPatch) -> None:
    owner = await open_turn(store)
    monkeypatch.setattr(codec, "MAX_PAYLOAD_BYTES", 50_000)
    with pytest.raises(PayloadTooLarge):
        await owner.commit(turn_id="t1", messages=(message(0),), model_calls=(model_call(response="x" * 50_001),))
    assert (await store.list_messages("s", None, 10)).items == ()


async def test_later_changes_of_what_was_handed_in_do_not_reach_the_store(store: SqlStore) -> None:
    owner = await open_turn(store)
    state = {"k": [1]}
    pending = owner.store.commit(
        owner.lease, write(turn_id="t1", messages=(message(0, state=state),), session=SessionPut(IDLE.status)), NOW
    )
    task = asyncio.ensure_future(pending)
    await asyncio.sleep(0)
    state["k"].append(2)
    await task
    assert (await store.read_snapshot("s", NOW)).state == {"k": [1]}


async def test_flow_types_are_claimed_apart(store: SqlStore) -> None:
    owner: Owner = await open_turn(store)
    await owner.release()
    assert await store.claim("w1", ["Other"], 10, NOW) == ()
    assert len(await store.claim("w1", ["Other", FLOW], 10, NOW)) == 1
