"""The worker of the local engine: claims sessions that are due in the store."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence

from perdure.clock import Clock
from perdure.engine.actor import SessionActor
from perdure.engine.feed import FeedHub
from perdure.engine.membership import set_within
from perdure.engine.worker import EngineWorker, WorkerOptions
from perdure.errors import LeaseLost
from perdure.ids import IdSource
from perdure.session.runner import AgentSessionFlow
from perdure.store.base import Change, ClaimedSession, SessionStore

CLAIM_BATCH = 4
"""Sessions taken in one go.  Small, so that a busy worker leaves the rest to an idle one."""


class ClaimingWorker(EngineWorker):
    """Claims what is due, oldest first, as far as there is room."""

    def __init__(
        self,
        store: SessionStore,
        clock: Clock,
        ids: IdSource,
        hub: FeedHub,
        flows: Mapping[str, AgentSessionFlow],
        options: WorkerOptions,
    ) -> None:
        super().__init__(store, clock, ids, hub, flows, options)
        self._work = asyncio.Event()
        """There may be something to claim, or another deadline to wait for."""
        self._unsure: str | None = None
        """Worker id of a claim that failed, and may be on disk all the same: then nobody runs what it took."""

    async def _begin(self) -> Sequence[asyncio.Task[None]]:
        return [self._keep("claiming sessions", self._claim_due)]

    def _may_take(self) -> None:
        self._work.set()

    async def _give_back(self) -> None:
        await self._free_unheld()

    # ------------------------------------------------------------ claims

    async def _claim_due(self) -> None:
        """Waits until there may be something to claim, and claims whatever is due."""
        await self._wait_for_work()
        worker_id = await self._membership.worker_id()
        self._work.clear()
        try:
            await self._free_unheld()
            while await self._claim_some(worker_id):
                pass
        except LeaseLost:
            self._membership.lose()
        except BaseException:
            self._work.set()
            raise

    async def _claim_some(self, worker_id: str) -> bool:
        """Claims a few sessions.  ``True``: there may be more, and there is room for them."""
        limit = min(CLAIM_BATCH, self._crew.room)
        if limit <= 0:
            return False
        self._unsure = worker_id
        with self._crew.taking():
            claimed = await self._store.claim(worker_id, tuple(self._flows), limit, self._clock.now_ms())
            for session in claimed:
                self._adopt(session)
        self._unsure = None
        # Let the sessions make a step first: under load this leaves the rest to less busy workers.
        await asyncio.sleep(0)
        return len(claimed) == limit

    async def _free_unheld(self) -> None:
        """Frees what a claim may have taken whose answer did not come."""
        if self._unsure is not None:
            await self._store.free_unheld(self._unsure, self._crew.held, self._clock.now_ms())
            self._unsure = None

    async def _wait_for_work(self) -> None:
        """Waits for a change of the store, or for the next deadline of a session that nobody owns."""
        if self._work.is_set():
            return
        wake_at_ms = await self._store.next_wake_ms(tuple(self._flows))
        delay = None if wake_at_ms is None else max(0, wake_at_ms - self._clock.now_ms() + 1) / 1000
        await set_within(self._work, delay)

    def _changed(self, change: Change) -> None:
        if not change.work:
            return
        self._crew.poke(change.sessions)
        if not change.sessions or not self._crew.sees(change.sessions):
            self._work.set()

    def _adopt(self, claimed: ClaimedSession) -> None:
        flow, definition = self._flows[claimed.flow_type], self._definitions[claimed.flow_type]
        self._crew.adopt(
            SessionActor(
                self._store, self._clock, self._hub, flow, definition, claimed, began_to_linger=self._crew.rests
            )
        )
