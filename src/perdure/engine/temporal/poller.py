"""A worker of Temporal's SDK that is made anew when it fails."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from temporalio.worker import Worker

from perdure.engine.trouble import pause_after


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
        if self._worker is not None:
            await self._worker.shutdown()
        self._polling.cancel()
        await asyncio.gather(self._polling, return_exceptions=True)

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
