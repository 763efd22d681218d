"""ADK events as stored messages, and back.

A message's ``item`` is the event in the form that ADK's own SQLite session service writes.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence

from google.adk.events.event import Event
from google.adk.sessions.base_session_service import GetSessionConfig
from google.adk.sessions.state import State
from google.genai import types
from pydantic import TypeAdapter
from pydantic_core import PydanticSerializationError

from perdure.adk.records.codec import is_plain, plain
from perdure.errors import ValueNotStorable
from perdure.session.model import JsonObject, MessageRole, QuestionAnswer, UserMessage
from perdure.session.runner import NewMessage

USER = "user"
_EVENTS = TypeAdapter(list[Event])


def events_of(items: Sequence[JsonObject]) -> list[Event]:
    """The events of stored messages."""
    if not items:
        return []
    # Through JSON text: bytes are Base64 only there.
    return _EVENTS.validate_json(json.dumps(list(items)))


def limited(events: list[Event], limits: GetSessionConfig | None) -> list[Event]:
    """The events that ADK's own services would load."""
    if limits is None:
        return events
    if limits.after_timestamp is not None:
        events = [event for event in events if event.timestamp >= limits.after_timestamp]
    if limits.num_recent_events is not None:
        events = events[-limits.num_recent_events :] if limits.num_recent_events else []
    return events


def content_of(message: UserMessage) -> types.Content:
    """A user's message as ADK takes it: the answers that it gives, or its own content; else the text and the images."""
    if message.answers:
        return types.Content(role=USER, parts=[_answer_part(answer) for answer in message.answers])
    if message.content is not None:
        return types.Content.model_validate_json(json.dumps(message.content))
    parts = [types.Part(text=message.text)] if message.text else []
    for image in message.images:
        parts.append(types.Part(inline_data=types.Blob(data=image.data, mime_type=image.mime_type)))
    return types.Content(role=USER, parts=parts)


def _answer_part(answer: QuestionAnswer) -> types.Part:
    response = types.FunctionResponse(id=answer.question_id, name=answer.tool_name, response=answer.value)
    return types.Part(function_response=response)


def passing_item(event: Event) -> JsonObject:
    """An event that is not stored, as JSON for the live stream, without the parts that are no more than text."""
    only_text = all(part.model_fields_set <= {"text", "thought"} for part in parts_of(event))
    left_out = {"content": {"parts"}} if only_text and parts_of(event) else None
    return event.model_dump(mode="json", exclude_none=True, exclude_defaults=True, exclude=left_out)


def parts_of(event: Event) -> list[types.Part]:
    """The parts of an event's content."""
    return (event.content.parts if event.content is not None else None) or []


LEFT = "perdure_left"
"""In an event's custom metadata: what an invocation leaves for the answer that comes later (see ``waits.late``)."""


def is_stored(event: Event) -> bool:
    """Whether an event is a message.  ADK's markers (it carries nothing and changes nothing) are not."""
    if event.content is not None and event.content.parts:
        return True
    actions = event.actions
    return bool(
        event.error_code
        or event.error_message
        or event.output is not None
        or actions.state_delta
        or actions.artifact_delta
        or actions.compaction
        or actions.transfer_to_agent
        or actions.escalate
        or actions.route is not None
        or actions.render_ui_widgets
        or event.grounding_metadata
        or _ends_node(event)
        or LEFT in (event.custom_metadata or {})
    )


def _ends_node(event: Event) -> bool:
    """Whether a node below others says that it is done without having anything to say: ADK looks for that."""
    actions = event.actions
    return "/" in event.node_info.path and not (event.partial or actions.agent_state or actions.end_of_agent)


def item_of(event: Event) -> str:
    """The event as JSON text, in ADK's stored form.

    Raises:
        ValueNotStorable: it carries a value that has no JSON form.
    """
    try:
        return event.model_dump_json(exclude_none=True)
    except (PydanticSerializationError, ValueError, RecursionError) as error:
        names = [call.name for call in event.get_function_calls()]
        names += [response.name for response in event.get_function_responses()]
        about = f" ({', '.join(str(name) for name in names)})" if names else ""
        raise ValueNotStorable(
            f"an event of {event.author!r}{about} carries a value that cannot be stored: {error}",
            where=f"event of {event.author}",
            path="",
            type_name="",
        ) from error


def keeps_its_types(event: Event) -> bool:
    """Whether reading the stored event gives the same values back (all it carries freely is plain JSON)."""
    return (
        all(call.args is None or is_plain(call.args) for call in event.get_function_calls())
        and all(response.response is None or is_plain(response.response) for response in event.get_function_responses())
        and (event.custom_metadata is None or is_plain(event.custom_metadata))
        and (event.output is None or is_plain(event.output))
    )


def make_state_storable(event: Event) -> None:
    """Brings state values to the form in which they are stored, so that the next turn sees what a reload would give.

    Raises:
        ValueNotStorable: a value has none; names its key.
    """
    delta = event.actions.state_delta
    for key, value in delta.items():
        if not key.startswith(State.TEMP_PREFIX) and not is_plain(value):
            delta[key] = plain(value, f"state key {key!r}")


def message_of(event: Event, ordinal: int) -> NewMessage:
    """The message of an event.

    Raises:
        ValueNotStorable: the event carries a value that has no JSON form.
    """
    calls = event.get_function_calls()
    responses = event.get_function_responses()
    named: types.FunctionCall | types.FunctionResponse | None = None
    if len(calls) + len(responses) == 1:
        named = (calls or responses)[0]
    return NewMessage(
        ordinal=ordinal,
        role=_role(event, bool(responses)),
        author=event.author,
        text=text_of(event.actions.compaction.compacted_content if event.actions.compaction else event.content),
        item=item_of(event),
        created_at_ms=int(event.timestamp * 1000),
        tool_name=named.name if named else None,
        tool_call_id=named.id if named else None,
        images=tuple(_media_types(event.content)),
        state_delta=dict(event.actions.state_delta),
    )


def _role(event: Event, answers: bool) -> MessageRole:
    if answers:
        return MessageRole.TOOL
    if event.actions.compaction is not None:
        return MessageRole.ASSISTANT  # ADK puts the user's name on it, but a model wrote it
    return MessageRole.USER if event.author == USER else MessageRole.ASSISTANT


def text_of(content: types.Content | None) -> str:
    """The plain text of a content, without thoughts."""
    if content is None or not content.parts:
        return ""
    return "".join(part.text for part in content.parts if part.text and not part.thought)


def _media_types(content: types.Content | None) -> Iterable[str]:
    for part in (content.parts or []) if content else []:
        carriers: list[types.Part | types.FunctionResponsePart] = [part]
        if part.function_response and part.function_response.parts:
            carriers.extend(part.function_response.parts)
        for carrier in carriers:
            media = carrier.inline_data or carrier.file_data
            if media is not None and media.mime_type:
                yield media.mime_type
