"""The table of effects: how often a call is tried, and what a crash in the middle of it means."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
from tests.support.flow_script import Script, call

from perdure.session.flow import reduce
from perdure.session.model import RecordStatus, StepName, StepStatus
from perdure.session.policy import ToolEffect
from perdure.session.state import AttemptFailed, AttemptStarted, CallSettled, Reason, RunCall

RETRIED = [ToolEffect.READ, ToolEffect.IDEMPOTENT_WRITE]
SINGLE = [ToolEffect.NON_IDEMPOTENT_WRITE, ToolEffect.UNCLASSIFIED]


@dataclass(frozen=True)
class Row:
    """One row of the table: the step that a call becomes, and its record when its last attempt died."""

    step: StepName
    exhausted: RecordStatus


TABLE = {
    ToolEffect.READ: Row(StepName.CALL_TOOL, RecordStatus.FAILED),
    ToolEffect.IDEMPOTENT_WRITE: Row(StepName.CALL_TOOL, RecordStatus.OUTCOME_UNKNOWN),
    ToolEffect.NON_IDEMPOTENT_WRITE: Row(StepName.CALL_SINGLE_ATTEMPT_TOOL, RecordStatus.OUTCOME_UNKNOWN),
    ToolEffect.UNCLASSIFIED: Row(StepName.CALL_SINGLE_ATTEMPT_TOOL, RecordStatus.OUTCOME_UNKNOWN),
}


def session_with(effect: ToolEffect, *, attempts: int = 3) -> Script:
    """A session whose turn has just asked for one call."""
    session = Script()
    session.say("t1")
    session.asks(call("tool", effect, attempts=attempts))
    return session


@pytest.mark.parametrize("effect", ToolEffect)
def test_the_step_of_each_effect(effect: ToolEffect) -> None:
    assert session_with(effect).journal.steps["t1/call/tool"].name is TABLE[effect].step


@pytest.mark.parametrize("effect", ToolEffect)
def test_a_crash_before_the_call_started_lets_it_run(effect: ToolEffect) -> None:
    session = session_with(effect)
    session.die()
    assert session.running() == {"tool"}
    session.returns("tool")
    assert session.ran("tool") == 1
    assert session.record("tool") == (RecordStatus.SUCCEEDED, None)


@pytest.mark.parametrize("effect", RETRIED)
def test_a_crash_in_the_middle_runs_the_call_again(effect: ToolEffect) -> None:
    session = session_with(effect)
    session.starts("tool")
    session.die()
    assert RunCall("t1/call/tool", "tool", attempt=2, single_attempt=False) in session.last()
    session.returns("tool")
    assert (session.ran("tool"), session.attempts("tool")) == (2, 2)


@pytest.mark.parametrize("effect", SINGLE)
def test_j2_a_crash_in_the_middle_of_a_single_attempt_leaves_its_outcome_unknown(effect: ToolEffect) -> None:
    session = session_with(effect)
    session.starts("tool")
    session.die()
    assert session.running() == set()
    assert session.record("tool") == (RecordStatus.OUTCOME_UNKNOWN, Reason.INTERRUPTED)
    assert session.journal.steps["t1/call/tool"].status is StepStatus.OUTCOME_UNKNOWN
    assert session.ran("tool") == 1
    assert session.model is not None, "the turn goes on with the record"


@pytest.mark.parametrize("effect", ToolEffect)
def test_attempts_that_die_with_their_worker_count(effect: ToolEffect) -> None:
    session = session_with(effect, attempts=2)
    for _ in range(2):
        if session.running():
            session.starts("tool")
            session.die()
    assert session.running() == set()
    assert session.record("tool") == (TABLE[effect].exhausted, Reason.INTERRUPTED)


@pytest.mark.parametrize("effect", RETRIED)
def test_failed_attempts_and_lost_ones_count_together(effect: ToolEffect) -> None:
    session = session_with(effect)
    session.stumbles("tool")
    session.die()
    assert session.attempts("tool") == 3
    session.starts("tool")
    session.die()
    assert session.record("tool") == (TABLE[effect].exhausted, Reason.INTERRUPTED)
    assert session.ran("tool") == 3


@pytest.mark.parametrize("effect", RETRIED)
def test_a_failed_attempt_is_stored_before_the_next_one(effect: ToolEffect) -> None:
    session = session_with(effect)
    session.stumbles("tool")
    step = session.journal.steps["t1/call/tool"]
    assert (step.status, step.attempts) == (StepStatus.RUNNING, 2)


@pytest.mark.parametrize("effect", RETRIED)
def test_no_attempt_beyond_the_last_one_is_taken(effect: ToolEffect) -> None:
    session = session_with(effect, attempts=1)
    assert reduce(session.state, AttemptFailed("t1/call/tool")) == (session.state, ())


@pytest.mark.parametrize("effect", SINGLE)
def test_a_single_attempt_has_no_second_one(effect: ToolEffect) -> None:
    session = session_with(effect, attempts=3)
    session.starts("tool")
    for given in (AttemptStarted("t1/call/tool"), AttemptFailed("t1/call/tool")):
        assert reduce(session.state, given) == (session.state, ())


@pytest.mark.parametrize("effect", ToolEffect)
@pytest.mark.parametrize("status", [RecordStatus.SUCCEEDED, RecordStatus.FAILED, RecordStatus.OUTCOME_UNKNOWN])
def test_the_record_is_what_the_tool_step_came_to(effect: ToolEffect, status: RecordStatus) -> None:
    session = session_with(effect)
    session.returns("tool", status)
    assert session.record("tool") == (status, None)
    assert session.journal.steps["t1/call/tool"].status.value == status.value


def test_a_single_attempt_that_could_not_be_started_can_be_settled() -> None:
    """Its tool may be gone; the engine says so without a start mark."""
    session = session_with(ToolEffect.NON_IDEMPOTENT_WRITE)
    session.jobs.clear()
    session.tell(CallSettled("t1/call/tool", RecordStatus.FAILED))
    assert session.record("tool") == (RecordStatus.FAILED, None)
    assert session.attempts("tool") == 0


@pytest.mark.parametrize("effect", ToolEffect)
def test_a_crash_right_after_the_record_does_not_run_the_call_again(effect: ToolEffect) -> None:
    session = session_with(effect)
    session.returns("tool")
    session.die()
    assert session.running() == set()
    assert session.ran("tool") == 1
