"""Questions, legs, and answers to a whole frontier, as the SQLite store keeps them."""

from __future__ import annotations

import pytest
from tests.support.stores import Backend, SqliteBackend
from tests.unit.store.builders import (
    IDLE,
    NOW,
    WAITING,
    call_request,
    claim,
    message,
    model_call,
    new_session,
    open_turn,
    question,
    record,
    request,
)

from perdure.errors import (
    InterruptAlreadyResolved,
    InterruptExpired,
    InterruptNotFound,
    InterruptWithdrawn,
    RequestConflict,
    SessionClosed,
    UsageError,
)
from perdure.session.model import (
    ErrorInfo,
    InterruptKind,
    InterruptStatus,
    QuestionAnswer,
    RecordStatus,
    SessionStatus,
    StepStatus,
    TurnStatus,
)
from perdure.session.runner import Answer, AnsweredQuestion, Approval, QuestionWait
from perdure.session.state import CallPhase, LateQuestion
from perdure.store.base import Answer as Verdict
from perdure.store.base import (
    CallPut,
    GivenAnswer,
    InboxKind,
    InterruptEnd,
    InterruptPut,
    QuestionEnd,
    Reply,
    TurnBegin,
    TurnChange,
)
from perdure.store.sql.store import SqlStore

LIVE, NEXT_LEG, NEXT_TURN = QuestionWait.LIVE, QuestionWait.NEXT_LEG, QuestionWait.NEXT_TURN
LONG = "x" * 40_000


# ---------------------------------------------------------------- questions


async def test_a_question_is_shown_with_all_that_one_needs_to_answer_it(store: SqlStore) -> None:
    owner = await open_turn(store)
    await owner.ask_question(deadline_ms=NOW + 1000)
    (shown,) = (await store.read_snapshot("s", NOW)).pending_interrupts
    assert (shown.interrupt_id, shown.kind, shown.turn_id, shown.tool_call_id) == (
        "t1:q1",
        InterruptKind.INPUT,
        "t1",
        "q1",
    )
    assert (shown.tool_name, shown.arguments, shown.agent_name, shown.path, shown.hint, shown.payload) == (
        "ask",
        {"about": "q1"},
        "agent",
        "flow/node",
        "which one?",
        {"choices": 2},
    )
    (step,) = [one for one in (await store.read_steps("s", None, 9)).items if one.tool_call_id == "q1"]
    assert (step.tool_name, step.effect, step.result) == ("ask", None, None)


async def test_an_answer_is_told_to_the_owner_and_kept_with_the_question(store: SqlStore) -> None:
    owner = await open_turn(store)
    await owner.ask_question()
    done = await store.answer_interrupt("s", "t1:q1", Reply({"n": LONG}, "ann"), request(), NOW + 5)
    assert (done.status, done.response, done.resolved_by) == (InterruptStatus.ANSWERED, {"n": LONG}, "ann")
    (item,) = await store.read_inbox(owner.lease)
    assert (item.kind, item.interrupt_id, item.approved, item.value, item.resolved_by, item.resolved_at_ms) == (
        InboxKind.ANSWER,
        "t1:q1",
        True,
        {"n": LONG},
        "ann",
        NOW + 5,
    )
    await owner.answer("t1:q1", 4, {"n": LONG}, consumed=(item.position,))
    recorded = await store.read_recorded_turn("s", "t1")
    assert recorded.questions == (AnsweredQuestion(question(), Answer("q1", 4, {"n": LONG}, None, NOW)),)
    await owner.suspend()
    await store.accept_cancel("s", "t1", request(), NOW)
    claimed = (await claim(store)).claimed
    assert (claimed.max_sequence, [one.settled for one in claimed.questions]) == (4, [True])


async def test_a_question_that_is_withdrawn_has_no_answer(store: SqlStore) -> None:
    owner = await open_turn(store)
    await owner.ask_question()
    await owner.commit(
        interrupt_ends=(InterruptEnd("t1:q1", InterruptStatus.WITHDRAWN),), question_ends=(QuestionEnd("t1:q1"),)
    )
    assert (await store.read_recorded_turn("s", "t1")).questions == ()
    with pytest.raises(InterruptWithdrawn):
        await store.answer_interrupt("s", "t1:q1", Reply({}), request(), NOW)


