"""A session changes hands: crashes, five deaths, code that does not fit, and workers that leave in good order."""

from __future__ import annotations

import pytest
from tests.support.flow_script import Script, call, gated, write
from tests.support.flow_world import DIFFERENT

from perdure.session.flow import WORKERS_LOST, reduce
from perdure.session.model import (
    InterruptStatus,
    RecordStatus,
    SessionStatus,
    StepName,
    StepStatus,
    TurnStatus,
)
from perdure.session.policy import ToolEffect
from perdure.session.state import (
    MAX_MODEL_STEP_TAKEOVERS,
    BlockSession,
    CancelRequested,
    CheckCode,
    CodeDiffers,
    CodeFits,
    DrainRequested,
    DropTurn,
    OpenTurn,
    PutStep,
    Reason,
    RunModel,
    SessionState,
    StopStep,
    TakenOver,
    UnblockSession,
)

# ---------------------------------------------------------------- crashes


def test_j1_a_message_that_waits_survives_its_owner() -> None:
    session = Script()
    session.say("t1")
    session.say("t2")
    session.die()
    session.finishes()
    assert session.journal.begun == ["t1", "t2"]


def test_a_model_step_is_driven_again_by_the_next_owner() -> None:
    session = Script()
    session.say("t1")
    session.die()
    assert session.model == RunModel("t1/model/1", (), 2)
    assert session.journal.steps["t1/model/1"].attempts == 2


def test_a_turn_that_waits_for_somebody_goes_on_waiting() -> None:
    session = Script()
    session.say("t1")
    session.asks(gated("refund"))
    session.die()
    assert session.last() == ()
    assert session.status() is SessionStatus.WAITING
    session.approve("refund")
    session.returns("refund")
    session.finishes()
    assert session.journal.turns["t1"].status is TurnStatus.COMPLETED


def test_a_half_answered_response_runs_only_what_has_no_record() -> None:
    session = Script()
    session.say("t1")
    session.asks(call("a"), call("b"))
    session.returns("a")
    session.die()
    assert session.running() == {"b"}
    session.returns("b")
    assert session.model is not None
    assert session.model.call_ids == ("a", "b")
    assert (session.ran("a"), session.ran("b")) == (1, 1)


def test_records_of_a_complete_response_are_left_to_the_replay() -> None:
    session = Script()
    session.say("t1")
    session.asks(call("a"))
    session.returns("a")
    session.die()
    assert session.model is not None
    assert session.model.call_ids == ()


def test_a_turn_that_kills_its_workers_is_given_up() -> None:
    session = Script()
    session.say("t1")
    for death in range(1, MAX_MODEL_STEP_TAKEOVERS + 1):
        assert session.journal.steps["t1/model/1"].attempts == death
        session.die()
    turn = session.journal.turns["t1"]
    assert turn.status is TurnStatus.FAILED
    assert turn.error is not None
    assert turn.error.code == WORKERS_LOST
    session.say("t2")
    session.finishes()
    assert session.journal.turns["t2"].status is TurnStatus.COMPLETED


def test_a_turn_that_is_given_up_settles_its_calls() -> None:
    session = Script()
    session.say("t1")
    session.asks(gated("refund"), call("put", ToolEffect.IDEMPOTENT_WRITE, attempts=9), more=True)
    session.starts("put")
    for _ in range(MAX_MODEL_STEP_TAKEOVERS):
        session.die()
    assert session.record("refund") == (RecordStatus.FAILED, Reason.NOT_RUN)
    assert session.record("put") == (RecordStatus.OUTCOME_UNKNOWN, Reason.INTERRUPTED)


def test_a_turn_that_kills_its_workers_without_a_model_step_is_given_up_too() -> None:
    """The replay itself is what kills: it is made to run the approved call, and the start mark is never reached."""
    session = Script()
    session.say("t1")
    session.asks(gated("refund"))
    session.approve("refund")
    for _ in range(MAX_MODEL_STEP_TAKEOVERS):
        assert session.running() == {"refund"}
        session.die()
    turn = session.journal.turns["t1"]
    assert turn.error is not None
    assert turn.error.code == WORKERS_LOST
    assert session.record("refund") == (RecordStatus.FAILED, Reason.NOT_RUN)


@pytest.mark.parametrize("check", [False, True])
def test_the_last_death_asks_for_no_check(check: bool) -> None:
    session = Script()
    session.say("t1")
    session.say("t2")
    for _ in range(MAX_MODEL_STEP_TAKEOVERS - 1):
        session.die()
    session.die(check=check)
    assert session.check is None
    assert session.turn_id == "t2"
    assert session.model is not None


