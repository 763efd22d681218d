"""The live turn: one ADK invocation as a task, and the engine's handle on it."""

from __future__ import annotations

import asyncio
import contextvars
import logging
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing
from typing import Any

from google.adk.events.event import Event
from google.adk.sessions.session import Session

from perdure.adk.live import determinism
from perdure.adk.live.calls import Call, ToolRun
from perdure.adk.live.core import TurnCore, current_turn
from perdure.adk.live.parking import TurnDropped
from perdure.adk.live.plugins import cause_behind_plugins
from perdure.adk.live.runs import current_run
from perdure.adk.native.passing import show_passing
from perdure.adk.nodes.bodies import NodeRun, run_node_attempt
from perdure.adk.records.failures import error_info, failure_info
from perdure.adk.tools.bodies import run_attempt
from perdure.adk.tools.threads import SyncTools
from perdure.adk.waits.legs import end_of_leg
from perdure.errors import NonDeterminismError, UsageError, ValueNotStorable
from perdure.session.model import TOOL_CALL_NOT_RUN_ERROR_PREFIX, ErrorInfo
from perdure.session.runner import (
    Approval,
    DriveBlocked,
    DriveFailed,
    DriveFinished,
    DriveResult,
    Progress,
    Question,
    QuestionWait,
    Settled,
    ToolOutcome,
    ToolRaised,
)

_logger = logging.getLogger(__name__)

_CANCELLATIONS = 10
"""How often a task of a dropped turn is cancelled before it is left behind."""

Invocation = Callable[[], AsyncGenerator[Event, None]]
"""Starts the invocation; it must be iterated in the task that is to carry it."""


