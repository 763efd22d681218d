"""The tool calls of a live invocation, and the batches and groups in which its runs wait for them.  Plain data."""

from __future__ import annotations

import asyncio
import enum
from contextvars import Context
from dataclasses import dataclass, field
from typing import Any, Protocol

from google.adk.tools.base_tool import BaseTool
from google.adk.tools.tool_context import ToolContext

from perdure.adk.live.runs import Run
from perdure.adk.tools.outcomes import AttemptBaseline, Outcome
from perdure.session.policy import EFFECT_RULES, ToolEffect
from perdure.session.runner import CallRecord, CallRequest, ToolOutcome


@dataclass(frozen=True, slots=True)
class ToolRun:
    """All that running a tool for real takes."""

    tool: BaseTool
    args: dict[str, Any]
    tool_context: ToolContext
    context: Context
    """The context variables that the callbacks before the tool left behind."""


class NodeWork(Protocol):
    """All that running the function of a workflow node takes (``nodes.bodies.NodeRun``)."""

    def take_back(self) -> None:
        """Makes pending again what the last attempt changed, so that the call's baseline can undo it."""


@dataclass(slots=True, eq=False)
class Call:
    """One call of a group: of a tool, or of a workflow node's function.

    Attributes:
        accounted: it is known what becomes of it: it was requested, a callback answered it, or it steers ADK.
        fresh: the journal does not have it yet.
        record: its record, once that was handed out.
        settled: what the live invocation waits for.
        live_outcome: the outcome text of the last attempt whose changes are in the session.
        baseline: how to take that attempt back.
        ran: an attempt was made here.
        asked: the outcome text of the last attempt that asked a person.
        ask_applied: what that attempt did is in the session.
        state_applied: the record's state is in the session already.
        moving: it has its record and goes on, while calls beside it wait.
        done: ADK is through with it, its callbacks included.
    """

    call_id: str
    group: Group
    accounted: bool = False
    request: CallRequest | None = None
    run: ToolRun | NodeWork | None = None
    fresh: bool = True
    record: CallRecord | None = None
    outcome: Outcome | None = None
    settled: asyncio.Future[None] | None = None
    live_outcome: str | None = None
    baseline: AttemptBaseline | None = None
    ran: bool = False
    asked: str | None = None
    ask_applied: bool = False
    state_applied: bool = False
    moving: bool = False
    done: bool = False
    given_up: bool = False
    """ADK cancelled the call: a sibling raised, or the agent that asked for it was stopped."""
    body: asyncio.Task[ToolOutcome] | None = None
    """The attempt that runs."""

    def stop_reading(self) -> None:
        """Stops an attempt that nobody needs any more.  A write runs to its end, so that it is known what it did.

        The function of a node is stopped, as ADK would stop it, unless it is to run at most once.
        """
        if self.body is None or self.request is None:
            return
        effect = self.request.effect
        is_node = self.run is not None and not isinstance(self.run, ToolRun)
        if effect is ToolEffect.READ or (is_node and not EFFECT_RULES[effect].single_attempt):
            self.body.cancel()

    @property
    def open(self) -> bool:
        """Whether it was requested and has no record yet."""
        return self.request is not None and self.record is None and not self.given_up


class GroupState(enum.Enum):
    UNACCOUNTED = "unaccounted"
    """It is not known yet what becomes of each call of the batch."""
    WAITING = "waiting"
    """Some of the calls have no record yet."""
    CLOSED = "closed"


@dataclass(slots=True, eq=False)
class Group:
    """Calls of a batch that get their records together."""

    key: str
    batch: Batch
    state: GroupState = GroupState.UNACCOUNTED
    calls: dict[str, Call] = field(default_factory=dict[str, Call])

    @property
    def owner(self) -> Run:
        return self.batch.owner

    @property
    def open_calls(self) -> list[Call]:
        return [call for call in self.calls.values() if call.open]


@dataclass(slots=True, eq=False)
class Batch:
    """The calls of one model response.

    Those of long-running tools are groups of their own: what they leave open is asked when they have run, whatever the
    calls beside them still wait for.  All others are one group.

    Attributes:
        key: of the group of all others.
    """

    key: str
    owner: Run
    groups: list[Group] = field(default_factory=list[Group])
    calls: dict[str, Call] = field(default_factory=dict[str, Call])

    @property
    def accounted(self) -> bool:
        return all(call.accounted for call in self.calls.values())

    @property
    def open_calls(self) -> list[Call]:
        return [call for call in self.calls.values() if call.open]


def apart_key(batch_key: str, call_id: str) -> str:
    """The key of the group of a call that is one by itself."""
    return f"{batch_key}|{call_id}"


def answers_key(batch_key: str) -> str:
    """The key of the questions that the calls of a batch leave open."""
    return f"{batch_key}|answers"
