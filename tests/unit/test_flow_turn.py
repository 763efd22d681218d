"""The steps that a turn is made of, from its message to its end."""

from __future__ import annotations

import pytest
from tests.support.flow_script import Script, call, gated, write

from perdure.session.flow import TURN_STALLED, reduce
from perdure.session.model import (
    InterruptKind,
    InterruptStatus,
    RecordStatus,
    SessionStatus,
    StepName,
    StepStatus,
    TurnStatus,
)
from perdure.session.policy import ToolEffect
from perdure.session.state import (
    BeginTurn,
    CallSettled,
    CancelRequested,
    ContinueTurn,
    DropMessage,
    DropTurn,
    EndTurn,
    InterruptAnswered,
    InterruptExpired,
    JoinRequested,
    JoinTurn,
    MessageArrived,
    ModelFinished,
    ModelStepSettled,
    PutRecord,
    PutStep,
    RaiseInterrupt,
    Reason,
    RunCall,
    RunModel,
    SessionState,
    SettleInterrupt,
    SuspendTurn,
    TurnHasNews,
)


def test_a_turn_that_reads_once_and_answers() -> None:
    session = Script()
    session.say("t1")
    session.asks(call("search"))
    session.returns("search")
    session.finishes()
    assert session.history() == [
        "AwaitUserMessage succeeded",
        "RunModel succeeded",
        "CallTool succeeded",
        "ResumeTurn succeeded",
        "RunModel succeeded",
        "AwaitUserMessage pending",
    ]
    assert session.journal.turns["t1"].status is TurnStatus.COMPLETED
    assert session.status() is SessionStatus.IDLE


def test_the_commands_of_a_message_to_an_idle_session() -> None:
    state, commands = reduce(SessionState("s", await_step_id="await/1"), MessageArrived("t1"))
    assert commands == (
        PutStep("await/1", "t1", StepName.AWAIT_USER_MESSAGE, StepStatus.SUCCEEDED, 1),
        BeginTurn("t1", 1),
        PutStep("t1/model/1", "t1", StepName.RUN_MODEL, StepStatus.PENDING, 0),
        PutStep("t1/model/1", "t1", StepName.RUN_MODEL, StepStatus.RUNNING, 1),
        RunModel("t1/model/1", ()),
    )
    assert state.status is SessionStatus.RUNNING


def test_the_commands_of_a_call_that_needs_no_word() -> None:
    session = Script()
    session.say("t1")
    done = session.asks(call("search"))
    assert done.commands == (
        PutStep("t1/model/1", "t1", StepName.RUN_MODEL, StepStatus.SUCCEEDED, 1),
        PutStep("t1/call/search", "t1", StepName.CALL_TOOL, StepStatus.PENDING, 0, "search"),
        PutStep("t1/call/search", "t1", StepName.CALL_TOOL, StepStatus.RUNNING, 1, "search"),
        RunCall("t1/call/search", "search", attempt=1, single_attempt=False),
    )


def test_a_write_is_run_without_a_start_mark_and_gets_it_before_its_tool() -> None:
    session = Script()
    session.say("t1")
    done = session.asks(write("refund"))
    step = session.journal.steps["t1/call/refund"]
    assert (step.name, step.status, step.attempts) == (StepName.CALL_SINGLE_ATTEMPT_TOOL, StepStatus.PENDING, 0)
    assert done.commands[-1] == RunCall("t1/call/refund", "refund", attempt=1, single_attempt=True)
    session.starts("refund")
    step = session.journal.steps["t1/call/refund"]
    assert (step.status, step.attempts) == (StepStatus.RUNNING, 1)


def test_a_turn_without_a_tool() -> None:
    session = Script()
    session.say("t1")
    session.finishes()
    assert session.history() == ["AwaitUserMessage succeeded", "RunModel succeeded", "AwaitUserMessage pending"]
    assert session.last() == (
        PutStep("t1/model/1", "t1", StepName.RUN_MODEL, StepStatus.SUCCEEDED, 1),
        EndTurn("t1", TurnStatus.COMPLETED),
        DropTurn(),
        PutStep("await/2", None, StepName.AWAIT_USER_MESSAGE, StepStatus.PENDING, 0),
    )


def test_the_calls_of_one_response_run_in_parallel_one_step_each() -> None:
    session = Script()
    session.say("t1")
    session.asks(call("search"), call("fetch"), write("refund"))
    assert session.running() == {"search", "fetch", "refund"}
    session.returns("refund")
    session.returns("search")
    assert session.model is None, "the branch goes on before all calls of its response are settled"
    session.returns("fetch")
    assert session.last()[:3] == (
        PutRecord("fetch", "t1/call/fetch", RecordStatus.SUCCEEDED),
        PutStep("t1/call/fetch", "t1", StepName.CALL_TOOL, StepStatus.SUCCEEDED, 1, "fetch"),
        PutStep("t1/resume/2", "t1", StepName.RESUME_TURN, StepStatus.SUCCEEDED, 1),
    )
    assert session.model == RunModel("t1/model/3", ("refund", "search", "fetch")), "in the order of settlement"


