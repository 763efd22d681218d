"""The contract between a durable session and the agent framework that it runs.

An engine knows nothing of ADK: it opens a *live turn* through an ``AgentFrameworkRunner`` and drives it.  ``adk/``
implements the contract.  Everything that crosses it is plain data, so that an engine can store it as it is.

What happens in a turn, seen from here::

    live = await runner.open_turn(start, log)      # replays what the journal has; runs nothing that has a record
    await live.drive(step_id, ())                  # RunModel: until blocked; reports the calls newly asked for
    await live.call_tool(call_id, ...)             # one attempt of one call, beside the others
    await live.drive(step_id, settled)             # RunModel again, with the records of the settled calls

A turn waits for people in three ways:

* a *call* waits: for an approval before it runs (``CallRequest.ask``), or in the middle (``ToolAsked``: the tool ran
  as far as a question, and runs again with the answer);
* the live invocation itself waits for the answer to a *question* (``Question``), while its other branches go on;
* the invocation has ended with questions open.  Those with ``QuestionWait.NEXT_LEG`` suspend the turn: what was done so
  far is kept as a checkpoint, and when all of them are answered the next *leg* of the turn begins, an invocation of its
  own with its own journal.  Those with ``QuestionWait.NEXT_TURN`` outlive the turn: the answer starts a turn.

Who may write what: the live turn writes model calls through ``TurnLog.record_model_call``; everything else it returns,
and the engine writes it.
"""

from __future__ import annotations

import enum
from collections.abc import Awaitable, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Protocol, runtime_checkable

from perdure.arguments import expect, expect_count, wrong
from perdure.session.model import (
    AgentEventType,
    ErrorInfo,
    InterruptKind,
    JoinedMessage,
    JsonObject,
    JsonValue,
    MessageRole,
    RecordStatus,
    TurnStatus,
    Usage,
    UserMessage,
)
from perdure.session.policy import RetryPolicy, ToolEffect

DEFAULT_EVENT_STREAM_CAPACITY_BYTES = 10 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class TurnStart:
    """What a turn begins with.

    Attributes:
        incarnation: tells a session from an earlier, deleted one with the same id; a cache must compare it.
        number: from 1.
        history_length: messages stored before this turn.
        leg: which invocation of the turn this is, from 1.
        leg_length: messages of this turn that earlier legs stored.
        answers: what this leg begins with, in the order of its questions; empty in the first leg.
        carry: what the leg before handed on (``DriveFinished.carry``); ``None`` in the first leg.
    """

    session_id: str
    incarnation: str
    user_id: str
    turn_id: str
    number: int
    message: UserMessage
    started_at_ms: int
    history_length: int
    leg: int = 1
    leg_length: int = 0
    answers: tuple[AnsweredQuestion, ...] = ()
    carry: str | None = None


class QuestionWait(enum.Enum):
    """Who waits for the answer to a question."""

    LIVE = "live"
    """The live invocation."""
    NEXT_LEG = "next_leg"
    """The turn: the invocation has ended, and the answers begin the next one."""
    NEXT_TURN = "next_turn"
    """Nobody: the turn goes on and ends without the answer, which starts a turn."""


@dataclass(frozen=True, slots=True)
class Question:
    """Something that the invocation asks a person or an outside system, beside the approvals of its calls.

    Attributes:
        question_id: the framework's id for it; unique in the turn.
        kind: ``LONG_RUNNING``, ``INPUT`` or ``CREDENTIAL``; ``APPROVAL`` or ``CONFIRMATION`` for work that is not a
            call (an agent that is run as a tool).
        group: the invocation goes on when all questions of the group are answered.  Groups of questions are apart from
            groups of calls, also where their names are equal.
        tool_name, arguments: of the call that asks; what the asking node or tool is called when there is no call.
        path: where in the application it is asked (see ``Interrupt``); empty at the root.
        hint, payload: what whoever answers is shown.
    """

    question_id: str
    kind: InterruptKind
    group: str
    wait: QuestionWait
    tool_name: str
    arguments: JsonObject
    agent_name: str
    path: str = ""
    hint: str = ""
    payload: JsonValue = None


