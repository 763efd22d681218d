"""The shapes that perdure shows: sessions, turns, steps, records, interrupts, messages, agent events.

All are frozen pydantic models with a JSON round trip.  Times are aware UTC datetimes.  This module does no I/O and
imports nothing but pydantic.
"""

from __future__ import annotations

import enum
from datetime import datetime
from typing import Any, Generic, TypeVar, cast

from pydantic import BaseModel, ConfigDict, Field, field_validator

JsonValue = Any
"""A JSON value: ``None``, bool, int, float, str, list or dict with string keys.  (A recursive alias costs pydantic more
than it buys; the codec checks.)"""

JsonObject = dict[str, Any]

OUTCOME_UNKNOWN_TOOL_RESULT = (
    "The outcome of this tool call is unknown: it started, and it came to no result. The action may or may "
    "not have happened. Do not repeat it; check first, or ask the user."
)
"""What the model sees for a call that may have happened."""

TOOL_CALL_NOT_RUN_ERROR_PREFIX = "The tool was not run"
"""How the error of a call begins whose tool never ran, so that the model may try again."""

DEFAULT_REJECTION_MESSAGE = "This tool call is rejected."
"""ADK's own words for a rejected call; used when whoever rejects says nothing else."""


class Shape(BaseModel):
    """Base of all shapes."""

    model_config = ConfigDict(frozen=True, extra="forbid", ser_json_bytes="base64", val_json_bytes="base64")


class SessionStatus(enum.Enum):
    IDLE = "idle"
    RUNNING = "running"
    WAITING = "waiting"
    """Nothing can go on without an answer."""
    BLOCKED = "blocked"
    """The agent's code no longer fits what is recorded."""
    CLOSED = "closed"


class TurnStatus(enum.Enum):
    RUNNING = "running"
    WAITING = "waiting"
    COMPLETED = "completed"
    FAILED = "failed"
    CANCELLED = "cancelled"

    @property
    def ended(self) -> bool:
        return self in (TurnStatus.COMPLETED, TurnStatus.FAILED, TurnStatus.CANCELLED)


class RecordStatus(enum.Enum):
    """The stored outcome of a tool call."""

    SUCCEEDED = "succeeded"
    FAILED = "failed"
    REJECTED = "rejected"
    OUTCOME_UNKNOWN = "outcome_unknown"


class StepName(enum.Enum):
    AWAIT_USER_MESSAGE = "AwaitUserMessage"
    RUN_MODEL = "RunModel"
    AWAIT_TOOL_APPROVAL = "AwaitToolApproval"
    AWAIT_ANSWER = "AwaitAnswer"
    CALL_TOOL = "CallTool"
    CALL_SINGLE_ATTEMPT_TOOL = "CallSingleAttemptTool"
    RESUME_TURN = "ResumeTurn"


class StepStatus(enum.Enum):
    PENDING = "pending"
    """Due, or waiting for someone; not started."""
    RUNNING = "running"
    """A worker took it; for a single-attempt call: its start mark is stored."""
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    REJECTED = "rejected"
    EXPIRED = "expired"
    WITHDRAWN = "withdrawn"
    OUTCOME_UNKNOWN = "outcome_unknown"
    CANCELLED = "cancelled"

    @property
    def settled(self) -> bool:
        return self not in (StepStatus.PENDING, StepStatus.RUNNING)


class InterruptKind(enum.Enum):
    APPROVAL = "approval"
    """A policy or an effect asks."""
    CONFIRMATION = "confirmation"
    """The tool itself asks (``require_confirmation``, or in its own body)."""
    CREDENTIAL = "credential"
    """A tool or a toolset needs a sign-in."""
    LONG_RUNNING = "long_running"
    """A long-running tool whose result comes from outside."""
    INPUT = "input"
    """A workflow, or the request-input tool, asks."""

    @property
    def takes_value(self) -> bool:
        """Whether it is answered with a value; the others are answered with yes or no."""
        return self in (InterruptKind.LONG_RUNNING, InterruptKind.INPUT)


class InterruptStatus(enum.Enum):
    PENDING = "pending"
    APPROVED = "approved"
    REJECTED = "rejected"
    ANSWERED = "answered"
    EXPIRED = "expired"
    WITHDRAWN = "withdrawn"


class MessageRole(enum.Enum):
    USER = "user"
    ASSISTANT = "assistant"
    TOOL = "tool"


class AgentEventType(enum.Enum):
    TURN_STARTED = "turn_started"
    TEXT_DELTA = "text_delta"
    REASONING_DELTA = "reasoning_delta"
    TOOL_CALL_STARTED = "tool_call_started"
    TOOL_CALL_FINISHED = "tool_call_finished"
    INTERRUPT_REQUESTED = "interrupt_requested"
    INTERRUPT_RESOLVED = "interrupt_resolved"
    MESSAGE = "message"
    FRAMEWORK_EVENT = "framework_event"
    """Something that the framework shows and that is no message: a piece of a call, a marker.  Like a delta it is for
    watching."""
    TURN_COMPLETED = "turn_completed"
    TURN_FAILED = "turn_failed"
    TURN_CANCELLED = "turn_cancelled"
    TURN_SUSPENDED = "turn_suspended"
    """Every branch of the turn waits for someone."""
    SESSION_BLOCKED = "session_blocked"
    SESSION_CLOSED = "session_closed"


