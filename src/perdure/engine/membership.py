"""A worker's place among the others that share the store: registered, under a lease that is renewed, until it leaves.

One that was given up for dead (it stood still, or could not reach the store for too long) owns nothing any more, and
starts anew under another id.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from datetime import timedelta

from perdure.clock import Clock
from perdure.errors import LeaseLost
from perdure.ids import IdSource
from perdure.store.base import SessionStore, Worker

logger = logging.getLogger("perdure.worker")

REAP_INTERVAL = timedelta(milliseconds=150)
"""How often a worker looks whether another one died."""


class Membership:
    """What makes a worker one of the workers.

    Args:
        definitions: flow type -> fingerprint of the code.
        lost: called when the lease was lost.
        registered: called when the worker is registered, for the first time or anew.
        freed: called when the sessions of a dead worker became free.
    """

    def __init__(
        self,
        store: SessionStore,
        clock: Clock,
        ids: IdSource,
        definitions: Mapping[str, str],
        lease: timedelta,
        *,
        lost: Callable[[], None],
        registered: Callable[[], None],
        freed: Callable[[], None],
    ) -> None:
        self._store = store
        self._clock = clock
        self._ids = ids
        self._definitions = definitions
        self._lease_ms = round(lease.total_seconds() * 1000)
        self._tell_lost = lost
        self._tell_registered = registered
        self._tell_freed = freed
        self._worker_id: str | None = None
        self._lost = asyncio.Event()
        self._registered = asyncio.Event()
        self._patient_until_ms = 0.0
        """Until then a lease that ran out says nothing about its worker."""

    async def worker_id(self) -> str:
        """The worker's id, as soon as it has one that counts."""
        await self._registered.wait()
        assert self._worker_id is not None
        return self._worker_id

    async def register(self) -> None:
        """Makes the worker known under a new id.

        Raises:
            StoreError
        """
        worker = Worker(self._ids.new_id(), self._definitions, self._lease_ms)
        await self._store.register_worker(worker, self._clock.now_ms())
        self._worker_id = worker.worker_id
        self._lost.clear()
        self._registered.set()
        self._tell_registered()

    async def renew(self) -> None:
        """Renews the lease when it is time; when it was lost, starts anew."""
        assert self._worker_id is not None
        await set_within(self._lost, self._lease_ms / 4000)
        if not self._lost.is_set():
            try:
                await self._store.renew_worker(self._worker_id, self._clock.now_ms())
            except LeaseLost:
                self.lose()
            else:
                return
        await self._store.unregister_worker(self._worker_id)  # Only this process can let go of its lock.
        await self.register()

    def lose(self) -> None:
        """The worker was given up for dead: its sessions are somebody else's."""
        if not self._lost.is_set():
            logger.warning("worker %s was given up for dead; it starts anew under another id", self._worker_id)
            self._lost.set()
            self._registered.clear()
            self._tell_lost()

    async def look_for_dead(self) -> None:
        """After a while, frees what dead workers own."""
        expected = self._clock.now_ms() + REAP_INTERVAL.total_seconds() * 1000
        await asyncio.sleep(REAP_INTERVAL.total_seconds())
        now = self._clock.now_ms()
        if now > expected + self._lease_ms / 2:
            # This process stood still, perhaps with the whole machine: whoever lives is about to renew its lease.
            self._patient_until_ms = now + self._lease_ms / 2
        if await self._store.reap_workers(now, expired=now >= self._patient_until_ms):
            self._tell_freed()

    async def sign_off(self) -> None:
        """Takes the worker out, and frees what it still owns.  If that fails, others find its lock free and do it.

        Raises:
            StoreError
        """
        if self._worker_id is not None:
            await self._store.unregister_worker(self._worker_id)


async def set_within(event: asyncio.Event, seconds: float | None) -> None:
    """Waits until the event is set, but no longer than ``seconds`` (``None``: as long as it takes)."""
    try:
        async with asyncio.timeout(seconds):
            await event.wait()
    except TimeoutError:
        pass
