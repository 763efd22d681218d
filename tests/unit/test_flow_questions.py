"""The session loop, one example for each rule: tools that ask in the middle, questions, legs, late answers."""

from __future__ import annotations

import pytest
from tests.support.flow_script import Script, call, gated, write
from tests.support.flow_world import DIFFERENT

from perdure.session.flow import answer_step_id, approval_step_id, call_step_id, interrupt_id_for
from perdure.session.model import InterruptKind, InterruptStatus, RecordStatus, SessionStatus, StepStatus, TurnStatus
from perdure.session.policy import ToolEffect
from perdure.session.runner import QuestionWait
from perdure.session.state import (
    BeginLeg,
    CancelRequested,
    CloseRequested,
    CodeDiffers,
    DrainRequested,
    DropTurn,
    EndLeg,
    HandOut,
    InterruptExpired,
    ModelBlocked,
    ModelFinished,
    Reason,
    RequestedQuestion,
    RunCall,
    RunModel,
    SettleQuestion,
    TurnHasNews,
)


def question(
    name: str,
    wait: QuestionWait = QuestionWait.LIVE,
    *,
    kind: InterruptKind = InterruptKind.INPUT,
    group: str = "questions",
) -> RequestedQuestion:
    return RequestedQuestion(name, group, kind, wait)


def next_leg(*names: str) -> ModelFinished:
    return ModelFinished(tuple(question(name, QuestionWait.NEXT_LEG) for name in names))


def late(name: str) -> RequestedQuestion:
    return question(name, QuestionWait.NEXT_TURN)


def begun() -> Script:
    script = Script()
    script.say("t1")
    return script


def asking(*questions: RequestedQuestion) -> Script:
    script = begun()
    script.model_reports(ModelBlocked((), questions=questions))
    return script


def answer(script: Script, name: str, *, approved: bool = True, number: int = 1, turn_id: str = "t1") -> None:
    script.answer(interrupt_id_for(turn_id, name, number), approved=approved)


def end_of(script: Script, name: str, number: int = 1) -> list[InterruptStatus]:
    return script.journal.interrupts[interrupt_id_for("t1", name, number)]


# ---------------------------------------------------------------- in the middle


def test_j2_a_call_that_asked_is_started_once_more_for_each_yes() -> None:
    script = begun()
    script.asks(write("c"))
    for number in (1, 2):
        script.ask_in_the_middle(call_step_id("t1", "c"))
        assert script.status() is SessionStatus.WAITING
        answer(script, "c", number=number)
        assert script.last()[-2] == RunCall(call_step_id("t1", "c"), "c", number + 1, True, number)
    script.returns("c")
    assert (script.ran("c"), script.attempts("c")) == (3, 3)
    assert script.record("c") == (RecordStatus.SUCCEEDED, None)


def test_a_second_run_that_dies_leaves_the_outcome_unknown() -> None:
    script = begun()
    script.asks(write("c"))
    script.ask_in_the_middle(call_step_id("t1", "c"))
    answer(script, "c")
    script.starts("c")
    script.die()
    assert script.record("c") == (RecordStatus.OUTCOME_UNKNOWN, Reason.INTERRUPTED)
    assert script.ran("c") == 2


def test_a_call_that_asked_waits_on_when_its_worker_dies() -> None:
    script = begun()
    script.asks(write("c"))
    script.ask_in_the_middle(call_step_id("t1", "c"))
    script.die()
    assert script.status() is SessionStatus.WAITING
    answer(script, "c")
    script.returns("c")
    assert script.ran("c") == 2


def test_a_rejected_call_that_asked_has_a_rejected_step() -> None:
    script = begun()
    script.asks(call("c"))
    script.ask_in_the_middle(call_step_id("t1", "c"), InterruptKind.CREDENTIAL)
    answer(script, "c", approved=False)
    assert script.record("c") == (RecordStatus.REJECTED, Reason.REJECTED)
    assert script.journal.steps[call_step_id("t1", "c")].status is StepStatus.REJECTED
    assert script.journal.steps[answer_step_id("t1", "c")].status is StepStatus.REJECTED
    assert script.ran("c") == 1