@dataclass(frozen=True, slots=True)
class Answer:
    """The stored answer to a question.

    Attributes:
        sequence: its place among all records of the turn, in the order in which they settled.
        value: what was answered: a JSON object for questions; for kinds that are answered with yes or no an object
            with ``approved`` (bool), ``payload`` and ``message``.
        error: why there is no answer (it expired); else ``None``.
    """

    question_id: str
    sequence: int
    value: JsonValue
    error: ErrorInfo | None
    settled_at_ms: int


@dataclass(frozen=True, slots=True)
class AnsweredQuestion:
    """A question that is in the journal, with its answer if it has one."""

    question: Question
    answer: Answer | None


@dataclass(frozen=True, slots=True)
class ModelCall:
    """The record of one model call, or of something else that the invocation does in place and must not do twice.

    Attributes:
        key: stable over replays (path, branch, agent, ordinal).
        sequence: its place among all records of the turn, in the order in which they settled.
        response: what the framework needs to answer the call again, as JSON text.
    """

    key: str
    sequence: int
    response: str
    usage: Usage
    settled_at_ms: int


JOINED = "joined|"
"""How the key of a ``ModelCall`` begins that is no call but says which messages joined the turn there (its response is
``JoinedMessages`` as JSON text).  ``TurnLog.join`` writes it."""


@dataclass(frozen=True, slots=True)
class Approval:
    """A person's yes to one exact call.  ``payload`` is what came with it; the auth response of a sign-in.

    ``asked`` is the outcome of the run that asked (``ToolAsked.outcome``); ``None`` when the call had not run.
    """

    payload: JsonValue = None
    kind: InterruptKind = InterruptKind.APPROVAL
    asked: str | None = None


@dataclass(frozen=True, slots=True)
class CallRequest:
    """A tool call that the live turn waits for.

    Attributes:
        call_id: the framework's function-call id; unique in the turn.
        group: the calls of one model response that get their records together, when all of them are settled.  A call of
            a long-running tool beside others is a group of its own.
        ask: the kind of interrupt to raise before the call may run; ``None`` when none is needed.
        hint, payload: what the decider is shown.
        timeout: of one attempt.
        path: where in the application it is asked for (see ``Interrupt``); empty at the root.
    """

    call_id: str
    group: str
    tool_name: str
    arguments: JsonObject
    agent_name: str
    effect: ToolEffect
    retry: RetryPolicy
    timeout: timedelta | None = None
    ask: InterruptKind | None = None
    hint: str = ""
    payload: JsonValue = None
    path: str = ""


@dataclass(frozen=True, slots=True)
class CallRecord:
    """The stored outcome of one call.

    Attributes:
        sequence: its place among all records of the turn, in the order in which they settled.
        outcome: the framework's own JSON text (result and side effects on the session).  Of a record that perdure
            decided (rejected, not run, outcome unknown after a crash): what the last run that asked did to the session
            (``ToolAsked.outcome``), ``None`` if there was none.
        error: why it did not succeed.
    """

    call_id: str
    sequence: int
    status: RecordStatus
    outcome: str | None
    error: ErrorInfo | None
    settled_at_ms: int


@dataclass(frozen=True, slots=True)
class RecordedCall:
    """A call that is in the journal: what was asked for, whether a person agreed, and its record if it has one.

    ``asked`` is the outcome of its last run that asked something in the middle, answered or not.
    """

    request: CallRequest
    approval: Approval | None
    record: CallRecord | None
    asked: str | None = None


@dataclass(frozen=True, slots=True)
class RecordedTurn:
    """All that the journal holds of the present leg of an open turn.

    Attributes:
        calls: in the order in which they were asked for.
        questions: likewise; those that the live invocation waits for.
        stored_messages: how many messages of this turn are stored, earlier legs included; a replay of the leg makes
            those of the leg again and they are not stored twice.
    """

    model_calls: tuple[ModelCall, ...] = ()
    calls: tuple[RecordedCall, ...] = ()
    questions: tuple[AnsweredQuestion, ...] = ()
    stored_messages: int = 0


