"""What an invocation yields and is no message, on its way to the live stream: partial events, and ADK's markers.

They are shown as they leave the invocation, so after all callbacks, and in their place: the messages that came before
them go to the engine first.
"""

from __future__ import annotations

from google.adk.events.event import Event
from pydantic_core import PydanticSerializationError

from perdure.adk.live.core import TurnCore
from perdure.adk.records.history import is_stored, parts_of, passing_item
from perdure.errors import UsageError
from perdure.session.model import AgentEventType, JsonObject


def show_passing(core: TurnCore, event: Event) -> None:
    """Puts an event of the invocation on the live stream, unless it is a message."""
    if event.partial:
        _show(core, event, core.attempt_of_partial(event.branch, event.author))
    elif not is_stored(event) and core.conductor.journal.replayed:  # what a replay repeats was shown before
        _show(core, event, core.step_attempt)


def _show(core: TurnCore, event: Event, attempt: int) -> None:
    """One delta for each part that is text, the last of them with the event itself; without text, the event alone."""
    texts: list[tuple[AgentEventType, str | None]] = [
        (_kind(part.thought), part.text) for part in parts_of(event) if part.text
    ]
    *first, (last_kind, last_text) = texts or [(AgentEventType.FRAMEWORK_EVENT, None)]
    for kind, text in first:
        _put(core, kind, text, None, attempt)
    _put(core, last_kind, last_text, _item(event), attempt)


def _kind(thought: bool | None) -> AgentEventType:
    return AgentEventType.REASONING_DELTA if thought else AgentEventType.TEXT_DELTA


def _item(event: Event) -> JsonObject | None:
    try:
        return passing_item(event)
    except (PydanticSerializationError, ValueError, RecursionError):
        return None  # it carries a value without a JSON form; the message that follows will fail the turn


def _put(core: TurnCore, kind: AgentEventType, text: str | None, item: JsonObject | None, attempt: int) -> None:
    behind = core.outbox.take_messages()
    try:
        core.log.show_delta(kind, text, step_id=core.step_id or None, attempt=attempt, item=item, behind=behind)
    except UsageError:
        core.outbox.put_back(behind)  # the step that reports them fails with them
