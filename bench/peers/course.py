"""The course that every contender runs, and what it gives: times of turns, of many calls at once, of many sessions.

It runs in the contender's own environment and needs nothing but google-adk.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from bench.orders import one_lookup, parallel_lookups

WARM_UP_TURNS = 5
STEPS_OF_A_TURN = 3
"""Two model calls and a tool call."""


class Contender(Protocol):
    """One product, set up and ready."""

    async def open(self, session_id: str) -> None:
        """Creates a session."""
        ...

    async def turn(self, session_id: str, text: str) -> str:
        """Runs one turn to its end; returns the agent's last text."""
        ...

    async def history(self, session_id: str) -> History | None:
        """What the engine keeps as history of a session.  ``None`` where there is no such thing."""
        ...


@dataclass(frozen=True, slots=True)
class History:
    """What an engine that has one keeps of a session beside its store.

    Attributes:
        events: how many.
        size: bytes of all of them.
    """

    events: int
    size: int


@dataclass(frozen=True, slots=True)
class Length:
    """How much of everything is run."""

    turns: int
    parallel_turns: int
    sessions: int
    turns_each: int


FULL = Length(turns=100, parallel_turns=20, sessions=50, turns_each=10)
QUICK = Length(turns=10, parallel_turns=2, sessions=3, turns_each=2)


@dataclass(slots=True)
class Result:
    """What a contender's process says at its end, as JSON.

    Attributes:
        turn_ms: of one session's turns, one after the other.
        cpu_ms: CPU time of the contender's own process in one of those turns; servers not counted.
        parallel_ms: of turns with eight calls in one response.
        turns_per_s: of all sessions at once.
        failed: turns that raised, or ended without the right text, with all sessions at once.
        first_failure: the text of one of them.
        history: events and bytes of the session with the many turns.  ``None``: the engine has no history.
    """

    turn_ms: list[float] = field(default_factory=list[float])
    cpu_ms: float = 0.0
    parallel_ms: list[float] = field(default_factory=list[float])
    turns_per_s: float = 0.0
    failed: int = 0
    first_failure: str = ""
    history: dict[str, int] | None = None


async def run_course(contender: Contender, length: Length) -> Result:
    """Runs the whole course.

    Raises:
        AssertionError: a turn ended with a wrong text; the course has no use for fast mistakes.
    """
    await contender.open("warm")
    for number in range(WARM_UP_TURNS):
        await _right(contender, "warm", one_lookup(number), 1)
    result = Result()
    await contender.open("alone")
    begun = time.process_time()
    result.turn_ms = await _times(lambda n: _right(contender, "alone", one_lookup(n), 1), length.turns)
    result.cpu_ms = (time.process_time() - begun) * 1000 / length.turns
    await contender.open("parallel")
    result.parallel_ms = await _times(
        lambda n: _right(contender, "parallel", parallel_lookups(n), 8), length.parallel_turns
    )
    await _many(contender, [f"many-{number}" for number in range(length.sessions)], length.turns_each, result)
    history = await contender.history("alone")
    if history is not None:
        result.history = {"events": history.events, "bytes": history.size, "turns": length.turns}
    return result


async def _right(contender: Contender, session_id: str, text: str, found: int) -> None:
    answer = await contender.turn(session_id, text)
    assert f"({found} found)" in answer, f"{session_id}: {text!r} was answered with {answer!r}"


async def _times(turn: Callable[[int], Awaitable[None]], count: int) -> list[float]:
    taken: list[float] = []
    for number in range(count):
        begun = time.perf_counter()
        await turn(number)
        taken.append((time.perf_counter() - begun) * 1000)
    return taken


async def _many(contender: Contender, session_ids: Sequence[str], turns: int, result: Result) -> None:
    async def one(session_id: str) -> None:
        for number in range(turns):
            try:
                await _right(contender, session_id, one_lookup(number), 1)
            except Exception as error:  # noqa: BLE001 - a contender may fail under load: that is a result
                result.failed += 1
                result.first_failure = result.first_failure or f"{type(error).__name__}: {error}"[:300]

    for session_id in session_ids:
        await contender.open(session_id)
    begun = time.perf_counter()
    await asyncio.gather(*(one(session_id) for session_id in session_ids))
    done = len(session_ids) * turns - result.failed
    result.turns_per_s = done / (time.perf_counter() - begun)
