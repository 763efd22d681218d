"""Places for sessions: a worker that has as many as it takes does not ask Temporal for more."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from temporalio.worker import (
    CustomSlotSupplier,
    FixedSizeSlotSupplier,
    SlotMarkUsedContext,
    SlotPermit,
    SlotReleaseContext,
    SlotReserveContext,
    WorkerTuner,
)

WORKFLOW_TASKS_AT_ONCE = 100


class Places(CustomSlotSupplier):
    """Slots for adoptions.  Those that were asked for before the last place was taken may come too many.

    Args:
        room: for how many more sessions there is room.
    """

    def __init__(self, room: Callable[[], int]) -> None:
        self._room = room
        self._vacancy = asyncio.Event()

    def vacated(self) -> None:
        """There is room again."""
        self._vacancy.set()

    def tuner(self) -> WorkerTuner:
        """For a worker whose activities are adoptions."""
        return WorkerTuner.create_composite(
            workflow_supplier=FixedSizeSlotSupplier(WORKFLOW_TASKS_AT_ONCE),
            activity_supplier=self,
            local_activity_supplier=FixedSizeSlotSupplier(1),
            nexus_supplier=FixedSizeSlotSupplier(1),
        )

    async def reserve_slot(self, ctx: SlotReserveContext) -> SlotPermit:
        while self._room() <= 0:
            self._vacancy.clear()
            await self._vacancy.wait()
        return SlotPermit()

    def try_reserve_slot(self, ctx: SlotReserveContext) -> SlotPermit | None:
        return SlotPermit() if self._room() > 0 else None

    def mark_slot_used(self, ctx: SlotMarkUsedContext) -> None:
        pass

    def release_slot(self, ctx: SlotReleaseContext) -> None:
        pass
