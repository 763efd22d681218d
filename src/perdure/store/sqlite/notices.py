"""How a store hears of other processes' writes: signals, and a slow poll behind them.

Lives in the event loop; only ``send`` is called from the writer's thread.
"""

from __future__ import annotations

import asyncio
import logging
import sqlite3
from collections.abc import Callable
from pathlib import Path

from perdure.store.base import Change
from perdure.store.sql.changes import ANYTHING
from perdure.store.sqlite.schema import Database
from perdure.store.sqlite.signals import Signals, default_run_dir

SAFETY_POLL = 1.0
"""Seconds between looks while signals work: for a datagram that was dropped, or a process that cannot send."""

FALLBACK_POLL = 0.25
"""Seconds between looks while they do not."""

logger = logging.getLogger(__name__)


class Notices:
    """Tells the store what other processes changed."""

    def __init__(
        self,
        database: Database,
        run_dir: Path | None,
        name: str,
        loop: asyncio.AbstractEventLoop,
        tell: Callable[[Change], None],
    ) -> None:
        self._loop = loop
        self._tell = tell
        self._database = database
        self._run_dir = run_dir or default_run_dir(database.path)
        self._name = name
        self._connection: sqlite3.Connection | None = None
        self._version = 0
        self._poll: asyncio.Task[None] | None = None
        self._signals: Signals | None = None

    @property
    def poll_every(self) -> float:
        """Seconds between two looks."""
        return FALLBACK_POLL if self._signals is None else SAFETY_POLL

    def start(self) -> None:
        """Starts to listen: from here on no change is missed.

        Raises:
            sqlite3.Error: the database cannot be opened.
        """
        self._connection = self._database.reader()
        self._connection.execute("PRAGMA busy_timeout = 0")  # It is used in the event loop.
        self._look()
        self._bind()
        self._poll = self._loop.create_task(self._keep_polling(), name="perdure-store-poll")

    def _bind(self) -> None:
        try:
            signals = Signals(self._run_dir, self._name)
        except OSError as error:
            logger.warning(
                "wake-ups between processes go without sockets (%s: %s): this one looks for changes every %g ms",
                self._run_dir,
                error,
                1000 * FALLBACK_POLL,
            )
            return
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
        """Lets go of the socket and the connection."""
        self._unbind()
        if self._connection is not None:
            self._connection.close()
            self._connection = None

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
            if self._look():
                self._tell(ANYTHING)

    def _look(self) -> bool:
        """Whether the database changed since the last look.  A few microseconds; no disk access."""
        assert self._connection is not None
        before = self._version
        try:
            (self._version,) = self._connection.execute("PRAGMA data_version").fetchone()
        except sqlite3.Error:
            return True  # Whoever is told looks, and meets the same error where it can be reported.
        return before != self._version
