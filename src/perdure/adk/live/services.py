"""ADK's session service for a live turn: the session is the turn's own object, and each event goes to the outbox."""

from __future__ import annotations

from typing import Any, NoReturn

from google.adk.events.event import Event
from google.adk.sessions.base_session_service import BaseSessionService, GetSessionConfig, ListSessionsResponse
from google.adk.sessions.session import Session

from perdure.adk.live.core import TurnCore, current_turn
from perdure.adk.records.history import USER, make_state_storable
from perdure.adk.waits.legs import early_questions
from perdure.adk.waits.long_running import late_questions
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
        make_state_storable(event)
        _stamp_late_answer(core, event)
        event = await super().append_event(session, event)
        session.last_update_time = event.timestamp
        try:
            core.outbox.add(event)
        except FrameworkDrift as drift:
            core.conductor.fail(drift)
            await core.conductor.parking.for_ever()
        for question in (*early_questions(core, event), *late_questions(core, event)):
            if not core.conductor.floor.is_announced(question.question_id):
                core.conductor.announce(question)
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


def _stamp_late_answer(core: TurnCore, event: Event) -> None:
    """Puts the answers that start a turn where ADK would: on the branch of the call, which is in an earlier turn."""
    if not core.start.message.answers or event.author != USER or event.branch is not None:
        return
    ids = {response.id for response in event.get_function_responses()}
    for earlier in reversed(core.session.events):
        if any(call.id in ids for call in earlier.get_function_calls()):
            event.branch = earlier.branch
            event.isolation_scope = event.isolation_scope or earlier.isolation_scope
            return
