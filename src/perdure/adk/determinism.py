"""Where a durable turn takes its time, ids and random numbers from, so that a replay of it gets the same ones.

ADK reads them through context-local providers (``google.adk.platform``).  A turn installs its own in the context of the
task that runs the invocation; the code of tools and models, which a replay does not run, gets the real ones back.
"""

from __future__ import annotations

import hashlib
import itertools
import random
from collections.abc import Generator
from contextlib import contextmanager

from google.adk.platform import reset_random_provider, set_random_provider
from google.adk.platform import time as platform_time
from google.adk.platform import uuid as platform_uuid

from perdure.adk import seams

_TURN_ID_PREFIX = "e-"
"""ADK puts this before a UUID to make an invocation id."""


class TurnClock:
    """A logical clock: it stands at the record that was handed out last, and each reading is a microsecond later.

    (ADK's own compaction compares time stamps of events, so no two may be the same.)
    """

    def __init__(self, started_at_ms: int) -> None:
        self._now_us = started_at_ms * 1000
        self._frozen = False

    def read(self) -> float:
        """Seconds since the epoch, later than any reading before unless the clock is frozen."""
        if not self._frozen:
            self._now_us += 1
        return self._now_us / 1_000_000

    def freeze(self) -> None:
        """Stands still until the next ``advance``: what is read meanwhile a replay will not read."""
        self._frozen = True

    def thaw(self) -> None:
        """Goes on from where it stands."""
        self._frozen = False

    def advance(self, to_ms: int) -> None:
        """Moves on to a moment, if it is later."""
        self._frozen = False
        self._now_us = max(self._now_us, to_ms * 1000)

    def not_before(self, seconds: float) -> None:
        """Moves on behind a moment, if it is not there yet."""
        self._now_us = max(self._now_us, int(seconds * 1_000_000) + 1)


def derived_uuid(*seed: object) -> str:
    """A UUID that depends on ``seed`` alone."""
    digest = hashlib.blake2b("\x1f".join(map(str, seed)).encode(), digest_size=16).hexdigest()
    return f"{digest[:8]}-{digest[8:12]}-4{digest[13:16]}-a{digest[17:20]}-{digest[20:]}"


class TurnIds:
    """The ids of one turn: the first one makes ADK's invocation id the turn id, the others count from there."""

    def __init__(self, turn_id: str) -> None:
        self._turn_id = turn_id
        self._count = itertools.count()

    def next(self) -> str:
        number = next(self._count)
        return self._turn_id.removeprefix(_TURN_ID_PREFIX) if number == 0 else derived_uuid(self._turn_id, number)


def install(turn_id: str, clock: TurnClock) -> None:
    """Installs the providers of a turn in the current context."""
    generator = random.Random(turn_id)
    platform_time.set_time_provider(clock.read)
    platform_uuid.set_id_provider(TurnIds(turn_id).next)
    set_random_provider(lambda: generator)


def uninstall() -> None:
    """Gives the current context the real time, ids and random numbers back."""
    platform_time.reset_time_provider()
    platform_uuid.reset_id_provider()
    reset_random_provider()


@contextmanager
def suspended() -> Generator[None]:
    """Inside, the current context has the real time, ids and random numbers."""
    outer = seams.current_providers()
    uninstall()
    try:
        yield
    finally:
        seams.set_providers(outer)


@contextmanager
def ids_from(*seed: object) -> Generator[None]:
    """Inside, ADK's ids depend on ``seed`` alone; the turn's own count does not move."""
    count = itertools.count()
    outer = seams.current_providers()
    platform_uuid.set_id_provider(lambda: derived_uuid(*seed, next(count)))
    try:
        yield
    finally:
        seams.set_providers(outer)
