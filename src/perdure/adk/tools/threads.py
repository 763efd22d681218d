"""The threads in which synchronous functions of tools and nodes run, so that none of them stalls another session."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from contextlib import suppress
from contextvars import copy_context
from typing import Any, NoReturn

from perdure.adk import seams

MAX_THREADS = 64
"""Of one flow at one time; what comes beyond that waits."""


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

    async def run(self, function: Callable[[], Any]) -> Any:
        """Calls ``function`` in a thread, with the caller's context variables.  Returns only when it is over."""
        context = copy_context()
        running = await self.start(lambda: context.run(function))
        try:
            return await asyncio.shield(running)
        except asyncio.CancelledError as error:
            cancelled = error
        return await _when_over(running, cancelled)


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
        return await _when_over(running, cancelled)  # without the lock: the turn's other tools go on


async def _when_over(running: asyncio.Future[Any], cancelled: asyncio.CancelledError) -> NoReturn:
    """Ends a cancelled attempt.  A thread cannot be stopped, and the attempt is not over before it is."""
    await asyncio.wait([running])
    raise cancelled
