"""What the seams of one live turn share, and how they find it.

They find it in a context variable, which every task of the turn inherits.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict, deque
from contextvars import ContextVar
from dataclasses import dataclass, field
from datetime import timedelta

from google.adk.events.event_actions import EventActions
from google.adk.sessions.session import Session

from perdure.adk.conductor import Conductor
from perdure.adk.determinism import TurnClock
from perdure.adk.effects import ToolRules
from perdure.adk.outbox import Outbox
from perdure.session.model import InterruptKind
from perdure.session.policy import RetryPolicy
from perdure.session.runner import TurnLog, TurnStart

DEFAULT_MODEL_RETRY = RetryPolicy()


@dataclass(frozen=True, slots=True)
class TurnSettings:
    """What a flow says about all of its turns."""

    rules: ToolRules
    model_retry: RetryPolicy
    model_timeout: timedelta | None


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
    long_running: set[str] = field(default_factory=set[str])
    """Ids of the calls of long-running tools."""
    unsaid: dict[str, EventActions] = field(default_factory=dict[str, EventActions])
    """Call id -> what a call did that got no response, as that of a long-running tool that returned nothing."""
    toolset_rounds: dict[str, int] = field(default_factory=dict[str, int])
    """Run id -> how often it has looked whether its toolsets need a sign-in."""
    refused_sign_ins: set[str] = field(default_factory=set[str])
    """Toolsets that nobody signs in for in this turn, by ADK's names for them."""
    loop: asyncio.AbstractEventLoop = field(default_factory=asyncio.get_running_loop)
    tokens: asyncio.Lock = field(default_factory=asyncio.Lock)
    """Held while a token is got from a token server and recorded."""
    writing: set[asyncio.Task[None]] = field(default_factory=set[asyncio.Task[None]])
    """Records of tokens that are being written."""
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
