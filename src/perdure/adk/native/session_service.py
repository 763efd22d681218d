"""ADK's session service over the store: what ADK's own servers and tools read and write of durable sessions."""

from __future__ import annotations

from collections.abc import Mapping
from types import TracebackType
from typing import Any, Self

from google.adk.events.event import Event
from google.adk.sessions.base_session_service import BaseSessionService, GetSessionConfig, ListSessionsResponse
from google.adk.sessions.session import Session
from google.adk.sessions.state import State

from perdure.adk.native.arguments import check_names, check_optional
from perdure.adk.native.errors import WrongCall, no_such_session, session_id_taken
from perdure.adk.native.home import EngineHome
from perdure.adk.records.history import events_of, is_stored, limited, make_state_storable, message_of
from perdure.arguments import expect
from perdure.client import MAX_PAGE, AgentSessionClient, check_session_id
from perdure.engine.base import Engine
from perdure.errors import SessionAlreadyExists, SessionNotFound
from perdure.ids import new_turn_id
from perdure.session.flow import await_step_id
from perdure.session.model import AgentSnapshot, JsonObject, SessionSummary
from perdure.session.runner import DEFAULT_EVENT_STREAM_CAPACITY_BYTES, AgentSessionFlow
from perdure.session.values import ensure_storable
from perdure.store.base import NewSession, Request

_ALL = 2**62


