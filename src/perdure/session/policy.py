"""What a tool does to the world, how often it may be tried, and what follows from a failed try.

Pure rules, no I/O.  The table of design.md, section 4, is ``EFFECT_RULES``; both engines decide with ``after_failure``.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass
from datetime import timedelta
from typing import Literal

from perdure.arguments import expect, expect_count
from perdure.errors import UsageError
from perdure.session.model import RecordStatus, StepName

ApprovalMode = Literal["by_effect", "declared"]
"""``by_effect``: writes that must not be repeated ask first.  ``declared``: only what a tool or a policy asks for."""


class ToolEffect(enum.Enum):
    """What a tool does to the world."""

    READ = "read"
    """Changes nothing; may run any number of times."""
    IDEMPOTENT_WRITE = "idempotent_write"
    """Changes the world once per idempotency key, however often it runs."""
    NON_IDEMPOTENT_WRITE = "non_idempotent_write"
    """Changes the world each time it runs."""
    UNCLASSIFIED = "unclassified"
    """Nobody said; treated as the worst case."""


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """How often and how fast something is tried again.

    Attributes:
        max_attempts: tries in all, at least 1.
        first_delay: the pause before the second try.
        backoff: the factor from one pause to the next, at least 1.
        max_delay: the longest pause.
    """

    max_attempts: int = 3
    first_delay: timedelta = timedelta(milliseconds=200)
    backoff: float = 2.0
    max_delay: timedelta = timedelta(seconds=30)

    def __post_init__(self) -> None:
        expect_count(self.max_attempts, "RetryPolicy.max_attempts", least=1)
        expect(self.backoff, (int, float), "RetryPolicy.backoff", "a number of at least 1")
        expect(self.first_delay, timedelta, "RetryPolicy.first_delay", "a timedelta")
        expect(self.max_delay, timedelta, "RetryPolicy.max_delay", "a timedelta")
        if not self.backoff >= 1:  # nor is NaN
            raise UsageError(f"RetryPolicy.backoff is {self.backoff}; it must be at least 1")
        if self.first_delay < timedelta(0) or self.max_delay < timedelta(0):
            raise UsageError("RetryPolicy delays must not be negative")

    def delay_after(self, attempts: int) -> timedelta:
        """The pause after ``attempts`` failed tries (1 or more)."""
        if not self.first_delay:
            return self.first_delay
        try:
            seconds = self.first_delay.total_seconds() * self.backoff ** (attempts - 1)
        except OverflowError:  # many attempts make a factor that no float holds
            return self.max_delay
        if seconds >= self.max_delay.total_seconds():
            return self.max_delay
        return timedelta(seconds=seconds)


@dataclass(frozen=True, slots=True)
class ToolPolicy:
    """What perdure is told about one tool.

    Attributes:
        effect: what the tool does to the world.
        requires_approval: ``True`` or ``False`` overrides what the effect says; ``None`` keeps it.
        timeout: the longest one attempt may take; ``None`` is no limit.
        retry: tries and pauses of a read or an idempotent write; ``None`` is the default of three.  A single-attempt
            effect takes no retry.
    """

    effect: ToolEffect
    requires_approval: bool | None = None
    timeout: timedelta | None = None
    retry: RetryPolicy | None = None

    def __post_init__(self) -> None:
        expect(self.effect, ToolEffect, "ToolPolicy.effect", "a ToolEffect, such as ToolEffect.READ")
        expect(self.requires_approval, bool, "ToolPolicy.requires_approval", "True or False", optional=True)
        expect(self.timeout, timedelta, "ToolPolicy.timeout", "a timedelta", optional=True)
        expect(self.retry, RetryPolicy, "ToolPolicy.retry", "a RetryPolicy", optional=True)
        if self.timeout is not None and self.timeout <= timedelta(0):
            raise UsageError(f"ToolPolicy.timeout is {self.timeout}; it must be positive, or None for no limit")
        if self.retry is not None and self.retry.max_attempts > 1 and EFFECT_RULES[self.effect].single_attempt:
            raise UsageError(
                f"ToolPolicy({self.effect}) has a retry with {self.retry.max_attempts} attempts, but a call with this "
                "effect runs once; classify the tool as READ or IDEMPOTENT_WRITE, or leave retry out"
            )


@dataclass(frozen=True, slots=True)
class EffectRule:
    """What follows from an effect."""

    single_attempt: bool
    approval_by_effect: bool
    exhausted: RecordStatus
    """The record when the attempts ran out, or when a single attempt ended without a result."""


EFFECT_RULES: dict[ToolEffect, EffectRule] = {
    ToolEffect.READ: EffectRule(False, False, RecordStatus.FAILED),
    ToolEffect.IDEMPOTENT_WRITE: EffectRule(False, False, RecordStatus.OUTCOME_UNKNOWN),
    ToolEffect.NON_IDEMPOTENT_WRITE: EffectRule(True, True, RecordStatus.OUTCOME_UNKNOWN),
    ToolEffect.UNCLASSIFIED: EffectRule(True, True, RecordStatus.OUTCOME_UNKNOWN),
}


def step_name_for(effect: ToolEffect) -> StepName:
    """The step that a call of this effect becomes."""
    return StepName.CALL_SINGLE_ATTEMPT_TOOL if EFFECT_RULES[effect].single_attempt else StepName.CALL_TOOL


def needs_approval(policy: ToolPolicy, mode: ApprovalMode) -> bool:
    """Whether a call under ``policy`` waits for a person before it runs."""
    if policy.requires_approval is not None:
        return policy.requires_approval
    return mode == "by_effect" and EFFECT_RULES[policy.effect].approval_by_effect


DEFAULT_RETRY = RetryPolicy()


@dataclass(frozen=True, slots=True)
class TryAgain:
    """The call is tried again after ``delay``."""

    delay: timedelta


@dataclass(frozen=True, slots=True)
class GiveUp:
    """The call is settled with ``status``."""

    status: RecordStatus


def after_failure(effect: ToolEffect, max_attempts: int, attempts: int, retry: RetryPolicy) -> TryAgain | GiveUp:
    """What follows when ``attempts`` tries of a call were started and the last one failed or died with its worker."""
    rule = EFFECT_RULES[effect]
    if rule.single_attempt or attempts >= max_attempts:
        return GiveUp(rule.exhausted)
    return TryAgain(retry.delay_after(attempts))
