"""Runs a tool for real: one attempt, in a task of its own, with the live tool context."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from contextlib import nullcontext
from typing import Any

from perdure.adk import seams
from perdure.adk.live import determinism
from perdure.adk.live.calls import Call, ToolRun
from perdure.adk.live.core import BodySteps
from perdure.adk.live.durable import current_body
from perdure.adk.live.parking import TurnDropped
from perdure.adk.records.codec import UnknownType, decode
from perdure.adk.records.failures import error_info
from perdure.adk.tools.asks import apply_ask, drop_asks, give_answer, store_sign_in, take_ask
from perdure.adk.tools.outcomes import AttemptBaseline, bare_failure, capture_failure, capture_success, shown_result
from perdure.adk.tools.threads import SyncTools
from perdure.adk.waits import credentials
from perdure.errors import NonDeterminismError, ToolExecutionError, UsageError
from perdure.session.policy import ToolEffect
from perdure.session.runner import Approval, ToolOutcome, ToolRaised, ToolSucceeded

_HAS_RUN = "(The tool has run all the same: do not repeat the call without checking.)"
"""What the model is told of a write whose result cannot be kept."""


async def run_attempt(
    call: Call,
    run: ToolRun,
    approval: Approval | None,
    sync_tools: SyncTools | None,
    asides: Mapping[str, str],
) -> ToolOutcome:
    """Runs the tool of ``call`` once and says what came out.

    Args:
        asides: the records of tokens that an outcome may refer to.

    Raises:
        NonDeterminismError: the run that asked set a state value of a class that is gone.
    """
    determinism.suspend()
    current_body.set(BodySteps(call.call_id))
    _prepare(call, run, approval, asides)
    try:
        in_threads = nullcontext() if sync_tools is None else seams.sync_callables_run_with(sync_tools.run)
        with in_threads:
            value = await run.tool.run_async(args=run.args, tool_context=run.tool_context)
        await credentials.written()
    except asyncio.CancelledError:
        task = asyncio.current_task()
        if task is not None and task.cancelling():
            _take_back(call)
            raise
        return _raised(call, run, RuntimeError("the tool was cancelled from within"), asides)
    except TurnDropped:
        raise
    except BaseException as error:  # noqa: BLE001  (SystemExit too: a tool must not end its worker)
        return _raised(call, run, error, asides)
    try:
        return take_ask(call, run, asides) or _succeeded(call, run, value, asides)
    except UsageError as refusal:
        return _refused(call, refusal)


def _succeeded(call: Call, run: ToolRun, value: Any, asides: Mapping[str, str]) -> ToolSucceeded:
    text = capture_success(run.tool_context, run.tool.name, value, asides)
    shown = shown_result(value, run.tool.name)
    if call.given_up:
        _take_back(call)  # the session went on without it
    else:
        call.live_outcome = text
    return ToolSucceeded(text, shown)


def _prepare(call: Call, run: ToolRun, approval: Approval | None, asides: Mapping[str, str]) -> None:
    """Takes a failed attempt back, brings in what came before this one, and notes how things are."""
    context = run.tool_context
    if call.baseline is not None:
        call.baseline.restore()
    else:
        if call.asked is None and approval is not None:
            call.asked = approval.asked
        try:
            apply_ask(call, asides)
        except UnknownType as error:
            expected, found = f"a value of class {error}", "no such class"
            raise NonDeterminismError(
                f"step {call.call_id!r}: the run that asked left {expected}, but there is {found}",
                step=call.call_id,
                expected=expected,
                found=found,
            ) from error
    if call.ran and call.request is not None:  # the attempt before may have changed its arguments
        run.args.clear()
        run.args.update(decode(call.request.arguments))
    call.ran = True
    store_sign_in(context, approval)
    give_answer(context, approval)
    if call.baseline is None:
        call.baseline = AttemptBaseline(context)


def _take_back(call: Call) -> None:
    if call.baseline is not None:
        call.baseline.restore()
    call.live_outcome = None


def _raised(call: Call, run: ToolRun, error: BaseException, asides: Mapping[str, str]) -> ToolRaised:
    drop_asks(run.tool_context)
    try:
        text = capture_failure(run.tool_context, run.tool.name, error, asides)
    except UsageError as refusal:
        return _refused(call, refusal)
    call.live_outcome = text
    return ToolRaised(error_info(error), final=isinstance(error, ToolExecutionError), outcome=text)


def _refused(call: Call, refusal: UsageError) -> ToolRaised:
    """What the tool gave cannot be kept: the call fails, and nothing of the attempt counts."""
    _take_back(call)
    text = call.live_outcome = bare_failure(refusal)
    error = error_info(refusal)
    if call.request is not None and call.request.effect is not ToolEffect.READ:
        error = error.model_copy(update={"message": f"{error.message} {_HAS_RUN}"})
    return ToolRaised(error, final=True, outcome=text)
