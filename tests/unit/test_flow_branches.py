"""Branches that run beside each other: each goes on with its own model response, and nothing is missed in between."""

from __future__ import annotations

from tests.support.flow_script import Script, call, gated, write

from perdure.session.flow import reduce
from perdure.session.model import SessionStatus, TurnStatus
from perdure.session.state import HandOut, RunModel, TurnHasNews


def two_branches() -> Script:
    """Branch A waits for a read, branch B for an approval."""
    session = Script()
    session.say("t1")
    session.asks(call("read", group="A"), gated("pay", group="B"))
    return session


def test_a_branch_goes_on_while_another_one_waits_for_a_person() -> None:
    session = two_branches()
    session.returns("read")
    assert session.model == RunModel("t1/model/3", ("read",))
    assert session.status() is SessionStatus.RUNNING


def test_the_turn_waits_when_every_branch_does() -> None:
    session = two_branches()
    session.returns("read")
    session.asks()
    assert session.status() is SessionStatus.WAITING
    session.approve("pay")
    session.returns("pay")
    assert session.model is not None
    assert session.model.call_ids == ("pay",)


def test_both_branches_go_on_with_their_own_answers_in_any_order() -> None:
    session = Script()
    session.say("t1")
    session.asks(gated("pay", group="A"), gated("ship", group="B"))
    session.approve("ship")
    session.approve("pay")
    session.returns("pay")
    session.returns("ship")
    session.come_to_rest(approve=True, patient=True, limit=3)
    assert (session.ran("pay"), session.ran("ship")) == (1, 1)
    assert session.journal.turns["t1"].status is TurnStatus.COMPLETED


def test_a_record_that_is_ready_while_the_model_runs_is_handed_out_at_once() -> None:
    session = Script()
    session.say("t1")
    session.asks(call("read", group="A"), more=True)
    session.returns("read")
    assert session.last()[-1] == HandOut(("read",))
    assert session.model == RunModel("t1/model/2", ()), "one model step at a time"


def test_after_a_hand_out_the_live_turn_is_driven_again() -> None:
    """The drive may have been over when the record came."""
    session = Script()
    session.say("t1")
    session.asks(call("read", group="A"), more=True)
    session.returns("read")
    done = session.asks(gated("pay", group="B"))
    assert done.commands[-1] == RunModel("t1/model/4", ())
    session.asks()
    assert session.status() is SessionStatus.WAITING, "once is enough"


def test_news_that_come_while_nobody_drives_start_a_drive() -> None:
    session = two_branches()
    session.report_news()
    assert session.model == RunModel("t1/model/2", ())


def test_news_that_come_while_the_model_runs_are_not_missed() -> None:
    session = Script()
    session.say("t1")
    session.report_news()
    assert session.last() == ()
    done = session.asks(call("read"))
    assert done.commands[-1] == RunModel("t1/model/2", ())


def test_news_of_another_turn_mean_nothing() -> None:
    session = two_branches()
    assert reduce(session.state, TurnHasNews("t0")) == (session.state, ())


def test_the_calls_of_a_response_may_be_asked_for_bit_by_bit() -> None:
    session = Script()
    session.say("t1")
    session.asks(write("first", group="A"), more=True)
    session.returns("first")
    session.asks(write("second", group="A"))
    session.returns("second")
    session.come_to_rest(approve=True, patient=True, limit=3)
    assert (session.ran("first"), session.ran("second")) == (1, 1)
    assert session.live is None
    assert session.journal.turns["t1"].status is TurnStatus.COMPLETED


def test_a_group_that_grew_is_handed_out_when_all_of_it_is_settled() -> None:
    session = Script()
    session.say("t1")
    session.asks(call("first", group="A"), more=True)
    session.asks(call("second", group="A"), more=True)
    session.returns("second")
    assert session.live == set()
    session.returns("first")
    assert session.last()[-1] == HandOut(("second", "first"))
