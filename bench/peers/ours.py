"""perdure, client and worker in one process, on whatever servers the course has."""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

from bench.orders import USER, lookup
from bench.peers.child import Places
from bench.peers.course import History
from bench.workload import orders_flow
from perdure import AgentSessionClient, TurnStatus, open_engine

TURN_SECONDS = 300
MESSAGES_OF_A_TURN = 4
"""The user's, the model's call, the call's result, and the answer."""


class _Perdure:
    def __init__(self, client: AgentSessionClient, temporal: str | None) -> None:
        self._client = client
        self._temporal = temporal
        self._turns = Counter[str]()

    async def open(self, session_id: str) -> None:
        await self._client.start_session(session_id, user_id=USER)

    async def turn(self, session_id: str, text: str) -> str:
        await self._client.send_user_message(session_id, text)
        snapshot = await self._client.wait(session_id, timeout=TURN_SECONDS)
        assert snapshot.turn is not None
        assert snapshot.turn.status is TurnStatus.COMPLETED, snapshot
        self._turns[session_id] += 1
        before_answer = self._turns[session_id] * MESSAGES_OF_A_TURN - 2
        (answer,) = (await self._client.list_messages(session_id, after=str(before_answer), limit=2)).items
        return answer.text

    async def history(self, session_id: str) -> History | None:
        if self._temporal is None:
            return None
        from temporalio.client import Client

        from bench.peers.histories import history_of

        return await history_of(await Client.connect(self._temporal), f"perdure-session-{session_id}")


@asynccontextmanager
async def contender(places: Places) -> AsyncGenerator[_Perdure]:
    store = places.postgres or f"sqlite:///{places.folder}/perdure.db"
    flow = orders_flow([lookup])
    if places.temporal is None:
        engine = open_engine(store, flows=[flow])
    else:
        engine = open_engine(f"temporal://{places.temporal}/default", store=store, flows=[flow])
    async with engine, engine.worker():
        yield _Perdure(AgentSessionClient(engine, flow), places.temporal)
