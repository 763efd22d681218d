"""Stores and engines that break one promise each.  The suite opens them by name, in every process."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Sequence
from contextlib import closing, suppress
from dataclasses import replace
from pathlib import Path
from unittest.mock import patch

from perdure.clock import SystemClock
from perdure.engine.base import Engine
from perdure.engine.local import LocalEngine
from perdure.engine.worker import WorkerOptions
from perdure.errors import LeaseLost
from perdure.ids import RandomIds
from perdure.session import policy
from perdure.session.model import Message, MessageRole, Page, RecordStatus, UserMessage
from perdure.session.policy import EffectRule, ToolEffect
from perdure.session.runner import AgentSessionFlow
from perdure.store.base import ClaimedSession, EventBatch, InboxItem, Lease, Request, SessionWrite
from perdure.store.opening import sqlite_path
from perdure.store.sqlite import SqliteStore
from perdure.testing.conformance import Target


class DropsRecords(SqliteStore):
    async def commit(self, lease: Lease, write: SessionWrite, now_ms: int) -> None:
        await super().commit(lease, replace(write, records=()), now_ms)


class LosesResults(SqliteStore):
    """What a tool gave is not among the messages."""

    async def list_messages(self, session_id: str, after: int | None, limit: int) -> Page[Message]:
        page = await super().list_messages(session_id, after, limit)
        kept = tuple(message for message in page.items if message.role is not MessageRole.TOOL)
        return page.model_copy(update={"items": kept})


class DoublesEvents(SqliteStore):
    async def read_events(self, session_id: str, after: str | None, limit: int) -> EventBatch:
        batch = await super().read_events(session_id, after, limit)
        return replace(batch, events=(*batch.events[:1], *batch.events))


class SkipsEvents(SqliteStore):
    """Whoever comes back with a cursor misses the next event."""

    async def read_events(self, session_id: str, after: str | None, limit: int) -> EventBatch:
        batch = await super().read_events(session_id, after, limit)
        return replace(batch, events=batch.events[1:]) if after is not None and len(batch.events) > 1 else batch


class ForgetsRequests(SqliteStore):
    async def accept_message(
        self, session_id: str, turn_id: str, message: UserMessage, request: Request, now_ms: int
    ) -> str:
        return await super().accept_message(session_id, turn_id, message, replace(request, request_id=None), now_ms)


class HasNoFence(SqliteStore):
    """A worker that lost a session is not told, and may write all the same."""

    async def renew_worker(self, worker_id: str, now_ms: int) -> None:
        with suppress(LeaseLost):
            await super().renew_worker(worker_id, now_ms)

    async def claim(
        self, worker_id: str, flow_types: Sequence[str], limit: int, now_ms: int
    ) -> Sequence[ClaimedSession]:
        try:
            return await super().claim(worker_id, flow_types, limit, now_ms)
        except LeaseLost:
            return ()

    async def read_inbox(self, lease: Lease, after: int = 0) -> Sequence[InboxItem]:
        return await super().read_inbox(self._of_the_owner(lease), after)

    async def commit(self, lease: Lease, write: SessionWrite, now_ms: int) -> None:
        owned = self._of_the_owner(lease)
        await super().commit(owned, write if owned == lease else replace(write, release=False), now_ms)

    def _of_the_owner(self, lease: Lease) -> Lease:
        with closing(sqlite3.connect(sqlite_path(self.address))) as database:
            query = "SELECT owner, fence FROM sessions WHERE session_id = ?"
            owner, fence = database.execute(query, (lease.session_id,)).fetchone()
        return replace(lease, worker_id=owner, fence=fence)


def _opened(
    store: Callable[..., SqliteStore], target: Target, flows: Sequence[AgentSessionFlow], options: WorkerOptions
) -> Engine:
    clock, ids = SystemClock(), RandomIds()
    path = Path(sqlite_path(target.engine))
    kept = store(path, durability="process", clock=clock, ids=ids)
    return LocalEngine(kept, flows, clock=clock, ids=ids, options=options)


def drops_records(target: Target, flows: Sequence[AgentSessionFlow], options: WorkerOptions) -> Engine:
    return _opened(DropsRecords, target, flows, options)


def loses_results(target: Target, flows: Sequence[AgentSessionFlow], options: WorkerOptions) -> Engine:
    return _opened(LosesResults, target, flows, options)


def doubles_events(target: Target, flows: Sequence[AgentSessionFlow], options: WorkerOptions) -> Engine:
    return _opened(DoublesEvents, target, flows, options)


def skips_events(target: Target, flows: Sequence[AgentSessionFlow], options: WorkerOptions) -> Engine:
    return _opened(SkipsEvents, target, flows, options)


def forgets_requests(target: Target, flows: Sequence[AgentSessionFlow], options: WorkerOptions) -> Engine:
    return _opened(ForgetsRequests, target, flows, options)


def has_no_fence(target: Target, flows: Sequence[AgentSessionFlow], options: WorkerOptions) -> Engine:
    return _opened(HasNoFence, target, flows, options)


def is_right(target: Target, flows: Sequence[AgentSessionFlow], options: WorkerOptions) -> Engine:
    """Breaks none: the same way of opening, so that what is caught is the break."""
    return _opened(SqliteStore, target, flows, options)


REPEATS = {ToolEffect.NON_IDEMPOTENT_WRITE: EffectRule(False, True, RecordStatus.OUTCOME_UNKNOWN)}
repeats_writes = patch.dict(policy.EFFECT_RULES, REPEATS)
"""An engine that tries writes again which it must not repeat; for the length of a block."""
