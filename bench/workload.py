"""The two sides that run the work of ``bench.orders``: raw ADK and perdure, under the same ADK run configuration."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Protocol, Self

from google.adk.agents.run_config import RunConfig
from google.adk.runners import Runner
from google.adk.sessions import InMemorySessionService

from bench.orders import FLOW_TYPE, USER, Tool, lookup, one_lookup, orders_agent, user_content
from bench.store import address_for
from perdure import AgentSessionClient, AgentSessionFlow, ToolEffect, ToolPolicy, TurnStatus, open_engine
from perdure.adk import adk_agent_session_flow
from perdure.store.opening import Durability

READS = ("lookup", "follow", "hold", "read_page", "scan")
POLICIES = {name: ToolPolicy(ToolEffect.READ) for name in READS} | {
    "refund": ToolPolicy(ToolEffect.IDEMPOTENT_WRITE, requires_approval=True)
}


def orders_flow(tools: Sequence[Tool]) -> AgentSessionFlow:
    names = {tool.__name__ for tool in tools}
    return adk_agent_session_flow(
        orders_agent(tools),
        flow_type=FLOW_TYPE,
        tool_policies={name: policy for name, policy in POLICIES.items() if name in names},
        run_config=RunConfig(),
    )


class Side(Protocol):
    """Runs turns; what is measured is ``turn``."""

    async def open(self, session_id: str) -> None:
        """Creates an idle session."""
        ...

    async def turn(self, session_id: str, text: str) -> None:
        """Runs one turn to its end, as the caller of the library sees it."""
        ...


class RawSide:
    """Plain ADK with its sessions in memory."""

    def __init__(self, *tools: Tool) -> None:
        self._runner = Runner(
            app_name=FLOW_TYPE, agent=orders_agent(tools or (lookup,)), session_service=InMemorySessionService()
        )

    async def open(self, session_id: str) -> None:
        await self._runner.session_service.create_session(app_name=FLOW_TYPE, user_id=USER, session_id=session_id)

    async def turn(self, session_id: str, text: str) -> None:
        finished = False
        async for event in self._runner.run_async(
            user_id=USER, session_id=session_id, new_message=user_content(text), run_config=RunConfig()
        ):
            finished = event.is_final_response()
        assert finished


class DurableSide:
    """perdure on a store of its own, with a worker in this process unless ``worker`` is false.

    Args:
        temporal: ``host:port`` of a Temporal server that schedules; ``None``: the local engine does.
    """

    def __init__(
        self,
        path: Path,
        *tools: Tool,
        durability: Durability = "power",
        worker: bool = True,
        temporal: str | None = None,
    ) -> None:
        flow, store = orders_flow(tools or (lookup,)), address_for(path)
        if temporal is None:
            self.engine = open_engine(store, flows=[flow], durability=durability)
        else:
            self.engine = open_engine(
                f"temporal://{temporal}/default", store=store, flows=[flow], durability=durability
            )
        self.client = AgentSessionClient(self.engine, flow)
        self._worker = self.engine.worker() if worker else None

    async def __aenter__(self) -> Self:
        await self.engine.open()
        if self._worker is not None:
            await self._worker.__aenter__()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._worker is not None:
            await self._worker.__aexit__(kind, error, trace)
        await self.engine.close()

    async def open(self, session_id: str) -> None:
        await self.client.start_session(session_id, user_id=USER)

    async def turn(self, session_id: str, text: str) -> None:
        await self.client.send_user_message(session_id, text)
        await self.end_of_turn(session_id)

    async def end_of_turn(self, session_id: str) -> None:
        """Waits for the end of a turn that must succeed."""
        snapshot = await self.client.wait(session_id, timeout=120)
        assert snapshot.turn is not None
        assert snapshot.turn.status is TurnStatus.COMPLETED, snapshot

    async def ask(self, session_id: str, text: str) -> str:
        """Starts a turn that stops at an approval; returns the interrupt's id."""
        await self.client.start_session(session_id, text, user_id=USER)
        return await self.pending(session_id)

    async def pending(self, session_id: str) -> str:
        """Waits until a session waits for its one approval; returns the interrupt's id."""
        snapshot = await self.client.wait(session_id, timeout=120)
        (interrupt,) = snapshot.pending_interrupts
        return interrupt.interrupt_id

    async def approve(self, session_id: str, interrupt_id: str) -> None:
        """Answers the approval, and waits for the end of the turn."""
        await self.client.resolve_interrupt(session_id, interrupt_id, approved=True)
        await self.end_of_turn(session_id)


async def many(side: Side, session_ids: Sequence[str], turns: int) -> None:
    """Runs ``turns`` turns of each session, all sessions at once."""

    async def one(session_id: str) -> None:
        for number in range(turns):
            await side.turn(session_id, one_lookup(number))

    await asyncio.gather(*(one(session_id) for session_id in session_ids))