def test_a_gated_call_that_asks_has_two_interrupts() -> None:
    script = begun()
    script.asks(gated("c"))
    script.approve("c")
    script.ask_in_the_middle(call_step_id("t1", "c"))
    assert script.journal.pending_interrupts() == [interrupt_id_for("t1", "c", 2)]
    assert script.journal.steps[approval_step_id("t1", "c", 2)].status is StepStatus.PENDING
    answer(script, "c", number=1)  # the first one is answered: nothing happens
    assert script.passes[-1].commands == ()


def test_asking_costs_no_attempt() -> None:
    script = begun()
    script.asks(call("c", attempts=2))
    script.stumbles("c")
    script.ask_in_the_middle(call_step_id("t1", "c"))
    answer(script, "c")
    script.starts("c")
    assert (script.attempts("c"), script.ran("c")) == (3, 3)
    script.die()  # the second attempt that counts
    assert script.record("c") == (RecordStatus.FAILED, Reason.INTERRUPTED)


@pytest.mark.parametrize("effect", list(ToolEffect))
def test_a_turn_that_ends_says_that_a_call_that_asked_was_not_run(effect: ToolEffect) -> None:
    script = begun()
    script.asks(call("c", effect))
    script.ask_in_the_middle(call_step_id("t1", "c"))
    script.tell(CancelRequested())
    assert script.record("c") == (RecordStatus.FAILED, Reason.NOT_RUN)
    assert end_of(script, "c") == [InterruptStatus.WITHDRAWN]


def test_a_draining_worker_takes_the_question_and_starts_nothing() -> None:
    script = begun()
    script.asks(write("c"))
    script.starts("c")
    script.tell(DrainRequested())
    script.ask_in_the_middle(call_step_id("t1", "c"))
    assert script.status() is SessionStatus.WAITING
    script.die()
    answer(script, "c")
    script.returns("c")
    assert script.ran("c") == 2


# ---------------------------------------------------------------- questions of the live turn


def test_an_answer_is_handed_out_with_the_next_drive() -> None:
    script = asking(question("q"))
    assert (script.status(), script.journal.turns["t1"].status) == (SessionStatus.WAITING, TurnStatus.WAITING)
    answer(script, "q")
    assert script.last()[-2] == RunModel("t1/model/3", (), 1, ("q",))
    assert end_of(script, "q") == [InterruptStatus.ANSWERED]
    assert script.history()[2:4] == ["AwaitAnswer succeeded", "ResumeTurn succeeded"]


def test_answers_and_records_are_handed_out_in_the_order_in_which_they_settled() -> None:
    script = begun()
    script.model_reports(ModelBlocked((call("c"), call("d")), questions=(question("p"), question("q"))))
    script.returns("d")
    answer(script, "q")
    answer(script, "p")
    script.model_reports(ModelBlocked(()))
    ran = [c for done in script.passes for c in done.commands if isinstance(c, RunModel) and c.question_ids]
    assert [c.question_ids for c in ran] == [("q", "p")]
    script.returns("c")
    assert next(c for c in script.last() if isinstance(c, RunModel)).call_ids == ("d", "c")


def test_an_answer_reaches_a_live_turn_that_is_being_driven() -> None:
    script = asking(question("q"))
    script.report_news()
    answer(script, "q")
    assert HandOut((), ("q",)) in script.last()


def test_the_group_of_a_question_is_not_the_group_of_a_call() -> None:
    """A long-running call and the question for its result come from one model response."""
    script = begun()
    script.asks(call("c", group="m1"))
    script.returns("c")
    script.model_reports(ModelBlocked((), questions=(question("c", group="m1"),)))
    script.die()
    assert script.state.turn is not None
    assert script.state.turn.calls["c"].handed_out, "a replay hands it out, or it could not ask the question"
    answer(script, "c")
    script.finishes()
    assert script.journal.turns["t1"].status is TurnStatus.COMPLETED


