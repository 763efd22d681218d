"""``Stage``: what the body of a case works with: what it says to its sessions, and its workers."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from perdure.client import AgentSessionClient
from perdure.engine.base import Engine
from perdure.faults import FaultPoint
from perdure.session.model import Interrupt, JsonObject, JsonValue
from perdure.session.runner import AgentSessionFlow
from perdure.testing.children import WorkerChild
from perdure.testing.conformance.life import READY, Builder, builder_name, serve, worker_options
from perdure.testing.conformance.target import Target
from perdure.testing.conformance.watch import PATIENCE, Watch, turn_of
from perdure.testing.conformance.world import World

LEASE = 10.0
"""Seconds after which a worker that gives no sign of life may be replaced."""

HEARING_TIME = 1.0
"""Seconds in which a worker of another process has heard of what was accepted, on a slow machine."""


@dataclass(kw_only=True)
class Stage(Watch):
    """One run of one case; ``Watch`` has what it sees.

    Attributes:
        engine: without flows of its own; ``worker`` gives it one.
        notes: what the body wants to have in the recording besides.
    """

    target: Target
    build: Builder
    engine: Engine
    flow: AgentSessionFlow
    notes: JsonObject = field(default_factory=dict[str, Any])

    # ------------------------------------------------------------ sessions

    async def start(self, words: str | None = "go", name: str = "s", **options: Any) -> str | None:
        """Starts a session; ``options`` are those of ``start_session``."""
        return await self.client.start_session(self.session(name), words, **options)

    async def send(self, words: str, name: str = "s", **options: Any) -> str:
        """Sends a message; ``options`` are those of ``send_user_message``."""
        return await self.client.send_user_message(self.session(name), words, **options)

    async def steer(self, words: str, name: str = "s", **options: Any) -> str:
        """Tells the running turn something; ``options`` are those of ``steer_user_message``."""
        return await self.client.steer_user_message(self.session(name), words, **options)

    async def heard(self) -> None:
        """Gives a worker of another process the time to hear of what was accepted: nothing else shows that it has."""
        await asyncio.sleep(HEARING_TIME)

    async def decide(self, interrupt: Interrupt, approved: bool, name: str = "s", **options: Any) -> Interrupt:
        """Approves or rejects; ``options`` are those of ``resolve_interrupt``."""
        return await self.client.resolve_interrupt(
            self.session(name), interrupt.interrupt_id, approved=approved, **options
        )

    async def answer(self, interrupt: Interrupt, value: JsonValue, name: str = "s", **options: Any) -> Interrupt:
        """Answers a question; ``options`` are those of ``answer_question``."""
        return await self.client.answer_question(self.session(name), interrupt.interrupt_id, value, **options)

    # ------------------------------------------------------------ workers

    @asynccontextmanager
    async def worker(self, variant: str = "") -> AsyncGenerator[None]:
        """A worker in this process, with the code of a variant."""
        flow = self.flow if not variant else self.build(World(self.world.folder, self.world.flow_type, variant))
        async with self.engine.worker(flow):
            yield

    def process(self, *, variant: str = "", lease: float = LEASE, fault: FaultPoint | None = None) -> WorkerChild:
        """A worker process, to be entered; see ``up``."""
        builder, world = builder_name(self.build), self.world
        arguments = (self.target.to_json(), builder, str(world.folder), world.flow_type, variant, lease)
        return WorkerChild.of(serve, *arguments, fault=fault)

    async def up(self, process: WorkerChild) -> None:
        """Waits until the worker of a process is ready."""
        await process.wait_for_async(READY, timeout=PATIENCE)

    @asynccontextmanager
    async def elsewhere(self) -> AsyncGenerator[AgentSessionClient]:
        """A client with an engine of its own, as another process has it."""
        async with self.target.open([], worker_options(LEASE)) as engine:
            yield AgentSessionClient(engine, self.flow)


__all__ = ["LEASE", "PATIENCE", "Stage", "turn_of"]