def test_a_step_that_was_settled_starts_the_count_of_deaths_anew() -> None:
    session = Script()
    session.say("t1")
    for _ in range(MAX_MODEL_STEP_TAKEOVERS - 1):
        session.die()
    session.asks(more=True)
    assert session.model is not None
    assert session.journal.steps[session.model.step_id].attempts == 1


def test_a_stored_turn_that_waits_for_nothing_is_driven() -> None:
    lost = SessionState("s", turns=1, turn=OpenTurn("t1", 1, steps=1))
    _, commands = reduce(lost, TakenOver())
    assert commands[-1] == RunModel("t1/model/2", ())


@pytest.mark.parametrize("effect", ToolEffect)
def test_an_engine_whose_loop_outlives_its_workers_recovers_calls_in_the_same_way(effect: ToolEffect) -> None:
    session = Script()
    session.say("t1")
    session.asks(call("tool", effect))
    session.lose_workers()
    assert session.running() == {"tool"}
    session.returns("tool")
    assert session.record("tool") == (RecordStatus.SUCCEEDED, None)
    assert session.live == {"tool"}


def test_a_replay_does_not_hand_out_the_records_of_a_response_that_grew() -> None:
    """The live turn that is lost had the record of ``first``; its replay waits until ``second`` is settled too."""
    session = Script()
    session.say("t1")
    session.asks(call("first", group="A"), more=True)
    session.returns("first")
    session.asks(call("second", group="A"))
    session.lose_workers()
    session.asks()
    session.returns("second")
    assert session.model is not None
    assert session.model.call_ids == ("first", "second")


def test_a_worker_that_was_leaving_when_it_died_leaves_no_trace() -> None:
    session = Script()
    session.say("t1")
    session.tell(DrainRequested())
    session.lose_workers()
    assert session.model is not None


# ---------------------------------------------------------------- code that may not fit


def test_a_new_owner_with_other_code_checks_before_anything_runs() -> None:
    session = Script()
    session.say("t1")
    session.asks(call("search"))
    session.die(check=True)
    assert session.last()[-1] == CheckCode("t1", at_rest=True)
    assert session.running() == set()
    session.code_fits()
    assert session.running() == {"search"}


def test_there_is_nothing_to_check_without_an_open_turn() -> None:
    session = Script()
    session.say("t1")
    session.finishes()
    session.die(check=True)
    assert session.last() == ()


def blocked_session() -> Script:
    """A session whose approval waits, under code that does not fit."""
    session = Script()
    session.say("t1")
    session.asks(gated("refund"))
    session.die(check=True)
    session.code_differs()
    return session


def test_code_that_differs_blocks_the_session_and_keeps_what_waits() -> None:
    session = blocked_session()
    assert session.last() == (BlockSession(DIFFERENT), DropTurn())
    assert session.status() is SessionStatus.BLOCKED
    assert session.interrupt("refund") is InterruptStatus.PENDING


def test_restored_code_lets_a_blocked_session_complete() -> None:
    session = blocked_session()
    session.die()
    assert session.last() == (CheckCode("t1", at_rest=True),), "a blocked session is always checked"
    assert session.status() is SessionStatus.BLOCKED
    session.code_fits()
    assert session.last() == (UnblockSession(),)
    assert session.status() is SessionStatus.WAITING
    session.approve("refund")
    session.returns("refund")
    session.finishes()
    assert session.journal.turns["t1"].status is TurnStatus.COMPLETED


def test_code_that_still_differs_keeps_the_session_blocked() -> None:
    session = blocked_session()
    session.die()
    session.code_differs()
    assert session.status() is SessionStatus.BLOCKED
    assert session.check is None


def test_news_of_a_turn_that_is_being_checked_wait_for_the_verdict() -> None:
    session = blocked_session()
    session.die()
    session.report_news()
    assert session.model is None
    session.code_fits()
    assert session.model is not None


def test_an_answer_to_a_blocked_session_waits_for_the_code() -> None:
    session = blocked_session()
    session.approve("refund")
    assert session.running() == set()
    session.die()
    session.code_fits()
    assert session.running() == {"refund"}


def test_messages_to_a_blocked_session_wait() -> None:
    session = blocked_session()
    session.say("t2")
    assert session.journal.begun == ["t1"]
    session.tell(CancelRequested())
    assert session.journal.begun == ["t1", "t2"]
    assert session.status() is SessionStatus.RUNNING


def test_a_late_verdict_on_a_cancelled_turn_does_not_touch_the_next_one() -> None:
    session = blocked_session()
    session.say("t2")
    session.die()
    session.tell(CancelRequested("t1"))
    assert session.turn_id == "t2"
    for late in (CodeDiffers(DIFFERENT, "t1"), CodeFits("t1")):
        assert reduce(session.state, late) == (session.state, ())


