"""What a small engine keeps on disk, and the log that it gives a live turn; it crashes at a write that it is told."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from perdure.session.model import (
    AgentEventType,
    ErrorInfo,
    JoinedMessage,
    JoinedMessages,
    JsonObject,
    TurnStatus,
    Usage,
)
from perdure.session.runner import (
    JOINED,
    Answer,
    AnsweredQuestion,
    Approval,
    CallRecord,
    CallRequest,
    DriveFinished,
    ModelCall,
    NewMessage,
    Question,
    QuestionWait,
    RecordedCall,
    RecordedTurn,
    ToolAsked,
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
    asked: dict[str, ToolAsked] = field(default_factory=dict)
    """What calls asked in the middle, until it is answered."""
    asks: list[tuple[str, ToolAsked]] = field(default_factory=list)
    """All that calls of the turn asked in the middle."""
    steering: list[JoinedMessage] = field(default_factory=list)
    """Messages that the next model call takes along."""
    questions: dict[str, Question] = field(default_factory=dict)
    """Those that the turn waits for."""
    late: list[Question] = field(default_factory=list)
    """Those that no turn waits for, of all turns."""
    answers: dict[str, Answer] = field(default_factory=dict)
    frontier: DriveFinished | None = None
    """How the leg ended, while the turn is suspended."""
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

    @property
    def joined(self) -> list[JoinedMessage]:
        """What joined the leg."""
        records = [call.response for call in self.model_calls if call.key.startswith(JOINED)]
        return [one for record in records for one in JoinedMessages.model_validate_json(record).messages]

    def asked_of(self, call_id: str) -> str | None:
        return next((asked.outcome for asker, asked in reversed(self.asks) if asker == call_id), None)

    def sequence(self) -> int:
        return len(self.model_calls) + len(self.records) + len(self.answers) + 1

    def now_ms(self) -> int:
        """A clock that shows how many records there are."""
        leg = self.start.leg if self.start else 1
        return 1_700_000_000_000 + self.turns * 100_000 + (leg - 1) * 10_000 + 10 * self.sequence()


class Log:
    """The ``TurnLog`` of one live turn over a disk."""

    def __init__(self, disk: Disk) -> None:
        self.disk = disk
        self.deltas: list[tuple[AgentEventType, str | None, int]] = []
        self.nudges = 0
        self.nudged = asyncio.Event()
        self.history_loads = 0

    def now_ms(self) -> int:
        return self.disk.now_ms()

    async def recorded(self) -> RecordedTurn:
        disk = self.disk
        recorded = [
            RecordedCall(request, disk.approvals.get(call_id), disk.records.get(call_id), disk.asked_of(call_id))
            for call_id, request in disk.requests.items()
        ]
        live = {i: question for i, question in disk.questions.items() if question.wait is QuestionWait.LIVE}
        asked = [AnsweredQuestion(question, disk.answers.get(i)) for i, question in live.items()]
        return RecordedTurn(
            tuple(disk.model_calls), tuple(recorded), tuple(asked), stored_messages=len(disk.new_messages)
        )

    async def load_history(self) -> Sequence[JsonObject]:
        self.history_loads += 1
        assert self.disk.start is not None
        return self.disk.messages[: self.disk.start.history_length + self.disk.start.leg_length]

    async def load_stored(self) -> Sequence[JsonObject]:
        assert self.disk.start is not None
        return [json.loads(message.item) for message in self.disk.new_messages[self.disk.start.leg_length :]]

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

    def steered(self) -> bool:
        return bool(self.disk.steering)

    def join(self, key: str, seen: Sequence[int]) -> asyncio.Future[ModelCall | None]:
        future: asyncio.Future[ModelCall | None] = asyncio.get_running_loop().create_future()
        try:
            future.set_result(self._record_joined(key, seen))
        except Crash as crash:
            future.set_exception(crash)
        return future

    def _record_joined(self, key: str, seen: Sequence[int]) -> ModelCall | None:
        assert key.startswith(JOINED)
        if not self.disk.steering:
            return None
        self.disk.write()
        joined, self.disk.steering = tuple(self.disk.steering), []
        response = JoinedMessages(seen=tuple(seen), messages=joined).model_dump_json()
        call = ModelCall(key, self.disk.sequence(), response, Usage(), self.disk.now_ms())
        self.disk.model_calls.append(call)
        return call

    async def written(self) -> None:
        """Nothing: here a record is on disk when it is accepted."""

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
        assert step_id or kind is AgentEventType.FRAMEWORK_EVENT
        if behind:
            self.disk.write()
            self.disk.store(behind)
        self.deltas.append((kind, text, attempt))

    def nudge(self) -> None:
        self.nudges += 1
        self.nudged.set()