async def test_j12_a_question_has_one_answer_whoever_writes(store: SqlStore, backend: Backend) -> None:
    owner = await open_turn(store)
    await owner.ask_question()
    error = ErrorInfo(code="expired", message="nobody")
    await owner.answer("t1:q1", 4, {"error": "nobody"}, error=error)
    await owner.answer("t1:q1", 5, {"late": True})
    (asked,) = (await store.read_recorded_turn("s", "t1")).questions
    assert asked.answer == Answer("q1", 4, {"error": "nobody"}, error, NOW)
    with pytest.raises(backend.refusal, match="J12"):
        backend.run("UPDATE questions SET answer = '1'")


async def test_an_interrupt_takes_the_answer_of_its_kind_only(store: SqlStore) -> None:
    owner = await open_turn(store)
    await owner.ask_question()
    await owner.ask_question("login", kind=InterruptKind.CREDENTIAL)
    await owner.ask("c1")
    with pytest.raises(UsageError, match="answer_question"):
        await store.answer_interrupt("s", "t1:q1", Verdict(True), request(), NOW)
    for name in ("t1:login", "t1:c1"):
        with pytest.raises(UsageError, match="resolve_interrupt"):
            await store.answer_interrupt("s", name, Reply({}), request(), NOW)
    assert len((await store.read_snapshot("s", NOW)).pending_interrupts) == 3


@pytest.mark.parametrize(
    ("wait", "groups", "status"),
    [
        (LIVE, ("g", "g"), SessionStatus.WAITING),
        (LIVE, ("g", "h"), SessionStatus.RUNNING),
        (NEXT_LEG, ("g", "h"), SessionStatus.WAITING),
    ],
)
async def test_a_session_waits_on_while_more_answers_are_needed(
    store: SqlStore, wait: QuestionWait, groups: tuple[str, str], status: SessionStatus
) -> None:
    owner = await open_turn(store)
    for number, group in enumerate(groups, 1):
        await owner.ask_question(f"q{number}", wait, group=group)
    await owner.suspend()
    await store.answer_interrupt("s", "t1:q1", Reply({}), request(), NOW)
    assert (await store.read_snapshot("s", NOW)).status is status
    assert len(await store.claim("w1", ["SupportAgent"], 1, NOW)) == 1, "a worker takes the answer up all the same"


async def test_the_last_answer_makes_a_session_running(store: SqlStore) -> None:
    owner = await open_turn(store)
    for name in ("q1", "q2"):
        await owner.ask_question(name, NEXT_LEG)
    await owner.suspend()
    for name in ("q1", "q2"):
        await store.answer_interrupt("s", f"t1:{name}", Reply({}), request(), NOW)
    assert (await store.read_snapshot("s", NOW)).status is SessionStatus.RUNNING


# ---------------------------------------------------------------- the whole frontier


async def _frontier(store: SqlStore) -> None:
    owner = await open_turn(store)
    await owner.ask("c1")
    await owner.ask_question("q1")
    await owner.suspend()


FULL: dict[str, GivenAnswer] = {"t1:c1": Verdict(True), "t1:q1": Reply({"n": 1})}


async def test_j6_a_whole_frontier_is_answered_at_once_or_not_at_all(store: SqlStore) -> None:
    await _frontier(store)
    refused: list[tuple[dict[str, GivenAnswer], type[Exception]]] = [
        ({"t1:c1": Verdict(True)}, UsageError),
        ({**FULL, "t1:q9": Reply({})}, InterruptNotFound),
        ({**FULL, "t1:q1": Verdict(True)}, UsageError),
        ({"t1:c1": Reply({}), "t1:q1": Reply({})}, UsageError),
    ]
    for given, error in refused:
        with pytest.raises(error):
            await store.answer_interrupts("s", given, request(), NOW, turn_id="t2")
        assert len((await store.read_snapshot("s", NOW)).pending_interrupts) == 2
    commits = store.commits
    done = await store.answer_interrupts("s", FULL, request("r", "all"), NOW, turn_id="t2")
    assert store.commits == commits + 1
    assert [one.status for one in done] == [InterruptStatus.APPROVED, InterruptStatus.ANSWERED]
    assert await store.answer_interrupts("s", FULL, request(), NOW + 9, turn_id="t3") == done
    assert await store.answer_interrupts("s", FULL, request("r", "all"), NOW + 9, turn_id="t3") == done
    with pytest.raises(RequestConflict):
        await store.answer_interrupts("s", FULL, request("r", "other"), NOW, turn_id="t3")
    with pytest.raises(InterruptAlreadyResolved):
        await store.answer_interrupts("s", {**FULL, "t1:q1": Reply({"n": 2})}, request(), NOW, turn_id="t3")
    assert [item.interrupt_id for item in (await claim(store)).claimed.inbox] == ["t1:c1", "t1:q1"]