def test_the_commands_of_a_call_that_needs_a_word() -> None:
    session = Script()
    session.say("t1")
    session.asks(gated("refund"))
    assert session.last() == (
        PutStep("t1/model/1", "t1", StepName.RUN_MODEL, StepStatus.SUCCEEDED, 1),
        PutStep("t1/approve/refund", "t1", StepName.AWAIT_TOOL_APPROVAL, StepStatus.PENDING, 0, "refund"),
        RaiseInterrupt("t1:refund", "refund", InterruptKind.APPROVAL),
        SuspendTurn("t1"),
    )
    session.approve("refund")
    assert session.last() == (
        SettleInterrupt("t1:refund", InterruptStatus.APPROVED),
        PutStep("t1/approve/refund", "t1", StepName.AWAIT_TOOL_APPROVAL, StepStatus.SUCCEEDED, 1, "refund"),
        PutStep("t1/call/refund", "t1", StepName.CALL_SINGLE_ATTEMPT_TOOL, StepStatus.PENDING, 0, "refund"),
        RunCall("t1/call/refund", "refund", attempt=1, single_attempt=True),
        ContinueTurn("t1"),
    )


def test_an_approved_call() -> None:
    session = Script()
    session.say("t1")
    session.asks(gated("refund"))
    assert session.status() is SessionStatus.WAITING
    session.approve("refund")
    assert session.status() is SessionStatus.RUNNING
    session.returns("refund")
    session.finishes()
    assert session.history() == [
        "AwaitUserMessage succeeded",
        "RunModel succeeded",
        "AwaitToolApproval succeeded",
        "CallSingleAttemptTool succeeded",
        "ResumeTurn succeeded",
        "RunModel succeeded",
        "AwaitUserMessage pending",
    ]
    assert session.interrupt("refund") is InterruptStatus.APPROVED


@pytest.mark.parametrize("effect", ToolEffect)
def test_a_rejected_call_has_a_rejected_approval_and_no_tool_step(effect: ToolEffect) -> None:
    session = Script()
    session.say("t1")
    session.asks(gated("refund", effect))
    session.reject("refund")
    assert session.record("refund") == (RecordStatus.REJECTED, Reason.REJECTED)
    session.finishes()
    assert session.history() == [
        "AwaitUserMessage succeeded",
        "RunModel succeeded",
        "AwaitToolApproval rejected",
        "ResumeTurn succeeded",
        "RunModel succeeded",
        "AwaitUserMessage pending",
    ]
    assert session.ran("refund") == 0


def test_an_expired_call_is_recorded_as_expired_and_not_as_a_no() -> None:
    session = Script()
    session.say("t1")
    session.asks(gated("refund"))
    session.expire("refund")
    assert session.record("refund") == (RecordStatus.FAILED, Reason.EXPIRED)
    assert session.interrupt("refund") is InterruptStatus.EXPIRED
    assert session.history()[2:] == ["AwaitToolApproval expired", "ResumeTurn succeeded", "RunModel running"]


@pytest.mark.parametrize("first", [True, False])
def test_j6_the_first_word_on_an_interrupt_counts(first: bool) -> None:
    session = Script()
    session.say("t1")
    session.asks(gated("refund"))
    session.answer("t1:refund", approved=first)
    for late in (InterruptAnswered("t1:refund", not first), InterruptExpired("t1:refund")):
        assert reduce(session.state, late) == (session.state, ())


def test_a_gated_call_beside_an_ungated_one() -> None:
    session = Script()
    session.say("t1")
    session.asks(gated("delete"), call("list"))
    assert session.running() == {"list"}
    assert session.status() is SessionStatus.RUNNING, "something still goes on without an answer"
    session.returns("list")
    assert session.status() is SessionStatus.WAITING
    session.approve("delete")
    session.returns("delete")
    assert session.model == RunModel("t1/model/3", ("list", "delete"))
    assert session.ran("list") == 1


def test_equal_calls_have_interrupts_of_their_own() -> None:
    session = Script()
    session.say("t1")
    session.asks(gated("pay-1"), gated("pay-2"))
    session.approve("pay-1")
    assert session.running() == {"pay-1"}
    assert session.interrupt("pay-2") is InterruptStatus.PENDING