Settled = CallRecord | Answer
"""What a live invocation can be handed."""


@dataclass(frozen=True, slots=True)
class NewMessage:
    """A message to store.

    Attributes:
        ordinal: its place in the turn, from 0; a replay gives the same event the same ordinal.
        item: the framework's event as JSON text.
        state_delta: the session state that it sets (``app:`` and ``user:`` keys included, ``temp:`` left out).
    """

    ordinal: int
    role: MessageRole
    author: str
    text: str
    item: str
    created_at_ms: int
    tool_name: str | None = None
    tool_call_id: str | None = None
    images: tuple[str, ...] = ()
    state_delta: JsonObject = field(default_factory=dict[str, JsonValue])


@dataclass(frozen=True, slots=True)
class ControlCall:
    """A call that steers the invocation; it is shown in the live stream but is no step."""

    call_id: str
    tool_name: str
    arguments: JsonObject


@dataclass(frozen=True, slots=True)
class Progress:
    """What came out of driving a live turn, whatever ended the drive: messages not yet stored, and control calls."""

    messages: tuple[NewMessage, ...] = ()
    control_calls: tuple[ControlCall, ...] = ()
    model_keys: tuple[str, ...] = ()
    """Keys of the model calls that this drive made (answers from a record included), in order."""


@dataclass(frozen=True, slots=True)
class DriveBlocked:
    """The live turn waits for ``calls`` and ``questions`` (newly asked for) or for some it asked for before.

    ``more`` is true when some branch is still busy (a model call in flight): drive again at once.
    ``questions`` may hold some for which it does not wait: with ``QuestionWait.NEXT_TURN``, and with ``NEXT_LEG``,
    which people may answer already while the invocation goes on.
    """

    progress: Progress
    calls: tuple[CallRequest, ...]
    more: bool = False
    questions: tuple[Question, ...] = ()


@dataclass(frozen=True, slots=True)
class DriveFinished:
    """The invocation ended by itself.

    Attributes:
        questions: that it left open, those that were reported before included.  Any with ``QuestionWait.NEXT_LEG``
            suspend the turn until they are answered; none: the turn is over.
        carry: for the next leg, as JSON text: what lives for the turn and is in no message.  ``None`` when no question
            suspends the turn.
    """

    progress: Progress
    questions: tuple[Question, ...] = ()
    carry: str | None = None


@dataclass(frozen=True, slots=True)
class DriveFailed:
    """The invocation raised."""

    progress: Progress
    error: ErrorInfo


DriveResult = DriveBlocked | DriveFinished | DriveFailed


@dataclass(frozen=True, slots=True)
class ToolSucceeded:
    """The tool returned.

    Attributes:
        outcome: the framework's own JSON text, for ``CallRecord.outcome``.
        result: what the model sees, for people.
    """

    outcome: str
    result: JsonValue


@dataclass(frozen=True, slots=True)
class ToolRaised:
    """The tool raised, or its result cannot be stored.

    Attributes:
        final: the tool said (``ToolExecutionError``) that trying again is of no use.
        outcome: the framework's own JSON text (the state the tool had set before it raised).
    """

    error: ErrorInfo
    final: bool
    outcome: str | None = None


@dataclass(frozen=True, slots=True)
class ToolAsked:
    """The tool ran as far as a question to a person.  It runs again with the answer (``Approval``).

    Attributes:
        kind: ``CONFIRMATION`` or ``CREDENTIAL``.
        hint, payload: what the decider is shown.
        outcome: the framework's own JSON text: what this run did to the session.
    """

    kind: InterruptKind
    hint: str
    payload: JsonValue
    outcome: str


ToolOutcome = ToolSucceeded | ToolRaised | ToolAsked


