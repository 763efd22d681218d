"""ADK's session service for a live turn: the session is the turn's own object, and each event goes to the outbox."""

from __future__ import annotations

from typing import Any, NoReturn

from google.adk.events.event import Event
from google.adk.sessions.base_session_service import BaseSessionService, GetSessionConfig, ListSessionsResponse
from google.adk.sessions.session import Session
from google.adk.sessions.state import State

from perdure.adk.codec import is_plain, plain
from perdure.adk.core import TurnCore, current_turn
from perdure.errors import FrameworkDrift, UsageError


class TurnSessionService(BaseSessionService):
    """Serves every turn of a runner; which one, the context says.  It copies nothing and stores nothing."""

    async def get_session(
        self, *, app_name: str, user_id: str, session_id: str, config: GetSessionConfig | None = None
    ) -> Session | None:
        """The session of the running turn; ``None`` for any other."""
        core = _turn()
        return core.session if session_id == core.session.id else None

    async def append_event(self, session: Session, event: Event) -> Event:
        """Appends an event to the session and hands it to the outbox.

        Raises:
            ValueNotStorable: the event, or a state value that it sets, has no form that can be stored.
        """
        if event.partial:
            return event
        core = _turn()
        core.conductor.parking.guard()
        if core.conductor.failure is not None:
            await core.conductor.parking.for_ever()
        _make_state_storable(event)
        event = await super().append_event(session, event)
        session.last_update_time = event.timestamp
        try:
            core.outbox.add(event)
        except FrameworkDrift as drift:
            core.conductor.fail(drift)
            await core.conductor.parking.for_ever()
        for later in core.outbox.sort(session.events):
            session.state.update(later.actions.state_delta)
        return event

    async def create_session(
        self, *, app_name: str, user_id: str, state: dict[str, Any] | None = None, session_id: str | None = None
    ) -> Session:
        """Refused: sessions are started through the client."""
        _refuse("create a session")

    async def list_sessions(self, *, app_name: str, user_id: str | None = None) -> ListSessionsResponse:
        """Refused: sessions are listed through the client."""
        _refuse("list sessions")

    async def delete_session(self, *, app_name: str, user_id: str, session_id: str) -> None:
        """Refused: sessions are deleted through the client."""
        _refuse("delete a session")


def _turn() -> TurnCore:
    core = current_turn.get()
    if core is None:
        raise UsageError("this session service works inside a durable turn only")
    return core


def _refuse(what: str) -> NoReturn:
    raise UsageError(f"the agent's code cannot {what} from inside a durable turn; use AgentSessionClient")


def _make_state_storable(event: Event) -> None:
    """Brings state values to the form in which they are stored, so that the next turn sees what a reload would give."""
    delta = event.actions.state_delta
    for key, value in delta.items():
        if not key.startswith(State.TEMP_PREFIX) and not is_plain(value):
            delta[key] = plain(value, f"state key {key!r}")