PASSING_EVENTS = frozenset({AgentEventType.TEXT_DELTA, AgentEventType.REASONING_DELTA, AgentEventType.FRAMEWORK_EVENT})
"""Shown at once and stored later, so that a dying worker may take some along; all others are stored first (J11)."""


MAX_ERROR_MESSAGE_LENGTH = 20_000
"""Characters of an error's message that are kept."""


def mended(message: str) -> str:
    """An error's message as it can be kept: cut when it is very long, and valid Unicode."""
    if len(message) > MAX_ERROR_MESSAGE_LENGTH:
        message = f"{message[:MAX_ERROR_MESSAGE_LENGTH]} ... ({len(message)} characters in all)"
    return message if message.isascii() else message.encode(errors="replace").decode()


class ErrorInfo(Shape):
    """An error as data.  ``code`` is one of ``perdure.errors``' codes, or the type name of a foreign exception.

    Whatever an exception says can be kept; see ``mended``.
    """

    code: str
    message: str
    facts: JsonObject = {}

    @field_validator("message", mode="before")
    @classmethod
    def _make_storable(cls, message: object) -> object:
        return mended(message) if isinstance(message, str) else message


class Usage(Shape):
    """What the model calls of a turn or a session cost.

    Attributes:
        input_tokens: prompt and tool-use prompt tokens.
        output_tokens: candidate and thought tokens.
        model_calls: requests made to a model (answers from a record do not count).
    """

    input_tokens: int = 0
    output_tokens: int = 0
    model_calls: int = 0

    def __add__(self, other: Usage) -> Usage:
        return Usage(
            input_tokens=self.input_tokens + other.input_tokens,
            output_tokens=self.output_tokens + other.output_tokens,
            model_calls=self.model_calls + other.model_calls,
        )


class ImageInput(Shape):
    """One image of a user message, as bytes."""

    data: bytes
    mime_type: str


class QuestionAnswer(Shape):
    """The answer to a question that outlived its turn.

    Attributes:
        question_id: the framework's id of the call that asked.
        value: a JSON object.
        interrupt_id: perdure's id of the question.
    """

    question_id: str
    tool_name: str
    value: JsonObject
    interrupt_id: str = ""


NO_USAGE = Usage()


class UserMessage(Shape):
    """What a user sends.

    Attributes:
        text: the words; may be empty when there are images.
        images: in order.
        state_delta: session state to set with the message; ``app:``, ``user:`` and ``temp:`` keys as in ADK.
        run_config: the framework's run configuration for this turn as JSON; ``None`` keeps the flow's.
        content: the message in the framework's own form, in place of ``text`` and ``images``; ``text`` is then what of
            it people are shown.
        answers: in place of words: the late answers that start this turn.
        steers: a turn that is open may take it along at a model call; else it starts a turn like any other.
    """

    text: str
    images: tuple[ImageInput, ...] = ()
    state_delta: JsonObject = {}
    run_config: JsonObject | None = None
    content: JsonObject | None = None
    answers: tuple[QuestionAnswer, ...] = ()
    steers: bool = Field(default=False, exclude_if=lambda steers: not steers)


MAX_STEERING_BYTES = 1_000_000
"""UTF-8 bytes of a message that steers, and of all that join a turn at one model call."""

STEERED = "perdure_steered"
"""In the custom metadata of a framework item: true if it is a message that joined a turn."""


class JoinedMessage(Shape):
    """A message that steered, and so became part of a turn that was open."""

    message_id: str
    message: UserMessage


class JoinedMessages(Shape):
    """Those that joined at one model call, in the order in which they were accepted.

    Attributes:
        seen: what had come to the invocation before them, as in the record of a model call, and as there the first
            field.
    """

    seen: tuple[int, ...] = ()
    messages: tuple[JoinedMessage, ...]


class TurnInfo(Shape):
    """One turn.  ``ended_at`` is ``None`` while it is open; ``error`` is set when it failed."""

    turn_id: str
    number: int
    status: TurnStatus
    started_at: datetime
    ended_at: datetime | None = None
    usage: Usage = Usage()
    error: ErrorInfo | None = None


class Interrupt(Shape):
    """Something a person must answer before work goes on.

    Attributes:
        interrupt_id: stable over restarts; distinct even for equal calls.
        agent_name: who asks.
        path: where in the application that is: the names of agents and workflows from the root down, and last that of
            the agent or node that asks, between slashes (``root/par/a``, ``flow/review``).  Where an agent or a
            workflow runs as a tool, the id of the call stands before its name.  Empty when the root itself asks.
        hint: what the tool or policy says to whoever decides; may be empty.
        payload: what the tool attached for the decider; ``None`` when nothing.
        deadline: when it expires; ``None`` for never.
        resolved_by, resolved_at, response: who answered, when, and with what; ``None`` while pending.
    """

    interrupt_id: str
    kind: InterruptKind
    turn_id: str
    tool_name: str
    tool_call_id: str
    arguments: JsonObject
    agent_name: str
    path: str = ""
    hint: str = ""
    payload: JsonValue = None
    created_at: datetime
    deadline: datetime | None = None
    status: InterruptStatus = InterruptStatus.PENDING
    resolved_by: str | None = None
    resolved_at: datetime | None = None
    response: JsonValue = None

    def for_readers(self) -> Interrupt:
        """The same without what a sign-in was answered with: it may be a key, and whoever gave it has it."""
        response: object = self.response
        if self.kind is not InterruptKind.CREDENTIAL or not isinstance(response, dict):
            return self
        return self.model_copy(update={"response": {**cast(JsonObject, response), "payload": None}})


