"""Following a session's live stream until the session rests; and where the stream begins and ends for now."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import aclosing
from datetime import timedelta
from typing import Protocol

from perdure.client import AgentSessionClient
from perdure.engine.base import Engine
from perdure.errors import EventCursorExpired
from perdure.session.model import AgentEvent, AgentEventType, AgentSnapshot, Message, SessionStatus
from perdure.store.base import SessionStore

_PAGE = 500

VERDICT_LIMIT = timedelta(seconds=10)
"""How long ``verdict`` waits."""


class Watcher(Protocol):
    """Whoever is shown a session."""

    def event(self, event: AgentEvent) -> None:
        """Any event but a message."""
        ...

    def message(self, message: Message) -> None:
        """A message that is stored now.  What was streamed of its text was shown before."""
        ...


class Follower:
    """Shows a session's events from a cursor on; each ``until_rest`` goes on where the one before ended."""

    def __init__(self, engine: Engine, session_id: str, watcher: Watcher, after: str | None) -> None:
        self._store = engine.store
        self._client = AgentSessionClient(engine)
        self._session_id = session_id
        self._watcher = watcher
        self._cursor = after
        self._end: str | None = None

    async def until_rest(self) -> AgentSnapshot:
        """Shows what comes until the session is idle, waiting, blocked or closed, and all that came before that.

        Raises:
            SessionNotFound: the session was deleted meanwhile.
        """
        self._end = None
        showing = asyncio.create_task(self._show())
        resting = asyncio.create_task(self._client.wait(self._session_id))
        try:
            await asyncio.wait((showing, resting), return_when=asyncio.FIRST_COMPLETED)
            if not showing.done():
                # Now that the session rests, all that led to it is stored.
                self._end = await end_of_stream(self._store, self._session_id, self._cursor)
            if showing.done() or not self._reached_end():
                await showing
            return await resting
        finally:
            for task in (showing, resting):
                task.cancel()
            await asyncio.gather(showing, resting, return_exceptions=True)

    async def until_now(self) -> None:
        """Shows what is stored by now.  Raises: SessionNotFound"""
        self._end = await end_of_stream(self._store, self._session_id, self._cursor)
        if not self._reached_end():
            await self._show()

    def _reached_end(self) -> bool:
        return (self._cursor or "") >= (self._end or "")

    async def _show(self) -> None:
        """Shows events up to the end, once there is one."""
        while True:
            try:
                async with aclosing(self._client.stream_events(self._session_id, after=self._cursor)) as events:
                    async for event in events:
                        await self._show_one(event)
                        self._cursor = event.cursor
                        if self._end is not None and self._reached_end():
                            return
            except EventCursorExpired:
                # More came than the stream keeps; go on with the oldest event that is left.
                self._cursor = None

    async def _show_one(self, event: AgentEvent) -> None:
        if event.type is not AgentEventType.MESSAGE:
            self._watcher.event(event)
            return
        page = await self._client.list_messages(self._session_id, after=_before(event.data["index"]), limit=1)
        for message in page.items:
            self._watcher.message(message)


async def stored_events(store: SessionStore, session_id: str, after: str | None) -> AsyncIterator[AgentEvent]:
    """The events that the store holds behind a cursor.

    Raises:
        SessionNotFound
        UsageError: ``after`` is no cursor.
    """
    while True:
        batch = await store.read_events(session_id, after, _PAGE)
        for event in batch.events:
            yield event
        if len(batch.events) < _PAGE:
            return
        after = batch.events[-1].cursor


async def end_of_stream(store: SessionStore, session_id: str, after: str | None) -> str | None:
    """The cursor of the last stored event; ``after`` when there is none behind it.  Raises as ``stored_events``."""
    async for event in stored_events(store, session_id, after):
        after = event.cursor
    return after


async def behind_last_message(store: SessionStore, session_id: str, turn_id: str) -> str | None:
    """Where to go on with an open turn whose messages one has read: behind its last one.

    A turn without messages is followed from its first event.  Raises as ``stored_events``.
    """
    last: str | None = None
    found: str | None = None
    began = False
    async for event in stored_events(store, session_id, None):
        if event.turn_id == turn_id:
            if not began:
                began, found = True, last
            if event.type is AgentEventType.MESSAGE:
                found = event.cursor
        last = event.cursor
    return found if began else last


async def verdict(engine: Engine, session_id: str, after: str | None) -> None:
    """Waits until a worker has found out whether its code fits a blocked session.

    Args:
        after: the end of the stream before that worker was up; the session says anew that it is blocked.
    """
    client, subscription = AgentSessionClient(engine), engine.subscribe(session_id)
    try:
        async with asyncio.timeout(VERDICT_LIMIT.total_seconds()):
            while (await client.get_agent_snapshot(session_id)).status is SessionStatus.BLOCKED:
                async for event in stored_events(engine.store, session_id, after):
                    if event.type is AgentEventType.SESSION_BLOCKED:
                        return
                await subscription.wake.wait()
                subscription.wake.clear()
    except TimeoutError:
        return  # Then it is blocked for all that one can know.
    finally:
        engine.unsubscribe(session_id, subscription)


def _before(index: int) -> str | None:
    """The page cursor behind which the message ``index`` comes first."""
    return str(index - 1) if index > 0 else None
