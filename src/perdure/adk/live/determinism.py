"""Where a durable turn takes its time, ids and random numbers from, so that a replay of it gets the same ones.

ADK reads them through context-local providers (``google.adk.platform``).  A turn installs its own in the context of the
task that runs the invocation; the code of tools and models, which a replay does not run, gets the real ones back.
"""

from __future__ import annotations

import hashlib
import itertools
import random
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager

from perdure.adk import seams
from perdure.adk.live.runs import Run, RunState, current_run
from perdure.session.runner import TurnStart

_TURN_ID_PREFIX = "e-"
"""ADK puts this before a UUID to make an invocation id."""


class TurnClock:
    """A logical clock: it stands at the record that was handed out last, and each reading is a microsecond later.

    (ADK's own compaction compares time stamps of events, so no two may be the same.)
    """

    def __init__(self, started_at_ms: int) -> None:
        self._now_us = started_at_ms * 1000

    def read(self) -> float:
        """Seconds since the epoch, later than any reading before."""
        self._now_us += 1
        return self._now_us / 1_000_000

    def peek(self) -> float:
        """Seconds since the epoch, at which the clock stands; reading it so does not move it."""
        return self._now_us / 1_000_000

    def advance(self, to_ms: int) -> None:
        """Moves on to a moment, if it is later."""
        self._now_us = max(self._now_us, to_ms * 1000)

    def not_before(self, seconds: float) -> None:
        """Moves on behind a moment, if it is not there yet."""
        self._now_us = max(self._now_us, int(seconds * 1_000_000) + 1)


def derived_uuids(*seed: object) -> Iterator[str]:
    """UUIDs without end that depend on ``seed`` alone."""
    digest = hashlib.blake2b("\x1f".join(map(str, seed)).encode(), digest_size=10).hexdigest()
    stem = f"{digest[:8]}-{digest[8:12]}-4{digest[12:15]}-a{digest[15:18]}-"
    return map(f"{stem}{{:012x}}".format, itertools.count(1))


def ids_of_run(start: TurnStart) -> Callable[[str], Iterator[str]]:
    """What gives each run of a leg its ids.  The first one of a turn makes ADK's invocation id the turn id."""
    first = [start.turn_id.removeprefix(_TURN_ID_PREFIX)] if start.leg == 1 else []
    return lambda run_id: itertools.chain(
        () if run_id else first, derived_uuids(start.turn_id, *([start.leg] if start.leg > 1 else []), run_id)
    )


def install(turn_id: str, clock: TurnClock) -> None:
    """Installs the providers of a turn in the current context.

    Ids and random numbers come from the current run.  While that is in a model call, its clock stands at its last
    reading: what ADK reads for each partial response a replay will not read.
    """

    def read_clock() -> float:
        run = _run()
        if run.state is not RunState.IN_MODEL:
            run.last_time = clock.read()
        return run.last_time

    def random_numbers() -> random.Random:
        run = _run()
        if run.random is None:  # hardly any run asks for one, and a generator takes its time to make
            run.random = random.Random(f"{turn_id}{run.id}")
        return run.random

    seams.set_providers((read_clock, lambda: next(_run().ids), random_numbers))


def _run() -> Run:
    run = current_run.get()
    assert run is not None, "the code of a turn always belongs to a run"
    return run


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


def install_for_body(start: TurnStart, call_id: str) -> None:
    """Gives the current context, in which a node's function runs, the real time, and ids that follow from the call.

    A replay of a function that starts other nodes runs it again: what it asks for must have the same id then.
    """
    time_provider, _, random_provider = seams.REAL_PROVIDERS
    seams.set_providers((time_provider, derived_uuids(start.turn_id, call_id, "body").__next__, random_provider))


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