def test_a_turn_that_fails_shows_its_error() -> None:
    session = Script()
    session.say("t1")
    session.fails()
    turn = session.journal.turns["t1"]
    assert turn.status is TurnStatus.FAILED
    assert turn.error is not None
    assert turn.error.code == "model_error"
    assert session.status() is SessionStatus.IDLE


def test_a_turn_whose_invocation_waits_for_nothing_fails_instead_of_hanging() -> None:
    session = Script()
    session.say("t1")
    session.asks()
    turn = session.journal.turns["t1"]
    assert turn.status is TurnStatus.FAILED
    assert turn.error is not None
    assert turn.error.code == TURN_STALLED


def test_a_branch_that_is_still_busy_is_driven_again_at_once() -> None:
    session = Script()
    session.say("t1")
    session.asks(more=True)
    assert session.model == RunModel("t1/model/2", ())


def test_a_call_that_is_asked_for_again_is_the_same_call() -> None:
    session = Script()
    session.say("t1")
    session.asks(write("refund"), more=True)
    session.asks(write("refund"), call("search"))
    assert session.running() == {"refund", "search"}
    session.returns("refund")
    assert session.ran("refund") == 1


# ---------------------------------------------------------------- messages


def test_j1_a_message_that_comes_while_a_turn_runs_is_queued() -> None:
    session = Script()
    for turn_id in ("t1", "t2", "t3"):
        session.say(turn_id)
    assert session.journal.begun == ["t1"]
    session.finishes()
    session.finishes()
    session.finishes()
    assert session.journal.begun == ["t1", "t2", "t3"]
    assert [session.journal.turns[turn_id].number for turn_id in ("t1", "t2", "t3")] == [1, 2, 3]


def test_j1_a_message_that_is_delivered_twice_is_handled_once() -> None:
    session = Script()
    session.say("t1")
    session.say("t2")
    for turn_id in ("t1", "t2"):
        assert reduce(session.state, MessageArrived(turn_id)) == (session.state, ())


def test_a_queued_message_can_be_cancelled() -> None:
    session = Script()
    for turn_id in ("t1", "t2", "t3"):
        session.say(turn_id)
    session.tell(CancelRequested("t2"))
    assert session.last() == (DropMessage("t2"),)
    session.finishes()
    assert session.journal.begun == ["t1", "t3"]


def test_j18_a_message_that_joins_the_open_turn_starts_none() -> None:
    session = Script()
    for turn_id in ("t1", "t2", "t3"):
        session.say(turn_id)
    session.tell(JoinRequested("t1", ("t3",)))
    assert session.last() == (JoinTurn("t1", "t3"),)
    session.finishes()
    session.finishes()
    assert session.journal.begun == ["t1", "t2"]
    assert session.journal.inbox == []


def test_j18_nothing_joins_a_turn_that_ends_or_is_another_one() -> None:
    session = Script()
    session.say("t1")
    session.asks(write("pay"))
    session.starts("pay")
    session.say("t2")
    session.tell(JoinRequested("t0", ("t2",)))
    assert session.last() == ()
    session.tell(TurnHasNews())
    session.finishes()
    assert session.state.turn is not None, "it waits for the write"
    session.tell(JoinRequested("t1", ("t2",)))
    assert session.last() == ()
    session.returns("pay")
    assert session.journal.begun == ["t1", "t2"]


def test_j18_a_message_that_was_cancelled_joins_nothing() -> None:
    session = Script()
    for turn_id in ("t1", "t2", "t3"):
        session.say(turn_id)
    session.tell(CancelRequested("t2"))
    session.tell(JoinRequested("t1", ("t2", "t3")))
    assert session.last() == (JoinTurn("t1", "t3"),)


def test_each_turn_waits_behind_a_step_of_its_own() -> None:
    session = Script()
    for turn_id in ("t1", "t2"):
        session.say(turn_id)
        session.finishes()
    waits = [step.step_id for step in session.journal.steps.values() if step.name is StepName.AWAIT_USER_MESSAGE]
    assert waits == ["await/1", "await/2", "await/3"]


# ---------------------------------------------------------------- what comes late


def test_j3_a_late_result_changes_nothing() -> None:
    session = Script()
    session.say("t1")
    session.asks(call("search"), call("fetch"))
    session.returns("search")
    late = (
        CallSettled("t1/call/search", RecordStatus.FAILED),
        ModelStepSettled("t1/model/1", ModelFinished()),
    )
    for given in late:
        assert reduce(session.state, given) == (session.state, ())


def test_the_turn_that_ends_and_the_next_one_are_stored_in_this_order() -> None:
    session = Script()
    session.say("t1")
    session.say("t2")
    done = session.finishes()
    kinds = [type(command) for command in done.commands]
    assert kinds.index(EndTurn) < kinds.index(BeginTurn) < kinds.index(RunModel)
