"""What an effect means, how often and how fast something is tried again, and who is asked first."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perdure.errors import UsageError
from perdure.session.model import RecordStatus, StepName
from perdure.session.policy import (
    DEFAULT_RETRY,
    ApprovalMode,
    GiveUp,
    RetryPolicy,
    ToolEffect,
    ToolPolicy,
    TryAgain,
    after_failure,
    needs_approval,
    step_name_for,
)

SECOND = timedelta(seconds=1)
SINGLE = [ToolEffect.NON_IDEMPOTENT_WRITE, ToolEffect.UNCLASSIFIED]

# ---------------------------------------------------------------- the table of effects


@pytest.mark.parametrize(
    ("effect", "step"),
    [
        (ToolEffect.READ, StepName.CALL_TOOL),
        (ToolEffect.IDEMPOTENT_WRITE, StepName.CALL_TOOL),
        (ToolEffect.NON_IDEMPOTENT_WRITE, StepName.CALL_SINGLE_ATTEMPT_TOOL),
        (ToolEffect.UNCLASSIFIED, StepName.CALL_SINGLE_ATTEMPT_TOOL),
    ],
)
def test_the_step_of_an_effect(effect: ToolEffect, step: StepName) -> None:
    assert step_name_for(effect) is step


@pytest.mark.parametrize(
    ("effect", "mode", "asks"),
    [
        (ToolEffect.READ, "by_effect", False),
        (ToolEffect.IDEMPOTENT_WRITE, "by_effect", False),
        (ToolEffect.NON_IDEMPOTENT_WRITE, "by_effect", True),
        (ToolEffect.UNCLASSIFIED, "by_effect", True),
        *((effect, "declared", False) for effect in ToolEffect),
    ],
)
def test_who_is_asked_when_the_policy_does_not_say(effect: ToolEffect, mode: ApprovalMode, asks: bool) -> None:
    assert needs_approval(ToolPolicy(effect), mode) is asks


@pytest.mark.parametrize("effect", ToolEffect)
@pytest.mark.parametrize("mode", ["by_effect", "declared"])
@pytest.mark.parametrize("said", [True, False])
def test_what_the_policy_says_goes_before_the_effect(effect: ToolEffect, mode: ApprovalMode, said: bool) -> None:
    assert needs_approval(ToolPolicy(effect, requires_approval=said), mode) is said


@pytest.mark.parametrize(
    ("effect", "status"),
    [(ToolEffect.READ, RecordStatus.FAILED), (ToolEffect.IDEMPOTENT_WRITE, RecordStatus.OUTCOME_UNKNOWN)],
)
def test_a_call_is_tried_three_times(effect: ToolEffect, status: RecordStatus) -> None:
    outcomes = [after_failure(effect, DEFAULT_RETRY.max_attempts, attempts, DEFAULT_RETRY) for attempts in (1, 2, 3)]
    assert outcomes == [TryAgain(timedelta(milliseconds=200)), TryAgain(timedelta(milliseconds=400)), GiveUp(status)]


@pytest.mark.parametrize("effect", SINGLE)
def test_a_single_attempt_is_never_followed_by_another(effect: ToolEffect) -> None:
    assert after_failure(effect, 3, 1, DEFAULT_RETRY) == GiveUp(RecordStatus.OUTCOME_UNKNOWN)


@given(st.sampled_from(ToolEffect), st.integers(1, 20), st.integers(1, 30))
def test_nothing_is_tried_more_often_than_allowed(effect: ToolEffect, max_attempts: int, attempts: int) -> None:
    outcome = after_failure(effect, max_attempts, attempts, DEFAULT_RETRY)
    assert isinstance(outcome, TryAgain) == (attempts < max_attempts and effect not in SINGLE)


# ---------------------------------------------------------------- pauses


def test_pauses_grow_up_to_the_longest() -> None:
    retry = RetryPolicy(max_attempts=9, first_delay=SECOND, backoff=3.0, max_delay=10 * SECOND)
    assert [retry.delay_after(attempts) / SECOND for attempts in (1, 2, 3, 4)] == [1, 3, 9, 10]


@pytest.mark.parametrize(
    ("retry", "pause"),
    [
        (RetryPolicy(first_delay=timedelta(0)), timedelta(0)),
        (RetryPolicy(first_delay=timedelta(0), backoff=float("inf")), timedelta(0)),
        (RetryPolicy(backoff=1.0), timedelta(milliseconds=200)),
        (RetryPolicy(backoff=float("inf")), timedelta(seconds=30)),
        (RetryPolicy(first_delay=60 * SECOND), timedelta(seconds=30)),
        (RetryPolicy(max_delay=timedelta(0)), timedelta(0)),
    ],
)
def test_the_pause_of_a_call_that_is_tried_for_ever(retry: RetryPolicy, pause: timedelta) -> None:
    for attempts in (49, 1_100, 1_000_000):
        assert retry.delay_after(attempts) == pause


@given(
    first=st.timedeltas(timedelta(0), timedelta(days=2)),
    longest=st.timedeltas(timedelta(0), timedelta(days=2)),
    backoff=st.floats(1, allow_nan=False),
    attempts=st.integers(1, 10_000),
)
def test_a_pause_is_never_negative_nor_too_long_and_never_shrinks(
    first: timedelta, longest: timedelta, backoff: float, attempts: int
) -> None:
    retry = RetryPolicy(first_delay=first, backoff=backoff, max_delay=longest)
    assert timedelta(0) <= retry.delay_after(attempts) <= retry.delay_after(attempts + 1) <= longest


# ---------------------------------------------------------------- what is refused


@pytest.mark.parametrize(
    ("wrong", "named"),
    [
        (lambda: RetryPolicy(max_attempts=0), "max_attempts"),
        (lambda: RetryPolicy(backoff=0.5), "backoff"),
        (lambda: RetryPolicy(backoff=float("nan")), "backoff"),
        (lambda: RetryPolicy(first_delay=-SECOND), "delays"),
        (lambda: RetryPolicy(max_delay=-SECOND), "delays"),
        (lambda: ToolPolicy(ToolEffect.READ, timeout=timedelta(0)), "timeout"),
        (lambda: ToolPolicy(ToolEffect.NON_IDEMPOTENT_WRITE, retry=RetryPolicy(max_attempts=2)), "retry"),
        (lambda: ToolPolicy(ToolEffect.UNCLASSIFIED, retry=RetryPolicy(max_attempts=2)), "retry"),
    ],
)
def test_a_policy_that_makes_no_sense_is_refused_by_name(wrong: Callable[[], object], named: str) -> None:
    with pytest.raises(UsageError, match=named):
        wrong()


@pytest.mark.parametrize("effect", ToolEffect)
def test_one_attempt_suits_every_effect(effect: ToolEffect) -> None:
    assert ToolPolicy(effect, retry=RetryPolicy(max_attempts=1)).effect is effect


@pytest.mark.parametrize("effect", [ToolEffect.READ, ToolEffect.IDEMPOTENT_WRITE])
def test_what_may_be_tried_again_takes_any_number_of_attempts_and_the_shortest_timeout(effect: ToolEffect) -> None:
    policy = ToolPolicy(effect, timeout=timedelta(milliseconds=1), retry=RetryPolicy(max_attempts=100))
    assert policy.retry == RetryPolicy(max_attempts=100)