@dataclass(frozen=True, slots=True)
class ClosedCall:
    """A call of a turn that failed or was cancelled, for the closing messages."""

    request: CallRequest
    record: CallRecord


class TurnLog(Protocol):
    """What an engine gives a live turn: the past of its session, and a place for what happens now."""

    def now_ms(self) -> int:
        """Wall-clock time in milliseconds since the epoch."""
        ...

    async def recorded(self) -> RecordedTurn:
        """What the journal holds of this turn."""
        ...

    async def load_history(self) -> Sequence[JsonObject]:
        """The framework items of all messages before this leg of the turn, oldest first."""
        ...

    async def load_stored(self) -> Sequence[JsonObject]:
        """The framework items of the messages that this leg of the turn has stored, oldest first."""
        ...

    async def load_state(self) -> JsonObject:
        """The session state as it was when this leg began; shared keys with their ``app:`` and ``user:`` prefix."""
        ...

    async def record_model_call(self, key: str, response: str, usage: Usage, settled_at_ms: int) -> ModelCall:
        """Accepts the record of a model call and gives it its sequence.

        When this returns the record is in the engine's ordered write queue, ahead of everything that follows from it.

        Raises:
            PayloadTooLarge: the response is larger than the store takes.
        """
        ...

    def steered(self) -> bool:
        """Whether a message of the session's queue steers.  Never waits."""
        ...

    def join(self, key: str, seen: Sequence[int]) -> Awaitable[ModelCall | None]:
        """Takes what steers out of the session's queue, for the model call that is about to be made.

        The record has its sequence when this returns, and what it gives comes when it is on disk that the messages
        belong to the turn.

        Args:
            key: of the record, which a replay finds in the journal; begins with ``JOINED``.
            seen: for ``JoinedMessages.seen``.

        Returns:
            Gives the record; ``None`` if no message of the queue steers (any more), or the turn is about to end.
        """
        ...

    async def written(self) -> None:
        """Waits until all that was recorded by now is on disk.

        For what was done in the world before it was recorded, and must not be done again.
        """
        ...

    def show_delta(
        self,
        kind: AgentEventType,
        text: str | None,
        *,
        step_id: str | None,
        attempt: int,
        item: JsonObject | None = None,
        behind: Sequence[NewMessage] = (),
    ) -> None:
        """Puts something that passes (``PASSING_EVENTS``) on the live stream.  Never waits.

        Args:
            text: of a delta.
            step_id: the step that it belongs to; ``None`` for what the invocation shows before anybody drives it.
            item: the framework's event that it comes of.
            behind: messages that came before it and that the engine has not been given; it takes them now, and they
                need not be reported again.

        Raises:
            ValueNotStorable, PayloadTooLarge: a message cannot be stored; nothing was taken or shown.
        """
        ...

    def nudge(self) -> None:
        """Says that the live turn has news although nobody drives it.  Never waits."""
        ...


class LiveTurn(Protocol):
    """A turn in memory: a running invocation that waits for the engine wherever it needs a record."""

    async def drive(self, step_id: str, records: Sequence[Settled], attempt: int = 1) -> DriveResult:
        """Hands out ``records`` (in their order) and lets the invocation run until it is blocked or over.

        Args:
            step_id: the ``RunModel`` step that this is.
            attempt: workers that took the step, this one included.  What the step shows (``TurnLog.show_delta``) has
                numbers of attempts above those of the workers before.

        Raises:
            NonDeterminismError: the invocation does not repeat what the journal holds.
        """
        ...

    def hand_out(self, records: Sequence[Settled]) -> None:
        """Hands out ``records`` to an invocation that is being driven already."""
        ...

    async def replayed(self, *, at_rest: bool = False) -> None:
        """Waits until the invocation has used up all that the journal holds.

        Args:
            at_rest: each model call that was made has its record, so that one without a record is a difference.

        Raises:
            NonDeterminismError: it does not repeat what the journal holds.
        """
        ...

    async def ready(self, call_id: str) -> None:
        """Waits until the invocation has asked for this call, so that ``call_tool`` will run at once.

        Raises:
            NonDeterminismError: the invocation ended or blocked without asking for this call.
        """
        ...

    async def call_tool(self, call_id: str, attempt: int, approval: Approval | None) -> ToolOutcome:
        """Runs the tool once, for real.  It returns only when the tool body is over; cancelling it cancels the body.

        Only after ``ready`` returned for this call.
        """
        ...

    def stored(self) -> None:
        """Says that the turn is completed on disk as it was in memory, which may now be kept for the next turn.

        Not before: the write of the end may fail, and another owner may end the turn otherwise.
        """
        ...

    async def close(self) -> None:
        """Drops the turn from memory without running any of the user's callbacks.  Cancels running tool bodies."""
        ...


