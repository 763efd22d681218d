"""What goes with an input on its way through the loop, past the reducer: texts, requests, results, answers."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import timedelta

from perdure.engine.steps import ToolStepResult
from perdure.faults import DurableWrite
from perdure.session.model import JsonValue, UserMessage
from perdure.session.runner import Approval, CallRequest, Progress, Question, ToolAsked


@dataclass(frozen=True, slots=True)
class Attachment:
    """What comes with an input and is none of the reducer's business.

    Attributes:
        kinds: which durable writes the input itself is.
        consumed: inbox positions that are done with once the input is applied.
        message: of a message that arrived.
        progress: of a model step.
        requests, questions: what a model step asked for, by id.
        carry: what an invocation that ended hands on to the next one.
        tool: how a tool step ended.
        asked: what a tool asks in the middle.
        approval, rejection: what came with an answer.
        resolved_by, resolved_at_ms, response: who gave the answer, when, and what it was.
    """

    kinds: tuple[DurableWrite, ...] = ()
    consumed: tuple[int, ...] = ()
    message: tuple[str, UserMessage] | None = None
    progress: Progress | None = None
    requests: dict[str, CallRequest] = field(default_factory=dict[str, CallRequest])
    questions: dict[str, Question] = field(default_factory=dict[str, Question])
    carry: str | None = None
    tool: ToolStepResult | None = None
    asked: ToolAsked | None = None
    approval: Approval | None = None
    rejection: str | None = None
    resolved_by: str | None = None
    resolved_at_ms: int | None = None
    response: JsonValue = None


NOTHING = Attachment()


@dataclass(frozen=True, slots=True)
class SessionFacts:
    """What a scribe knows of its session beside the open turn."""

    session_id: str
    incarnation: str
    user_id: str
    definition: str
    interrupt_deadline: timedelta | None
