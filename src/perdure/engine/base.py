"""What an engine offers: a store, the live stream, and workers.  ``open_engine`` picks the engine by its address."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractAsyncContextManager
from types import TracebackType
from typing import Protocol, Self

from perdure.clock import Clock
from perdure.engine.feed import Subscription
from perdure.ids import IdSource
from perdure.session.model import AgentEventType
from perdure.session.runner import AgentSessionFlow
from perdure.store.base import SessionStore


class Engine(Protocol):
    """Schedules sessions and steps.  Use it as an async context manager; it is opened on entering."""

    @property
    def address(self) -> str: ...

    @property
    def store(self) -> SessionStore: ...

    @property
    def clock(self) -> Clock: ...

    @property
    def ids(self) -> IdSource: ...

    @property
    def flows(self) -> Mapping[str, AgentSessionFlow]:
        """The flows that this process knows, by flow type."""
        ...

    async def open(self) -> Self:
        """Opens the store.  Raises: StoreError (a kind of it)."""
        ...

    async def close(self) -> None: ...

    def abandon(self) -> None:
        """Lets go of the store although the event loop in which the engine was opened is gone.  Blocks.

        For others its workers have died with that loop.
        """
        ...

    async def __aenter__(self) -> Self: ...

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...

    def worker(self, *flows: AgentSessionFlow) -> AbstractAsyncContextManager[None]:
        """Runs a worker for the length of the block; on leaving it drains.

        Args:
            flows: what it works on, whether or not the engine was opened with them; none: all that it was opened with.

        Raises:
            UsageError: the engine is not open, or there are no flows, or two have the same type.
        """
        ...

    async def serve(self, *, ready: Callable[[], None] | None = None) -> None:
        """Runs a worker until SIGTERM or SIGINT, then drains; a second signal stops at once.

        Args:
            ready: called once the worker is up.

        Raises:
            UsageError: the engine has no flows, or this is not the main thread, which alone hears of signals.
        """
        ...

    async def notify(self, session_id: str) -> None:
        """Says that a client's write to a session is on disk, so that whoever works on the session looks at it.

        Never raises for an engine that cannot be reached: what is on disk is found all the same, only later.
        """
        ...

    def subscribe(self, session_id: str, only: frozenset[AgentEventType] | None = None) -> Subscription:
        """Watches the live stream of a session in this process.  End it with ``unsubscribe``.

        Args:
            only: the types of the events to watch for; ``None``: all.
        """
        ...

    def unsubscribe(self, session_id: str, subscription: Subscription) -> None: ...
