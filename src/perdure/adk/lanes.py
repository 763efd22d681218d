"""Who waits for what inside a live invocation: lanes, the groups of calls they opened, and the calls.

A *lane* is one agent run on one branch: it runs, waits at the gate of a model call, is in one, or waits for the calls
of a model response.  Plain data; ``conductor`` moves it.
"""

from __future__ import annotations

import asyncio
import enum
from contextvars import Context
from dataclasses import dataclass, field
from typing import Any

from google.adk.tools.base_tool import BaseTool
from google.adk.tools.tool_context import ToolContext

from perdure.adk.outcomes import AttemptBaseline, Outcome
from perdure.session.runner import CallRecord, CallRequest, ModelCall

LaneId = tuple[str | None, str]
"""Branch and agent name."""


class LaneState(enum.Enum):
    RUNNING = "running"
    """Code of ADK or of the application runs."""
    GATED = "gated"
    """Wants to make a model call and was not let through yet."""
    IN_MODEL = "in_model"
    WAITING = "waiting"
    """Every call of its last response is accounted for, and some have no record yet."""


@dataclass(slots=True)
class Gate:
    """A model call that wants to go on: with a record, or with ``None`` for a call to the real model."""

    key: str
    opened: asyncio.Future[ModelCall | None]


@dataclass(slots=True)
class Lane:
    id: LaneId
    state: LaneState = LaneState.RUNNING
    gate: Gate | None = None
    model_key: str = ""
    """Of its last model call."""


@dataclass(frozen=True, slots=True)
class ToolRun:
    """All that running a tool for real takes."""

    tool: BaseTool
    args: dict[str, Any]
    tool_context: ToolContext
    context: Context
    """The context variables that the callbacks before the tool left behind."""


@dataclass(slots=True, eq=False)
class Call:
    """One tool call of a group.

    Attributes:
        accounted: it is known what becomes of it: it was requested, a callback answered it, or it steers ADK.
        fresh: the journal does not have it yet.
        record: its record, once that was handed out.
        settled: what the live invocation waits for.
        live_outcome: the outcome text of the last attempt whose changes are in the session.
        baseline: how to take that attempt back.
        ran: an attempt was made here.
        state_applied: the record's state is in the session already.
    """

    call_id: str
    group: Group
    accounted: bool = False
    request: CallRequest | None = None
    run: ToolRun | None = None
    fresh: bool = True
    record: CallRecord | None = None
    outcome: Outcome | None = None
    settled: asyncio.Future[None] | None = None
    live_outcome: str | None = None
    baseline: AttemptBaseline | None = None
    ran: bool = False
    state_applied: bool = False
    given_up: bool = False
    """ADK cancelled the call: a sibling failed the whole turn."""

    @property
    def open(self) -> bool:
        """Whether it was requested and has no record yet."""
        return self.request is not None and self.record is None and not self.given_up


@dataclass(slots=True, eq=False)
class Group:
    """The calls of one model response."""

    key: str
    lane: Lane
    calls: dict[str, Call] = field(default_factory=dict[str, Call])

    @property
    def accounted(self) -> bool:
        return all(call.accounted for call in self.calls.values())

    @property
    def open_calls(self) -> list[Call]:
        return [call for call in self.calls.values() if call.open]
