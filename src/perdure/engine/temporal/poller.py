"""A worker of Temporal's SDK that is made anew when it fails."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from datetime import timedelta

from temporalio.worker import Worker

from perdure.engine.trouble import pause_after

PATIENCE = timedelta(seconds=5)
"""How long a worker may take to shut down.  One whose own tasks were cut off, with all of its loop, never does."""


class Poller:
    """Polls one task queue from now on until it is stopped.

    Args:
        make: makes a worker of the SDK; it serves once.
        met: is told why one failed: its namespace is gone, or its credentials are.
    """

    def __init__(self, make: Callable[[], Worker], met: Callable[[Exception], None]) -> None:
        self._make = make
        self._met = met
        self._worker: Worker | None = None
        self._polling = asyncio.create_task(self._poll(), name="perdure polling")

    async def stop(self) -> None:
        """Asks for no more; what is under way is cancelled, or over by now."""
        ends: list[asyncio.Task[None]] = [self._polling]
        if self._worker is not None:
            ends.append(asyncio.create_task(self._worker.shutdown(), name="perdure end of polling"))
            await asyncio.wait(ends, timeout=PATIENCE.total_seconds(), return_when=asyncio.FIRST_COMPLETED)
        for end in ends:
            end.cancel()
        await asyncio.gather(*ends, return_exceptions=True)

    async def _poll(self) -> None:
        failures = 0
        while True:
            self._worker = self._make()
            try:
                await self._worker.run()
            except Exception as error:  # noqa: BLE001 - whatever it is, it may be over the next time
                self._worker = None
                failures += 1
                self._met(error)
                await asyncio.sleep(pause_after(failures))
            else:
                return
