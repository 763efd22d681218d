"""Temporal's ADK integration, client and worker in one process."""
# Its packages are in an environment of its own: the checkers do not see them.
# mypy: disable-error-code="import-not-found"
# pyright: reportMissingImports=false, reportUnknownVariableType=false, reportUnknownMemberType=false
# pyright: reportUnknownArgumentType=false

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

from google.adk.models import LLMRegistry
from temporalio.client import Client, WorkflowHandle
from temporalio.google_adk import GoogleAdkPlugin
from temporalio.worker import Worker

from bench.orders import ScriptedLlm
from bench.peers.child import Places
from bench.peers.course import History
from bench.peers.histories import history_of
from bench.peers.temporal_sessions import SessionWorkflow, lookup

TASK_QUEUE = "peers"


class _Temporal:
    def __init__(self, client: Client) -> None:
        self._client = client
        self._handles: dict[str, WorkflowHandle[Any, None]] = {}

    async def open(self, session_id: str) -> None:
        self._handles[session_id] = await self._client.start_workflow(
            SessionWorkflow.run, id=f"peers-{session_id}", task_queue=TASK_QUEUE
        )

    async def turn(self, session_id: str, text: str) -> str:
        return await self._handles[session_id].execute_update(SessionWorkflow.turn, text)

    async def history(self, session_id: str) -> History | None:
        return await history_of(self._client, f"peers-{session_id}")

    async def end(self) -> None:
        for handle in self._handles.values():
            await handle.terminate()


@asynccontextmanager
async def contender(places: Places) -> AsyncGenerator[_Temporal]:
    assert places.temporal is not None
    LLMRegistry.register(ScriptedLlm)
    client = await Client.connect(places.temporal, plugins=[GoogleAdkPlugin()])
    async with Worker(client, task_queue=TASK_QUEUE, workflows=[SessionWorkflow], activities=[lookup]):
        found = _Temporal(client)
        try:
            yield found
        finally:
            await found.end()
