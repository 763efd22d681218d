"""A small engine for the tests of the ADK binding.

It keeps one session on a ``Disk`` and drives its turns through the runner contract.  It can "crash" before any
durable write and go on from the disk with a new live turn, on the same or on another runner.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from dataclasses import dataclass, replace

from tests.adk.disk import Disk, Log

from perdure.session.model import (
    DEFAULT_REJECTION_MESSAGE,
    OUTCOME_UNKNOWN_TOOL_RESULT,
    ErrorInfo,
    JsonValue,
    RecordStatus,
    TurnStatus,
    UserMessage,
)
from perdure.session.policy import EFFECT_RULES, GiveUp, ToolEffect, TryAgain, after_failure
from perdure.session.runner import (
    AgentFrameworkRunner,
    Answer,
    AnsweredQuestion,
    Approval,
    CallRecord,
    CallRequest,
    ClosedCall,
    DriveBlocked,
    DriveFailed,
    DriveFinished,
    DriveResult,
    LiveTurn,
    Question,
    QuestionWait,
    Settled,
    ToolAsked,
    ToolRaised,
    ToolSucceeded,
    TurnStart,
)


@dataclass(frozen=True)
class Rejected:
    """A person's no."""

    message: str = ""


@dataclass(frozen=True)
class Unanswered:
    """Nobody answers yet."""


Decide = Callable[[CallRequest], Approval | str | None]
"""An approval; a rejection message; ``None``: nobody answers yet."""

Answerer = Callable[[CallRequest, ToolAsked], JsonValue | Rejected | Unanswered]
"""What a person says to what a tool asks in the middle: the payload of a yes, or one of the two."""


def _yes(request: CallRequest) -> Approval:
    return Approval()


