"""Runs a tool for real: one attempt, in a task of its own, with the live tool context."""

from __future__ import annotations

import asyncio
from contextlib import nullcontext

from google.adk.tools.tool_confirmation import ToolConfirmation

from perdure.adk import determinism, seams
from perdure.adk.calls import Call, ToolRun
from perdure.adk.codec import decode
from perdure.adk.failures import error_info
from perdure.adk.outcomes import AttemptBaseline, bare_failure, capture_failure, capture_success, shown_result
from perdure.adk.threads import SyncTools
from perdure.errors import ToolExecutionError, UsageError
from perdure.session.runner import Approval, ToolOutcome, ToolRaised, ToolSucceeded


async def run_attempt(call: Call, attempt: int, approval: Approval | None, sync_tools: SyncTools | None) -> ToolOutcome:
    """Runs the tool of ``call`` once and says what came out."""
    run = call.run
    assert run is not None
    determinism.suspend()
    _prepare(call, run)
    context = run.tool_context
    if approval is not None:
        context.tool_confirmation = ToolConfirmation(confirmed=True, payload=approval.payload)
    try:
        in_threads = nullcontext() if sync_tools is None else seams.sync_callables_run_with(sync_tools.run)
        with in_threads:
            value = await run.tool.run_async(args=run.args, tool_context=context)
    except asyncio.CancelledError:
        task = asyncio.current_task()
        if task is not None and task.cancelling():
            _take_back(call)
            raise
        return _raised(call, run, RuntimeError("the tool was cancelled from within"))
    except BaseException as error:  # noqa: BLE001  (SystemExit too: a tool must not end its worker)
        return _raised(call, run, error)
    try:
        text = capture_success(context, run.tool.name, value)
        shown = shown_result(value, run.tool.name)
    except UsageError as refusal:
        return _refused(call, refusal)
    if call.given_up:
        _take_back(call)  # the session went on without it
    else:
        call.live_outcome = text
    return ToolSucceeded(text, shown)


def _prepare(call: Call, run: ToolRun) -> None:
    """Takes a failed attempt back and notes how things are before this one."""
    if call.baseline is None:
        call.baseline = AttemptBaseline(run.tool_context)
        return
    call.baseline.restore()
    if call.request is not None:  # the failed attempt may have changed its arguments
        run.args.clear()
        run.args.update(decode(call.request.arguments))


def _take_back(call: Call) -> None:
    if call.baseline is not None:
        call.baseline.restore()
    call.live_outcome = None


def _raised(call: Call, run: ToolRun, error: BaseException) -> ToolRaised:
    try:
        text = capture_failure(run.tool_context, run.tool.name, error)
    except UsageError as refusal:
        return _refused(call, refusal)
    call.live_outcome = text
    return ToolRaised(error_info(error), final=isinstance(error, ToolExecutionError), outcome=text)


def _refused(call: Call, refusal: UsageError) -> ToolRaised:
    """What the tool gave cannot be kept: the call fails, and nothing of the attempt counts."""
    _take_back(call)
    text = call.live_outcome = bare_failure(refusal)
    return ToolRaised(error_info(refusal), final=True, outcome=text)
