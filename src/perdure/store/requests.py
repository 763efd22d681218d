"""What clients write: new sessions, inbox items, answers."""

from __future__ import annotations

import enum
from dataclasses import dataclass

from perdure.session.model import JsonObject, JsonValue, UserMessage


@dataclass(frozen=True, slots=True)
class Request:
    """Makes a client's write idempotent.

    Attributes:
        request_id: chosen by the client; ``None``: not idempotent.
        fingerprint: of the method and its arguments.  The same id with another fingerprint is ``RequestConflict``.
    """

    request_id: str | None
    fingerprint: str


@dataclass(frozen=True, slots=True)
class NewSession:
    """A session to create.  ``state`` may have ``app:`` and ``user:`` keys, which are shared as ADK defines them;
    ``temp:`` keys are dropped."""

    session_id: str
    incarnation: str
    flow_type: str
    app_name: str
    user_id: str
    state: JsonObject
    event_capacity_bytes: int
    await_step_id: str
    """The first ``AwaitUserMessage`` step."""


@dataclass(frozen=True, slots=True)
class NewFork:
    """A session to make of another one's turns before ``before_turn_id``."""

    session_id: str
    incarnation: str
    before_turn_id: str


@dataclass(frozen=True, slots=True)
class Fork:
    """A session that was forked.  ``turn_id``: its last turn; ``None`` when it has none."""

    session_id: str
    turn_id: str | None


class InboxKind(enum.Enum):
    MESSAGE = "message"
    ANSWER = "answer"
    CANCEL = "cancel"
    CLOSE = "close"


@dataclass(frozen=True, slots=True)
class InboxItem:
    """Something for the owner of a session, in order of ``position``.

    ``turn_id``: of a message, the turn it will start; of a cancel, the turn to cancel.
    ``message``: of a message, which stays in the inbox until its turn begins.
    ``interrupt_id``, ``approved``, ``payload``, ``rejection``, ``resolved_by`` and ``resolved_at_ms``: of an answer;
    ``rejection`` is what the model sees of a no, ``None`` for ADK's words; ``resolved_at_ms`` is when it was accepted.
    ``value``: of an answer that is neither yes nor no; ``approved`` is true then.
    """

    position: int
    kind: InboxKind
    turn_id: str | None = None
    message: UserMessage | None = None
    interrupt_id: str | None = None
    approved: bool = False
    payload: JsonValue = None
    rejection: str | None = None
    resolved_by: str | None = None
    resolved_at_ms: int | None = None
    value: JsonObject | None = None


@dataclass(frozen=True, slots=True)
class Answer:
    """Yes or no to an interrupt.  ``message``: what the model sees of a rejection; ``None`` for ADK's words."""

    approved: bool
    payload: JsonValue = None
    message: str | None = None
    resolved_by: str | None = None


@dataclass(frozen=True, slots=True)
class Reply:
    """The answer to a question, a long-running call or a request for input."""

    value: JsonObject
    resolved_by: str | None = None


GivenAnswer = Answer | Reply
"""What somebody says to an interrupt; its kind says which of the two it takes."""
