"""Where a runner or a session service finds its engine: one of its own, opened when first needed, or the caller's."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack

from perdure.adk.native.arguments import check_engine
from perdure.adk.native.errors import WrongCall
from perdure.engine.base import Engine
from perdure.engine.open import open_engine
from perdure.session.runner import AgentSessionFlow


class EngineHome:
    """An engine, and a worker in it.

    An engine of its own belongs to the event loop in which it was opened.  When that loop is gone (each
    ``asyncio.run`` has a loop of its own) the next use opens it anew.

    Args:
        engine: an address, or an open engine, which stays the caller's.
        own: open another engine like the caller's, and use that.
        flow: what the worker serves; ``None`` for an engine that only reads and sends.
        worker: whether to run a worker.
    """

    def __init__(
        self, engine: Engine | str, flow: AgentSessionFlow | None = None, *, worker: bool = False, own: bool = False
    ) -> None:
        check_engine(engine)
        self.given = engine
        self._own = own or isinstance(engine, str)
        self._flow = flow
        self._served = flow if worker else None
        self._engine: Engine | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stack = AsyncExitStack()
        self._works = False
        self._changing = asyncio.Lock()

    def elsewhere(self) -> EngineHome:
        """A home of the same kind with an engine of its own, for another event loop."""
        return EngineHome(self.given, self._flow, worker=self._served is not None, own=True)

    async def engine(self) -> Engine:
        """The open engine; the worker need not run.

        Raises:
            WrongCall: the engine is open in another event loop that still runs.
            StoreError: it cannot be opened.
        """
        if self._engine is not None and self._loop is asyncio.get_running_loop():
            return self._engine
        self._leave_a_dead_loop()
        async with self._changing:
            if self._engine is None:
                await self._open()
            assert self._engine is not None
            return self._engine

    async def working_engine(self) -> Engine:
        """The open engine, with the worker running.  Raises: as ``engine``."""
        engine = await self.engine()
        async with self._changing:
            if self._served is not None and not self._works:
                await self._stack.enter_async_context(engine.worker(self._served))
                self._works = True
        return engine

    def _leave_a_dead_loop(self) -> None:
        if self._loop is None or self._loop is asyncio.get_running_loop():
            return
        if not self._loop.is_closed():
            raise WrongCall("the engine is open in another event loop; use it there, or close it there first")
        # What ran in that loop was cut off with it, as if the process had died.
        if self._engine is not None and self._own:
            self._engine.abandon()
        self._forget()
        self._stack, self._changing = AsyncExitStack(), asyncio.Lock()

    def _forget(self) -> None:
        self._engine, self._loop, self._works = None, None, False

    async def _open(self) -> None:
        self._loop = asyncio.get_running_loop()
        stack = AsyncExitStack()
        try:
            engine = self._engine_to_use()
            if self._own:
                await stack.enter_async_context(engine)
            elif self._flow is not None:
                stack.push_async_callback(self._flow.runner.close)
        except BaseException:
            await stack.aclose()
            raise
        self._stack, self._engine = stack, engine

    def _engine_to_use(self) -> Engine:
        if isinstance(self.given, str):
            return open_engine(self.given, flows=() if self._flow is None else (self._flow,))
        return self.given.another() if self._own else self.given

    async def close(self) -> None:
        """Drains the worker and closes the engine, if that is its own.  It may be opened again."""
        if self._loop is not None and self._loop is not asyncio.get_running_loop():
            self._leave_a_dead_loop()
            return
        async with self._changing:
            self._forget()
            await self._stack.aclose()
