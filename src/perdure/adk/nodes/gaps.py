"""Makes visible that a workflow is on the move while none of its nodes is: between the end of one and the next start.

A workflow schedules each node as a task of its own, and looks at those that are done when it wakes up.  From the moment
a node is scheduled until it runs, and from its end until the workflow has scheduled what follows, the workflow's run is
``busy``: nobody else gets a record meanwhile, or a replay could bring their events in another order.
"""

from __future__ import annotations

import asyncio
from contextvars import ContextVar
from functools import wraps
from typing import Any
from weakref import WeakKeyDictionary

from google.adk.agents.context import Context

from perdure.adk import seams
from perdure.adk.live.core import current_turn
from perdure.adk.live.runs import Run, current_run


class Ticket:
    """One scheduled run of a workflow's node."""

    def __init__(self, workflow: Run) -> None:
        self._workflow = workflow
        self._runs = 0
        self._busy = False
        self._set_busy(True)

    def begin(self) -> None:
        """The node runs; or an agent that it transferred to."""
        self._runs += 1
        self._set_busy(False)

    def end(self) -> None:
        """It runs no more."""
        self._runs -= 1
        self._set_busy(self._runs == 0)

    def close(self) -> None:
        """The workflow has scheduled what follows."""
        self._set_busy(False)

    def _set_busy(self, busy: bool) -> None:
        self._workflow.busy += busy - self._busy
        self._busy = busy


current_ticket: ContextVar[Ticket | None] = ContextVar("perdure_current_ticket", default=None)
"""Of the scheduled run that has not begun yet."""

_tickets: WeakKeyDictionary[asyncio.Task[Any], Ticket] = WeakKeyDictionary()
_followed_up: WeakKeyDictionary[Run, list[Ticket]] = WeakKeyDictionary()
"""Those whose end a workflow has seen, but of which it has not scheduled yet what follows."""


def follow_start(original: Any) -> Any:
    """Around ``Workflow._start_node_task``."""

    @wraps(original)
    def _start_node_task(self: seams.Workflow, loop_state: Any, ctx: Context, node_name: str, trigger: Any) -> bool:
        run = current_run.get()
        if current_turn.get() is None or run is None:
            return bool(original(self, loop_state, ctx, node_name, trigger))
        ticket = Ticket(run)
        token = current_ticket.set(ticket)
        try:
            return bool(original(self, loop_state, ctx, node_name, trigger))
        finally:
            current_ticket.reset(token)
            _tickets[seams.task_of_node(loop_state, node_name)] = ticket

    return _start_node_task


def follow_end(original: Any) -> Any:
    """Around ``Workflow._pop_completed_task``."""

    @wraps(original)
    def _pop_completed_task(self: seams.Workflow, loop_state: Any, task: asyncio.Task[Any]) -> str:
        ticket, run = _tickets.pop(task, None), current_run.get()
        if ticket is not None and run is not None:
            _followed_up.setdefault(run, []).append(ticket)
        return str(original(self, loop_state, task))

    return _pop_completed_task


def follow_schedule(original: Any) -> Any:
    """Around ``Workflow._schedule_ready_nodes``."""

    @wraps(original)
    async def _schedule_ready_nodes(self: seams.Workflow, loop_state: Any, ctx: Context) -> None:
        await original(self, loop_state, ctx)
        core, run = current_turn.get(), current_run.get()
        if core is not None and run is not None:
            for ticket in _followed_up.pop(run, ()):
                ticket.close()
            core.conductor.advance()

    return _schedule_ready_nodes
