"""What the field tests share: a database in a folder, flows over real ADK agents on it, and eyes for what came of it.

Everything that a tool does to the world is a line of ``world.txt`` in the folder, so that a test counts it over all
processes and all their lives.
"""

from __future__ import annotations

import asyncio
import json
import os
import sqlite3
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager, closing
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

from google.adk.agents import LlmAgent
from google.adk.models.llm_request import LlmRequest
from google.genai import types

from perdure import (
    AgentEvent,
    AgentEventType,
    AgentSessionClient,
    AgentSessionFlow,
    AgentSnapshot,
    Engine,
    Message,
    RetryPolicy,
    SessionStatus,
    StepRecord,
    ToolEffect,
    ToolPolicy,
    TurnInfo,
    WorkerOptions,
    open_engine,
)
from perdure.adk import adk_agent_session_flow
from perdure.testing import LoggedRequest, ScriptedModel, read_request_log
from perdure.testing.script import Script

FLOW = "Field"
SESSION = "s"
PATIENCE = 30.0
"""Seconds that a test waits for what must happen; long, because a machine may be busy."""

AT_ONCE = RetryPolicy(first_delay=timedelta(0))
READ = ToolPolicy(ToolEffect.READ, retry=AT_ONCE)
IDEMPOTENT = ToolPolicy(ToolEffect.IDEMPOTENT_WRITE, retry=AT_ONCE)
ONCE = ToolPolicy(ToolEffect.NON_IDEMPOTENT_WRITE, requires_approval=False)
ASKED = ToolPolicy(ToolEffect.READ, requires_approval=True)

Tools = Sequence[Any]


