"""Runs a tool for real: one attempt, in a task of its own, with the live tool context."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Mapping
from contextlib import nullcontext, suppress
from contextvars import copy_context
from typing import Any

from perdure.adk import credentials, determinism, seams
from perdure.adk.asks import apply_ask, drop_asks, give_answer, store_sign_in, take_ask
from perdure.adk.calls import Call, ToolRun
from perdure.adk.codec import UnknownType, decode
from perdure.adk.failures import error_info
from perdure.adk.outcomes import AttemptBaseline, bare_failure, capture_failure, capture_success, shown_result
from perdure.errors import NonDeterminismError, ToolExecutionError, UsageError
from perdure.session.runner import Approval, ToolOutcome, ToolRaised, ToolSucceeded

MAX_THREADS = 64
"""Synchronous tools of one flow that run at one time; more wait."""


class ToolThreads:
    """The threads of a flow: one for each call, and no more than ``MAX_THREADS`` at one time.

    They are daemons, so that a tool that never returns does not keep the program from ending.
    """

    def __init__(self) -> None:
        self._room = asyncio.Semaphore(MAX_THREADS)

    async def start(self, function: Callable[[], Any]) -> asyncio.Future[Any]:
        """Calls ``function`` in a thread, once there is room for one.  The future is done when the thread is over."""
        await self._room.acquire()
        running = _start_thread(function)
        running.add_done_callback(lambda _: self._room.release())
        return running


def _start_thread(function: Callable[[], Any]) -> asyncio.Future[Any]:
    loop = asyncio.get_running_loop()
    outcome: asyncio.Future[Any] = loop.create_future()

    def settle(value: Any, error: BaseException | None) -> None:
        if outcome.done():
            return
        if error is None:
            outcome.set_result(value)
        else:
            outcome.set_exception(error)
            outcome.exception()  # Whether anyone still waits for it is not this thread's business.

    def body() -> None:
        value: Any = None
        error: BaseException | None = None
        try:
            value = function()
        except BaseException as raised:  # noqa: BLE001 - whatever a tool raises is the outcome of its call
            error = _as_failure(raised)
        with suppress(RuntimeError):  # the loop was closed: nobody waits any more
            loop.call_soon_threadsafe(settle, value, error)

    threading.Thread(target=body, name="perdure-tool", daemon=True).start()
    return outcome


def _as_failure(error: BaseException) -> BaseException:
    """What a future may carry and a coroutine may raise: ends of iteration and of the program become plain failures."""
    if isinstance(error, Exception) and not isinstance(error, (StopIteration, StopAsyncIteration)):
        return error
    failure = RuntimeError(f"the tool raised {type(error).__name__}({', '.join(map(repr, error.args))})")
    failure.__cause__ = error
    return failure


class SyncTools:
    """Runs the synchronous functions of one turn's tools in threads.

    One after the other: ADK alone runs them so, and tools of one session may rely on it (a counter in the state).
    """

    def __init__(self, threads: ToolThreads) -> None:
        self._threads = threads
        self._one_at_a_time = asyncio.Lock()

    async def run(self, target: Callable[..., Any], arguments: dict[str, Any]) -> Any:
        """Calls ``target`` in a thread, with the caller's context variables.  Returns only when it is over."""
        context = copy_context()

        def call() -> Any:
            with seams.sync_callables_run_inline():
                return target(**arguments)

        async with self._one_at_a_time:
            running = await self._threads.start(lambda: context.run(call))
            try:
                return await asyncio.shield(running)
            except asyncio.CancelledError as error:
                cancelled = error
        # A thread cannot be stopped, and the attempt is not over before it is.  But the turn's other tools go on.
        await asyncio.wait([running])
        raise cancelled


async def run_attempt(
    call: Call, attempt: int, approval: Approval | None, sync_tools: SyncTools | None, asides: Mapping[str, str]
) -> ToolOutcome:
    """Runs the tool of ``call`` once and says what came out.

    Args:
        asides: the records of tokens that an outcome may refer to.

    Raises:
        NonDeterminismError: the run that asked set a state value of a class that is gone.
    """
    run = call.run
    assert run is not None
    determinism.suspend()
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
    return ToolRaised(error_info(refusal), final=True, outcome=text)