async def test_a_part_of_what_is_pending_is_answered_at_once_where_that_is_wanted(store: SqlStore) -> None:
    """Several together, all or none; what else is pending goes on waiting."""
    owner = await open_turn(store)
    for name in ("q1", "q2", "q3"):
        await owner.ask_question(name, group=name)
    await owner.suspend()
    part = {"t1:q3": Reply({"n": 3}), "t1:q1": Reply({"n": 1})}
    with pytest.raises(UsageError):
        await store.answer_interrupts("s", part, request(), NOW, turn_id="t2")
    with pytest.raises(InterruptNotFound):
        await store.answer_interrupts("s", {**part, "t1:q9": Reply({})}, request(), NOW, turn_id="t2", whole=False)
    assert len((await store.read_snapshot("s", NOW)).pending_interrupts) == 3
    done = await store.answer_interrupts("s", part, request(), NOW, turn_id="t2", whole=False)
    assert [one.interrupt_id for one in done] == ["t1:q3", "t1:q1"]
    (left,) = (await store.read_snapshot("s", NOW)).pending_interrupts
    assert left.interrupt_id == "t1:q2"
    assert await store.answer_interrupts("s", part, request(), NOW + 9, turn_id="t3", whole=False) == done


async def test_a_frontier_of_which_a_part_has_expired_is_refused(store: SqlStore) -> None:
    owner = await open_turn(store)
    await owner.ask_question("q1", deadline_ms=NOW + 10)
    await owner.ask_question("q2")
    both = {"t1:q1": Reply({}), "t1:q2": Reply({})}
    with pytest.raises(InterruptExpired):
        await store.answer_interrupts("s", both, request(), NOW + 10, turn_id="t2")
    assert await store.read_inbox(owner.lease) == ()


# ---------------------------------------------------------------- late questions


async def _late(store: SqlStore, *names: str, deadline_ms: int | None = None) -> None:
    owner = await open_turn(store)
    for name in names or ("q1",):
        await owner.ask_question(name, NEXT_TURN, deadline_ms=deadline_ms)
    await owner.end()


async def test_a_late_answer_is_a_message_that_starts_a_turn(store: SqlStore) -> None:
    await _late(store)
    snapshot = await store.read_snapshot("s", NOW)
    assert (snapshot.status, len(snapshot.pending_interrupts)) == (SessionStatus.IDLE, 1)
    await store.answer_interrupt("s", "t1:q1", Reply({"n": 1}, "ann"), request(), NOW, turn_id="t2")
    snapshot = await store.read_snapshot("s", NOW)
    assert (snapshot.status, snapshot.queued_messages, snapshot.pending_interrupts) == (SessionStatus.RUNNING, 1, ())
    owner = await claim(store)
    (item,) = owner.claimed.inbox
    assert item.message is not None
    assert (item.kind, item.turn_id, item.message.answers) == (
        InboxKind.MESSAGE,
        "t2",
        (QuestionAnswer(question_id="q1", tool_name="ask", value={"n": 1}, interrupt_id="t1:q1"),),
    )
    assert owner.claimed.late == (LateQuestion("t1", "t1/answer/q1", "t1:q1", InterruptKind.INPUT),)
    await owner.commit(question_ends=(QuestionEnd("t1:q1"),), begin=TurnBegin("t2", 2, NOW), session=IDLE)
    await owner.end("t2")
    await store.accept_message("s", "t3", item.message, request(), NOW)
    assert (await claim(store)).claimed.late == ()


async def test_late_answers_given_together_start_one_turn(store: SqlStore) -> None:
    await _late(store, "q1", "q2")
    given = {"t1:q2": Reply({"n": 2}), "t1:q1": Reply({"n": 1})}
    await store.answer_interrupts("s", given, request(), NOW, turn_id="t2")
    (item,) = (await claim(store)).claimed.inbox
    assert item.message is not None
    assert [one.question_id for one in item.message.answers] == ["q2", "q1"]


async def test_a_late_answer_needs_an_id_for_its_turn(store: SqlStore) -> None:
    await _late(store)
    with pytest.raises(UsageError, match="id"):
        await store.answer_interrupt("s", "t1:q1", Reply({}), request(), NOW)


