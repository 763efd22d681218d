"""Follows a turn on the live stream until it ends or waits, and yields ADK's events.  Leaving stops nothing."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing, suppress

from google.adk.events.event import Event

from perdure.adk.native.turn_events import TurnEvents
from perdure.client import AgentSessionClient
from perdure.client.sessions import WATCH_INTERVAL
from perdure.errors import TurnNotFound
from perdure.session.model import AgentEvent, SessionStatus

_AHEAD = 64
"""Events that are read ahead of whoever takes them."""


async def follow(
    sessions: AgentSessionClient,
    session_id: str,
    turn_id: str,
    reader: TurnEvents,
    *,
    after: str | None,
    abort_signal: asyncio.Event | None = None,
) -> AsyncGenerator[Event, None]:
    """The turn's events, as ``reader`` makes them out of the stream behind the cursor ``after``.

    Args:
        abort_signal: when it is set the turn is cancelled.

    Raises:
        Exception: what the turn failed with.
        SessionNotFound: the session was deleted.
        EventCursorExpired: the reader fell behind further than the stream is kept.
    """
    stream: asyncio.Queue[AgentEvent | None] = asyncio.Queue(_AHEAD)
    tasks = [asyncio.create_task(_pump(sessions, session_id, after, stream), name=f"perdure follow {turn_id}")]
    if abort_signal is not None:
        tasks.append(asyncio.create_task(_cancel_when(abort_signal, sessions, session_id, turn_id)))
    try:
        while not reader.over:
            for event in await _next_events(stream, sessions, session_id, turn_id, reader):
                yield event
            if stream.empty() and tasks[0].done():
                tasks[0].result()  # it ends only with an error
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    if reader.failure is not None:
        raise reader.failure


async def _next_events(
    stream: asyncio.Queue[AgentEvent | None],
    sessions: AgentSessionClient,
    session_id: str,
    turn_id: str,
    reader: TurnEvents,
) -> list[Event]:
    """What follows from the next agent event.  When it is quiet: whether the turn waits, without having said so."""
    with suppress(TimeoutError):
        async with asyncio.timeout(WATCH_INTERVAL.total_seconds()):
            shown = await stream.get()
        return [] if shown is None else reader.take(shown)
    snapshot = await sessions.get_agent_snapshot(session_id)
    ours = snapshot.turn is not None and snapshot.turn.turn_id == turn_id
    if not stream.empty():
        return []
    if snapshot.status is SessionStatus.WAITING and ours:
        return reader.suspend(snapshot.pending_interrupts)
    if snapshot.status is SessionStatus.IDLE and not ours and snapshot.queued_messages == 0:
        reader.over = True  # an identical answer, given elsewhere at the same time, started a turn; ours starts none
    return []


async def _pump(
    sessions: AgentSessionClient, session_id: str, after: str | None, into: asyncio.Queue[AgentEvent | None]
) -> None:
    try:
        async with aclosing(sessions.stream_events(session_id, after=after)) as events:
            async for event in events:
                await into.put(event)
    finally:
        with suppress(asyncio.QueueFull):
            into.put_nowait(None)  # whoever waits for more looks why there is none


async def _cancel_when(signal: asyncio.Event, sessions: AgentSessionClient, session_id: str, turn_id: str) -> None:
    await signal.wait()
    with suppress(TurnNotFound):  # it has ended
        await sessions.cancel_turn(session_id, turn_id=turn_id)
