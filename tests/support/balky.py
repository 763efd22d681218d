"""A store that fails, holds back its answers, and counts, where a test wants it to."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import cast

from perdure import AgentSessionFlow, WorkerOptions
from perdure.clock import Clock, SystemClock
from perdure.engine.local import LocalEngine
from perdure.ids import RandomIds
from perdure.store.base import SessionStore
from perdure.store.sqlite import SqliteStore


@dataclass
class Hold:
    """Answers that are held back: the store has done what it was asked, and nobody hears of it yet."""

    reached: asyncio.Event = field(default_factory=asyncio.Event)
    free: asyncio.Event = field(default_factory=asyncio.Event)


class BalkyStore:
    """Stands before a ``SqliteStore``.  Use ``store`` where a ``SessionStore`` is wanted."""

    def __init__(self, path: Path, *, busy_timeout: float = 10.0) -> None:
        self.real = SqliteStore(path, durability="process", busy_timeout=busy_timeout)
        self.calls: Counter[str] = Counter()
        self.failures: dict[str, list[Exception]] = {}
        """By method: raised instead of a call, one after the other."""
        self.lost_answers: dict[str, list[Exception]] = {}
        """By method: raised although the call was carried out, one after the other."""
        self.broken: dict[str, Exception] = {}
        """By method: raised at each call, as long as it is here."""
        self.holds: dict[str, Hold] = {}
        """By method."""

    @property
    def store(self) -> SessionStore:
        return cast("SessionStore", self)

    def __getattr__(self, name: str) -> object:
        found = getattr(self.real, name)
        if not asyncio.iscoroutinefunction(found):
            return found
        return self._wrapped(name, found)

    def _wrapped(self, name: str, method: Callable[..., Awaitable[object]]) -> Callable[..., Awaitable[object]]:
        async def call(*args: object, **kwargs: object) -> object:
            self.calls[name] += 1
            if self.failures.get(name):
                raise self.failures[name].pop(0)
            if name in self.broken:
                raise self.broken[name]
            result = await method(*args, **kwargs)
            if self.lost_answers.get(name):
                raise self.lost_answers[name].pop(0)
            hold = self.holds.get(name)
            if hold is not None:
                hold.reached.set()
                await hold.free.wait()
            return result

        return call

    def engine(
        self, *flows: AgentSessionFlow, options: WorkerOptions | None = None, clock: Clock | None = None
    ) -> LocalEngine:
        return LocalEngine(self.store, flows, clock=clock or SystemClock(), ids=RandomIds(), options=options)
