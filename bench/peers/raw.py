"""Raw ADK, its sessions in memory: what all others are compared with."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

from google.adk.runners import Runner
from google.adk.sessions import InMemorySessionService

from bench.orders import FLOW_TYPE, USER, lookup, orders_agent
from bench.peers.child import Places
from bench.peers.course import History
from bench.peers.plain import last_text


class _Raw:
    def __init__(self) -> None:
        self._runner = Runner(
            app_name=FLOW_TYPE, agent=orders_agent([lookup]), session_service=InMemorySessionService()
        )

    async def open(self, session_id: str) -> None:
        await self._runner.session_service.create_session(app_name=FLOW_TYPE, user_id=USER, session_id=session_id)

    async def turn(self, session_id: str, text: str) -> str:
        return await last_text(self._runner, session_id, text)

    async def history(self, session_id: str) -> History | None:
        return None


@asynccontextmanager
async def contender(places: Places) -> AsyncGenerator[_Raw]:
    yield _Raw()
