"""The activities of a worker: to adopt a session, to look into its inbox, to run a step of it.

Each asks the host, which does the work, and returns what the host has applied.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Protocol

from temporalio import activity
from temporalio.exceptions import ApplicationError, ApplicationErrorCategory

from perdure.engine.temporal.host import HostedSession
from perdure.engine.temporal.joining import AttemptOver, AttemptStale, HostGone
from perdure.engine.temporal.wire import (
    ADOPT,
    ATTEMPT_FAILED,
    CHECK_CODE,
    FORMAT,
    HOST_GONE,
    LOOK,
    NOT_TAKEN,
    SESSION_GONE,
    UNHEARD,
    Adopt,
    Adopted,
    Order,
    Report,
    unpack_command,
)
from perdure.errors import PerdureError, SessionNotFound
from perdure.session.model import StepName

BEAT = timedelta(seconds=1)
"""How often what is under way shows that its worker lives."""


REFUSAL_PAUSE = timedelta(seconds=0.2)
"""How soon an adoption that a worker refused is offered again."""


class Hosting(Protocol):
    """The worker, as its activities see it."""

    async def adopt(self, session_id: str, attempt: bytes) -> HostedSession:
        """Takes a session, or keeps one that this worker still has.

        Args:
            attempt: the token of the attempt that asks for it.

        Raises:
            AttemptStale: nobody waits for that attempt any more; nothing was taken.
            SessionNotFound
            PerdureError: not now, or not here.
        """
        ...

    def host(self, session_id: str, epoch: int) -> HostedSession | None:
        """The session, if this worker has it under this lease."""
        ...

    def abandon(self, host: HostedSession) -> None:
        """Gives a session up in the middle: its workflow does not count on this worker any more."""
        ...

    def unwanted(self, host: HostedSession) -> None:
        """Does so if the session has no workflow."""
        ...


class SessionActivities:
    """What a worker does for workflows.

    Args:
        queue: where those activities are asked for that only this worker can do.
    """

    def __init__(self, hosting: Hosting, queue: str, store_id: str) -> None:
        self._hosting = hosting
        self._queue = queue
        self._store_id = store_id

    @property
    def shared(self) -> list[Callable[..., Awaitable[object]]]:
        """What any worker of the flow can do."""
        return [self.adopt]

    @property
    def own(self) -> list[Callable[..., Awaitable[object]]]:
        """What only the worker can do that has the session."""
        return [self.look, self.run_model, self.call_tool, self.call_single_attempt_tool, self.check_code]

    @activity.defn(name=ADOPT)
    async def adopt(self, order: Adopt) -> Adopted:
        if (order.format, order.store_id) != (FORMAT, self._store_id):
            raise _refusal(
                f"the workflow of session {order.session_id!r} is of format {order.format} and store "
                f"{order.store_id}; this worker is of format {FORMAT} and store {self._store_id}. A worker of the "
                "workflow's own kind takes the session"
            )
        async with _beating():
            try:
                host = await self._hosting.adopt(order.session_id, activity.info().task_token)
            except AttemptStale:
                raise _unheard("the session was offered to another worker meanwhile") from None
            except SessionNotFound as error:
                raise ApplicationError(error.message, type=SESSION_GONE, non_retryable=True, category=_BENIGN) from None
            except PerdureError as error:
                raise _refusal(error.message) from error
            async with _asked(self._hosting, host, host.adoptions + 1):
                state, due, report = await host.adopted()
        return Adopted(self._queue, state, due, report)

    @activity.defn(name=LOOK)
    async def look(self, order: Order) -> Report:
        host = self._host_for(order)
        async with _beating(), _asked(self._hosting, host, host.adoptions):
            return await host.look()

    @activity.defn(name=StepName.RUN_MODEL.value)
    async def run_model(self, order: Order) -> Report:
        return await self._run_step(order)

    @activity.defn(name=StepName.CALL_TOOL.value)
    async def call_tool(self, order: Order) -> Report:
        return await self._run_step(order)

    @activity.defn(name=StepName.CALL_SINGLE_ATTEMPT_TOOL.value)
    async def call_single_attempt_tool(self, order: Order) -> Report:
        return await self._run_step(order)

    @activity.defn(name=CHECK_CODE)
    async def check_code(self, order: Order) -> Report:
        return await self._run_step(order)

    async def _run_step(self, order: Order) -> Report:
        assert order.command is not None
        host = self._host_for(order)
        try:
            async with _beating(), _asked(self._hosting, host, host.adoptions):
                return await host.run_step(unpack_command(order.command))
        except AttemptOver as over:
            pause = max(over.pause, SHORTEST_PAUSE)
            raise ApplicationError(str(over), type=ATTEMPT_FAILED, next_retry_delay=pause, category=_BENIGN) from None

    def _host_for(self, order: Order) -> HostedSession:
        host = self._hosting.host(order.session_id, order.epoch)
        if host is None:
            raise _gone(order.session_id)
        return host


SHORTEST_PAUSE = timedelta(milliseconds=1)
"""Between two attempts.  None at all is, to Temporal, nothing said: it would wait for a second, then for two."""

_BENIGN = ApplicationErrorCategory.BENIGN
"""Not worth a line in the log: it happens in the course of things."""


@asynccontextmanager
async def _beating() -> AsyncGenerator[None]:
    """Shows that the worker lives, for the length of the block."""

    async def beat() -> None:
        while True:
            activity.heartbeat()
            await asyncio.sleep(BEAT.total_seconds())

    beating = asyncio.create_task(beat())
    try:
        yield
    except asyncio.CancelledError:
        why = activity.cancellation_details()
        if why is None or why.cancel_requested or not why.not_found:
            raise
        # Its workflow was ended, so nobody reads this; Temporal's worker would log a traceback of what is no fault.
        raise _unheard("nobody waits for this activity any more") from None
    finally:
        beating.cancel()


@asynccontextmanager
async def _asked(hosting: Hosting, host: HostedSession, adoption: int) -> AsyncGenerator[None]:
    """Around a wait for a host, on behalf of one adoption: says how it failed in Temporal's terms."""
    try:
        yield
    except HostGone:
        raise _gone(host.session_id) from None
    except asyncio.CancelledError:
        why = activity.cancellation_details()
        if why is not None and why.timed_out:
            # The server does not answer.  What runs goes on, and is stored; the workflow asks again.
            raise _unheard("the server did not hear of this activity") from None
        if host.adoptions != adoption:
            pass  # The workflow lost sight of this worker, and has found it again.
        elif why is not None and why.cancel_requested:
            hosting.abandon(host)  # The workflow has moved the session, or was cancelled.
        elif why is not None and why.not_found:
            hosting.unwanted(host)  # The workflow was ended by somebody; or the server has just given up waiting.
        raise


def _unheard(message: str) -> ApplicationError:
    return ApplicationError(message, type=UNHEARD, non_retryable=True, category=_BENIGN)


def _gone(session_id: str) -> ApplicationError:
    message = f"this worker does not have session {session_id!r} any more"
    return ApplicationError(message, type=HOST_GONE, non_retryable=True, category=_BENIGN)


def _refusal(message: str) -> ApplicationError:
    return ApplicationError(message, type=NOT_TAKEN, next_retry_delay=REFUSAL_PAUSE, category=_BENIGN)
