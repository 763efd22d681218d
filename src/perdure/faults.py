"""Named points before and after every durable write, where a test can stop the process or raise.

Imports nothing of ours.  In production nothing is armed and ``reach`` costs one attribute test.  Tests arm a point in
their own process with ``arm``, or in a child through the environment variable ``PERDURE_FAULT``
(``<write>:<moment>:<action>[:<nth>]``, for example ``step_settled:before:kill:2``).
"""

from __future__ import annotations

import enum
import os
import signal
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass

ENVIRONMENT_VARIABLE = "PERDURE_FAULT"


class DurableWrite(enum.Enum):
    """Each kind of durable write that the engine makes."""

    SESSION_CREATED = "session_created"
    MESSAGE_ACCEPTED = "message_accepted"
    ANSWER_ACCEPTED = "answer_accepted"
    REQUEST_ACCEPTED = "request_accepted"
    """A cancel or close request."""
    SESSION_CLAIMED = "session_claimed"
    TURN_STARTED = "turn_started"
    MESSAGES_JOINED = "messages_joined"
    """Messages that steer left the queue and are part of the open turn."""
    MODEL_RECORDED = "model_recorded"
    MODEL_STEP_SETTLED = "model_step_settled"
    """The calls that a model step asked for become steps; interrupts are raised."""
    ATTEMPT_STARTED = "attempt_started"
    """The start mark of a single-attempt call."""
    ATTEMPT_FAILED = "attempt_failed"
    STEP_ASKED = "step_asked"
    """A tool ran as far as a question to a person."""
    STEP_SETTLED = "step_settled"
    """A tool step has its record."""
    INTERRUPT_SETTLED = "interrupt_settled"
    """An answer, a deadline or a withdrawal reached the session."""
    LEG_ENDED = "leg_ended"
    """An invocation ended with questions open; the turn is suspended at a frontier."""
    LEG_STARTED = "leg_started"
    TURN_ENDED = "turn_ended"
    SESSION_BLOCKED = "session_blocked"
    SESSION_CLOSED = "session_closed"
    SESSION_RELEASED = "session_released"
    EVENTS_APPENDED = "events_appended"
    """Text deltas of the live stream."""


class Moment(enum.Enum):
    BEFORE = "before"
    AFTER = "after"


class Action(enum.Enum):
    RAISE = "raise"
    KILL = "kill"
    """SIGKILL of this process."""


class InjectedFault(Exception):
    """What an armed point raises.  It stands for a failing disk, so it is no PerdureError."""


@dataclass(frozen=True, slots=True)
class FaultPoint:
    """One point: a durable write and the moment before it starts or after it is on disk."""

    write: DurableWrite
    moment: Moment

    def __str__(self) -> str:
        return f"{self.write.value}:{self.moment.value}"


FAULT_POINTS: tuple[FaultPoint, ...] = tuple(FaultPoint(write, moment) for write in DurableWrite for moment in Moment)


@dataclass(slots=True)
class _Armed:
    point: FaultPoint
    action: Action
    countdown: int
    fired: bool = False


_armed: _Armed | None = None


def reach(write: DurableWrite, moment: Moment) -> None:
    """Says that the process is at this point.  Called by the stores; does nothing unless the point is armed.

    Raises:
        InjectedFault: the point is armed with ``Action.RAISE``.
    """
    armed = _armed
    if armed is None or armed.fired or armed.point.write is not write or armed.point.moment is not moment:
        return
    armed.countdown -= 1
    if armed.countdown > 0:
        return
    armed.fired = True
    if armed.action is Action.KILL:
        os.kill(os.getpid(), signal.SIGKILL)
    raise InjectedFault(f"fault injected at {armed.point}")


class ArmedFault:
    """Tells whether an armed point was reached."""

    def __init__(self, armed: _Armed) -> None:
        self._armed = armed

    @property
    def fired(self) -> bool:
        return self._armed.fired


@contextmanager
def arm(point: FaultPoint, action: Action = Action.RAISE, *, nth: int = 1) -> Generator[ArmedFault]:
    """Arms one point in this process for the length of the block; it fires once, the ``nth`` time it is reached."""
    global _armed
    if _armed is not None:
        raise RuntimeError(f"{_armed.point} is armed already; one point at a time")
    _armed = _Armed(point, action, nth)
    try:
        yield ArmedFault(_armed)
    finally:
        _armed = None


def arm_from_environment() -> None:
    """Arms the point that ``PERDURE_FAULT`` names, for the life of the process; nothing when it is not set."""
    global _armed
    text = os.environ.get(ENVIRONMENT_VARIABLE)
    if not text:
        return
    write, moment, action, *nth = text.split(":")
    point = FaultPoint(DurableWrite(write), Moment(moment))
    _armed = _Armed(point, Action(action), int(nth[0]) if nth else 1)
