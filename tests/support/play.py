"""A tiny agent framework for tests of the engine: a turn is a coroutine that asks for model calls and tool calls.

It keeps the runner contract (records, replay, groups) without ADK: an engine test starts fast and fails for one reason.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import NoReturn

from perdure.errors import NonDeterminismError, ToolExecutionError
from perdure.session.model import (
    AgentEventType,
    ErrorInfo,
    InterruptKind,
    JoinedMessage,
    JoinedMessages,
    JsonObject,
    JsonValue,
    MessageRole,
    TurnStatus,
    Usage,
    UserMessage,
)
from perdure.session.policy import RetryPolicy, ToolEffect
from perdure.session.runner import (
    JOINED,
    Answer,
    Approval,
    CallRecord,
    CallRequest,
    ClosedCall,
    DriveBlocked,
    DriveFailed,
    DriveFinished,
    DriveResult,
    LiveTurn,
    NewMessage,
    Progress,
    Question,
    QuestionWait,
    Settled,
    ToolAsked,
    ToolOutcome,
    ToolRaised,
    ToolSucceeded,
    TurnLog,
    TurnStart,
)

FAST_RETRY = RetryPolicy(first_delay=timedelta(0))


@dataclass(frozen=True)
class PlayCall:
    """A tool call of a play.  ``body`` gets the call id and the attempt; it may return a ``ToolAsked``."""

    name: str
    body: Callable[[str, int], Awaitable[object]]
    effect: ToolEffect = ToolEffect.READ
    ask: InterruptKind | None = None
    timeout: timedelta | None = None
    retry: RetryPolicy = FAST_RETRY
    path: str = ""


Script = Callable[["Play"], Awaitable[None]]


class PlayRunner:
    """``AgentFrameworkRunner`` over a script.  Counts the model calls that it really makes."""

    def __init__(self, script: Script, definition: str = "play") -> None:
        self.script = script
        self.model_calls: list[str] = []
        self.opened = 0
        self.starts: list[TurnStart] = []
        self._definition = definition

    def definition(self) -> str:
        return self._definition

    def check_message(self, message: UserMessage) -> None:
        pass

    async def open_turn(self, start: TurnStart, log: TurnLog) -> LiveTurn:
        self.opened += 1
        self.starts.append(start)
        play = Play(self, start, log)
        await play.open()
        return play

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
        note = {"note": status.value, "calls": {c.request.call_id: c.record.status.value for c in calls}}
        return (_message(len(stored), MessageRole.USER, json.dumps(note), now_ms),)

    async def close(self) -> None:
        pass


@dataclass
class _Pending:
    request: CallRequest
    call: PlayCall
    record: asyncio.Future[CallRecord] = field(default_factory=lambda: asyncio.get_running_loop().create_future())
    reported: bool = False


@dataclass
class _Asked:
    question: Question
    answer: asyncio.Future[Answer] = field(default_factory=lambda: asyncio.get_running_loop().create_future())
    reported: bool = False


class Play:
    """One live turn.

    Attributes:
        approvals: what each call got with its last run.
        carry: what the next leg gets.
    """

    def __init__(self, runner: PlayRunner, start: TurnStart, log: TurnLog) -> None:
        self.start = start
        self._runner = runner
        self._log = log
        self._pending: dict[str, _Pending] = {}
        self._asked: dict[str, _Asked] = {}
        self._later: list[Question] = []
        """Asked, and not waited for."""
        self._next: list[Question] = []
        """For the next leg."""
        self.approvals: dict[str, Approval | None] = {}
        self.carry: str | None = None
        self._messages: list[NewMessage] = []
        self._keys: list[str] = []
        self._said = start.leg_length
        self._busy = 1
        """Parts of the script that do not wait for records."""
        self._changed = asyncio.Event()
        self._step_id = ""
        self._task: asyncio.Task[None]

    async def open(self) -> None:
        recorded = await self._log.recorded()
        self._models = {call.key: call.response for call in recorded.model_calls}
        self._known = {call.request.call_id: call for call in recorded.calls}
        waiting = {call.request.group for call in recorded.calls if call.record is None}
        self._replayable = {
            call.request.call_id: call.record
            for call in recorded.calls
            if call.record is not None and call.request.group not in waiting
        }
        self._known_questions = {asked.question.question_id: asked for asked in recorded.questions}
        open_groups = {asked.question.group for asked in recorded.questions if asked.answer is None}
        self._answers = {
            name: asked.answer
            for name, asked in self._known_questions.items()
            if asked.answer is not None and asked.question.group not in open_groups
        }
        self._unused = set(self._models) | set(self._known) | {f"?{name}" for name in self._known_questions}
        self._task = asyncio.create_task(self._run())

    async def _run(self) -> None:
        try:
            if self.start.leg == 1:
                self.say(self.start.message.text, MessageRole.USER)
            await self._runner.script(self)
        finally:
            self._busy -= 1
            self._changed.set()

    # ------------------------------------------------------------ for scripts

    def say(self, text: str, role: MessageRole = MessageRole.ASSISTANT) -> None:
        self._messages.append(_message(self._said, role, text, self._log.now_ms()))
        self._said += 1

    async def together(self, *branches: Awaitable[None]) -> None:
        """Parts of the script that go on each by itself."""
        self._busy += len(branches) - 1
        going = len(branches)

        async def run(branch: Awaitable[None]) -> None:
            nonlocal going
            await branch
            going -= 1
            if going:  # The last one goes on as the script.
                self._busy -= 1
                self._changed.set()

        await asyncio.gather(*map(run, branches))

    def nudge(self) -> None:
        """The script has news although nobody drives it."""
        self._log.nudge()

    async def model(self, key: str, answer: str = "", delay: Awaitable[object] | None = None) -> str:
        """A model call: answered from the journal, or made."""
        self._keys.append(key)
        self._unused.discard(key)
        if key in self._models:
            return self._models[key]
        if self._unused:
            raise NonDeterminismError(f"{key} is new", step=key, expected=sorted(self._unused), found=key)
        self._runner.model_calls.append(key)
        self._log.show_delta(AgentEventType.TEXT_DELTA, answer, step_id=self._step_id, attempt=1)
        if delay is not None:
            await delay
        await self._log.record_model_call(key, answer, Usage(model_calls=1), self._log.now_ms())
        return answer

    async def join(self, model_key: str) -> list[str]:
        """Takes along what steers, for the model call of this key; the texts."""
        key = f"{JOINED}{model_key}"
        self._unused.discard(key)
        response = self._models.get(key)
        if response is None and self._log.steered() and model_key not in self._models:
            record = await self._log.join(key, ())
            response = None if record is None else record.response
        if response is None:
            return []
        return [one.message.text for one in JoinedMessages.model_validate_json(response).messages]

    async def tools(self, group: str, calls: dict[str, PlayCall]) -> list[CallRecord]:
        """Tool calls of one model response, by call id."""
        for call_id, call in calls.items():
            self._unused.discard(call_id)
            request = CallRequest(
                call_id=call_id,
                group=group,
                tool_name=call.name,
                arguments={"id": call_id},
                agent_name="player",
                effect=call.effect,
                retry=call.retry,
                timeout=call.timeout,
                ask=call.ask,
                path=call.path,
            )
            known = self._known.get(call_id)
            if known is not None and known.request.tool_name != call.name:
                raise NonDeterminismError(
                    f"{call_id} was {known.request.tool_name}",
                    step=call_id,
                    expected=known.request.tool_name,
                    found=call.name,
                )
            pending = _Pending(request, call, reported=known is not None)
            self._pending[call_id] = pending
            if call_id in self._replayable:
                pending.record.set_result(self._replayable[call_id])
        self._busy -= 1
        self._changed.set()
        try:
            return [await self._pending[call_id].record for call_id in calls]
        finally:
            self._busy += 1

    async def ask(
        self,
        *question_ids: str,
        group: str = "questions",
        kind: InterruptKind = InterruptKind.LONG_RUNNING,
        path: str = "",
    ) -> list[Answer]:
        """Questions of one group that this invocation waits for."""
        for question_id in question_ids:
            self._unused.discard(f"?{question_id}")
            known = self._known_questions.get(question_id)
            question = self._question(question_id, group, kind, QuestionWait.LIVE, path)
            asked = self._asked[question_id] = _Asked(question, reported=known is not None)
            if question_id in self._answers:
                asked.answer.set_result(self._answers[question_id])
        self._busy -= 1
        self._changed.set()
        try:
            return [await self._asked[question_id].answer for question_id in question_ids]
        finally:
            self._busy += 1

    def ask_later(self, question_id: str, kind: InterruptKind = InterruptKind.LONG_RUNNING) -> None:
        """A question whose answer starts a turn.  Asked again by each replay, as the contract allows."""
        self._later.append(self._question(question_id, "later", kind, QuestionWait.NEXT_TURN))

    def ask_next(self, *question_ids: str, kind: InterruptKind = InterruptKind.INPUT, path: str = "") -> None:
        """Questions whose answers the next leg gets, once this one has ended."""
        self._next += [self._question(name, "next", kind, QuestionWait.NEXT_LEG, path) for name in question_ids]

    def _question(
        self, question_id: str, group: str, kind: InterruptKind, wait: QuestionWait, path: str = ""
    ) -> Question:
        return Question(
            question_id=question_id,
            kind=kind,
            group=group,
            wait=wait,
            tool_name=f"ask_{question_id}",
            arguments={"id": question_id},
            agent_name="player",
            path=path,
            hint=f"what about {question_id}?",
        )

    # ------------------------------------------------------------ LiveTurn

    async def drive(self, step_id: str, records: Sequence[Settled], attempt: int = 1) -> DriveResult:
        self._step_id = step_id
        self.hand_out(records)
        while True:
            await asyncio.sleep(0)
            if self._task.done():
                return self._finished()
            if self._busy == 0:
                return self._blocked()
            self._changed.clear()
            await asyncio.wait({self._task, asyncio.ensure_future(self._changed.wait())}, return_when="FIRST_COMPLETED")

    def _blocked(self) -> DriveResult:
        calls = tuple(pending.request for pending in self._pending.values() if not pending.reported)
        questions = [asked.question for asked in self._asked.values() if not asked.reported]
        for pending in self._pending.values():
            pending.reported = True
        for asked in self._asked.values():
            asked.reported = True
        later, self._later = self._later, []
        return DriveBlocked(self._progress(), calls, questions=(*questions, *later))

    def _finished(self) -> DriveResult:
        error = self._task.exception()
        if isinstance(error, NonDeterminismError):
            raise error
        if error is not None:
            return DriveFailed(self._progress(), ErrorInfo(code=type(error).__name__, message=str(error)))
        return DriveFinished(self._progress(), (*self._later, *self._next), self.carry)

    def _progress(self) -> Progress:
        messages, self._messages = tuple(self._messages), []
        keys, self._keys = tuple(self._keys), []
        return Progress(messages, (), keys)

    def hand_out(self, records: Sequence[Settled]) -> None:
        for record in records:
            if isinstance(record, Answer):
                answer = self._asked[record.question_id].answer
                if not answer.done():
                    answer.set_result(record)
                continue
            future = self._pending[record.call_id].record
            if not future.done():
                future.set_result(record)

    async def replayed(self, *, at_rest: bool = False) -> None:
        while self._unused and self._moves():  # noqa: ASYNC110 - a test double: the script moves in this very loop
            await asyncio.sleep(0)
        if self._unused:
            self._fail_replay(min(self._unused))

    async def ready(self, call_id: str) -> None:
        while call_id not in self._pending and self._moves():  # noqa: ASYNC110 - as above
            await asyncio.sleep(0)
        if call_id not in self._pending:
            self._fail_replay(call_id)

    def _moves(self) -> bool:
        return self._busy > 0 and not self._task.done()

    def _fail_replay(self, step: str) -> NoReturn:
        if self._task.done() and isinstance(error := self._task.exception(), NonDeterminismError):
            raise error
        raise NonDeterminismError(f"{step} did not come back", step=step, expected=step, found=None)

    async def call_tool(self, call_id: str, attempt: int, approval: Approval | None) -> ToolOutcome:
        self.approvals[call_id] = approval
        try:
            result = await self._pending[call_id].call.body(call_id, attempt)
        except ToolExecutionError as error:
            return ToolRaised(ErrorInfo(code="tool", message=str(error)), final=True)
        except Exception as error:  # noqa: BLE001 - a tool may raise anything
            return ToolRaised(ErrorInfo(code=type(error).__name__, message=str(error)), final=False)
        if isinstance(result, ToolAsked):
            return result
        return ToolSucceeded(json.dumps(result), result)

    def stored(self) -> None:
        pass

    async def close(self) -> None:
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)


def asks(
    kind: InterruptKind = InterruptKind.CONFIRMATION,
    *,
    hint: str = "really?",
    payload: JsonValue = None,
    outcome: str = '"asked"',
) -> ToolAsked:
    """What a body returns that asks a person."""
    return ToolAsked(kind, hint, payload, outcome)


def _message(ordinal: int, role: MessageRole, text: str, now_ms: int) -> NewMessage:
    item = json.dumps({"ordinal": ordinal, "text": text})
    return NewMessage(ordinal, role, "player", text, item, now_ms)
