"""A small engine for the tests of the ADK binding.

It keeps one session on a ``Disk`` and drives its turns through the runner contract.  It can "crash" before any
durable write and go on from the disk with a new live turn, on the same or on another runner.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from perdure.session.model import (
    DEFAULT_REJECTION_MESSAGE,
    OUTCOME_UNKNOWN_TOOL_RESULT,
    AgentEventType,
    ErrorInfo,
    JsonObject,
    RecordStatus,
    TurnStatus,
    Usage,
    UserMessage,
)
from perdure.session.policy import EFFECT_RULES, GiveUp, TryAgain, after_failure
from perdure.session.runner import (
    AgentFrameworkRunner,
    Approval,
    CallRecord,
    CallRequest,
    ClosedCall,
    DriveBlocked,
    DriveFailed,
    DriveFinished,
    LiveTurn,
    ModelCall,
    NewMessage,
    RecordedCall,
    RecordedTurn,
    ToolSucceeded,
    TurnStart,
)


class Crash(Exception):
    """The process died here."""


@dataclass
class Disk:
    """What survives a crash."""

    session_id: str = "s1"
    user_id: str = "u1"
    state: JsonObject = field(default_factory=dict)
    messages: list[JsonObject] = field(default_factory=list)
    turns: int = 0
    usage: Usage = field(default_factory=Usage)
    # of the open turn
    start: TurnStart | None = None
    state_at_start: JsonObject = field(default_factory=dict)
    model_calls: list[ModelCall] = field(default_factory=list)
    requests: dict[str, CallRequest] = field(default_factory=dict)
    approvals: dict[str, Approval] = field(default_factory=dict)
    records: dict[str, CallRecord] = field(default_factory=dict)
    attempts: dict[str, int] = field(default_factory=dict)
    new_messages: list[NewMessage] = field(default_factory=list)
    status: TurnStatus = TurnStatus.COMPLETED
    error: ErrorInfo | None = None
    results: dict[str, Any] = field(default_factory=dict)
    # counting
    writes: int = 0
    crash_at: int | None = None

    def write(self) -> None:
        """Call before each durable write.  After a crash nothing is written."""
        self.writes += 1
        if self.crash_at is not None and self.writes >= self.crash_at:
            raise Crash(f"write {self.writes}")

    def store(self, messages: Sequence[NewMessage]) -> None:
        """Stores messages of the open turn."""
        for message in messages:
            assert message.ordinal == len(self.new_messages), "ordinals have no gaps"
            self.new_messages.append(message)
            self.messages.append(json.loads(message.item))
            self.state.update(json.loads(json.dumps(message.state_delta)))

    def reboot(self) -> None:
        """A new process goes on with the disk."""
        self.crash_at = None

    def sequence(self) -> int:
        return len(self.model_calls) + len(self.records) + 1

    def now_ms(self) -> int:
        """A clock that shows how many records there are."""
        return 1_700_000_000_000 + self.turns * 100_000 + 10 * self.sequence()


class Log:
    """The ``TurnLog`` of one live turn over a disk."""

    def __init__(self, disk: Disk) -> None:
        self.disk = disk
        self.deltas: list[tuple[AgentEventType, str, int]] = []
        self.nudges = 0
        self.nudged = asyncio.Event()
        self.history_loads = 0

    def now_ms(self) -> int:
        return self.disk.now_ms()

    async def recorded(self) -> RecordedTurn:
        disk = self.disk
        recorded = [
            RecordedCall(request, disk.approvals.get(call_id), disk.records.get(call_id))
            for call_id, request in disk.requests.items()
        ]
        return RecordedTurn(tuple(disk.model_calls), tuple(recorded), stored_messages=len(disk.new_messages))

    async def load_history(self) -> Sequence[JsonObject]:
        self.history_loads += 1
        assert self.disk.start is not None
        return self.disk.messages[: self.disk.start.history_length]

    async def load_state(self) -> JsonObject:
        state: JsonObject = json.loads(json.dumps(self.disk.state_at_start))
        return state

    async def record_model_call(self, key: str, response: str, usage: Usage, settled_at_ms: int) -> ModelCall:
        self.disk.write()
        json.loads(response)
        call = ModelCall(key, self.disk.sequence(), response, usage, settled_at_ms)
        self.disk.model_calls.append(call)
        self.disk.usage += usage
        return call

    def show_delta(
        self,
        kind: AgentEventType,
        text: str | None,
        *,
        step_id: str,
        attempt: int,
        item: JsonObject | None = None,
        behind: Sequence[NewMessage] = (),
    ) -> None:
        assert step_id
        if behind:
            self.disk.write()
            self.disk.store(behind)
        self.deltas.append((kind, text, attempt))

    def nudge(self) -> None:
        self.nudges += 1
        self.nudged.set()


Decide = Callable[[CallRequest], Approval | str | None]
"""An approval; a rejection message; ``None``: nobody answers yet."""


def _yes(request: CallRequest) -> Approval:
    return Approval()


class Engine:
    """Drives turns of the session on ``disk``."""

    def __init__(self, runner: AgentFrameworkRunner, disk: Disk | None = None, decide: Decide | None = None) -> None:
        self.runner = runner
        self.disk = disk or Disk()
        self.decide: Decide = decide or _yes
        self.log: Log | None = None
        self.control_calls: list[str] = []
        self.ran: list[str] = []
        """Ids of the calls that were run, once for each attempt."""
        self.order: Callable[[list[CallRequest]], list[CallRequest]] = lambda requests: requests

    def begin(self, message: str | UserMessage) -> None:
        disk = self.disk
        disk.turns += 1
        disk.state_at_start = json.loads(json.dumps(disk.state))
        disk.model_calls, disk.requests, disk.approvals, disk.records = [], {}, {}, {}
        disk.attempts, disk.new_messages, disk.results = {}, [], {}
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
        live = await self.open()
        try:
            return await self._loop(live)
        finally:
            await live.close()

    async def _loop(self, live: LiveTurn) -> bool:
        disk = self.disk
        while True:
            groups = {request.group for request in disk.requests.values()}
            for group in groups:
                if not await self._settle([r for r in disk.requests.values() if r.group == group], live):
                    return False
            result = await live.drive(f"step-{disk.writes}", list(disk.records.values()))
            self.control_calls += [call.tool_name for call in result.progress.control_calls]
            disk.write()
            self.disk.store(result.progress.messages)
            if isinstance(result, DriveBlocked):
                for request in result.calls:
                    json.dumps(request.arguments, allow_nan=False)
                    assert request.call_id not in disk.requests, "a call was reported twice"
                    disk.requests[request.call_id] = request
                continue
            disk.status = TurnStatus.COMPLETED if isinstance(result, DriveFinished) else TurnStatus.FAILED
            disk.error = result.error if isinstance(result, DriveFailed) else None
            if isinstance(result, DriveFinished):
                live.stored()
            if isinstance(result, DriveFailed):
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
        self.disk.store(self.runner.closing_messages(disk.start, stored, closed, status, error, 1_700_000_900_000))

    async def _settle(self, requests: list[CallRequest], live: LiveTurn) -> bool:
        """Runs the calls of a group, beside each other."""
        open_requests = [r for r in self.order(requests) if r.call_id not in self.disk.records]
        tasks = [asyncio.ensure_future(self._step(request, live)) for request in open_requests]
        try:
            return all(await asyncio.gather(*tasks))
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _step(self, request: CallRequest, live: LiveTurn) -> bool:
        disk, call_id = self.disk, request.call_id
        if request.ask is not None and call_id not in disk.approvals:
            answer = self.decide(request)
            if answer is None:
                return False
            disk.write()
            if isinstance(answer, str):
                error = ErrorInfo(code="rejected", message=answer or DEFAULT_REJECTION_MESSAGE)
                self._record(call_id, RecordStatus.REJECTED, None, error)
                return True
            disk.approvals[call_id] = answer
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
            what: TryAgain | GiveUp = GiveUp(RecordStatus.FAILED)
            if not outcome.final:
                what = after_failure(request.effect, request.retry.max_attempts, attempts, request.retry)
            disk.write()
            disk.attempts[call_id] = attempts
            if isinstance(what, GiveUp):
                self._record(call_id, what.status, outcome.outcome, outcome.error)
                return True

    def _record(self, call_id: str, status: RecordStatus, outcome: str | None, error: ErrorInfo | None) -> None:
        if outcome is not None:
            json.loads(outcome)
        disk = self.disk
        disk.records[call_id] = CallRecord(call_id, disk.sequence(), status, outcome, error, disk.now_ms())