async def test_an_idle_session_wakes_at_the_deadline_of_a_late_question(store: SqlStore) -> None:
    owner = await open_turn(store)
    await owner.ask_question("q1", NEXT_TURN, deadline_ms=NOW + 50)
    await owner.end(release=False)
    await owner.release(wake_at_ms=NOW + 50)
    assert await store.next_wake_ms(["SupportAgent"]) == NOW + 50
    assert await store.claim("w1", ["SupportAgent"], 1, NOW + 49) == ()
    (claimed,) = await store.claim("w1", ["SupportAgent"], 1, NOW + 50)
    assert claimed.next_deadline_ms == NOW + 50


async def test_a_dead_owner_leaves_the_deadline(store: SqlStore) -> None:
    owner = await open_turn(store)
    await owner.ask_question("q1", NEXT_TURN, deadline_ms=NOW + 50)
    await owner.end(release=False)
    await store.unregister_worker("w1")
    assert await store.next_wake_ms(["SupportAgent"]) == NOW + 50


async def test_closing_an_idle_session_withdraws_what_it_still_asks(store: SqlStore) -> None:
    await _late(store, "q1", "q2")
    await store.accept_close("s", request(), NOW + 7)
    snapshot = await store.read_snapshot("s", NOW)
    assert (snapshot.status, snapshot.pending_interrupts) == (SessionStatus.CLOSED, ())
    events = (await store.read_events("s", None, 100)).events
    assert [event.type.value for event in events] == ["interrupt_resolved", "interrupt_resolved", "session_closed"]
    assert [(event.turn_id, event.data.get("status")) for event in events[:2]] == [("t1", "withdrawn")] * 2
    steps = (await store.read_steps("s", None, 99)).items
    assert {one.status for one in steps if one.tool_call_id} == {StepStatus.WITHDRAWN}
    with pytest.raises(InterruptWithdrawn):
        await store.answer_interrupt("s", "t1:q1", Reply({}), request(), NOW, turn_id="t2")


async def test_a_late_answer_to_a_session_that_is_being_closed_is_refused(store: SqlStore) -> None:
    owner = await open_turn(store)
    await owner.ask_question("q1", NEXT_TURN)
    await store.accept_close("s", request(), NOW)
    with pytest.raises(SessionClosed):
        await store.answer_interrupt("s", "t1:q1", Reply({}), request(), NOW, turn_id="t2")


async def test_a_deleted_session_leaves_nothing_of_its_questions_and_legs(store: SqlStore, backend: Backend) -> None:
    owner = await open_turn(store)
    await owner.ask_question("q1", NEXT_LEG)
    await owner.end_leg(LONG)
    await store.delete_session("s")
    payloads = ("payloads",) if isinstance(backend, SqliteBackend) else ()
    for table in ("questions", "legs", "interrupts", *payloads):
        assert backend.run(f"SELECT count(*) FROM {table}") == [(0,)], table


# ---------------------------------------------------------------- calls that ask in the middle


async def test_a_call_that_asks_in_the_middle_keeps_what_it_did(store: SqlStore) -> None:
    owner = await open_turn(store)
    steps = ("t1/call/c1", "t1/approve/c1", "t1:c1")
    started = CallPut("t1", "c1", CallPhase.STARTED, 1, "t1/call/c1", request=call_request())
    await owner.commit(calls=(started,), turn_id="t1")
    asked = CallPut("t1", "c1", CallPhase.AWAITING, 1, *steps, asks=1, asked=LONG)
    shown = {"hint": "sure?", "payload": {"n": 1}}
    raised = InterruptPut("t1:c1", "t1", "c1", InterruptKind.CONFIRMATION, NOW, None, shown)
    await owner.commit(calls=(asked,), interrupts=(raised,), turn_id="t1")
    (interrupt,) = (await store.read_snapshot("s", NOW)).pending_interrupts
    assert (interrupt.hint, interrupt.payload, interrupt.tool_name, interrupt.arguments) == (
        "sure?",
        {"n": 1},
        "refund_order",
        {"order": 7},
    )
    (recorded,) = (await store.read_recorded_turn("s", "t1")).calls
    assert (recorded.approval, recorded.record) == (None, None)
    await owner.suspend()
    await store.answer_interrupt("s", "t1:c1", Verdict(True, payload="p"), request(), NOW)
    approval = Approval("p", InterruptKind.CONFIRMATION, LONG)
    (recorded,) = (await store.read_recorded_turn("s", "t1")).calls
    assert recorded.approval == approval
    (call,) = (await claim(store)).claimed.calls
    assert (call.attempts, call.asks, call.asked, call.asking, call.approval) == (
        1,
        1,
        LONG,
        InterruptKind.CONFIRMATION,
        approval,
    )


# ---------------------------------------------------------------- legs


