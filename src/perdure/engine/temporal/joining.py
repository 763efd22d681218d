"""A step of a hosted session, and the activity that joins it."""

from __future__ import annotations

import asyncio
from datetime import timedelta

from perdure.engine.book import TurnBook
from perdure.engine.temporal.wire import StepCommand


class HostGone(Exception):
    """This worker does not have the session any more."""


class AttemptStale(Exception):
    """The server does not wait for this attempt any more: it came out of a socket late."""


class AttemptOver(Exception):
    """An attempt of a call failed, and after a pause there is to be another one."""

    def __init__(self, pause: timedelta) -> None:
        super().__init__(f"the next attempt follows in {pause.total_seconds():g} s")
        self.pause = pause


class HostedStep:
    """A step that was commanded and is not over.

    Attributes:
        since_ms: when it was commanded, or its activity was lost, or when the next one is due.
        begun: it runs, or waits for its next attempt.
        asked: an activity for it was here.
        attempt: what the activity waits for that has joined it: ``None`` when the step is over, or a pause.
        paused: it waits for its next attempt.
        untold: that pause, if it began before the activity was there.
        resumed: set when the activity for the next attempt is there.
    """

    def __init__(self, command: StepCommand, book: TurnBook, since_ms: int) -> None:
        self.command = command
        self.book = book
        self.since_ms = since_ms
        self.begun = False
        self.asked = False
        self.paused = False
        self.untold: timedelta | None = None
        self.attempt: asyncio.Future[timedelta | None] | None = None
        self.resumed = asyncio.Event()

    @property
    def runs_unasked(self) -> bool:
        """Whether it runs ahead of its first activity."""
        return self.begun and not self.asked and not self.paused

    @property
    def joined(self) -> bool:
        """Whether an activity waits for it."""
        return self.attempt is not None and not self.attempt.done()

    def tell(self, pause: timedelta | None) -> bool:
        """Lets the activity return.  ``False``: there is none."""
        attempt, self.attempt = self.attempt, None
        if attempt is None or attempt.done():
            return False
        attempt.set_result(pause)
        return True