@runtime_checkable
class AgentFrameworkRunner(Protocol):
    """An agent framework, as perdure sees it."""

    def definition(self) -> str:
        """A fingerprint of what a recorded turn relies on (agents, tools, their parameters), not of its texts.

        A worker whose fingerprint differs from the one a waiting session was recorded under checks that session.
        """
        ...

    def check_message(self, message: UserMessage) -> None:
        """Refuses a message that the framework could not run.

        Raises:
            UsageError: names what is wrong with it.
        """
        ...

    async def open_turn(self, start: TurnStart, log: TurnLog) -> LiveTurn:
        """Starts the invocation of a leg of a turn, from the session as it was when the leg began."""
        ...

    def closing_messages(
        self,
        start: TurnStart,
        stored: Sequence[JsonObject],
        joined: Sequence[JoinedMessage],
        calls: Sequence[ClosedCall],
        status: TurnStatus,
        error: ErrorInfo | None,
        now_ms: int,
    ) -> tuple[NewMessage, ...]:
        """What a failed or cancelled turn stores last, so that the next turn's model knows what happened.

        First the user's message if ``stored`` lacks it, and what joined the turn; then a response for every call in
        ``stored`` that has none, then the turn-failure note, which lists every call and its outcome.

        Args:
            stored: the framework items that the turn has stored, oldest first.
            joined: what joined the present leg.
            calls: every call of the turn, each with its record.
        """
        ...

    async def close(self) -> None:
        """Releases what the runner opened.  The application's own services stay open."""
        ...


@dataclass(frozen=True, slots=True, eq=False)
class AgentSessionFlow:
    """An agent made durable under a stable ``flow_type``.

    Attributes:
        flow_type: names the flow in the store; keep it when the code changes.
        app_name: the name under which ``app:`` and ``user:`` state is shared.
        user_id: of sessions that are started without one.
        interrupt_deadline: how long an interrupt may stay pending; ``None`` for ever.
        event_stream_capacity_bytes: byte budget of each session's live stream.

    Raises:
        UsageError: one of them is of the wrong type, empty or not positive; names it.
    """

    flow_type: str
    runner: AgentFrameworkRunner
    app_name: str
    user_id: str = "user"
    interrupt_deadline: timedelta | None = None
    event_stream_capacity_bytes: int = DEFAULT_EVENT_STREAM_CAPACITY_BYTES

    def __post_init__(self) -> None:
        for name in ("flow_type", "app_name", "user_id"):
            value = getattr(self, name)
            if not isinstance(value, str) or not value:
                raise wrong(name, value, "a str that is not empty")
        expect(self.runner, AgentFrameworkRunner, "runner", "an AgentFrameworkRunner, such as an AdkAgentRunner")
        expect(self.interrupt_deadline, timedelta, "interrupt_deadline", "a timedelta, or None for ever", optional=True)
        if self.interrupt_deadline is not None and self.interrupt_deadline <= timedelta(0):
            raise wrong("interrupt_deadline", self.interrupt_deadline, "positive, or None for ever")
        expect_count(self.event_stream_capacity_bytes, "event_stream_capacity_bytes", least=1)
