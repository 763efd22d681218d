"""How a store hears of other processes' writes: signals, and a slow poll behind them.

Lives in the event loop; only ``send`` is called from the writer's thread.
"""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Callable
from pathlib import Path

from perdure.errors import StoreError
from perdure.store.base import Change
from perdure.store.sqlite.reader import Readers
from perdure.store.sqlite.signals import Signals, default_run_dir

SAFETY_POLL = 1.0
"""Seconds between looks while signals work: for a datagram that was dropped, or a process that cannot send."""

FALLBACK_POLL = 0.25
"""Seconds between looks while they do not."""

ANYTHING = Change(None, True)


class Notices:
    """Tells the store what other processes changed."""

    def __init__(
        self,
        database: Path,
        run_dir: Path | None,
        name: str,
        loop: asyncio.AbstractEventLoop,
        readers: Readers,
        tell: Callable[[Change], None],
    ) -> None:
        self._loop = loop
        self._readers = readers
        self._tell = tell
        self._run_dir = run_dir or default_run_dir(database)
        self._name = name
        self._versions: dict[int, int] = {}
        self._poll: asyncio.Task[None] | None = None
        self._signals: Signals | None = None

    @property
    def poll_every(self) -> float:
        """Seconds between two looks."""
        return FALLBACK_POLL if self._signals is None else SAFETY_POLL

    def start(self) -> None:
        """Starts to listen."""
        self._bind()
        self._poll = self._loop.create_task(self._keep_polling(), name="perdure-store-poll")

    def _bind(self) -> None:
        try:
            signals = Signals(self._run_dir, self._name)
        except OSError:
            return  # Sockets do not work here; the poll does.
        self._loop.add_reader(signals.socket, self._on_signal, signals)
        self._signals = signals

    def _unbind(self) -> None:
        signals, self._signals = self._signals, None
        if signals is not None:
            self._loop.remove_reader(signals.socket)
            signals.close()

    def send(self, change: Change) -> None:
        """Tells the other processes.  Called in the writer's thread."""
        signals = self._signals
        if signals is not None:
            signals.send(change)

    async def stop(self) -> None:
        """Stops to poll; can still send."""
        if self._poll is not None:
            self._poll.cancel()
            await asyncio.gather(self._poll, return_exceptions=True)
            self._poll = None

    def close(self) -> None:
        """Lets go of the socket."""
        self._unbind()

    def _on_signal(self, signals: Signals) -> None:
        change = signals.receive()
        if change is not None:
            self._tell(change)

    async def _keep_polling(self) -> None:
        while True:
            await asyncio.sleep(self.poll_every)
            if self._signals is not None and not self._signals.intact:
                self._unbind()
                self._bind()
            try:
                changed = await self._readers.read(self._look)
            except StoreError:
                changed = True  # Whoever listens will meet the same error and can say so.
            if changed:
                self._tell(ANYTHING)

    def _look(self, connection: sqlite3.Connection) -> bool:
        """Whether the database changed since this connection looked last."""
        (version,) = connection.execute("PRAGMA data_version").fetchone()
        before = self._versions.get(id(connection))
        self._versions[id(connection)] = version
        return before is not None and before != version
