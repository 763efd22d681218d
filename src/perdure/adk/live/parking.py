"""Waiting inside an invocation, and getting out of it when its turn is dropped from memory."""

from __future__ import annotations

import asyncio
from typing import Any, NoReturn, TypeVar

T = TypeVar("T")


class TurnDropped(BaseException):
    """Unwinds the invocation of a turn that is dropped from memory.

    Not an ``Exception`` and not a cancellation, so that neither the application's handlers nor ADK's clean-up callbacks
    take it for something that happened to the agent.
    """


class Parking:
    """Where the code of one invocation waits for the engine."""

    def __init__(self) -> None:
        self.closing = False
        """The turn is being dropped: nobody gets past a seam any more."""
        self.tasks: set[asyncio.Task[Any]] = set()
        """Those that wait here."""

    def guard(self) -> None:
        """Stops the caller if its turn is being dropped.

        Raises:
            TurnDropped: it is.
        """
        if self.closing:
            raise TurnDropped

    async def wait(self, future: asyncio.Future[T]) -> T:
        """Waits for ``future``.  A cancellation that comes of dropping the turn becomes ``TurnDropped``."""
        task = asyncio.current_task()
        assert task is not None
        self.tasks.add(task)
        try:
            return await future
        except asyncio.CancelledError:
            self.guard()
            raise
        finally:
            self.tasks.discard(task)

    async def for_ever(self) -> NoReturn:
        """Keeps the caller where it is until the turn is dropped."""
        await self.wait(asyncio.get_running_loop().create_future())
        raise AssertionError("a future that nobody resolves was resolved")