class Message(Shape):
    """One stored event of the conversation.

    Attributes:
        index: its place in the session, from 0, without gaps.
        role: ``user``, ``assistant`` or ``tool``: display only.
        author: the agent's name, or ``user``.
        text: the plain text parts joined; empty when there are none.
        tool_name, tool_call_id: set when the event carries exactly one call or one response.
        images: how many media parts it carries, as MIME types.
        framework_item: one ADK ``Event`` as JSON, in ADK's own stored form.
    """

    index: int
    turn_id: str
    role: MessageRole
    author: str
    text: str
    tool_name: str | None = None
    tool_call_id: str | None = None
    images: tuple[str, ...] = ()
    framework_item: JsonObject
    created_at: datetime

    @property
    def steered(self) -> bool:
        """Whether it was told to a turn that was running, and joined it (``steer_user_message``)."""
        metadata: JsonObject | None = self.framework_item.get("custom_metadata")
        return isinstance(metadata, dict) and metadata.get(STEERED) is True


class StepRecord(Shape):
    """One durable unit of a turn.

    Attributes:
        key: what a replay matches it by: the model calls' keys of a ``RunModel``, the call id of a tool step.
        attempts: tries that were started.
        result: a tool call's response as the model sees it; ``None`` unless it succeeded.
        error: why it did not succeed; ``None`` when it did.
        started_at, settled_at: ``None`` while that has not happened.
    """

    step_id: str
    turn_id: str | None
    name: StepName
    key: str
    status: StepStatus
    attempts: int = 0
    tool_name: str | None = None
    tool_call_id: str | None = None
    effect: str | None = None
    result: JsonValue = None
    error: ErrorInfo | None = None
    started_at: datetime | None = None
    settled_at: datetime | None = None


class AgentSnapshot(Shape):
    """A session at one moment.

    Attributes:
        turn: the open turn, or the last one; ``None`` before the first.
        pending_interrupts: oldest first.
        queued_messages: messages accepted and not yet begun.
        usage: over all turns.
        state: session state as the agent sees it, ``app:`` and ``user:`` keys included.
        error: why the session is blocked; or why its last turn failed.
        served: whether a live worker serves this flow type; ``False`` explains a session that does not move.
        lost_workers: how many workers in a row died in the open turn before one got anywhere.
        cursor: of the newest stored event of the live stream; ``stream_events(after=cursor)`` goes on from this moment.
            ``None`` before the first event.
    """

    session_id: str
    flow_type: str
    user_id: str
    status: SessionStatus
    turn: TurnInfo | None = None
    pending_interrupts: tuple[Interrupt, ...] = ()
    queued_messages: int = 0
    usage: Usage = Usage()
    state: JsonObject = {}
    error: ErrorInfo | None = None
    served: bool = True
    lost_workers: int = 0
    cursor: str | None = None
    created_at: datetime
    updated_at: datetime


class SessionSummary(Shape):
    """One row of ``list_sessions``."""

    session_id: str
    flow_type: str
    user_id: str
    status: SessionStatus
    turns: int
    pending_interrupts: int
    queued_messages: int
    created_at: datetime
    updated_at: datetime


class AgentEvent(Shape):
    """One item of the live stream.

    Attributes:
        cursor: pass it to ``stream_events(after=...)`` to go on behind this event; an opaque, ordered string.
        step_execution_id: the step it belongs to; ``None`` for what belongs to the turn or session.
        attempt: which try of the step; ``None`` likewise.
        text: of a delta; else ``None``.
        data: by type: ``tool_call_*``: ``tool_name``, ``tool_call_id``, ``arguments``, and at the end ``status``;
            ``interrupt_*``: the ``Interrupt``; ``message``: ``index`` and ``framework_item``; ``turn_*``: the
            ``TurnInfo``; ``framework_event``: ``framework_item``; deltas too may have one, the partial event that they
            come of, without its parts where these are no more than the text.
    """

    cursor: str
    type: AgentEventType
    session_id: str
    turn_id: str | None
    step_execution_id: str | None = None
    attempt: int | None = None
    text: str | None = None
    data: JsonObject = {}
    created_at: datetime


T = TypeVar("T")


class Page(Shape, Generic[T]):
    """Part of a list.  ``next_cursor`` goes into ``after`` for the rest; ``None`` at the end."""

    items: tuple[T, ...]
    next_cursor: str | None = None
