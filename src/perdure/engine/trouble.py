"""Failures that a worker outlives: how long it pauses after them, and how it says so without filling a log."""

from __future__ import annotations

import logging
from datetime import timedelta

from perdure.clock import Clock
from perdure.session.policy import RetryPolicy

logger = logging.getLogger("perdure.worker")

SILENCE = timedelta(seconds=30)
"""After a line about a failure, further ones are only counted for this long: a full disk fails every session at once,
and again every few seconds."""

LONGEST_PAUSE = timedelta(seconds=10)

_PAUSES = RetryPolicy(first_delay=timedelta(milliseconds=50), max_delay=LONGEST_PAUSE)
_ENOUGH = 20
"""Failures in a row from which on the pause grows no more."""


def pause_after(failures: int, longest: timedelta = LONGEST_PAUSE) -> float:
    """Seconds to wait after ``failures`` (1 or more) in a row."""
    return min(_PAUSES.delay_after(min(failures, _ENOUGH)), longest).total_seconds()


class Trouble:
    """Reports what fails for reasons that are not the session's: the store, mostly.  It will be tried again."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._silent_until_ms = 0
        self._counted = 0

    def met(self, doing: str, error: BaseException) -> None:
        """Something failed.  ``doing`` says what, as in "claiming sessions"."""
        now = self._clock.now_ms()
        if now < self._silent_until_ms:
            self._counted += 1
            logger.debug("%s failed: %s", doing, error)
            return
        before = f" ({self._counted} failures since the last such line)" if self._counted else ""
        logger.warning("%s failed, and is tried again: %s%s", doing, str(error) or type(error).__name__, before)
        self._silent_until_ms = now + round(SILENCE.total_seconds() * 1000)
        self._counted = 0