@dataclass(frozen=True)
class Field:
    """A folder with a database, the world file and the model's request log."""

    folder: Path

    @property
    def address(self) -> str:
        return f"sqlite:///{self.folder / 'field.db'}"

    def model(self, script: Script) -> ScriptedModel:
        """A scripted model whose requests are in the folder, whoever makes them."""
        return ScriptedModel(script, log=self.folder / "requests.jsonl")

    def agent(self, script: Script, tools: Tools = (), **options: Any) -> LlmAgent:
        settings: dict[str, Any] = {"name": "helper", "instruction": "Help.", "tools": list(tools), **options}
        return LlmAgent(model=self.model(script), **settings)

    def flow(
        self, script: Script, tools: Tools = (), policies: Mapping[str, ToolPolicy] | None = None, **options: Any
    ) -> AgentSessionFlow:
        """A flow of one agent; ``options`` are those of ``adk_agent_session_flow``."""
        return durable(self.agent(script, tools), policies, **options)

    def engine(self, *flows: AgentSessionFlow, **options: Any) -> Engine:
        """An engine on the database; ``options`` are those of ``WorkerOptions``."""
        given: dict[str, Any] = {"drain_grace": timedelta(seconds=5), **options}
        worker = WorkerOptions(**given)
        return open_engine(self.address, flows=flows, durability="process", options=worker)

    @asynccontextmanager
    async def working(self, flow: AgentSessionFlow, **options: Any) -> AsyncIterator[AgentSessionClient]:
        """A client of the flow, with a worker for it in this process."""
        async with self.engine(flow, **options) as engine, engine.worker():
            yield AgentSessionClient(engine, flow)

    @asynccontextmanager
    async def asking(self, flow: AgentSessionFlow | str = FLOW) -> AsyncIterator[AgentSessionClient]:
        """A client without a worker."""
        async with self.engine() as engine:
            yield AgentSessionClient(engine, flow)

    async def nobody_owns_a_session(self) -> bool:
        """Whether every worker has given up all that it owned."""
        with closing(sqlite3.connect(self.folder / "field.db")) as database:
            (owned,) = database.execute("SELECT count(*) FROM sessions WHERE owner IS NOT NULL").fetchone()
            return not owned

    # ------------------------------------------------------------ the world

    def note(self, *words: object) -> None:
        """What a tool does to the world: one line, on disk when this returns."""
        line = " ".join(map(str, words)) + "\n"
        descriptor = os.open(self.folder / "world.txt", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        try:
            os.write(descriptor, line.encode())
        finally:
            os.close(descriptor)

    @property
    def world(self) -> list[str]:
        path = self.folder / "world.txt"
        return path.read_text().splitlines() if path.exists() else []

    @property
    def requests(self) -> list[LoggedRequest]:
        """The model requests of all processes, oldest first.  (The model itself refuses an invalid history.)"""
        return read_request_log(self.folder / "requests.jsonl")


def durable(
    agent: Any, policies: Mapping[str, ToolPolicy] | None = None, *, flow_type: str = FLOW, **options: Any
) -> AgentSessionFlow:
    """The agent as a flow whose model calls are tried again without a pause."""
    given: dict[str, Any] = {"model_retry": AT_ONCE, **options}
    return adk_agent_session_flow(agent, flow_type=flow_type, tool_policies=policies, **given)


# ---------------------------------------------------------------- talking


async def say(client: AgentSessionClient, words: str, session_id: str = SESSION, **options: Any) -> AgentSnapshot:
    """Starts the session or sends it a message, and waits until it rests."""
    known = {summary.session_id for summary in (await client.list_sessions()).items}
    tell = client.send_user_message if session_id in known else client.start_session
    await tell(session_id, words, **options)
    return await client.wait(session_id, timeout=PATIENCE)


async def at_rest(client: AgentSessionClient, *statuses: SessionStatus, session_id: str = SESSION) -> AgentSnapshot:
    """Waits until the session rests in one of these statuses: a worker may have yet to look at it."""
    found: list[AgentSnapshot] = []

    async def is_so() -> bool:
        found.append(await client.wait(session_id, timeout=PATIENCE))
        return found[-1].status in statuses

    await until(is_so)
    return found[-1]


async def answer_all(client: AgentSessionClient, *, approved: bool = True, **options: Any) -> AgentSnapshot:
    """Answers all that the session waits for, in the same way, and waits until it rests."""
    snapshot = await client.wait(SESSION, timeout=PATIENCE)
    assert snapshot.status is SessionStatus.WAITING
    for interrupt in snapshot.pending_interrupts:
        await client.resolve_interrupt(SESSION, interrupt.interrupt_id, approved=approved, **options)
    return await client.wait(SESSION, timeout=PATIENCE)


async def until(condition: Callable[[], Awaitable[bool]]) -> None:
    """Looks again and again, with patience, until it is so."""
    async with asyncio.timeout(PATIENCE):
        while not await condition():  # noqa: ASYNC110 - what it looks at is in another process, or on disk
            await asyncio.sleep(0.005)


async def steps_of(client: AgentSessionClient, session_id: str = SESSION) -> list[StepRecord]:
    return list((await client.read_step_history(session_id, limit=1000)).items)


async def call_steps(client: AgentSessionClient, session_id: str = SESSION) -> dict[str, StepRecord]:
    """The steps that ran a tool, by tool name (the last one of each)."""
    steps = await steps_of(client, session_id)
    return {step.tool_name: step for step in steps if step.tool_name and step.name.value.startswith("Call")}


async def step_settled(
    client: AgentSessionClient, tool_name: str, session_id: str = SESSION, *, count: int = 1
) -> None:
    """Waits until so many calls of the tool have their record on disk."""

    async def settled() -> bool:
        steps = [s for s in await steps_of(client, session_id) if s.tool_name == tool_name and s.status.settled]
        return len([s for s in steps if s.name.value.startswith("Call")]) >= count

    await until(settled)


async def messages_of(client: AgentSessionClient, session_id: str = SESSION) -> list[Message]:
    return list((await client.list_messages(session_id, limit=1000)).items)


async def conversation(client: AgentSessionClient, session_id: str = SESSION) -> list[str]:
    """One line a message: who, and what it says, calls or answers."""
    return [
        f"{message.role.value}: {message.text or message.tool_name or '...'}"
        for message in await messages_of(client, session_id)
    ]


async def events_until(
    client: AgentSessionClient, kind: AgentEventType, session_id: str = SESSION, *, after: str | None = None
) -> list[AgentEvent]:
    """The live stream from a cursor to the first event of a kind."""
    events: list[AgentEvent] = []
    async with asyncio.timeout(PATIENCE):
        async for event in client.stream_events(session_id, after=after):
            events.append(event)
            if event.type is kind:
                break
    return events


def turn_of(snapshot: AgentSnapshot) -> TurnInfo:
    assert snapshot.turn is not None
    return snapshot.turn


# ---------------------------------------------------------------- what the model sees


def answers_in(request: LlmRequest | LoggedRequest) -> dict[str, Any]:
    """Function responses of a request, by tool name."""
    return {response.name or "": response.response for response in _responses(request.contents)}


def answers_by_id(request: LlmRequest | LoggedRequest) -> dict[str, Any]:
    """Function responses of a request, by call id."""
    return {response.id or "": response.response for response in _responses(request.contents)}


def prompt(request: LlmRequest | LoggedRequest) -> list[str]:
    """A request's history, one line a part."""
    return [line for content in request.contents for line in _lines(content)]


def _lines(content: types.Content) -> Iterable[str]:
    for part in content.parts or ():
        if part.function_call is not None:
            yield f"{content.role} calls {part.function_call.name}"
        elif part.function_response is not None:
            yield f"{content.role} answers {part.function_response.name} {json.dumps(part.function_response.response)}"
        else:
            yield f"{content.role} says {part.text}"


def _responses(contents: Iterable[types.Content]) -> Iterable[types.FunctionResponse]:
    for content in contents:
        for part in content.parts or ():
            if part.function_response is not None:
                yield part.function_response