async def test_j13_each_leg_has_a_journal_of_its_own(store: SqlStore) -> None:
    """Its calls and model calls may have the ids of those of earlier legs."""
    owner = await open_turn(store)
    call = CallPut("t1", "c1", CallPhase.DUE, 0, "t1/call/c1", request=call_request())
    first = message(0, "one", {"k": 1, "app:price": 10, "temp:x": 1})
    await owner.commit(
        calls=(call,), records=(record(sequence=2),), model_calls=(model_call(),), messages=(first,), turn_id="t1"
    )
    await owner.ask_question("q1", NEXT_LEG)
    await owner.end_leg(LONG)
    await owner.answer("t1:q1", 3, {"n": 1})
    await owner.begin_leg(messages=(message(1, "last of the leg", {"k": 2}),))
    second = CallPut("t1", "c1", CallPhase.DUE, 0, "t1/leg/2/call/c1", request=call_request(tool_name="other"))
    await owner.commit(
        calls=(second,),
        records=(record(sequence=5, status=RecordStatus.FAILED),),
        model_calls=(model_call(sequence=4, response='{"r":2}'),),
        messages=(message(2, "two", {"k": 3, "app:price": 20}),),
        turn_id="t1",
    )
    await owner.ask_question("q1", LIVE, number=2)
    recorded = await store.read_recorded_turn("s", "t1")
    assert [(one.sequence, one.response) for one in recorded.model_calls] == [(4, '{"r":2}')]
    assert [(one.request.tool_name, one.record and one.record.status) for one in recorded.calls] == [
        ("other", RecordStatus.FAILED)
    ]
    assert [one.question.wait for one in recorded.questions] == [LIVE]
    assert recorded.stored_messages == 3
    (earlier,) = await store.read_earlier_calls("s", "t1")
    assert (earlier.request.tool_name, earlier.record and earlier.record.sequence) == ("refund_order", 2)
    await owner.suspend()
    await store.accept_cancel("s", "t1", request(), NOW)
    claimed = (await claim(store)).claimed
    assert claimed.turn is not None
    turn = claimed.turn
    assert (turn.leg, turn.first_index, turn.leg_first_index, turn.stored_messages) == (2, 0, 2, 3)
    assert (turn.carry, turn.next_carry, dict(turn.raised)) == (LONG, None, {"q1": 2})
    assert turn.answers == (AnsweredQuestion(question("q1", NEXT_LEG), Answer("q1", 3, {"n": 1}, None, NOW)),)
    assert (claimed.max_sequence, [one.request.tool_name for one in claimed.calls]) == (5, ["other"])
    assert [(one.question.wait, one.settled) for one in claimed.questions] == [(LIVE, False)]


async def test_the_state_at_the_beginning_of_a_leg_is_kept(store: SqlStore) -> None:
    await store.create_session(new_session("other", state={"app:price": 1}), None, request(), NOW)
    owner = await open_turn(store)
    await owner.commit(messages=(message(0, "one", {"k": 1}),), turn_id="t1")
    await owner.ask_question("q1", NEXT_LEG)
    await owner.end_leg()
    await store.create_session(new_session("third", state={"app:price": 2}), None, request(), NOW)
    await owner.answer("t1:q1", 3)
    await owner.begin_leg()
    await owner.commit(messages=(message(1, "two", {"k": 2, "app:price": 3}),), turn_id="t1")
    assert await store.read_turn_state("s", 1) == {"app:price": 1}
    assert await store.read_turn_state("s", 1, 2) == {"k": 1, "app:price": 2}
    assert await store.read_turn_state("s", 2) == {"k": 2, "app:price": 3}
    await owner.end()
    assert (await store.read_snapshot("s", NOW)).state == {"k": 2, "app:price": 3}


async def test_a_frontier_is_claimed_with_what_the_next_leg_gets(store: SqlStore) -> None:
    owner = await open_turn(store)
    await owner.ask_question("q1", NEXT_LEG)
    await owner.end_leg('{"n":1}')
    await owner.commit(session=WAITING, turn=TurnChange("t1", TurnStatus.WAITING), release=True)
    await store.answer_interrupt("s", "t1:q1", Reply({"n": 1}), request(), NOW)
    claimed = (await claim(store)).claimed
    assert claimed.turn is not None
    assert (claimed.turn.leg, claimed.turn.carry, claimed.turn.next_carry) == (1, None, '{"n":1}')
    (asked,) = claimed.questions
    assert (asked.question, asked.settled, asked.answer) == (question("q1", NEXT_LEG), False, None)
