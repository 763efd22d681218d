"""A gate at which a scripted model stops until a test lets it go on.

It takes the place of sleeps: a test waits until the model call is really under way, does what it came for (kill the
worker, send another message), and opens the gate.  Imports nothing of ours.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, eq=False)
class _Waiter:
    ready: Callable[[], bool]
    loop: asyncio.AbstractEventLoop
    future: asyncio.Future[None]


class Gate:
    """Holds replies back until it is opened; see ``Reply.held``.

    It may be used from any thread and from several event loops at once, so it also works with a ``GeminiServer``, which
    has a thread of its own.  Once open it stays open.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._open = False
        self._arrived = 0
        self._waiters: list[_Waiter] = []

    @property
    def arrived(self) -> int:
        """How many replies have come to this gate, whether they still wait or not."""
        with self._lock:
            return self._arrived

    def open(self) -> None:
        """Lets all replies go, those that wait and those still to come.  Opening twice is no error."""
        with self._lock:
            self._open = True
        self._wake()

    async def wait_arrived(self, count: int = 1) -> None:
        """Returns when ``count`` replies have come to the gate; at once if they have already."""
        await self._wait(lambda: self._arrived >= count)

    async def pass_through(self) -> None:
        """What a reply does here: says that it has come, and waits until the gate is open."""
        with self._lock:
            self._arrived += 1
        self._wake()
        await self._wait(lambda: self._open)

    async def _wait(self, ready: Callable[[], bool]) -> None:
        loop = asyncio.get_running_loop()
        waiter = _Waiter(ready, loop, loop.create_future())
        with self._lock:
            if ready():
                return
            self._waiters.append(waiter)
        try:
            await waiter.future
        finally:
            with self._lock:
                if waiter in self._waiters:
                    self._waiters.remove(waiter)

    def _wake(self) -> None:
        with self._lock:
            ready = [waiter for waiter in self._waiters if waiter.ready()]
            self._waiters = [waiter for waiter in self._waiters if waiter not in ready]
        for waiter in ready:
            waiter.loop.call_soon_threadsafe(_settle, waiter.future)

    def __deepcopy__(self, memo: dict[int, object]) -> Gate:
        return self


def _settle(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)