def test_what_is_known_is_not_asked_again() -> None:
    script = asking(question("q"), late("l"))
    script.die()
    script.report_news()
    script.model_reports(ModelBlocked((), questions=(question("q"), late("l"))))
    assert script.journal.raised == [interrupt_id_for("t1", "q"), interrupt_id_for("t1", "l")]


def test_an_expired_question_has_an_answer_that_says_so() -> None:
    script = asking(question("q"))
    script.tell(InterruptExpired(interrupt_id_for("t1", "q")))
    assert SettleQuestion(interrupt_id_for("t1", "q"), "q", True) in script.last()
    assert script.history()[2] == "AwaitAnswer expired"
    script.finishes()


@pytest.mark.parametrize("kind", [InterruptKind.APPROVAL, InterruptKind.CONFIRMATION, InterruptKind.CREDENTIAL])
def test_a_question_that_takes_yes_or_no_may_be_rejected(kind: InterruptKind) -> None:
    script = asking(question("q", kind=kind))
    answer(script, "q", approved=False)
    assert end_of(script, "q") == [InterruptStatus.REJECTED]
    script.finishes()
    script.say("t2")
    script.model_reports(ModelBlocked((), questions=(question("q", kind=kind),)))
    answer(script, "q", turn_id="t2")
    assert script.journal.interrupts["t2:q"] == [InterruptStatus.APPROVED]


def test_a_turn_that_waits_for_a_question_does_not_stall() -> None:
    script = asking(question("q"))
    script.report_news()
    script.model_reports(ModelBlocked(()))
    assert script.status() is SessionStatus.WAITING


# ---------------------------------------------------------------- legs


def test_a_leg_begins_when_its_frontier_is_answered() -> None:
    script = begun()
    script.model_reports(next_leg("p", "q"))
    assert EndLeg("t1", 1) in script.last()
    assert DropTurn() in script.last()
    assert script.status() is SessionStatus.WAITING
    answer(script, "q")
    assert script.status() is SessionStatus.WAITING
    answer(script, "p")
    assert BeginLeg("t1", 2) in script.last()
    assert script.status() is SessionStatus.RUNNING
    script.finishes()
    assert script.journal.turns["t1"].status is TurnStatus.COMPLETED


def test_each_leg_has_ids_of_its_own() -> None:
    script = begun()
    for leg in (1, 2):
        script.asks(call("c", group=f"{leg}"))
        script.settle(call_step_id("t1", "c", leg))
        script.model_reports(next_leg("q"))
        answer(script, "q", number=leg)
    assert list(script.journal.interrupts) == ["t1:q", "t1:q:2"]
    assert len({step.step_id for step in script.journal.steps.values()}) == len(script.journal.steps)
    assert script.bodies == {"t1/call/c": 1, "t1/leg/2/call/c": 1}


def test_a_leg_ends_as_a_turn_does_writes_first() -> None:
    script = begun()
    script.model_reports(ModelBlocked((call("read"), write("write"), gated("ask")), questions=(question("live"),)))
    script.starts("read")
    script.starts("write")
    script.report_news()
    script.model_reports(next_leg("q"))
    assert script.running() == {"write"}
    assert script.record("ask") == (RecordStatus.FAILED, Reason.NOT_RUN)
    assert end_of(script, "live") == [InterruptStatus.WITHDRAWN]
    answer(script, "q")
    assert script.status() is SessionStatus.RUNNING
    script.returns("write")
    assert script.last().index(DropTurn()) < script.last().index(BeginLeg("t1", 2))


@pytest.mark.parametrize("check", [False, True])
def test_a_new_owner_at_a_frontier_has_no_code_to_check(check: bool) -> None:
    script = begun()
    script.model_reports(next_leg("q"))
    script.die(check=check)
    assert (script.check, script.status()) == (None, SessionStatus.WAITING)
    answer(script, "q")
    assert BeginLeg("t1", 2) in script.last()


