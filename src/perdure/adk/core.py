"""What the seams of one live turn share, and how they find it.

They find it in a context variable, which every task of the turn inherits.
"""

from __future__ import annotations

from collections import defaultdict, deque
from contextvars import ContextVar
from dataclasses import dataclass, field
from datetime import timedelta

from google.adk.events.event import Event
from google.adk.sessions.session import Session

from perdure.adk import seams
from perdure.adk.conductor import Conductor
from perdure.adk.determinism import TurnClock
from perdure.adk.effects import ToolRules
from perdure.adk.history import is_stored, item_of, keeps_its_types, message_of
from perdure.session.model import InterruptKind
from perdure.session.policy import RetryPolicy
from perdure.session.runner import ControlCall, NewMessage, TurnLog, TurnStart

DEFAULT_MODEL_RETRY = RetryPolicy()


@dataclass(frozen=True, slots=True)
class TurnSettings:
    """What a flow says about all of its turns."""

    rules: ToolRules
    model_retry: RetryPolicy
    model_timeout: timedelta | None


class Outbox:
    """The messages and control calls of a turn that the engine has not been given yet."""

    def __init__(self, turn_id: str, stored: int) -> None:
        self._turn_id = turn_id
        self._stored = stored
        self._count = 0
        self._messages: list[NewMessage] = []
        self._control_calls: list[ControlCall] = []
        self.retyped: list[tuple[Event, str]] = []
        """Events that read back from the store with other types, with their stored form."""
        self.dropped: list[Event] = []
        """Events of the session that are no messages."""

    @property
    def count(self) -> int:
        """Messages made so far in this turn."""
        return self._count

    def add(self, event: Event) -> None:
        """Takes an event of the invocation.

        Raises:
            ValueNotStorable: it carries a value that has no JSON form.
            FrameworkDrift: ADK runs the turn under another id.
        """
        if self._count == 0 and event.invocation_id != self._turn_id:
            raise seams.drifted(
                seams.INVOCATION_ID,
                f"the invocation has the id {event.invocation_id!r}, not the first one that its id provider gives",
            )
        if not is_stored(event):
            self.dropped.append(event)
            return
        if self._count >= self._stored:
            self._messages.append(message_of(event, self._count))
        if not keeps_its_types(event):
            self.retyped.append((event, item_of(event)))
        self._count += 1

    def add_control_call(self, call: ControlCall) -> None:
        """Takes a call that steers ADK; one whose message is stored was shown before."""
        if self._count > self._stored:
            self._control_calls.append(call)

    def take(self) -> tuple[tuple[NewMessage, ...], tuple[ControlCall, ...]]:
        """Hands over what came in."""
        control_calls, self._control_calls = tuple(self._control_calls), []
        return self.take_messages(), control_calls

    def take_messages(self) -> tuple[NewMessage, ...]:
        """Hands over the messages that came in."""
        messages, self._messages = tuple(self._messages), []
        return messages

    def put_back(self, messages: tuple[NewMessage, ...]) -> None:
        """Takes back what ``take_messages`` handed over last."""
        self._messages[:0] = messages


@dataclass(slots=True)
class TurnCore:
    """One live turn, as its seams see it."""

    start: TurnStart
    log: TurnLog
    settings: TurnSettings
    session: Session
    clock: TurnClock
    conductor: Conductor
    outbox: Outbox
    step_id: str = ""
    """The ``RunModel`` step that drives the turn."""
    step_attempt: int = 1
    """Workers that took that step, this one included."""
    asks: dict[str, InterruptKind] = field(default_factory=dict[str, InterruptKind])
    """Call id -> what the confirmation gate of the tool said."""
    model_calls: dict[str, int] = field(default_factory=dict[str, int])
    """Path -> model calls made on it."""
    _attempts: dict[tuple[str | None, str], deque[int]] = field(default_factory=lambda: defaultdict(deque))
    """Branch and agent -> attempts of the partial responses that are on their way through ADK."""

    def note_partial(self, branch: str | None, agent: str, attempt: int) -> None:
        """A model gave a partial response, in this attempt of its call."""
        self._attempts[branch, agent].append(attempt)

    def attempt_of_partial(self, branch: str | None, agent: str) -> int:
        """Of the oldest partial response that is on its way."""
        attempts = self._attempts[branch, agent]
        return attempts.popleft() if attempts else 1


current_turn: ContextVar[TurnCore | None] = ContextVar("perdure_current_turn", default=None)