class Engine:
    """Drives turns of the session on ``disk``."""

    def __init__(self, runner: AgentFrameworkRunner, disk: Disk | None = None, decide: Decide | None = None) -> None:
        self.runner = runner
        self.disk = disk or Disk()
        self.decide: Decide = decide or _yes
        self.answer: Callable[[Question], JsonValue] = lambda question: {"approved": True}
        self.log: Log | None = None
        self.control_calls: list[str] = []
        self.ran: list[str] = []
        """Ids of the calls that were run, once for each attempt."""
        self.answerer: Answerer = lambda request, asked: None
        self._decided: dict[str, Approval | str] = {}
        self._told: dict[str, JsonValue | Rejected] = {}
        self._complete_groups: set[str] = set()
        self.order: Callable[[list[CallRequest]], list[CallRequest]] = lambda requests: requests

    def begin(self, message: str | UserMessage) -> None:
        disk = self.disk
        disk.turns += 1
        disk.state_at_start = json.loads(json.dumps(disk.state))
        disk.model_calls, disk.requests, disk.approvals, disk.records = [], {}, {}, {}
        disk.attempts, disk.new_messages, disk.results = {}, [], {}
        disk.asked, disk.asks, disk.questions, disk.answers, disk.frontier = {}, [], {}, {}, None
        self._decided, self._told, self._complete_groups = {}, {}, set()
        disk.start = TurnStart(
            session_id=disk.session_id,
            incarnation="i1",
            user_id=disk.user_id,
            turn_id=f"e-00000000-0000-4000-a000-{disk.turns:012d}",
            number=disk.turns,
            message=UserMessage(text=message) if isinstance(message, str) else message,
            started_at_ms=1_700_000_000_000 + disk.turns * 100_000,
            history_length=len(disk.messages),
        )

    async def open(self) -> LiveTurn:
        assert self.disk.start is not None
        self.log = Log(self.disk)
        return await self.runner.open_turn(self.disk.start, self.log)

    async def turn(self, message: str | UserMessage) -> None:
        """One turn from beginning to end, without a crash."""
        self.begin(message)
        await self.go_on()

    async def go_on(self) -> bool:
        """Goes on with the open turn.  ``False`` when it waits for somebody."""
        while self.disk.frontier is None or self._begin_leg(self.disk.frontier):
            live = await self.open()
            try:
                over = await self._loop(live)
            finally:
                await live.close()
            if over or self.disk.frontier is None:
                return over
        return False

    def _begin_leg(self, end: DriveFinished) -> bool:
        """Begins the next leg if all that the last one left open is answered."""
        disk = self.disk
        assert disk.start is not None
        self._answer_questions()
        asked = [question for question in end.questions if question.wait is QuestionWait.NEXT_LEG]
        if any(question.question_id not in disk.answers for question in asked):
            return False
        disk.write()
        answers = tuple(AnsweredQuestion(question, disk.answers[question.question_id]) for question in asked)
        disk.state_at_start = json.loads(json.dumps(disk.state))
        disk.model_calls, disk.requests, disk.approvals, disk.records = [], {}, {}, {}
        disk.attempts, disk.results, disk.frontier = {}, {}, None
        disk.asked, disk.asks, disk.questions, disk.answers = {}, [], {}, {}
        self._decided, self._told, self._complete_groups = {}, {}, set()
        start, length = disk.start, len(disk.new_messages)
        disk.start = replace(start, leg=start.leg + 1, leg_length=length, answers=answers, carry=end.carry)
        return True

    async def _loop(self, live: LiveTurn) -> bool:
        """Drives the turn while the calls that it asked for run beside it."""
        steps: dict[str, asyncio.Task[bool]] = {}
        try:
            while True:
                self._start_steps(steps, live)
                drive = asyncio.ensure_future(self._drive(live))
                again = False
                try:
                    while not drive.done():
                        await asyncio.wait((drive, *steps.values()), return_when=asyncio.FIRST_COMPLETED)
                        if self._reap(steps):
                            live.hand_out(self._complete())
                            again = True  # the drive may have ended without it
                    result = drive.result()
                finally:
                    drive.cancel()
                    await asyncio.gather(drive, return_exceptions=True)
                if not isinstance(result, DriveBlocked):
                    await self._wind_down(steps)
                    return await self._ended(result, live)
                self._start_steps(steps, live)
                if self._answer_questions() or result.more or again or self._reap(steps):
                    continue
                self._start_steps(steps, live)
                if not steps:
                    return False
                await asyncio.wait(steps.values(), return_when=asyncio.FIRST_COMPLETED)
                while not self._reap(steps) and steps:
                    await asyncio.wait(steps.values(), return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in steps.values():
                task.cancel()
            await asyncio.gather(*steps.values(), return_exceptions=True)

    async def _drive(self, live: LiveTurn) -> DriveResult:
        disk = self.disk
        result = await live.drive(f"step-{disk.writes}", self._complete())
        self.control_calls += [call.tool_name for call in result.progress.control_calls]
        disk.write()
        self.disk.store(result.progress.messages)
        if not isinstance(result, DriveFailed):
            for question in result.questions:
                json.dumps([question.arguments, question.payload], allow_nan=False)
                if question.wait is QuestionWait.NEXT_TURN:
                    if question not in disk.late:  # a replay asks it again
                        disk.late.append(question)
                else:
                    again = question.question_id in disk.questions
                    assert not again or question.wait is QuestionWait.NEXT_LEG, "a question was reported twice"
                    disk.questions[question.question_id] = question
        if isinstance(result, DriveFinished) and any(q.wait is QuestionWait.NEXT_LEG for q in result.questions):
            disk.frontier = result
        if isinstance(result, DriveBlocked):
            for request in result.calls:
                json.dumps(request.arguments, allow_nan=False)
                assert request.call_id not in disk.requests, "a call was reported twice"
                disk.requests[request.call_id] = request
        return result

    def _start_steps(self, steps: dict[str, asyncio.Task[bool]], live: LiveTurn) -> None:
        """Starts the calls that are due and not answered with no."""
        disk = self.disk
        due = [r for r in disk.requests.values() if r.call_id not in disk.records and r.call_id not in steps]
        for request in self.order(due):
            if not self._waits(request):
                steps[request.call_id] = asyncio.ensure_future(self._step(request, live))

    def _waits(self, request: CallRequest) -> bool:
        """Whether a call waits for somebody who has not answered yet."""
        if request.call_id in self.disk.asked:
            if request.call_id not in self._told:
                said = self.answerer(request, self.disk.asked[request.call_id])
                if isinstance(said, Unanswered):
                    return True
                self._told[request.call_id] = said
            return False
        if request.ask is None or request.call_id in self.disk.approvals or request.call_id in self._decided:
            return False
        answer = self.decide(request)
        if answer is not None:
            self._decided[request.call_id] = answer
        return answer is None

    def _reap(self, steps: dict[str, asyncio.Task[bool]]) -> bool:
        """Takes note of the steps that ended.  Whether a group is complete now that was not."""
        before = len(self._complete_groups)
        for call_id in [call_id for call_id, task in steps.items() if task.done()]:
            steps.pop(call_id).result()
        groups: dict[str, list[str]] = {}
        for request in self.disk.requests.values():
            groups.setdefault(request.group, []).append(request.call_id)
        self._complete_groups |= {g for g, ids in groups.items() if all(i in self.disk.records for i in ids)}
        return len(self._complete_groups) > before

    def _complete(self) -> list[Settled]:
        """The records of the complete groups and the answers, in the order in which they settled."""
        requests = self.disk.requests
        records = [record for i, record in self.disk.records.items() if requests[i].group in self._complete_groups]
        live = [a for i, a in self.disk.answers.items() if self.disk.questions[i].wait is QuestionWait.LIVE]
        settled: list[Settled] = [*records, *live]
        return sorted(settled, key=lambda one: one.sequence)

    def _answer_questions(self) -> bool:
        """Answers what somebody has an answer to.  Whether there was any."""
        disk = self.disk
        answered = False
        for question in disk.questions.values():
            value = None if question.question_id in disk.answers else self.answer(question)
            if value is not None:
                disk.write()
                error = value if isinstance(value, ErrorInfo) else None
                disk.answers[question.question_id] = Answer(
                    question.question_id, disk.sequence(), None if error else value, error, disk.now_ms()
                )
                answered = True
        return answered

    async def _wind_down(self, steps: dict[str, asyncio.Task[bool]]) -> None:
        """The invocation is over: reads are stopped, writes are waited for."""
        for call_id, task in steps.items():
            if self.disk.requests[call_id].effect is ToolEffect.READ:
                task.cancel()
        await asyncio.gather(*steps.values(), return_exceptions=True)
        steps.clear()

    async def _ended(self, result: DriveFinished | DriveFailed, live: LiveTurn) -> bool:
        disk = self.disk
        if disk.frontier is not None:
            return False
        disk.status = TurnStatus.COMPLETED if isinstance(result, DriveFinished) else TurnStatus.FAILED
        disk.error = result.error if isinstance(result, DriveFailed) else None
        if isinstance(result, DriveFinished):
            live.stored()
        else:
            await self.close_failed(TurnStatus.FAILED, result.error)
        return True

    async def close_failed(self, status: TurnStatus, error: ErrorInfo | None) -> None:
        disk = self.disk
        assert disk.start is not None
        for call_id in disk.requests:
            if call_id not in disk.records:
                disk.records[call_id] = CallRecord(
                    call_id, disk.sequence(), RecordStatus.OUTCOME_UNKNOWN, None, None, 1_700_000_000_000
                )
        closed = [ClosedCall(disk.requests[i], disk.records[i]) for i in disk.requests]
        stored = disk.messages[disk.start.history_length :]
        self.disk.store(
            self.runner.closing_messages(disk.start, stored, disk.joined, closed, status, error, 1_700_000_900_000)
        )

    async def _step(self, request: CallRequest, live: LiveTurn) -> bool:
        disk, call_id = self.disk, request.call_id
        if request.ask is not None and call_id not in disk.approvals:
            answer = self._decided[call_id]
            disk.write()
            if isinstance(answer, str):
                error = ErrorInfo(code="rejected", message=answer or DEFAULT_REJECTION_MESSAGE)
                self._record(call_id, RecordStatus.REJECTED, None, error)
                return True
            disk.approvals[call_id] = answer
        if call_id in disk.asked and not self._let_through(request):
            return True
        single = EFFECT_RULES[request.effect].single_attempt
        attempts = disk.attempts.get(call_id, 0)
        if attempts and (single or attempts >= request.retry.max_attempts):
            disk.write()
            error = ErrorInfo(code="outcome_unknown", message=OUTCOME_UNKNOWN_TOOL_RESULT)
            self._record(call_id, EFFECT_RULES[request.effect].exhausted, None, error)
            return True
        while True:
            attempts += 1
            if single:
                disk.write()
                disk.attempts[call_id] = attempts
            self.ran.append(call_id)
            outcome = await live.call_tool(call_id, attempts, disk.approvals.get(call_id))
            if isinstance(outcome, ToolSucceeded):
                disk.write()
                disk.results[call_id] = json.loads(json.dumps(outcome.result))
                self._record(call_id, RecordStatus.SUCCEEDED, outcome.outcome, None)
                return True
            if isinstance(outcome, ToolAsked):
                disk.write()
                json.dumps([outcome.hint, outcome.payload, json.loads(outcome.outcome)], allow_nan=False)
                disk.asked[call_id] = outcome
                disk.asks.append((call_id, outcome))
                disk.attempts.pop(call_id, None)
                return False
            assert isinstance(outcome, ToolRaised)
            what: TryAgain | GiveUp = GiveUp(RecordStatus.FAILED)
            if not outcome.final:
                what = after_failure(request.effect, request.retry.max_attempts, attempts, request.retry)
            disk.write()
            disk.attempts[call_id] = attempts
            if isinstance(what, GiveUp):
                self._record(call_id, what.status, outcome.outcome, outcome.error)
                return True

    def _let_through(self, request: CallRequest) -> bool:
        """Whether a call that asked may run again."""
        disk, call_id = self.disk, request.call_id
        disk.write()
        asked, answer = disk.asked.pop(call_id), self._told.pop(call_id)
        if isinstance(answer, Rejected):
            error = ErrorInfo(code="rejected", message=answer.message or DEFAULT_REJECTION_MESSAGE)
            self._record(call_id, RecordStatus.REJECTED, None, error)
            return False
        disk.approvals[call_id] = Approval(answer, asked.kind, asked.outcome)
        return True

    def _record(self, call_id: str, status: RecordStatus, outcome: str | None, error: ErrorInfo | None) -> None:
        if outcome is not None:
            json.loads(outcome)
        disk = self.disk
        disk.records[call_id] = CallRecord(call_id, disk.sequence(), status, outcome, error, disk.now_ms())
