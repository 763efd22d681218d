"""Sessions of recently ended turns, kept in memory so that their history is neither read nor parsed again."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass

from google.adk.sessions.session import Session

MAX_SESSIONS = 128
MAX_EVENTS = 10_000


@dataclass(frozen=True, slots=True)
class _Warm:
    incarnation: str
    messages: int
    session: Session


class WarmSessions:
    """A cache of ADK sessions by session id, bounded by their number and by the events in them.

    A session is taken out when a turn begins and put back only when the turn ended by itself: what a failed or dropped
    turn left in memory is not what is stored.
    """

    def __init__(self, max_sessions: int = MAX_SESSIONS, max_events: int = MAX_EVENTS) -> None:
        self._max_sessions = max_sessions
        self._max_events = max_events
        self._sessions: OrderedDict[str, _Warm] = OrderedDict()
        self._events = 0

    def take(self, session_id: str, incarnation: str, messages: int) -> Session | None:
        """Takes a session out; ``None`` when what is here is not that session with that many messages."""
        warm = self._sessions.pop(session_id, None)
        if warm is None:
            return None
        self._events -= warm.messages
        return warm.session if (warm.incarnation, warm.messages) == (incarnation, messages) else None

    def put(self, session: Session, incarnation: str) -> None:
        """Keeps a session whose events are exactly its stored messages."""
        self.take(session.id, "", -1)
        messages = len(session.events)
        self._sessions[session.id] = _Warm(incarnation, messages, session)
        self._events += messages
        while self._sessions and (len(self._sessions) > self._max_sessions or self._events > self._max_events):
            _, oldest = self._sessions.popitem(last=False)
            self._events -= oldest.messages

    def clear(self) -> None:
        """Forgets all of them."""
        self._sessions.clear()
        self._events = 0
