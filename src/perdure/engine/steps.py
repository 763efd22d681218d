"""The bodies of steps, as both engines run them.  They need only a live turn and a few callables; no store, no ADK."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from datetime import timedelta

from perdure.session.model import ErrorInfo, JsonValue, RecordStatus
from perdure.session.policy import GiveUp, after_failure
from perdure.session.runner import Approval, CallRequest, LiveTurn, ToolAsked, ToolOutcome, ToolRaised, ToolSucceeded

TOOL_TIMEOUT = "tool_timeout"
"""Error code of an attempt that took longer than its policy allows."""

CANCEL_GRACE = timedelta(seconds=5)
"""How long a timed-out attempt may take to give up before the next one starts all the same."""


@dataclass(frozen=True, slots=True)
class ToolStepResult:
    """How a tool step ended."""

    status: RecordStatus
    outcome: str | None
    result: JsonValue
    error: ErrorInfo | None


async def run_tool_step(
    live: LiveTurn,
    request: CallRequest,
    attempt: int,
    approval: Approval | None,
    try_again: Callable[[timedelta], Awaitable[bool]],
    *,
    asks: int = 0,
) -> ToolStepResult | ToolAsked | None:
    """Runs a call until it has a record, or asks a person: attempts, pauses and time-outs as its policy says.

    Args:
        attempt: the number of the first try; higher than 1 when an earlier worker died in it, or when the tool asked.
        try_again: waits out the pause before the next try and counts that try, durably.  ``False``: there is to be no
            next try here, because the turn has moved on or the worker is about to leave.
        asks: how many tries before the first one asked; they do not count against the attempts of the policy.

    Returns:
        How it ended; ``None`` when it is left as it is.
    """
    while True:
        outcome = await _one_attempt(live, request, attempt, approval)
        if isinstance(outcome, ToolSucceeded):
            return ToolStepResult(RecordStatus.SUCCEEDED, outcome.outcome, outcome.result, None)
        if isinstance(outcome, ToolAsked):
            return outcome
        if outcome.final:
            return ToolStepResult(RecordStatus.FAILED, outcome.outcome, None, outcome.error)
        decision = after_failure(request.effect, request.retry.max_attempts, attempt - asks, request.retry)
        if isinstance(decision, GiveUp):
            return ToolStepResult(decision.status, outcome.outcome, None, outcome.error)
        if not await try_again(decision.delay):
            return None
        attempt += 1


async def _one_attempt(live: LiveTurn, request: CallRequest, attempt: int, approval: Approval | None) -> ToolOutcome:
    try:
        if request.timeout is None:
            return await live.call_tool(request.call_id, attempt, approval)
        return await _within(request.timeout, live, request, attempt, approval)
    except asyncio.CancelledError:
        task = asyncio.current_task()
        if task is not None and task.cancelling():
            raise
        return ToolRaised(_cancelled_error(request.tool_name), final=False)


async def _within(
    limit: timedelta, live: LiveTurn, request: CallRequest, attempt: int, approval: Approval | None
) -> ToolOutcome:
    body = asyncio.ensure_future(live.call_tool(request.call_id, attempt, approval))
    try:
        # wait, not wait_for: a TimeoutError that the tool itself raises must not be taken for ours.
        await asyncio.wait((body,), timeout=limit.total_seconds())
        if body.done():
            return body.result()
        body.cancel()
        # The next attempt must not run beside this one, unless this one does not let itself be cancelled.
        await asyncio.wait((body,), timeout=CANCEL_GRACE.total_seconds())
    except asyncio.CancelledError:
        # Without a limit, too, a step is not over before its body is.
        body.cancel()
        await asyncio.wait((body,))
        raise
    return ToolRaised(_timeout_error(request.tool_name, limit), final=False)


def _cancelled_error(tool_name: str) -> ErrorInfo:
    return ErrorInfo(
        code="CancelledError",
        message=f"{tool_name} was cancelled by something that it uses, not by perdure",
        facts={"tool_name": tool_name},
    )


def _timeout_error(tool_name: str, timeout: timedelta) -> ErrorInfo:
    return ErrorInfo(
        code=TOOL_TIMEOUT,
        message=f"{tool_name} did not return within {timeout.total_seconds():g} s",
        facts={"tool_name": tool_name, "timeout_s": timeout.total_seconds()},
    )
