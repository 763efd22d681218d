"""How turns and sessions end: what is stopped, what is waited for, and what the records then say."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from tests.support.flow_script import Script, call, gated, write
from tests.support.flow_world import BROKEN

from perdure.session.flow import reduce
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
    AnnounceEnd,
    AttemptStarted,
    CancelRequested,
    CloseRequested,
    CloseSession,
    DropMessage,
    DropTurn,
    EndTurn,
    MessageArrived,
    PutStep,
    Reason,
    StopStep,
)

SINGLE = [ToolEffect.NON_IDEMPOTENT_WRITE, ToolEffect.UNCLASSIFIED]
WRITES = [ToolEffect.IDEMPOTENT_WRITE, *SINGLE]


def session_in_call(effect: ToolEffect) -> Script:
    """One call, whose tool is running."""
    session = Script()
    session.say("t1")
    session.asks(call("tool", effect))
    session.starts("tool")
    return session


# ---------------------------------------------------------------- cancelled


@pytest.mark.parametrize("effect", ToolEffect)
def test_a_cancel_stops_what_runs(effect: ToolEffect) -> None:
    session = session_in_call(effect)
    session.tell(CancelRequested())
    expected = {
        ToolEffect.READ: (RecordStatus.FAILED, Reason.STOPPED),
        ToolEffect.IDEMPOTENT_WRITE: (RecordStatus.OUTCOME_UNKNOWN, Reason.INTERRUPTED),
        ToolEffect.NON_IDEMPOTENT_WRITE: (RecordStatus.OUTCOME_UNKNOWN, Reason.INTERRUPTED),
        ToolEffect.UNCLASSIFIED: (RecordStatus.OUTCOME_UNKNOWN, Reason.INTERRUPTED),
    }
    assert session.record("tool") == expected[effect]
    assert StopStep("t1/call/tool") in session.last()
    assert session.running() == set()
    assert session.journal.turns["t1"].status is TurnStatus.CANCELLED
    assert session.status() is SessionStatus.IDLE


@pytest.mark.parametrize("effect", SINGLE)
def test_a_cancel_before_the_start_mark_means_that_the_call_was_not_run(effect: ToolEffect) -> None:
    session = Script()
    session.say("t1")
    session.asks(call("tool", effect))
    session.tell(CancelRequested())
    assert session.record("tool") == (RecordStatus.FAILED, Reason.NOT_RUN)
    assert reduce(session.state, AttemptStarted("t1/call/tool")) == (session.state, ())


def test_a_cancel_withdraws_what_waits_for_somebody() -> None:
    session = Script()
    session.say("t1")
    session.asks(gated("refund"))
    session.tell(CancelRequested("t1"))
    assert session.interrupt("refund") is InterruptStatus.WITHDRAWN
    assert session.record("refund") == (RecordStatus.FAILED, Reason.NOT_RUN)
    assert session.history() == [
        "AwaitUserMessage succeeded",
        "RunModel succeeded",
        "AwaitToolApproval withdrawn",
        "AwaitUserMessage pending",
    ]


def test_a_cancel_stops_the_model() -> None:
    session = Script()
    session.say("t1")
    session.tell(CancelRequested())
    assert StopStep("t1/model/1") in session.last()
    assert DropTurn() in session.last()
    assert session.history() == ["AwaitUserMessage succeeded", "RunModel cancelled", "AwaitUserMessage pending"]


@pytest.mark.parametrize("effect", [ToolEffect.READ, ToolEffect.IDEMPOTENT_WRITE])
def test_a_cancel_after_a_lost_attempt_does_not_say_that_the_call_was_not_run(effect: ToolEffect) -> None:
    """The worker died in the tool, and the next one has not run it again yet."""
    session = session_in_call(effect)
    session.die(check=True)
    assert session.running() == set()
    session.tell(CancelRequested())
    unknown = (RecordStatus.OUTCOME_UNKNOWN, Reason.INTERRUPTED)
    assert session.record("tool") == ((RecordStatus.FAILED, Reason.STOPPED) if effect is ToolEffect.READ else unknown)


def test_a_cancel_keeps_the_records_that_are_there() -> None:
    session = Script()
    session.say("t1")
    session.asks(call("search"), write("refund"))
    session.returns("refund")
    session.tell(CancelRequested())
    assert session.record("refund") == (RecordStatus.SUCCEEDED, None)


@pytest.mark.parametrize("named", ["t0", "t2"])
def test_a_cancel_of_another_turn_does_nothing(named: str) -> None:
    session = Script()
    session.say("t1")
    assert reduce(session.state, CancelRequested(named)) == (session.state, ())


def test_a_cancel_of_an_idle_session_does_nothing() -> None:
    session = Script()
    session.say("t1")
    session.finishes()
    for named in (None, "t1"):
        assert reduce(session.state, CancelRequested(named)) == (session.state, ())


def _cancel(session: Script) -> None:
    session.tell(CancelRequested())


def _fail(session: Script) -> None:
    session.fails()


@pytest.mark.parametrize("end", [_cancel, _fail])
def test_j7_a_cancelled_or_failed_turn_leaves_the_session_usable(end: Callable[[Script], None]) -> None:
    session = Script()
    session.say("t1")
    session.say("t2")
    end(session)
    assert session.turn_id == "t2", "what was queued begins at once"
    session.asks(call("search"))
    session.returns("search")
    session.finishes()
    session.say("t3")
    session.finishes()
    assert session.journal.turns["t3"].status is TurnStatus.COMPLETED


# ---------------------------------------------------------------- ended by itself


@pytest.mark.parametrize("effect", WRITES)
def test_a_turn_that_is_over_waits_for_the_write_that_runs(effect: ToolEffect) -> None:
    session = Script()
    session.say("t1")
    session.asks(call("tool", effect), more=True)
    session.starts("tool")
    session.fails()
    assert session.last()[-1] == AnnounceEnd("t1", TurnStatus.FAILED, BROKEN)
    assert session.status() is SessionStatus.RUNNING
    session.returns("tool")
    assert session.record("tool") == (RecordStatus.SUCCEEDED, None)
    assert EndTurn("t1", TurnStatus.FAILED, BROKEN) in session.last()


def test_a_turn_that_is_over_waits_for_every_write_and_announces_its_end_once() -> None:
    session = Script()
    session.say("t1")
    session.asks(write("refund"), call("put", ToolEffect.IDEMPOTENT_WRITE), more=True)
    session.starts("refund")
    session.finishes()
    session.stumbles("put")
    session.returns("put")
    session.returns("refund")
    announced = [c for done in session.passes for c in done.commands if isinstance(c, AnnounceEnd)]
    assert announced == [AnnounceEnd("t1", TurnStatus.COMPLETED)]
    assert session.journal.turns["t1"].status is TurnStatus.COMPLETED


def test_a_turn_that_is_over_stops_reads_and_starts_nothing_more() -> None:
    session = Script()
    session.say("t1")
    session.asks(call("search"), write("refund"), gated("delete"), more=True)
    session.starts("search")
    session.finishes()
    assert session.record("search") == (RecordStatus.FAILED, Reason.STOPPED)
    assert session.record("refund") == (RecordStatus.FAILED, Reason.NOT_RUN)
    assert session.record("delete") == (RecordStatus.FAILED, Reason.NOT_RUN)
    assert session.interrupt("delete") is InterruptStatus.WITHDRAWN
    assert session.journal.turns["t1"].status is TurnStatus.COMPLETED


def test_a_cancel_does_not_wait_for_the_write_that_an_ended_turn_waits_for() -> None:
    session = Script()
    session.say("t1")
    session.asks(write("refund"), more=True)
    session.starts("refund")
    session.finishes()
    session.tell(CancelRequested())
    assert session.record("refund") == (RecordStatus.OUTCOME_UNKNOWN, Reason.INTERRUPTED)
    assert session.journal.turns["t1"].status is TurnStatus.CANCELLED


@pytest.mark.parametrize("effect", WRITES)
def test_a_turn_whose_worker_dies_while_it_waits_for_a_write_ends_as_announced(effect: ToolEffect) -> None:
    session = Script()
    session.say("t1")
    session.asks(call("tool", effect), more=True)
    session.starts("tool")
    session.fails()
    session.die()
    assert session.record("tool") == (RecordStatus.OUTCOME_UNKNOWN, Reason.INTERRUPTED)
    assert session.journal.turns["t1"].status is TurnStatus.FAILED


def test_an_engine_that_does_not_store_the_announcement_drives_the_turn_again() -> None:
    session = Script()
    session.journal.keeps_endings = False
    session.say("t1")
    session.asks(write("refund"), more=True)
    session.starts("refund")
    session.fails()
    session.die()
    assert session.record("refund") == (RecordStatus.OUTCOME_UNKNOWN, Reason.INTERRUPTED)
    assert session.model is not None
    session.finishes()
    assert session.journal.turns["t1"].status is TurnStatus.COMPLETED


# ---------------------------------------------------------------- closed


def test_closing_an_idle_session() -> None:
    session = Script()
    session.tell(CloseRequested())
    assert session.last() == (
        PutStep("await/1", None, StepName.AWAIT_USER_MESSAGE, StepStatus.CANCELLED, 0),
        CloseSession(),
    )
    assert session.status() is SessionStatus.CLOSED


def test_closing_cancels_the_turn_and_drops_what_is_queued() -> None:
    session = Script()
    for turn_id in ("t1", "t2", "t3"):
        session.say(turn_id)
    session.asks(gated("refund"))
    session.tell(CloseRequested())
    assert session.journal.turns["t1"].status is TurnStatus.CANCELLED
    assert session.interrupt("refund") is InterruptStatus.WITHDRAWN
    assert session.journal.dropped == ["t2", "t3"]
    kinds = [type(command) for command in session.last()]
    assert kinds.index(EndTurn) < kinds.index(DropMessage) < kinds.index(CloseSession)
    waits = [step for step in session.journal.steps.values() if step.name is StepName.AWAIT_USER_MESSAGE]
    assert [step.status for step in waits] == [StepStatus.SUCCEEDED], "a closed session waits for no message"


def test_a_closed_session_stays_closed() -> None:
    session = Script()
    session.tell(CloseRequested())
    assert reduce(session.state, CloseRequested()) == (session.state, ())
    state, commands = reduce(session.state, MessageArrived("t1"))
    assert state == session.state
    assert commands == (DropMessage("t1"),), "it was accepted just before, and must not be lost without a word"


def test_a_new_owner_of_a_closed_session_has_nothing_to_do() -> None:
    session = Script()
    session.say("t1")
    session.tell(CloseRequested())
    session.die(check=True)
    assert session.last() == ()
    assert session.status() is SessionStatus.CLOSED
