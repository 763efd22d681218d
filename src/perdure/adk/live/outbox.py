"""The messages and control calls of a live turn on their way to the engine.

A replay makes the events of the turn again.  Those that are stored are known by their ids, which follow from the run
that makes them: so a message is neither stored twice nor left out, should branches come in another order than before.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from google.adk.events.event import Event

from perdure.adk import seams
from perdure.adk.records.history import is_stored, item_of, keeps_its_types, message_of
from perdure.session.runner import ControlCall, NewMessage


class Outbox:
    """What the engine has not been given yet.

    Args:
        first: the ordinal of the first message of this leg.
        stored: the messages that this leg has stored.
        is_earlier: whether an earlier turn of the session had this invocation id.
    """

    def __init__(
        self,
        turn_id: str,
        first: int = 0,
        stored: Sequence[Event] = (),
        is_earlier: Callable[[str], bool] = lambda invocation_id: False,
    ) -> None:
        self._turn_id = turn_id
        self._is_earlier = is_earlier
        self._first = first
        self._stored = list(stored)
        self._missing = dict(enumerate(stored))
        self._place: dict[int, int] = {}
        self._new = 0
        self._messages: list[NewMessage] = []
        self._control_calls: list[ControlCall] = []
        self._shown = {call.id for event in stored for call in event.get_function_calls()}
        self.retyped: list[tuple[Event, str]] = []
        """Events that read back from the store with other types, with their stored form."""
        self.dropped: list[Event] = []
        """Events of the session that are no messages."""

    @property
    def count(self) -> int:
        """Messages of this turn that the session has."""
        return self._first + len(self._stored) - len(self._missing) + self._new

    @property
    def is_whole(self) -> bool:
        """Whether every stored message came back."""
        return not self._missing

    def add(self, event: Event) -> bool:
        """Takes an event of the invocation.  Whether it is a message that the engine does not have yet.

        Raises:
            ValueNotStorable: it carries a value that has no JSON form.
            FrameworkDrift: ADK runs the turn under another id.
        """
        # ADK runs a turn that goes on with a paused task under the invocation id of that task.
        if self.count == 0 and event.invocation_id != self._turn_id and not self._is_earlier(event.invocation_id):
            raise seams.drifted(
                seams.INVOCATION_ID,
                f"the invocation has the id {event.invocation_id!r}, not the first one that its id provider gives",
            )
        if not is_stored(event):
            self.dropped.append(event)
            return False
        place = self._stored_place(event)
        is_new = place is None
        if place is None:
            place = len(self._stored) + self._new
            self._messages.append(message_of(event, self._first + place))
            self._new += 1
        else:
            del self._missing[place]
        self._place[id(event)] = place
        if not keeps_its_types(event):
            self.retyped.append((event, item_of(event)))
        return is_new

    def _stored_place(self, event: Event) -> int | None:
        """Where among the stored messages an event is.  By its looks, if code that changed gave it another id."""
        for place, stored in self._missing.items():
            if stored.id == event.id:
                return place
        looks = _looks(event)
        return next((place for place, stored in self._missing.items() if _looks(stored) == looks), None)

    def sort(self, events: list[Event]) -> list[Event]:
        """Puts the event that was added last where it belongs.  Returns the events that come after it."""
        place = self._place.get(id(events[-1]))
        if place is None:
            return []
        at = len(events) - 1
        while at and self._place.get(id(events[at - 1]), -1) > place:
            at -= 1
        events.insert(at, events.pop())
        return events[at + 1 :]

    def add_control_call(self, call: ControlCall) -> None:
        """Takes a call that steers ADK; one whose message is stored was shown before."""
        if call.call_id not in self._shown:
            self._control_calls.append(call)

    def take(self) -> tuple[tuple[NewMessage, ...], tuple[ControlCall, ...]]:
        """Hands over what came in."""
        control_calls, self._control_calls = tuple(self._control_calls), []
        return self.take_messages(), control_calls

    def take_messages(self) -> tuple[NewMessage, ...]:
        """Hands over the messages that came in."""
        messages, self._messages = tuple(self._messages), []
        return messages

    def put_back(self, messages: tuple[NewMessage, ...]) -> None:
        """Takes back what ``take_messages`` handed over last."""
        self._messages[:0] = messages


def _looks(event: Event) -> tuple[object, ...]:
    return (
        event.author,
        event.branch,
        [call.id for call in event.get_function_calls()],
        [response.id for response in event.get_function_responses()],
        event.content,
    )