class AdkLiveTurn:
    """Implements ``perdure.session.runner.LiveTurn``.

    Args:
        start: begins the invocation.
        sync_tools: where synchronous tools run; ``None``: as ADK runs them.
        ended_well: called when the turn is completed, in memory and on disk.
    """

    def __init__(
        self,
        core: TurnCore,
        start: Invocation,
        sync_tools: SyncTools | None,
        ended_well: Callable[[], None],
    ) -> None:
        self._core = core
        self._conductor = core.conductor
        self._sync_tools = sync_tools
        self._ended_well = ended_well
        self._error: BaseException | None = None
        context = contextvars.copy_context()
        context.run(self._install)
        self._task = asyncio.get_running_loop().create_task(
            self._carry(start), name=f"perdure turn {core.start.turn_id}", context=context
        )

    def _install(self) -> None:
        current_turn.set(self._core)
        current_run.set(self._conductor.floor.root)
        determinism.install(self._core.start.turn_id, self._core.clock)

    async def _carry(self, start: Invocation) -> None:
        try:
            async with aclosing(start()) as events:
                async for event in events:
                    show_passing(self._core, event)
        except TurnDropped:
            return
        except asyncio.CancelledError:
            if not self._conductor.parking.closing:
                raise
            return
        except Exception as error:  # noqa: BLE001  (whatever ends the invocation is reported by drive)
            self._error = error
        if not self._conductor.parking.closing:
            self._conductor.end()

    async def drive(self, step_id: str, records: Sequence[Settled], attempt: int = 1) -> DriveResult:
        """Hands out ``records`` and lets the invocation run until it is blocked or over.

        Raises:
            NonDeterminismError: the invocation does not repeat what the journal holds.
            FrameworkDrift: google-adk does not behave as perdure needs it.
        """
        if self._conductor.driving:
            raise UsageError("the turn is being driven already; use hand_out")
        self._core.step_id, self._core.step_attempt = step_id, attempt
        try:
            self._conductor.set_driving(True)
            self._conductor.give(records)
            while not self._conductor.has_news:
                await self._conductor.until(self._has_news)
            return self._result()
        finally:
            self._conductor.set_driving(False)

    def hand_out(self, records: Sequence[Settled]) -> None:
        """Hands out ``records`` to an invocation that is being driven already."""
        self._conductor.give(records)

    async def replayed(self, *, at_rest: bool = False) -> None:
        """Waits until the invocation has used up all that the journal holds.

        Args:
            at_rest: each model call that was made has its record, so that one without a record is a difference.

        Raises:
            NonDeterminismError: it does not repeat what the journal holds.
        """
        conductor = self._conductor
        if at_rest:
            conductor.expect_no_new_model_call()
        await conductor.until(lambda: conductor.journal.replayed or conductor.ended or conductor.failure is not None)
        if conductor.failure is not None:
            raise conductor.failure

    async def ready(self, call_id: str) -> None:
        """Waits until the invocation has asked for this call, so that ``call_tool`` will run at once.

        Raises:
            NonDeterminismError: the invocation ended or blocked without asking for this call.
        """
        await self._requested(call_id)

    async def call_tool(self, call_id: str, attempt: int, approval: Approval | None) -> ToolOutcome:
        """Runs the tool once, for real.

        Raises:
            NonDeterminismError: the invocation ended or blocked without asking for this call.
        """
        call = await self._requested(call_id)
        if _is_given_up(call):
            return _given_up(f"{TOOL_CALL_NOT_RUN_ERROR_PREFIX}: the agent that asked for it was stopped.")
        assert call.run is not None
        run = call.run
        if isinstance(run, NodeRun):
            attempting, variables = run_node_attempt(call, run, self._sync_tools), run.variables
        else:
            assert isinstance(run, ToolRun)
            attempting, variables = (
                run_attempt(call, run, approval, self._sync_tools, self._conductor.journal.asides),
                run.context,
            )
        body = call.body = asyncio.get_running_loop().create_task(
            attempting, name=f"perdure tool {call_id}", context=variables.copy()
        )
        self._core.bodies.add(body)
        body.add_done_callback(self._core.bodies.discard)
        cancelled: asyncio.CancelledError | None = None
        while not body.done():
            try:
                await asyncio.wait([body])
            except asyncio.CancelledError as error:
                cancelled = error
                body.cancel()
        if cancelled is not None:
            if not body.cancelled():
                body.exception()
            raise cancelled
        if body.cancelled() and _is_given_up(call):
            return _given_up("it was stopped with the agent that asked for it")
        try:
            return body.result()
        except TurnDropped:
            assert self._conductor.failure is not None, "a body leaves so when the turn has failed from outside"
            raise self._conductor.failure from None

    async def _requested(self, call_id: str) -> Call:
        conductor = self._conductor

        def known() -> bool:
            over = conductor.ended or (conductor.journal.replayed and conductor.floor.at_rest)
            return over or conductor.failure is not None or conductor.floor.requested_call(call_id) is not None

        await conductor.until(known)
        if conductor.failure is not None:
            raise conductor.failure
        call = conductor.floor.requested_call(call_id)
        if call is not None:
            return call
        found = "the end of the invocation" if conductor.ended else "other calls"
        raise NonDeterminismError(
            f"tool call {call_id!r} is to run, but the invocation did not ask for it again (found {found})",
            step=call_id,
            expected=f"tool call {call_id!r}",
            found=found,
        )

    def stored(self) -> None:
        """Says that the turn is completed on disk as it was in memory, which may now be kept for the next turn."""
        if self._conductor.ended and self._error is None:
            self._ended_well()

    async def close(self) -> None:
        """Drops the turn from memory.  No callback of the application runs; running tool bodies are cancelled."""
        self._conductor.drop()
        await _cancel({*self._core.bodies, *self._core.tasks, self._task})
        # Tasks that an agent of the application began and did not end with itself.
        await _cancel(self._conductor.parking.tasks.copy())
        # A connection that a tool opened lives on in the context of the tool, and that leads here.
        session = self._core.session
        self._core.session = Session(id=session.id, app_name=session.app_name, user_id=session.user_id)

    def _has_news(self) -> bool:
        return self._conductor.has_news

    def _result(self) -> DriveResult:
        conductor = self._conductor
        if conductor.failure is not None:
            raise conductor.failure
        if conductor.ended:
            return self._finished()
        return self._blocked(more=not conductor.floor.blocked)

    def _blocked(self, *, more: bool) -> DriveBlocked:
        floor = self._conductor.floor
        calls, questions = floor.take_unreported_calls(), floor.take_unreported_questions()
        return DriveBlocked(self._progress(), calls, more, questions)

    def _finished(self) -> DriveFinished | DriveFailed:
        progress = self._progress()
        if self._error is None:
            try:
                questions, carry = end_of_leg(self._core)
            except ValueNotStorable as refusal:  # a temp: value that has to outlive the invocation
                return DriveFailed(progress, error_info(refusal))
            return DriveFinished(progress, (*questions, *self._late_questions()), carry)
        return DriveFailed(progress, failure_info(cause_behind_plugins(self._error)))

    def _late_questions(self) -> list[Question]:
        """What the engine was not told of yet, for which nobody waits."""
        announced = self._conductor.floor.take_unreported_questions()
        return [question for question in announced if question.wait is QuestionWait.NEXT_TURN]

    def _progress(self) -> Progress:
        messages, control_calls = self._core.outbox.take()
        return Progress(messages, control_calls, self._conductor.floor.take_model_keys())


async def _cancel(running: set[asyncio.Task[Any]]) -> None:
    for _ in range(_CANCELLATIONS):
        pending = {task for task in running if not task.done()}
        if not pending:
            break
        for task in pending:
            task.cancel()
        # A second round gets a body out of waiting for its thread.
        await asyncio.wait(pending, timeout=1)
    for task in running:
        if not task.done():
            _logger.warning("%s does not end although it was cancelled; it is left behind", task.get_name())
        elif not task.cancelled():
            task.exception()


def _is_given_up(call: Call) -> bool:
    return call.given_up


def _given_up(message: str) -> ToolRaised:
    return ToolRaised(ErrorInfo(code="call_given_up", message=message), final=True)
