"""The live stream of one turn as the events that a plain ADK runner would yield for it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, cast

from google.adk.events.event import Event
from google.genai import types

from perdure.adk import seams
from perdure.adk.native.forms import requests_for
from perdure.adk.records.closing import is_closing
from perdure.adk.records.failures import rebuilt
from perdure.adk.records.history import USER, events_of, parts_of
from perdure.errors import SessionBlocked
from perdure.session.model import (
    PASSING_EVENTS,
    AgentEvent,
    AgentEventType,
    ErrorInfo,
    Interrupt,
    JsonObject,
)

_ENDED = frozenset(
    {
        AgentEventType.TURN_COMPLETED,
        AgentEventType.TURN_FAILED,
        AgentEventType.TURN_CANCELLED,
        AgentEventType.SESSION_CLOSED,
    }
)


class TurnEvents:
    """Reads the agent events of a session and picks out what one turn yields.

    Args:
        announced: ids of the interrupts that the reader knows of: they are not asked about once more.
        pending: the interrupts that were pending when the reading began.
        user_message: whether the user's own event is yielded, too.
        root_agent: the name of the root agent, for the event that tells of a cancelled turn.
        opened: the turn's opening message is stored already, so that it is not among what is read.

    Attributes:
        over: the turn has ended or waits for someone; nothing more will come.
        failure: what the turn failed with; to be raised when all its events are out.
    """

    def __init__(
        self,
        session_id: str,
        turn_id: str,
        *,
        announced: Iterable[str] = (),
        pending: Iterable[Interrupt] = (),
        user_message: bool = False,
        root_agent: str = "",
        opened: bool = False,
    ) -> None:
        self.over = False
        self.failure: Exception | None = None
        self._session_id = session_id
        self._turn_id = turn_id
        self._user_message = user_message
        self._root_agent = root_agent
        self._opened = opened
        self._announced = set(announced)
        self._pending = {one.interrupt_id: one for one in pending}
        self._asked = {one.tool_call_id for one in self._pending.values()}
        """Ids of all calls that waited or wait for an answer."""
        self._calls: dict[str, Event] = {}
        """Function-call id -> the event with the call."""
        self._shown: set[str] = set()
        """Ids of markers; a new worker may show the last of them again."""
        self._closing: list[Event] = []

    def take(self, event: AgentEvent) -> list[Event]:
        """What a plain runner would yield at this point.

        Raises:
            SessionBlocked: the agent's code no longer fits the session.
        """
        if event.type is AgentEventType.SESSION_BLOCKED:
            raise blocked(self._session_id, ErrorInfo.model_validate(event.data["error"]))
        if event.type is AgentEventType.SESSION_CLOSED:
            self.over = True
        if event.turn_id != self._turn_id:
            return []
        if event.type is AgentEventType.MESSAGE:
            return self._message(event.data["framework_item"])
        if event.type in PASSING_EVENTS:
            return self._passing(event)
        if event.type in _ENDED:
            return self._end(event)
        return self._waits(event)

    def suspend(self, pending: Iterable[Interrupt] = ()) -> list[Event]:
        """The turn waits: the requests that the reader does not know of yet.

        Args:
            pending: interrupts of which the stream may not have told yet.
        """
        self.over = True
        self._pending |= {one.interrupt_id: one for one in pending}
        self._asked |= {one.tool_call_id for one in self._pending.values()}
        asked = [one for name, one in self._pending.items() if name not in self._announced]
        # A question was asked by its own call, if that was yielded.
        return [event for event in requests_for(asked, self._calls) if not _is_known(event, self._calls)]

    def _message(self, item: JsonObject) -> list[Event]:
        (event,) = events_of([item])
        if is_closing(event):
            self._closing.append(event)
            return []
        for call in event.get_function_calls():
            self._calls[call.id or ""] = event
        if event.actions.compaction or (self._comes_in(event) and not self._user_message):
            return []
        return [event]

    def _comes_in(self, event: Event) -> bool:
        """Whether it is the user's own: the turn's opening message, or answers.  An agent may speak as the user, too.

        ADK's runner stores what comes in and yields what the agents say, whoever is the author.
        """
        if event.author != USER:
            return False
        if not self._opened:
            self._opened = True
            return True
        responses = event.get_function_responses()
        return bool(responses) and all(response.id in self._asked for response in responses)

    def _passing(self, shown: AgentEvent) -> list[Event]:
        item = shown.data.get("framework_item")
        if item is None:
            return []
        event = Event.model_validate(item)
        if shown.text is not None and not parts_of(event):
            thought = shown.type is AgentEventType.REASONING_DELTA or None
            content = event.content or types.Content()
            event.content = content.model_copy(update={"parts": [types.Part(text=shown.text, thought=thought)]})
        if not event.partial:
            if event.id in self._shown:
                return []
            self._shown.add(event.id)
        return [event]

    def _waits(self, event: AgentEvent) -> list[Event]:
        if event.type is AgentEventType.INTERRUPT_REQUESTED:
            interrupt = Interrupt.model_validate(event.data)
            self._pending[interrupt.interrupt_id] = interrupt
            self._asked.add(interrupt.tool_call_id)
        elif event.type is AgentEventType.INTERRUPT_RESOLVED:
            self._pending.pop(event.data["interrupt_id"], None)
        elif event.type is AgentEventType.TURN_SUSPENDED:
            return self.suspend()
        return []

    def _end(self, event: AgentEvent) -> list[Event]:
        self.over = True
        if event.type is AgentEventType.TURN_FAILED:
            self.failure = rebuilt(ErrorInfo.model_validate(event.data["error"]))
        elif event.type is AgentEventType.TURN_CANCELLED:
            results = [event for event in self._closing if event.author != USER]
            return [*results, seams.abort_event(self._turn_id, self._root_agent)]
        return []


def _is_known(request: Event, calls: dict[str, Event]) -> bool:
    return any(call.id in calls for call in request.get_function_calls())


def blocked(session_id: str, error: ErrorInfo) -> SessionBlocked:
    """The error for a session that does not go on until fitting code is back."""
    facts = {name: error.facts.get(name) for name in ("step", "expected", "found")}
    return SessionBlocked(error.message, **{"session_id": session_id, **cast(dict[str, Any], facts)})
