"""Where a durable turn takes its time, ids and random numbers from, so that a replay of it gets the same ones.

ADK reads them through context-local providers (``google.adk.platform``).  A turn installs its own in the context of the
task that runs the invocation; the code of tools and models, which a replay does not run, gets the real ones back.
"""

from __future__ import annotations

import hashlib
import itertools
import random
from collections.abc import Generator, Iterator
from contextlib import contextmanager

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

    def peek(self) -> float:
        """Seconds since the epoch, at which the clock stands; reading it so does not move it."""
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


def derived_uuids(*seed: object) -> Iterator[str]:
    """UUIDs without end that depend on ``seed`` alone."""
    digest = hashlib.blake2b("\x1f".join(map(str, seed)).encode(), digest_size=10).hexdigest()
    stem = f"{digest[:8]}-{digest[8:12]}-4{digest[12:15]}-a{digest[15:18]}-"
    return map(f"{stem}{{:012x}}".format, itertools.count(1))


class _TurnRandom:
    """The random numbers of one turn.  Hardly any turn asks for one, and a generator takes its time to make."""

    def __init__(self, turn_id: str) -> None:
        self._turn_id = turn_id
        self._generator: random.Random | None = None

    def provide(self) -> random.Random:
        if self._generator is None:
            self._generator = random.Random(self._turn_id)
        return self._generator


def install(turn_id: str, clock: TurnClock) -> None:
    """Installs the providers of a turn in the current context.

    The first id makes ADK's invocation id the turn id, the others follow from it.
    """
    ids = itertools.chain([turn_id.removeprefix(_TURN_ID_PREFIX)], derived_uuids(turn_id))
    seams.set_providers((clock.read, ids.__next__, _TurnRandom(turn_id).provide))


def suspend() -> seams.Providers:
    """Gives the current context the real time, ids and random numbers back.  Returns what ``resume`` takes."""
    providers = seams.current_providers()
    seams.set_providers(seams.REAL_PROVIDERS)
    return providers


def is_suspended() -> bool:
    """Whether this is code that a replay does not run: the body of a tool, a model."""
    return seams.current_providers() == seams.REAL_PROVIDERS


def resume(providers: seams.Providers) -> None:
    """Ends what ``suspend`` began."""
    seams.set_providers(providers)


@contextmanager
def outside() -> Generator[None]:
    """Inside, the real time, ids and random numbers: for what a replay does not run."""
    providers = suspend()
    try:
        yield
    finally:
        resume(providers)


@contextmanager
def ids_from(*seed: object) -> Generator[None]:
    """Inside, ADK's ids depend on ``seed`` alone; the turn's own count does not move."""
    time_provider, outer, random_provider = seams.current_providers()
    seams.set_providers((time_provider, derived_uuids(*seed).__next__, random_provider))
    try:
        yield
    finally:
        seams.set_providers((time_provider, outer, random_provider))
