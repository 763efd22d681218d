"""The bodies of steps, as both engines run them.  They need only a live turn and a few callables; no store, no ADK."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from datetime import timedelta

from perdure.session.model import ErrorInfo, JsonValue, RecordStatus
from perdure.session.policy import GiveUp, after_failure
from perdure.session.runner import Approval, CallRequest, LiveTurn, ToolOutcome, ToolRaised, ToolSucceeded

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
    attempt_failed: Callable[[], Awaitable[None]],
) -> ToolStepResult:
    """Runs a call until it has a record: attempts, pauses and time-outs as its policy says.

    Args:
        attempt: the number of the first try; higher than 1 when an earlier worker died in it.
        attempt_failed: told, and waited for, before each further try.
    """
    while True:
        outcome = await _one_attempt(live, request, attempt, approval)
        if isinstance(outcome, ToolSucceeded):
            return ToolStepResult(RecordStatus.SUCCEEDED, outcome.outcome, outcome.result, None)
        if outcome.final:
            return ToolStepResult(RecordStatus.FAILED, outcome.outcome, None, outcome.error)
        decision = after_failure(request.effect, request.retry.max_attempts, attempt, request.retry)
        if isinstance(decision, GiveUp):
            return ToolStepResult(decision.status, outcome.outcome, None, outcome.error)
        await attempt_failed()
        await asyncio.sleep(decision.delay.total_seconds())
        attempt += 1


async def _one_attempt(live: LiveTurn, request: CallRequest, attempt: int, approval: Approval | None) -> ToolOutcome:
    if request.timeout is None:
        return await live.call_tool(request.call_id, attempt, approval)
    limit = request.timeout.total_seconds()
    body = asyncio.ensure_future(live.call_tool(request.call_id, attempt, approval))
    try:
        # wait, not wait_for: a TimeoutError that the tool itself raises must not be taken for ours.
        await asyncio.wait((body,), timeout=limit)
        if body.done():
            return body.result()
        body.cancel()
        # The next attempt must not run beside this one, unless this one does not let itself be cancelled.
        await asyncio.wait((body,), timeout=CANCEL_GRACE.total_seconds())
    finally:
        body.cancel()
    return ToolRaised(_timeout_error(request.tool_name, request.timeout), final=False)


def _timeout_error(tool_name: str, timeout: timedelta) -> ErrorInfo:
    return ErrorInfo(
        code=TOOL_TIMEOUT,
        message=f"{tool_name} did not return within {timeout.total_seconds():g} s",
        facts={"tool_name": tool_name, "timeout_s": timeout.total_seconds()},
    )
