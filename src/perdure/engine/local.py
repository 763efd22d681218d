"""The local engine: any number of worker processes that share one store."""

from __future__ import annotations

from collections.abc import Mapping

from perdure.engine.claiming import ClaimingWorker
from perdure.engine.hosting import HostingEngine
from perdure.engine.worker import EngineWorker
from perdure.session.runner import AgentSessionFlow


class LocalEngine(HostingEngine):
    """Schedules sessions by claims in the store; see ``perdure.engine.base.Engine``."""

    @property
    def address(self) -> str:
        return self._store.address

    async def notify(self, session_id: str) -> None:
        """Nothing: the store itself tells of its changes."""

    def _make_worker(self, flows: Mapping[str, AgentSessionFlow]) -> EngineWorker:
        return ClaimingWorker(self._store, self._clock, self._ids, self._hub, flows, self._options)
