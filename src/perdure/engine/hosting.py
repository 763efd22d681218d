"""What every engine is: an open store, the live stream of this process, and the workers that run in it."""

from __future__ import annotations

import asyncio
import signal
import threading
from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, Callable, Generator, Iterable, Mapping
from contextlib import asynccontextmanager, contextmanager
from types import TracebackType
from typing import Self

from perdure.clock import Clock
from perdure.engine.feed import FeedHub, Subscription
from perdure.engine.worker import EngineWorker, WorkerOptions
from perdure.errors import UsageError
from perdure.ids import IdSource
from perdure.session.model import AgentEventType
from perdure.session.runner import AgentSessionFlow
from perdure.store.base import SessionStore


class HostingEngine(ABC):
    """See ``perdure.engine.base.Engine``.  A kind of engine says where it is and what its workers are."""

    def __init__(
        self,
        store: SessionStore,
        flows: Iterable[AgentSessionFlow],
        *,
        clock: Clock,
        ids: IdSource,
        options: WorkerOptions | None = None,
    ) -> None:
        self._store = store
        self._clock = clock
        self._ids = ids
        self._options = options or WorkerOptions()
        self._flows = _by_type(flows)
        self._hub = FeedHub()
        self._workers: set[EngineWorker] = set()
        self._open = False
        self._unlisten: Callable[[], None] | None = None

    @property
    @abstractmethod
    def address(self) -> str: ...

    @property
    def store(self) -> SessionStore:
        return self._store

    @property
    def clock(self) -> Clock:
        return self._clock

    @property
    def ids(self) -> IdSource:
        return self._ids

    @property
    def flows(self) -> Mapping[str, AgentSessionFlow]:
        return self._flows

    @abstractmethod
    async def notify(self, session_id: str) -> None: ...

    async def open(self) -> Self:
        if not self._open:
            await self._store.open()
            self._unlisten = self._store.listen(self._hub.store_changed)
            self._open = True
        return self

    async def close(self) -> None:
        if not self._open:
            return
        self._open = False
        await asyncio.gather(*(worker.stop() for worker in self._workers))
        if self._unlisten is not None:
            self._unlisten()
        try:
            await self._store.close()
        finally:
            self._hub.look_everywhere()  # Who still waits finds the engine closed.
            await self._release()

    def abandon(self) -> None:
        if self._open:
            self._open = False
            self._workers.clear()
            self._store.abandon()

    async def __aenter__(self) -> Self:
        return await self.open()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    @asynccontextmanager
    async def worker(self, *flows: AgentSessionFlow) -> AsyncGenerator[None]:
        async with self._running(self._new_worker(_by_type(flows) if flows else self._flows)):
            yield

    async def serve(self, *, ready: Callable[[], None] | None = None) -> None:
        worker = self._new_worker(self._flows)
        told = asyncio.Event()

        def on_signal() -> None:
            if told.is_set():
                worker.hurry()
            told.set()

        with _signals(on_signal):
            async with self._running(worker):
                if ready is not None:
                    ready()
                await told.wait()

    @asynccontextmanager
    async def _running(self, worker: EngineWorker) -> AsyncGenerator[None]:
        self._workers.add(worker)
        try:
            await worker.start()
            yield
        finally:
            await worker.stop()
            self._workers.discard(worker)
            if not self._workers:
                await self._release()

    async def _release(self) -> None:
        """Has the flows close what they opened for turns; the next worker opens it again."""
        for flow in self._flows.values():
            await flow.runner.close()

    def subscribe(self, session_id: str, only: frozenset[AgentEventType] | None = None) -> Subscription:
        return self._hub.subscribe(session_id, only)

    def unsubscribe(self, session_id: str, subscription: Subscription) -> None:
        self._hub.unsubscribe(session_id, subscription)

    def _new_worker(self, flows: Mapping[str, AgentSessionFlow]) -> EngineWorker:
        if not self._open:
            raise UsageError("the engine is not open; enter it with 'async with open_engine(...) as engine' first")
        if not flows:
            raise UsageError("this engine has no flows to work on; pass flows=[...] to open_engine")
        return self._make_worker(flows)

    @abstractmethod
    def _make_worker(self, flows: Mapping[str, AgentSessionFlow]) -> EngineWorker: ...


@contextmanager
def _signals(on_signal: Callable[[], None]) -> Generator[None]:
    """Has SIGTERM and SIGINT call ``on_signal`` in the event loop, for the length of the block."""
    if threading.current_thread() is not threading.main_thread():
        raise UsageError(
            "serve() waits for signals, which reach the main thread only; use 'async with engine.worker()'"
        )
    loop = asyncio.get_running_loop()
    caught = (signal.SIGTERM, signal.SIGINT)
    for number in caught:
        loop.add_signal_handler(number, on_signal)
    try:
        yield
    finally:
        for number in caught:
            loop.remove_signal_handler(number)


def _by_type(flows: Iterable[AgentSessionFlow]) -> dict[str, AgentSessionFlow]:
    known: dict[str, AgentSessionFlow] = {}
    for flow in flows:
        if flow.flow_type in known:
            raise UsageError(
                f"two flows have the flow_type {flow.flow_type!r}; give each its own", flow_type=flow.flow_type
            )
        known[flow.flow_type] = flow
    return known
