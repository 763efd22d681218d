"""How long a live turn waits for something that it cannot see coming."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

SECONDS = 1.0
"""By the clock of the event loop."""
HARDLY = 0.05
"""Seconds, too: where all that can be seen speaks against it."""


class Patience:
    """Calls ``over`` when nothing has happened for a while.  ``wait`` and ``stop`` may be called at any time.

    Args:
        seconds: how long a while is; ``None`` for ``SECONDS``.
    """

    def __init__(self, over: Callable[[], None], seconds: float | None = None) -> None:
        self._over = over
        self._seconds = seconds
        self._seen = -1
        self._timer: asyncio.TimerHandle | None = None

    def wait(self, changes: int) -> None:
        """Begins to wait, unless it waits already.  If ``changes`` is another number than before, it begins anew."""
        if self._timer is not None and changes == self._seen:
            return
        self.stop()
        self._seen = changes
        self._timer = asyncio.get_running_loop().call_later(
            SECONDS if self._seconds is None else self._seconds, self._is_over
        )

    def stop(self) -> None:
        """Waits no longer."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _is_over(self) -> None:
        self._timer = None
        self._over()
