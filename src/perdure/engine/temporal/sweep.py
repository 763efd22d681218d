"""Makes good what got lost between the store and Temporal: a client that died before it signalled, a workflow that was
ended by hand, a worker that died without a step under way.

What a worker of the local engine would claim is what a sweep tells Temporal of.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from datetime import timedelta

from perdure.clock import Clock
from perdure.engine.membership import set_within
from perdure.engine.temporal.host import HostedSession
from perdure.engine.temporal.link import TemporalLink
from perdure.store.base import SessionStore

INTERVAL = timedelta(seconds=2)
"""Between two sweeps; also how long something must have been due before it counts as forgotten."""

AGAIN = timedelta(seconds=10)
"""After this long a session that is still due is told of once more."""

BATCH = 200
"""Sessions of a flow in one sweep."""


class Sweep:
    """Looks every few seconds.

    Args:
        hosts: the sessions that this worker has.
        abandon: gives one of them up.
        unwanted: does so if it has no workflow.
    """

    def __init__(
        self,
        store: SessionStore,
        clock: Clock,
        link: TemporalLink,
        flow_types: tuple[str, ...],
        hosts: Mapping[str, HostedSession],
        abandon: Callable[[HostedSession], None],
        unwanted: Callable[[HostedSession], None],
    ) -> None:
        self._store = store
        self._clock = clock
        self._link = link
        self._flow_types = flow_types
        self._hosts = hosts
        self._abandon = abandon
        self._unwanted = unwanted
        self._hurry = asyncio.Event()
        self._told: dict[tuple[str, int], int] = {}
        """When a session was told of, by its id and fence."""

    def hurry(self) -> None:
        """Sessions became free whose owner died: sweep now."""
        self._hurry.set()

    async def once(self) -> None:
        """Waits for the next sweep, and makes it.

        Raises:
            StoreError, EngineError
        """
        await set_within(self._hurry, INTERVAL.total_seconds())
        freed = self._hurry.is_set()
        self._hurry.clear()
        now = self._clock.now_ms()
        for host in list(self._hosts.values()):
            if host.waits_in_vain(now):
                self._abandon(host)  # It will be due, and told of.
            elif host.runs_unheeded(now):
                self._unwanted(host)
        for flow_type in self._flow_types:
            before = now if freed else now - _ms(INTERVAL)
            for due in await self._store.list_due(flow_type, before, BATCH):
                await self._tell(due.session_id, flow_type, due.fence, now)

    async def _tell(self, session_id: str, flow_type: str, fence: int, now: int) -> None:
        self._told = {known: at for known, at in self._told.items() if now - at < _ms(AGAIN)}
        if (session_id, fence) not in self._told:
            await self._link.poke(session_id, flow_type, fence)
            self._told[session_id, fence] = now


def _ms(span: timedelta) -> int:
    return round(span.total_seconds() * 1000)