def test_a_step_that_finds_the_difference_does_not_count_as_a_death() -> None:
    session = Script()
    session.say("t1")
    for _ in range(2 * MAX_MODEL_STEP_TAKEOVERS):
        session.code_differs()
        assert session.journal.steps["t1/model/1"].attempts == 0
        session.die()
        session.code_fits()
    session.finishes()
    assert session.journal.turns["t1"].status is TurnStatus.COMPLETED


def test_a_call_that_the_replay_never_asked_for_loses_no_attempt() -> None:
    session = Script()
    session.say("t1")
    session.asks(call("put", ToolEffect.IDEMPOTENT_WRITE, attempts=1))
    session.code_differs(unstarted=("t1/call/put",))
    assert session.last() == (
        StopStep("t1/call/put"),
        PutStep("t1/call/put", "t1", StepName.CALL_TOOL, StepStatus.PENDING, 0, "put"),
        BlockSession(DIFFERENT),
        DropTurn(),
    )
    session.die()
    session.code_fits()
    session.returns("put")
    assert session.record("put") == (RecordStatus.SUCCEEDED, None)


def test_a_call_that_ran_when_the_difference_was_found_has_used_its_attempt() -> None:
    session = Script()
    session.say("t1")
    session.asks(call("put", ToolEffect.IDEMPOTENT_WRITE, attempts=1))
    session.starts("put")
    session.code_differs()
    session.die()
    session.code_fits()
    assert session.record("put") == (RecordStatus.OUTCOME_UNKNOWN, Reason.INTERRUPTED)


def test_j2_a_start_mark_is_never_taken_back() -> None:
    session = Script()
    session.say("t1")
    session.asks(write("refund"))
    session.starts("refund")
    session.code_differs(unstarted=("t1/call/refund",))
    assert session.journal.steps["t1/call/refund"].status is StepStatus.RUNNING
    session.die()
    session.code_fits()
    assert session.record("refund") == (RecordStatus.OUTCOME_UNKNOWN, Reason.INTERRUPTED)


def test_a_turn_that_is_over_is_not_blocked_by_its_code() -> None:
    session = Script()
    session.say("t1")
    session.asks(write("refund"), more=True)
    session.starts("refund")
    session.finishes()
    session.code_differs()
    assert session.record("refund") == (RecordStatus.OUTCOME_UNKNOWN, Reason.INTERRUPTED)
    assert session.journal.turns["t1"].status is TurnStatus.COMPLETED
    assert session.status() is SessionStatus.IDLE


def test_the_status_is_exact_while_the_code_is_checked() -> None:
    """Who answers and then waits must not be told that the session still waits for somebody."""
    session = Script()
    session.say("t1")
    session.asks(gated("refund"))
    session.die(check=True)
    assert session.status() is SessionStatus.WAITING
    session.approve("refund")
    assert session.status() is SessionStatus.RUNNING


# ---------------------------------------------------------------- leaving in good order


def test_a_worker_that_leaves_starts_nothing_new() -> None:
    session = Script()
    session.say("t1")
    session.asks(call("search"), gated("refund"))
    session.tell(DrainRequested())
    session.approve("refund")
    assert session.running() == {"search"}, "what runs goes on"
    session.returns("search")
    assert session.rests
    session.die()
    assert session.running() == {"refund"}


def test_a_worker_that_leaves_costs_no_attempt() -> None:
    session = Script()
    session.say("t1")
    session.tell(DrainRequested())
    session.asks(call("put", ToolEffect.IDEMPOTENT_WRITE, attempts=1))
    assert session.attempts("put") == 0
    session.die()
    session.returns("put")
    assert session.record("put") == (RecordStatus.SUCCEEDED, None)


def test_a_worker_that_leaves_begins_no_turn() -> None:
    session = Script()
    session.say("t1")
    session.say("t2")
    session.tell(DrainRequested())
    session.finishes()
    assert session.journal.begun == ["t1"]
    assert session.status() is SessionStatus.RUNNING, "there is work for the next owner"
    session.die()
    assert session.journal.begun == ["t1", "t2"]


def test_a_branch_that_was_completed_while_the_worker_left_is_driven_by_the_next_one() -> None:
    session = Script()
    session.say("t1")
    session.asks(call("read", group="A"), gated("pay", group="B"), more=True)
    session.tell(DrainRequested())
    session.returns("read")
    session.asks()
    assert session.rests is False, "the approval still waits"
    assert session.status() is SessionStatus.RUNNING, "and branch A can go on without it"
    session.die()
    assert session.model is not None
