"""An engine for tests: a SQLite file in a folder of its own, a worker, and a client."""

from __future__ import annotations

import tempfile
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import timedelta
from os import PathLike
from pathlib import Path
from typing import TypeVar

from perdure.client import MAX_PAGE, AgentSessionClient
from perdure.clock import Clock
from perdure.engine.base import Engine
from perdure.engine.open import open_engine
from perdure.engine.worker import WorkerOptions
from perdure.ids import IdSource
from perdure.session.model import Message, Page, StepRecord
from perdure.session.runner import AgentSessionFlow

T = TypeVar("T")

TEST_OPTIONS = WorkerOptions(drain_grace=timedelta(seconds=5))
"""Options of a test's worker: it does not wait long for a tool that hangs."""


@dataclass(frozen=True, slots=True)
class RunningEngine:
    """An open engine with a worker, and a client for the flow that it was started with."""

    engine: Engine
    sessions: AgentSessionClient


@asynccontextmanager
async def running_engine(
    *flows: AgentSessionFlow,
    folder: str | PathLike[str] | None = None,
    worker: bool = True,
    options: WorkerOptions = TEST_OPTIONS,
    clock: Clock | None = None,
    ids: IdSource | None = None,
) -> AsyncGenerator[RunningEngine]:
    """A real engine on a real SQLite file, for the length of a block::

        async with running_engine(flow) as running:
            await running.sessions.start_session("s", "hello")
            snapshot = await running.sessions.wait("s")

    Enter it again with the same ``folder`` and the sessions go on, as they do after a restart.

    Args:
        flows: what it works on; the client is for the first.  Without any it can only read, send and answer.
        folder: where ``perdure.db`` is kept; ``None`` is a temporary folder that is removed at the end.
        worker: whether to run a worker.
        clock, ids: for tests that fix the time or the ids.
    """
    with tempfile.TemporaryDirectory(prefix="perdure-") as temporary:
        address = f"sqlite:///{Path(folder or temporary) / 'perdure.db'}"
        engine = open_engine(address, flows=flows, durability="process", options=options, clock=clock, ids=ids)
        async with engine:
            running = RunningEngine(engine, AgentSessionClient(engine, flows[0] if flows else None))
            if not (worker and flows):
                yield running
                return
            async with engine.worker():
                yield running


async def read_step_history(sessions: AgentSessionClient, session_id: str) -> list[StepRecord]:
    """Every step of a session, over all pages, in order."""
    return await _all_items(lambda after: sessions.read_step_history(session_id, after=after, limit=MAX_PAGE))


async def read_messages(sessions: AgentSessionClient, session_id: str) -> list[Message]:
    """Every message of a session, over all pages, in order."""
    return await _all_items(lambda after: sessions.list_messages(session_id, after=after, limit=MAX_PAGE))


async def _all_items(read: Callable[[str | None], Awaitable[Page[T]]]) -> list[T]:
    page = await read(None)
    items = list(page.items)
    while page.next_cursor is not None:
        page = await read(page.next_cursor)
        items += page.items
    return items


def step_shape(steps: list[StepRecord]) -> list[str]:
    """The names of steps with their statuses, such as ``CallTool succeeded``: what most tests of a history compare."""
    return [f"{step.name.value} {step.status.value}" for step in steps]