def test_a_frontier_that_was_answered_while_the_worker_left_is_running_until_somebody_begins_the_leg() -> None:
    script = begun()
    script.model_reports(next_leg("q"))
    script.tell(DrainRequested())
    answer(script, "q")
    assert script.status() is SessionStatus.RUNNING
    assert script.journal.turns["t1"].status is TurnStatus.RUNNING
    script.die()
    assert BeginLeg("t1", 2) in script.last()


def test_what_a_dropped_live_turn_says_is_not_heard() -> None:
    script = begun()
    script.model_reports(next_leg("q"))
    for given in (TurnHasNews("t1"), TurnHasNews()):
        assert script.tell(given).commands == ()
    assert script.tell(CodeDiffers(DIFFERENT, "t1")).commands == ()


def test_code_that_differs_ends_the_writes_of_a_leg_that_has_ended() -> None:
    script = begun()
    script.asks(write("c"))
    script.starts("c")
    script.report_news()
    script.model_reports(next_leg("q"))
    script.code_differs()
    assert script.record("c") == (RecordStatus.OUTCOME_UNKNOWN, Reason.INTERRUPTED)
    assert script.status() is SessionStatus.WAITING


def test_cancel_withdraws_the_frontier() -> None:
    script = begun()
    script.model_reports(next_leg("p", "q"))
    answer(script, "p")
    script.tell(CancelRequested())
    assert (end_of(script, "p"), end_of(script, "q")) == ([InterruptStatus.ANSWERED], [InterruptStatus.WITHDRAWN])
    assert script.status() is SessionStatus.IDLE


# ---------------------------------------------------------------- questions that nobody waits for


def test_a_late_question_outlives_its_turn_and_its_answer_is_a_message() -> None:
    script = begun()
    script.model_reports(ModelFinished((late("q"),)))
    assert (script.status(), script.journal.turns["t1"].status) == (SessionStatus.IDLE, TurnStatus.COMPLETED)
    assert script.journal.pending_interrupts() == ["t1:q"]
    script.die()
    script.say("t2", "t1:q")
    assert end_of(script, "q") == [InterruptStatus.ANSWERED]
    assert script.journal.steps[answer_step_id("t1", "q")].status is StepStatus.SUCCEEDED
    assert script.turn_id == "t2"


def test_a_late_answer_to_a_running_turn_is_queued() -> None:
    script = asking(late("q"), question("live"))
    script.say("t2", "t1:q")
    assert script.state.queue == ("t2",)
    assert script.status() is SessionStatus.WAITING
    answer(script, "live")
    script.finishes()
    assert script.turn_id == "t2"


@pytest.mark.parametrize("how", ["fail", "cancel", "close"])
def test_the_end_of_the_turn_that_asked_withdraws_it_unless_it_was_completed(how: str) -> None:
    script = asking(late("q"), question("live"))
    if how == "fail":
        answer(script, "live")
        script.fails()
    else:
        script.tell(CancelRequested() if how == "cancel" else CloseRequested())
    assert end_of(script, "q") == [InterruptStatus.WITHDRAWN]
    assert script.journal.steps[answer_step_id("t1", "q")].status is StepStatus.WITHDRAWN


def test_the_end_of_another_turn_does_not() -> None:
    script = begun()
    script.model_reports(ModelFinished((late("q"),)))
    script.say("t2")
    script.fails()
    assert end_of(script, "q") == []
    script.tell(CloseRequested())
    assert end_of(script, "q") == [InterruptStatus.WITHDRAWN]


def test_an_expired_late_question_starts_nothing() -> None:
    script = begun()
    script.model_reports(ModelFinished((late("q"),)))
    script.tell(InterruptExpired("t1:q"))
    assert (script.status(), end_of(script, "q")) == (SessionStatus.IDLE, [InterruptStatus.EXPIRED])
    assert script.state.queue == ()


def test_a_late_question_suspends_nothing() -> None:
    script = begun()
    script.model_reports(ModelBlocked((), more=True, questions=(late("q"),)))
    assert script.status() is SessionStatus.RUNNING
    script.finishes()
    assert script.status() is SessionStatus.IDLE
