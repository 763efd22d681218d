"""The live stream inside one process: what an owner shows, in order, and who watches.

What passes (a text delta, say) is shown at once and stored with the session's next write; every other event is stored
before it is shown (J11).  Order is kept: what comes behind an event that is not stored yet waits for it.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict, deque
from collections.abc import Sequence
from dataclasses import dataclass, field

from perdure.clock import to_datetime
from perdure.session.events import cursor_for
from perdure.session.model import PASSING_EVENTS, AgentEvent, AgentEventType, JsonObject
from perdure.store.base import Change, EventPut

MAX_BEHIND = 1000
"""Events that are kept in memory for one reader."""


@dataclass(frozen=True, slots=True)
class Shown:
    """An event as it is shown.  ``previous``: the cursor before it under the same owner; ``None`` for its first."""

    event: AgentEvent
    previous: str | None


@dataclass(eq=False, slots=True)
class Subscription:
    """What one reader has not taken yet.  One that is far behind loses what is kept here, and finds it in the store.

    Attributes:
        only: the types of the events that the reader wants; ``None``: all.
        wake: set when there are new items, or when the store changed in a way that no item tells of.
        lost: cursor of the last item that was dropped; ``None`` when the reader has come that far.
    """

    only: frozenset[AgentEventType] | None = None
    items: deque[Shown] = field(default_factory=deque[Shown])
    wake: asyncio.Event = field(default_factory=asyncio.Event)
    lost: str | None = None

    def put(self, shown: Shown) -> None:
        if self.only is not None and shown.event.type not in self.only:
            return
        if len(self.items) >= MAX_BEHIND:
            self.lost = self.items[-1].event.cursor
            self.items.clear()
        self.items.append(shown)
        self.wake.set()

    def lacks(self, cursor: str | None) -> bool:
        """Whether a reader that has come to ``cursor`` must find more in the store before it takes the next item."""
        if self.lost is not None and cursor is not None and cursor >= self.lost:
            self.lost = None
        return self.lost is not None


class FeedHub:
    """All readers of one process, by session."""

    def __init__(self) -> None:
        self._readers: dict[str, set[Subscription]] = defaultdict(set)
        self._feeds: dict[str, SessionFeed] = {}

    def subscribe(self, session_id: str, only: frozenset[AgentEventType] | None = None) -> Subscription:
        """A new reader.  It starts with what is shown but not stored yet, so that store and reader leave no gap."""
        subscription = Subscription(only)
        self._readers[session_id].add(subscription)
        feed = self._feeds.get(session_id)
        if feed is not None:
            for shown in feed.shown_not_stored():
                subscription.put(shown)
        return subscription

    def unsubscribe(self, session_id: str, subscription: Subscription) -> None:
        readers = self._readers.get(session_id)
        if readers is not None:
            readers.discard(subscription)
            if not readers:
                del self._readers[session_id]

    def attach(self, feed: SessionFeed) -> None:
        self._feeds[feed.session_id] = feed

    def detach(self, feed: SessionFeed) -> None:
        if self._feeds.get(feed.session_id) is feed:
            del self._feeds[feed.session_id]
            if feed.is_behind:
                # Its last write may be on disk although it could not show it.
                self.look(feed.session_id)

    def show(self, session_id: str, shown: Shown) -> None:
        for reader in self._readers.get(session_id, ()):
            reader.put(shown)

    def store_changed(self, change: Change) -> None:
        """Readers look into the store, unless an owner in this process wrote: that is shown by its feed."""
        sessions = change.sessions
        for session_id in self._readers.keys() if sessions is None else sessions & self._readers.keys():
            if change.work or session_id not in self._feeds:
                self.look(session_id)

    def look(self, session_id: str, *, all_readers: bool = True) -> None:
        """The session changed in a way that no event tells of: its readers look into the store.

        Args:
            all_readers: ``False`` for those only that lost events.
        """
        for reader in self._readers.get(session_id, ()):
            if all_readers or reader.lost is not None:
                reader.wake.set()

    def look_everywhere(self) -> None:
        """Every reader looks into the store."""
        for session_id in self._readers:
            self.look(session_id)


@dataclass(slots=True)
class _Entry:
    number: int
    event: AgentEvent
    delta: bool
    taken: bool = False
    stored: bool = False
    shown: bool = False


class SessionFeed:
    """The events that one owner makes for one session, numbered under its fence."""

    def __init__(self, hub: FeedHub, session_id: str, fence: int) -> None:
        self.session_id = session_id
        self._hub = hub
        self._fence = fence
        self._number = 0
        self._entries: deque[_Entry] = deque()
        """Not yet both stored and shown, in order."""

    def add(
        self,
        kind: AgentEventType,
        at_ms: int,
        *,
        turn_id: str | None,
        step_id: str | None = None,
        attempt: int | None = None,
        text: str | None = None,
        data: JsonObject | None = None,
    ) -> None:
        """Adds an event.  A delta is shown as soon as all before it are; any other once ``stored`` says so."""
        self._number += 1
        event = AgentEvent(
            cursor=cursor_for(self._fence, self._number),
            type=kind,
            session_id=self.session_id,
            turn_id=turn_id,
            step_execution_id=step_id,
            attempt=attempt,
            text=text,
            data=data or {},
            created_at=to_datetime(at_ms),
        )
        delta = kind in PASSING_EVENTS
        self._entries.append(_Entry(self._number, event, delta))
        if delta:
            self._show()

    def take_unstored(self) -> tuple[EventPut, ...]:
        """What the next write has to store, in order.  Each event is taken once: writes are applied in order."""
        puts: list[EventPut] = []
        for entry in self._entries:
            if not entry.taken:
                entry.taken = True
                puts.append(EventPut(entry.number, entry.event))
        return tuple(puts)

    def stored(self, events: Sequence[EventPut]) -> None:
        """A write is on disk, and with it these events."""
        if not events:
            self._hub.look(self.session_id)
            return
        last = events[-1].number
        for entry in self._entries:
            if entry.number <= last:
                entry.stored = True
        self._show()
        self._hub.look(self.session_id, all_readers=False)

    @property
    def is_behind(self) -> bool:
        """Whether something was not shown yet."""
        return not all(entry.shown for entry in self._entries)

    def shown_not_stored(self) -> list[Shown]:
        return [self._as_shown(entry) for entry in self._entries if entry.shown]

    def _show(self) -> None:
        for entry in self._entries:
            if entry.shown:
                continue
            if not (entry.delta or entry.stored):
                break
            entry.shown = True
            self._hub.show(self.session_id, self._as_shown(entry))
        while self._entries and self._entries[0].stored and self._entries[0].shown:
            self._entries.popleft()

    def _as_shown(self, entry: _Entry) -> Shown:
        previous = cursor_for(self._fence, entry.number - 1) if entry.number > 1 else None
        return Shown(entry.event, previous)