class DurableSessionService(BaseSessionService):
    """Reads, creates and deletes durable sessions in the way of ADK.  It runs no turns.

    An app's sessions are those of the flow type of the same name, unless ``flow_types`` says otherwise.  Session ids
    are unique in the whole store, so an id may be taken by another user or app.

    Args:
        engine: the address of an engine (see ``open_engine``), which is opened when first needed; or an open engine.
        flow_types: app name -> flow type, for apps whose flow type is another.
    """

    def __init__(self, engine: Engine | str, *, flow_types: Mapping[str, str] | None = None) -> None:
        self._home = EngineHome(engine)
        self._flow_types = _flow_types_in(flow_types)
        self._capacities: dict[str, int] = {}

    @classmethod
    def of_runner(cls, home: EngineHome, flow: AgentSessionFlow) -> Self:
        """The session service of a runner, over the runner's own engine."""
        service = cls(home.given, flow_types={flow.app_name: flow.flow_type})
        service._home = home
        service._capacities[flow.flow_type] = flow.event_stream_capacity_bytes
        return service

    async def __aenter__(self) -> Self:
        await self._home.engine()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Closes the engine that it opened."""
        await self._home.close()

    # ------------------------------------------------------------ ADK's interface

    async def create_session(
        self, *, app_name: str, user_id: str, state: dict[str, Any] | None = None, session_id: str | None = None
    ) -> Session:
        """Creates a session without a turn.

        Args:
            state: ``app:`` and ``user:`` keys are shared as ADK defines them, ``temp:`` keys are dropped.
            session_id: ``None`` generates one.

        Raises:
            SessionIdTaken: a session has this id; it is ADK's ``AlreadyExistsError``, too.
            UsageError: the id cannot be one, or an argument is of the wrong type.
            ValueNotStorable: a state value has no JSON form; names its key.
        """
        check_names(app_name=app_name, user_id=user_id, session_id=session_id or "")
        check_optional(state=state)
        engine = await self._home.engine()
        chosen = (session_id or "").strip() or engine.ids.new_id()
        check_session_id(chosen)
        initial: JsonObject = dict(state or {})
        ensure_storable(initial, "state")
        flow_type = self.flow_type_of(app_name)
        incarnation = engine.ids.new_id()
        new = NewSession(
            session_id=chosen,
            incarnation=incarnation,
            flow_type=flow_type,
            app_name=app_name,
            user_id=user_id,
            state=initial,
            event_capacity_bytes=self._capacities.get(flow_type, DEFAULT_EVENT_STREAM_CAPACITY_BYTES),
            await_step_id=await_step_id(0),
        )
        try:
            # Its own fingerprint: a second creation is none that was repeated.
            await engine.store.create_session(new, None, Request(None, incarnation), engine.clock.now_ms())
        except SessionAlreadyExists as taken:
            ours = await self.snapshot(app_name=app_name, user_id=user_id, session_id=chosen)
            raise session_id_taken(chosen, app_name, user_id, theirs=ours is None) from taken
        created = await self.get_session(app_name=app_name, user_id=user_id, session_id=chosen)
        if created is None:
            raise no_such_session(chosen, app_name, user_id)  # somebody deleted it at once
        return created

    async def get_session(
        self, *, app_name: str, user_id: str, session_id: str, config: GetSessionConfig | None = None
    ) -> Session | None:
        """The session as it is now, with the events that are stored; ``None``: app and user have none of this id."""
        expect(config, GetSessionConfig, "config", "an ADK GetSessionConfig", optional=True, kind=WrongCall)
        snapshot = await self.snapshot(app_name=app_name, user_id=user_id, session_id=session_id)
        if snapshot is None:
            return None
        engine = await self._home.engine()
        items = await engine.store.read_history(snapshot.session_id, 0, _ALL)
        if config is not None and config.num_recent_events is not None and config.after_timestamp is None:
            items = items[len(items) - min(len(items), config.num_recent_events) :]
        return Session(
            id=snapshot.session_id,
            app_name=app_name,
            user_id=user_id,
            state=dict(snapshot.state),
            events=limited(events_of(items), config),
            last_update_time=snapshot.updated_at.timestamp(),
        )

    async def list_sessions(self, *, app_name: str, user_id: str | None = None) -> ListSessionsResponse:
        """All sessions of an app, or of one user of it, without state and events; the last changed one is last."""
        check_names(app_name=app_name, user_id="" if user_id is None else user_id)
        client = AgentSessionClient(await self._home.engine())
        found: list[SessionSummary] = []
        cursor: str | None = None
        while True:
            page = await client.list_sessions(
                flow_type=self.flow_type_of(app_name), user_id=user_id, after=cursor, limit=MAX_PAGE
            )
            found += page.items
            cursor = page.next_cursor
            if cursor is None:
                break
        return ListSessionsResponse(
            sessions=[
                Session(
                    id=summary.session_id,
                    app_name=app_name,
                    user_id=summary.user_id,
                    last_update_time=summary.updated_at.timestamp(),
                )
                for summary in reversed(found)
            ]
        )

    async def delete_session(self, *, app_name: str, user_id: str, session_id: str) -> None:
        """Deletes a session at once and for good; nothing happens when there is none."""
        snapshot = await self.snapshot(app_name=app_name, user_id=user_id, session_id=session_id)
        if snapshot is None:
            return
        client = AgentSessionClient(await self._home.engine())
        try:
            await client.delete_session(snapshot.session_id)
        except SessionNotFound:
            return

    async def get_user_state(self, *, app_name: str, user_id: str) -> dict[str, Any]:
        """The ``user:`` state of a user, without the prefix; empty when the user has no session."""
        check_names(app_name=app_name, user_id=user_id)
        client = AgentSessionClient(await self._home.engine())
        page = await client.list_sessions(flow_type=self.flow_type_of(app_name), user_id=user_id, limit=1)
        if not page.items:
            return {}
        snapshot = await client.get_agent_snapshot(page.items[0].session_id)
        prefix = State.USER_PREFIX
        return {key.removeprefix(prefix): value for key, value in snapshot.state.items() if key.startswith(prefix)}

    async def append_event(self, session: Session, event: Event) -> Event:
        """Appends an event to an idle session, and applies its state; it counts as a turn of its own.

        For what ADK's servers do with it: state that is set from outside, a history that is restored.  An event that
        says and changes nothing is not stored.

        Raises:
            NoSuchSession
            SessionClosed
            Conflict: a turn of the session runs, waits or is queued; nothing was appended.
            ValueNotStorable: the event, or a state value that it sets, has no form that can be stored.
        """
        expect(session, Session, "session", "an ADK Session", kind=WrongCall)
        expect(event, Event, "event", "an ADK Event", kind=WrongCall)
        if event.partial:
            return event
        engine = await self._home.engine()
        make_state_storable(event)
        kept = self._trim_temp_delta_state(event.model_copy(update={"actions": event.actions.model_copy()}))
        if is_stored(kept):
            known = await self.snapshot(app_name=session.app_name, user_id=session.user_id, session_id=session.id)
            if known is None:
                raise no_such_session(session.id, session.app_name, session.user_id)
            await engine.store.append_message(
                session.id, new_turn_id(engine.ids), message_of(kept, 0), engine.clock.now_ms()
            )
        return await super().append_event(session, event)

    # ------------------------------------------------------------ for the runner

    def flow_type_of(self, app_name: str) -> str:
        """The flow type of an app's sessions."""
        check_names(app_name=app_name)
        return self._flow_types.get(app_name, app_name)

    async def snapshot(self, *, app_name: str, user_id: str, session_id: str) -> AgentSnapshot | None:
        """The session as perdure shows it; ``None`` when app and user have none of this id."""
        check_names(app_name=app_name, user_id=user_id, session_id=session_id)
        client = AgentSessionClient(await self._home.engine())
        try:
            snapshot = await client.get_agent_snapshot(session_id.strip())
        except SessionNotFound:
            return None
        known = (snapshot.flow_type, snapshot.user_id) == (self.flow_type_of(app_name), user_id)
        return snapshot if known else None


def _flow_types_in(given: Mapping[str, str] | None) -> dict[str, str]:
    """Raises: WrongCall, when it does not give flow types to app names."""
    expect(given, Mapping, "flow_types", "a mapping of app names to flow types", optional=True, kind=WrongCall)
    flow_types = dict(given or {})
    for app_name, flow_type in flow_types.items():
        expect(app_name, str, "an app name in flow_types", "a str", kind=WrongCall)
        expect(flow_type, str, f"flow_types[{app_name!r}]", "a str", kind=WrongCall)
    return flow_types
