"""What the seams of one live turn share, and how they find it.

They find it in a context variable, which every task of the turn inherits.
"""

from __future__ import annotations

from contextvars import ContextVar
from dataclasses import dataclass, field
from datetime import timedelta

from google.adk.agents.invocation_context import InvocationContext
from google.adk.sessions.session import Session
from google.adk.tools.base_tool import BaseTool

from perdure.adk import determinism
from perdure.adk.conductor import Conductor
from perdure.adk.declared import DeclaredToolsets
from perdure.adk.determinism import TurnClock
from perdure.adk.effects import ToolRules
from perdure.adk.outbox import Outbox
from perdure.adk.runs import Run
from perdure.adk.threads import ToolThreads
from perdure.session.model import InterruptKind
from perdure.session.policy import RetryPolicy, ToolEffect
from perdure.session.runner import TurnLog, TurnStart

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
    listings: dict[str, list[BaseTool]] = field(default_factory=dict[str, "list[BaseTool]"])
    """Place -> what a toolset listed there."""
    code_runs: dict[str, int] = field(default_factory=dict[str, int])
    """Place -> code executions asked for there."""

    def place_of(self, run: Run, invocation: InvocationContext) -> str:
        """Where in the tree of agents the agent of a run is; the same whenever it runs there again."""
        agent = invocation.agent.name if invocation.agent else ""
        scope = [run.scope] if run.scope else []
        return self.key("|".join((*scope, invocation.node_path or "", invocation.branch or "", agent)))

    def key(self, place: str) -> str:
        """The key of what is at a place: not that of an earlier leg."""
        return place if self.start.leg == 1 else f"leg{self.start.leg}|{place}"


current_turn: ContextVar[TurnCore | None] = ContextVar("perdure_current_turn", default=None)


def turn_of(invocation: InvocationContext) -> TurnCore | None:
    """The turn that the code of an invocation belongs to, if it is that of one.

    What a tool or a model does by itself is not: it may run agents of its own, inside of its step.
    """
    core = current_turn.get()
    if core is None or (determinism.is_suspended() and invocation.session is not core.session):
        return None
    return core
