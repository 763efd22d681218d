"""The rules can fail: each wrong session loop is caught, by the very rule that it breaks."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis.stateful import run_state_machine_as_test
from tests.support import flow_mutants as wrong
from tests.support import flow_rules as rules
from tests.support.flow_machine import AnyMishap, DyingWorkers, SessionMachine
from tests.support.flow_world import Reducer, World

Rule = Callable[[World], None]
Search = Callable[..., None]

CAUGHT_BY: list[tuple[Reducer, Rule]] = [
    (wrong.drops_a_queued_message_on_cancel, rules.j1_messages_are_handled_in_order_none_lost_none_doubled),
    (wrong.lets_messages_join_and_stay, rules.j1_messages_are_handled_in_order_none_lost_none_doubled),
    (wrong.lets_messages_join_any_turn, rules.what_no_longer_applies_changes_nothing),
    (wrong.takes_the_newest_message_first, rules.j1_messages_are_handled_in_order_none_lost_none_doubled),
    (wrong.takes_the_message_of_its_open_turn_again, rules.j1_messages_are_handled_in_order_none_lost_none_doubled),
    (wrong.forgets_the_start_mark, rules.j2_a_single_attempt_call_is_started_at_most_once),
    (wrong.settles_twice, rules.j3_a_settled_step_never_changes),
    (wrong.touches_a_settled_step, rules.j3_a_settled_step_never_changes),
    (wrong.ends_a_turn_without_records, rules.j4_no_call_is_without_a_record_when_its_turn_ends),
    (wrong.does_not_withdraw_interrupts, rules.j4_no_call_is_without_a_record_when_its_turn_ends),
    (wrong.says_that_what_started_was_not_run, rules.j4_a_record_says_what_happened),
    (wrong.takes_a_second_answer, rules.j6_an_interrupt_is_answered_at_most_once),
    (wrong.stays_blocked_when_cancelled, rules.j7_a_turn_that_ended_leaves_the_session_usable),
    (wrong.waits_for_no_further_message, rules.j7_a_turn_that_ended_leaves_the_session_usable),
    (wrong.never_says_that_it_waits, rules.waiting_means_that_nothing_can_go_on_without_an_answer),
    (wrong.does_not_drive_on_when_a_call_is_settled, rules.what_can_go_on_is_going_on),
    (wrong.misses_news_that_come_while_it_drives, rules.what_can_go_on_is_going_on),
    (wrong.waits_for_all_branches, rules.a_branch_goes_on_when_its_own_group_is_settled),
    (wrong.hands_out_each_record_by_itself, rules.records_are_handed_out_in_order_and_only_when_complete),
    (wrong.drives_twice_at_a_time, rules.nothing_runs_that_runs_already),
    (wrong.stops_nothing, rules.what_runs_is_stopped_before_it_is_forgotten),
    (wrong.remembers_news_for_ever, rules.the_live_turn_is_not_driven_for_nothing),
    (wrong.asks_nobody, rules.what_runs_was_put_and_agreed_to_before),
    (wrong.forgets_attempts, rules.attempts_are_never_forgotten),
    (wrong.never_gives_a_turn_up, rules.attempts_never_exceed_their_number),
    (wrong.never_gives_a_turn_up, rules.a_turn_that_kills_its_workers_is_given_up),
    (wrong.makes_a_step_of_a_rejected_call, rules.a_rejected_call_has_no_tool_step),
    (wrong.closes_the_session_before_its_turn, rules.ends_are_stored_in_order),
    (wrong.does_not_store_why_it_is_blocked, rules.what_is_stored_is_enough_to_go_on),
    (wrong.leaves_before_it_came, rules.a_new_owner_begins_afresh),
    (wrong.does_not_check_its_code, rules.a_new_owner_begins_afresh),
    (wrong.unblocks_what_is_not_blocked, rules.blocked_and_unblocked_take_turns),
    (wrong.takes_the_late_result_of_a_stopped_call, rules.what_no_longer_applies_changes_nothing),
    (wrong.lets_the_check_of_another_turn_block_this_one, rules.what_no_longer_applies_changes_nothing),
    (wrong.lets_a_rejected_tool_run_again, rules.a_no_is_kept),
    (wrong.loses_an_answer, rules.j12_a_question_has_one_answer_for_whoever_waits),
    (wrong.asks_on_in_a_closed_session, rules.j12_a_late_answer_starts_one_turn),
    (
        wrong.begins_a_leg_with_the_first_answer,
        rules.j13_a_leg_begins_when_every_question_of_the_one_before_has_its_answer,
    ),
]

SEARCH = settings(
    max_examples=10_000,
    stateful_step_count=50,
    deadline=None,
    database=None,
    derandomize=True,
    report_multiple_bugs=False,
    phases=[Phase.generate],
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
)
"""The first example that fails is enough; nobody will read it, so it is not made smaller."""


NEEDS_DEATHS = {
    wrong.forgets_the_start_mark,
    wrong.forgets_attempts,
    wrong.says_that_what_started_was_not_run,
    wrong.never_gives_a_turn_up,
}
"""Found sooner where workers die often."""


@pytest.fixture
def search(monkeypatch: pytest.MonkeyPatch) -> Search:
    """Runs the machines against a wrong loop, looking only at the given rules."""

    def run(mutant: Reducer, *watched: Rule) -> None:
        monkeypatch.setattr(SessionMachine, "reducer", staticmethod(mutant))
        monkeypatch.setattr(SessionMachine, "watched", watched)
        run_state_machine_as_test(DyingWorkers if mutant in NEEDS_DEATHS else AnyMishap, settings=SEARCH)

    return run


@pytest.mark.parametrize(("mutant", "rule"), CAUGHT_BY, ids=[mutant.__name__ for mutant, _ in CAUGHT_BY])
def test_a_wrong_loop_is_caught_by_the_rule_that_it_breaks(mutant: Reducer, rule: Rule, search: Search) -> None:
    with pytest.raises(AssertionError) as caught:
        search(mutant, rule)
    assert rule.__name__ in {entry.name for entry in caught.traceback}, "something else failed"


def test_a_loop_that_gets_stuck_is_caught(search: Search) -> None:
    with pytest.raises(AssertionError, match="liveness"):
        search(wrong.ignores_answers)


def test_every_rule_has_a_wrong_loop_that_breaks_it() -> None:
    assert {rule for _, rule in CAUGHT_BY} == set(rules.RULES)
