"""What the seams of one live turn share, and how they find it.

They find it in a context variable, which every task of the turn inherits.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict, deque
from contextvars import ContextVar
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

from google.adk.agents.invocation_context import InvocationContext
from google.adk.events.event_actions import EventActions
from google.adk.sessions.session import Session
from google.adk.tools.base_tool import BaseTool

from perdure.adk.live import determinism
from perdure.adk.live.conductor import Conductor
from perdure.adk.live.determinism import TurnClock
from perdure.adk.live.outbox import Outbox
from perdure.adk.live.runs import Run
from perdure.adk.tools.declared import DeclaredToolsets
from perdure.adk.tools.effects import ToolRules
from perdure.adk.tools.threads import ToolThreads
from perdure.adk.waits.carry import Carry
from perdure.session.model import InterruptKind, JsonObject, JsonValue
from perdure.session.policy import RetryPolicy, ToolEffect
from perdure.session.runner import ModelCall, ToolOutcome, TurnLog, TurnStart

DEFAULT_MODEL_RETRY = RetryPolicy()


@dataclass(frozen=True, slots=True)
class TurnSettings:
    """What a flow says about all of its turns."""

    rules: ToolRules
    model_retry: RetryPolicy
    model_timeout: timedelta | None
    code_effect: ToolEffect
    threads: ToolThreads
    toolsets: DeclaredToolsets


@dataclass(slots=True, eq=False)
class BodySteps:
    """The durable steps of one run of a tool or of a node's function, or of the callbacks around a call."""

    name: str
    counts: dict[str, int] = field(default_factory=dict[str, int])


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
    requests: dict[str, int] = field(default_factory=dict[str, int])
    """Path -> requests built on it; some are answered by a callback and are no model call."""
    joining: list[asyncio.Future[ModelCall | None]] = field(default_factory=list["asyncio.Future[ModelCall | None]"])
    """Model calls that took along what steers, in this life of the turn; each gives its record."""
    heard: dict[str, set[str]] = field(default_factory=lambda: defaultdict(set))
    """Path -> ids of the messages that joined the turn and were in a request there."""
    node_calls: dict[str, int] = field(default_factory=dict[str, int])
    """Scope and path -> calls of that node's function."""
    carry: Carry = field(default_factory=Carry)
    """What the leg before handed on."""
    goes_on: bool = False
    """It starts with answers that let an earlier turn's invocation go on."""
    silent_now: list[str] = field(default_factory=list[str])
    """Paths of nodes that ran in this leg and left no event: in the next one ADK would run them again."""
    steps: JsonObject = field(default_factory=dict[str, JsonValue])
    """Records of durable steps of nodes, of this leg and those before it; a retry of a node gets them, too."""
    callback_steps: dict[str, BodySteps] = field(default_factory=dict[str, BodySteps])
    """Call id -> the durable steps of the callbacks around it."""
    invocation: InvocationContext | None = None
    """The invocation itself, once it has begun."""
    tasks: set[asyncio.Task[Any]] = field(default_factory=set[asyncio.Task[Any]])
    """Functions of nodes that run, each in a task of its own."""
    bodies: set[asyncio.Task[ToolOutcome]] = field(default_factory=set[asyncio.Task[ToolOutcome]])
    """Attempts of calls that run."""
    long_running: set[str] = field(default_factory=set[str])
    """Ids of the calls of long-running tools."""
    unsaid: dict[str, EventActions] = field(default_factory=dict[str, EventActions])
    """Call id -> what a call did that got no response, as that of a long-running tool that returned nothing."""
    scopes: dict[str, str] = field(default_factory=dict[str, str])
    """Id of a call that runs an agent or a workflow -> the place in which that runs."""
    toolset_rounds: dict[str, int] = field(default_factory=dict[str, int])
    """Run id -> how often it has looked whether its toolsets need a sign-in."""
    refused_sign_ins: set[str] = field(default_factory=set[str])
    """Toolsets that nobody signs in for in this turn, by ADK's names for them."""
    loop: asyncio.AbstractEventLoop = field(default_factory=asyncio.get_running_loop)
    tokens: asyncio.Lock = field(default_factory=asyncio.Lock)
    """Held while a token is got from a token server and recorded."""
    writing: set[asyncio.Task[None]] = field(default_factory=set[asyncio.Task[None]])
    """Records of tokens that are being written."""
    listings: dict[str, list[BaseTool]] = field(default_factory=dict[str, "list[BaseTool]"])
    """Place -> what a toolset listed there."""
    code_runs: dict[str, int] = field(default_factory=dict[str, int])
    """Place -> code executions asked for there."""
    _attempts: dict[tuple[str | None, str], deque[int]] = field(default_factory=lambda: defaultdict(deque))
    """Branch and agent -> attempts of the partial responses that are on their way through ADK."""

    def node_call_id(self, scope: str, path: str) -> str:
        """The id for the next call of the function of the node at ``path``."""
        place = f"{scope}|{path}" if scope else path
        number = self.node_calls[place] = self.node_calls.get(place, 0) + 1
        return self.key(f"{place}#{number}")

    def is_active(self) -> bool:
        """Whether something new is done: no replay, and not all of it waits for people."""
        return self.conductor.journal.replayed and (self.conductor.driving or bool(self.bodies))

    def place_of(self, run: Run, invocation: InvocationContext) -> str:
        """Where in the tree of agents the agent of a run is; the same whenever it runs there again."""
        agent = invocation.agent.name if invocation.agent else ""
        scope = [run.scope] if run.scope else []
        return self.key("|".join((*scope, invocation.node_path or "", invocation.branch or "", agent)))

    def next_model_key(self, path: str) -> str:
        """The key of the next model call on a path."""
        return f"{path}|{self.model_calls.get(path, 0) + 1}"

    def key(self, place: str) -> str:
        """The key of what is at a place: not that of an earlier leg."""
        return f"{leg_prefix(self.start)}{place}"

    def note_partial(self, branch: str | None, agent: str, attempt: int) -> None:
        """A model gave a partial response, in this attempt of its call."""
        self._attempts[branch, agent].append(attempt)

    def attempt_of_partial(self, branch: str | None, agent: str) -> int:
        """Of the oldest partial response that is on its way."""
        attempts = self._attempts[branch, agent]
        return attempts.popleft() if attempts else 1


def leg_prefix(start: TurnStart) -> str:
    """What the keys of a leg begin with; nothing in the first one."""
    return "" if start.leg == 1 else f"leg{start.leg}|"


current_turn: ContextVar[TurnCore | None] = ContextVar("perdure_current_turn", default=None)


def turn_of(invocation: InvocationContext) -> TurnCore | None:
    """The turn that the code of an invocation belongs to, if it is that of one.

    What a tool or a model does by itself is not: it may run agents of its own, inside of its step.
    """
    core = current_turn.get()
    if core is None or (determinism.is_suspended() and invocation.session is not core.session):
        return None
    return core
