"""The Temporal engine: sessions are scheduled by workflows, run by workers of any machine, and kept in the store."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Self

from perdure.clock import Clock
from perdure.engine.hosting import HostingEngine
from perdure.engine.temporal.link import TemporalLink, connect
from perdure.engine.temporal.options import TemporalAddress, TemporalOptions
from perdure.engine.temporal.worker import TemporalWorker
from perdure.engine.worker import EngineWorker, WorkerOptions
from perdure.errors import EngineError, SessionNotFound, StoreError
from perdure.ids import IdSource
from perdure.session.runner import AgentSessionFlow
from perdure.store.base import SessionStore

logger = logging.getLogger("perdure.temporal")


class TemporalEngine(HostingEngine):
    """Schedules sessions by workflows; see ``perdure.engine.base.Engine``."""

    def __init__(
        self,
        address: TemporalAddress,
        store: SessionStore,
        flows: Iterable[AgentSessionFlow],
        *,
        clock: Clock,
        ids: IdSource,
        options: WorkerOptions | None = None,
        temporal: TemporalOptions | None = None,
    ) -> None:
        super().__init__(store, flows, clock=clock, ids=ids, options=options)
        self._at = address
        temporal = temporal or TemporalOptions()
        self._temporal = temporal if address.prefix is None else replace(temporal, prefix=address.prefix)
        self._link: TemporalLink | None = None

    @property
    def address(self) -> str:
        return str(self._at)

    def another(self) -> TemporalEngine:
        return TemporalEngine(
            self._at,
            self._store.another(),
            self._flows.values(),
            clock=self._clock,
            ids=self._ids,
            options=self._options,
            temporal=self._temporal,
        )

    async def open(self) -> Self:
        """Opens the store and connects.

        Raises:
            StoreError
            EngineUnavailable, EngineAccessDenied, NamespaceNotFound
            StoreMismatch: the namespace belongs to another store.
        """
        await super().open()
        if self._link is None:
            try:
                store_id = await self._store.store_id()
                self._link = await connect(self._at, self._temporal, store_id, self._store.address)
            except BaseException:
                await self.close()
                raise
        return self

    async def close(self) -> None:
        await super().close()
        self._link = None

    def abandon(self) -> None:
        super().abandon()
        self._link = None

    async def notify(self, session_id: str) -> None:
        if self._link is None:
            return
        try:
            await self._poke(self._link, session_id)
        except (EngineError, StoreError) as error:
            logger.warning(
                "session %s: what was sent is stored, and Temporal does not know of it yet; a worker will tell it: %s",
                session_id,
                error,
            )

    async def _poke(self, link: TemporalLink, session_id: str) -> None:
        try:
            ownership = await self._store.read_ownership(session_id)
        except SessionNotFound:
            await link.end(session_id)  # It was deleted.  Should it be there again by now, a worker will tell Temporal.
        else:
            # Its owner hears of it from the store, and tells the workflow what it makes of it.
            if ownership.owner is None:
                await link.poke(session_id, ownership.flow_type, ownership.fence)

    def _make_worker(self, flows: Mapping[str, AgentSessionFlow]) -> EngineWorker:
        assert self._link is not None
        return TemporalWorker(self._store, self._clock, self._ids, self._hub, flows, self._options, self._link)
