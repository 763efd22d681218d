"""What an owner keeps in memory of the open turn beside the reducer's state: texts, arguments, records, counts.

The reducer's state holds ids and phases; the book holds what belongs to them.  Both are rebuilt from the store when a
session is claimed.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from perdure.clock import to_datetime, to_ms
from perdure.session.model import (
    NO_USAGE,
    ErrorInfo,
    Interrupt,
    InterruptStatus,
    JoinedMessage,
    JoinedMessages,
    RecordStatus,
    TurnInfo,
    TurnStatus,
    Usage,
)
from perdure.session.policy import EFFECT_RULES
from perdure.session.runner import (
    JOINED,
    Answer,
    AnsweredQuestion,
    Approval,
    CallRecord,
    CallRequest,
    ModelCall,
    NewMessage,
    Question,
    QuestionWait,
    RecordedTurn,
    Settled,
    TurnStart,
)
from perdure.session.state import Call, CallPhase, HandOut, ModelStep, OpenTurn, RunModel, SessionState
from perdure.session.state import Question as StateQuestion
from perdure.store.base import ClaimedSession, StoredCall, StoredQuestion

NOTHING_CARRIED = ""
"""What a leg has handed on that had nothing to hand on: with it, too, the store says that the leg has ended."""


@dataclass(slots=True)
class TurnBook:
    """The open turn, and its present leg.

    Attributes:
        requests, approvals, records: of the calls of the leg, by call id.
        asked: what the last attempt of a call that asked came to, by call id.
        questions, answers: of the leg, by question id.
        next_carry: what the leg hands on to the next one; ``None`` until it has ended.
        interrupts: those whose end the loop has not seen; pending, or answered with the answer on its way.
        sequence: of the last record or answer.
        first_sequence: of the last one before this leg; 0 in a book that was restored.
        stored_messages: how many messages of the turn are stored.
        unwritten_models: records of model calls that the next write takes along.
        unwritten_messages: messages likewise, that came before something that is shown already.
        joined: messages that joined the leg, in order.
        sealed: the turn's last messages are being written; what its invocation still says is not heard.
    """

    start: TurnStart
    requests: dict[str, CallRequest] = field(default_factory=dict[str, CallRequest])
    approvals: dict[str, Approval] = field(default_factory=dict[str, Approval])
    records: dict[str, CallRecord] = field(default_factory=dict[str, CallRecord])
    asked: dict[str, str] = field(default_factory=dict[str, str])
    questions: dict[str, Question] = field(default_factory=dict[str, Question])
    answers: dict[str, Answer] = field(default_factory=dict[str, Answer])
    next_carry: str | None = None
    interrupts: dict[str, Interrupt] = field(default_factory=dict[str, Interrupt])
    sequence: int = 0
    first_sequence: int = 0
    stored_messages: int = 0
    usage: Usage = NO_USAGE
    unwritten_models: list[ModelCall] = field(default_factory=list[ModelCall])
    unwritten_messages: list[NewMessage] = field(default_factory=list[NewMessage])
    joined: list[JoinedMessage] = field(default_factory=list[JoinedMessage])
    sealed: bool = False

    @property
    def turn_id(self) -> str:
        return self.start.turn_id

    @property
    def message_count(self) -> int:
        """Messages of the session so far, those that wait for a write included."""
        return self.start.history_length + self.stored_messages

    def accept(self, message: NewMessage) -> int | None:
        """Counts a message.  Returns its index in the session; ``None`` when it is stored already (J5)."""
        if message.ordinal < self.stored_messages:
            return None
        self.stored_messages = message.ordinal + 1
        return self.start.history_length + message.ordinal

    @property
    def first_index(self) -> int:
        """How many messages were stored before this leg."""
        return self.start.history_length + self.start.leg_length

    @property
    def is_new(self) -> bool:
        """Whether the journal holds nothing of this leg yet."""
        nothing = self.sequence == self.first_sequence and not self.requests and not self.questions
        return nothing and self.stored_messages == self.start.leg_length

    def next_leg(self) -> TurnBook:
        """The book of the leg that follows this one."""
        asked = (question for question in self.questions.values() if question.wait is QuestionWait.NEXT_LEG)
        start = replace(
            self.start,
            leg=self.start.leg + 1,
            leg_length=self.stored_messages,
            answers=tuple(AnsweredQuestion(one, self.answers.get(one.question_id)) for one in asked),
            carry=self.next_carry or None,
        )
        return TurnBook(
            start=start,
            sequence=self.sequence,
            first_sequence=self.sequence,
            stored_messages=self.stored_messages,
            usage=self.usage,
        )

    def settled(self, command: RunModel | HandOut) -> list[Settled]:
        """The records and answers that a command gives to the live turn, in the order in which they settled."""
        records: list[Settled] = [self.records[call_id] for call_id in command.call_ids]
        answers = [self.answers[question_id] for question_id in command.question_ids]
        return sorted([*records, *answers], key=lambda one: one.sequence)

    def next_sequence(self) -> int:
        self.sequence += 1
        return self.sequence

    def info(self, status: TurnStatus, *, ended_at_ms: int | None = None, error: ErrorInfo | None = None) -> TurnInfo:
        """The turn as it is shown to people."""
        return TurnInfo(
            turn_id=self.start.turn_id,
            number=self.start.number,
            status=status,
            started_at=to_datetime(self.start.started_at_ms),
            ended_at=None if ended_at_ms is None else to_datetime(ended_at_ms),
            usage=self.usage,
            error=error,
        )

    def pending(self) -> list[Interrupt]:
        """The interrupts that nobody has answered yet, as far as is known here."""
        return [one for one in self.interrupts.values() if one.status is InterruptStatus.PENDING]


def next_deadline_ms(pending: Iterable[Interrupt]) -> int | None:
    """The earliest deadline of some interrupts."""
    return min((to_ms(one.deadline) for one in pending if one.deadline is not None), default=None)


def restore_state(claimed: ClaimedSession, book: TurnBook | None) -> SessionState:
    """The reducer's state of a session that was just claimed.  Its queue is filled by the inbox.

    Args:
        book: of the open turn; ``None`` when none is open.
    """
    return SessionState(
        session_id=claimed.lease.session_id,
        turns=claimed.turns,
        await_step_id=claimed.await_step_id,
        turn=_restore_turn(claimed, book),
        late={late.interrupt_id: late for late in claimed.late},
        closed=claimed.closed,
        blocked=claimed.blocked,
    )


def _restore_turn(claimed: ClaimedSession, book: TurnBook | None) -> OpenTurn | None:
    stored = claimed.turn
    if stored is None or book is None:
        return None
    waiting = {call.request.group for call in claimed.calls if call.phase is not CallPhase.SETTLED}
    sequences = sorted(one.sequence for one in _all_settled(book))
    ranks = {sequence: rank for rank, sequence in enumerate(sequences, start=1)}
    call_ranks = {call_id: ranks[record.sequence] for call_id, record in book.records.items()}
    calls = {call.request.call_id: _restore_call(call, waiting, call_ranks) for call in claimed.calls}
    model = None if claimed.model_step is None else ModelStep(claimed.model_step[0], claimed.model_step[1])
    return OpenTurn(
        turn_id=stored.turn_id,
        number=stored.number,
        steps=stored.step_count,
        leg=stored.leg,
        model=model,
        calls=calls,
        questions={one.question.question_id: _restore_question(one, ranks) for one in claimed.questions},
        raised=stored.raised,
        settled=len(ranks),
        at_frontier=stored.next_carry is not None,
        ending=stored.ending,
        suspended=stored.status is TurnStatus.WAITING,
    )


def _all_settled(book: TurnBook) -> list[Settled]:
    return [*book.records.values(), *book.answers.values()]


def _restore_call(stored: StoredCall, waiting: set[str], ranks: Mapping[str, int]) -> Call:
    request = stored.request
    settled = stored.phase is CallPhase.SETTLED
    return Call(
        call_id=request.call_id,
        step_id=stored.step_id,
        group=request.group,
        effect=request.effect,
        max_attempts=max_attempts_of(request),
        phase=stored.phase,
        attempts=stored.attempts,
        asks=stored.asks,
        asking=stored.asking,
        approval_step_id=stored.approval_step_id,
        interrupt_id=stored.interrupt_id,
        record=stored.record,
        rank=ranks.get(request.call_id, 0),
        # A replay hands out the records of complete groups by itself.
        handed_out=settled and request.group not in waiting,
    )


def _restore_question(stored: StoredQuestion, ranks: Mapping[int, int]) -> StateQuestion:
    question = stored.question
    return StateQuestion(
        question_id=question.question_id,
        step_id=stored.step_id,
        interrupt_id=stored.interrupt_id,
        kind=question.kind,
        group=question.group,
        wait=question.wait,
        settled=stored.settled,
        rank=0 if stored.answer is None else ranks[stored.answer.sequence],
    )


def restore_book(claimed: ClaimedSession, recorded: RecordedTurn, interrupts: Sequence[Interrupt]) -> TurnBook:
    """The book of a claimed session's open turn.

    Args:
        recorded: what the journal holds of the turn.
        interrupts: those that the loop waits for; some may be answered already.
    """
    stored = claimed.turn
    assert stored is not None
    start = TurnStart(
        session_id=claimed.lease.session_id,
        incarnation=claimed.incarnation,
        user_id=claimed.user_id,
        turn_id=stored.turn_id,
        number=stored.number,
        message=stored.message,
        started_at_ms=stored.started_at_ms,
        history_length=stored.first_index,
        leg=stored.leg,
        leg_length=stored.leg_first_index - stored.first_index,
        answers=stored.answers,
        carry=stored.carry or None,
    )
    questions = {one.question.question_id: one for one in claimed.questions}
    return TurnBook(
        start=start,
        requests={call.request.call_id: call.request for call in claimed.calls},
        records={call.request.call_id: call.record for call in recorded.calls if call.record is not None},
        approvals={call.request.call_id: call.approval for call in claimed.calls if call.approval is not None},
        asked={call.request.call_id: call.asked for call in claimed.calls if call.asked is not None},
        questions={name: one.question for name, one in questions.items()},
        answers={name: one.answer for name, one in questions.items() if one.answer is not None},
        next_carry=stored.next_carry,
        interrupts={one.interrupt_id: one for one in interrupts},
        sequence=claimed.max_sequence,
        stored_messages=stored.stored_messages,
        usage=stored.usage,
        joined=[
            joined
            for call in recorded.model_calls
            if call.key.startswith(JOINED)
            for joined in JoinedMessages.model_validate_json(call.response).messages
        ],
    )


def max_attempts_of(request: CallRequest) -> int:
    """How often a call may be started in all."""
    return 1 if EFFECT_RULES[request.effect].single_attempt else request.retry.max_attempts


def step_error(status: RecordStatus, error: ErrorInfo | None) -> ErrorInfo | None:
    """The error that a step shows: none for a call that succeeded."""
    return None if status is RecordStatus.SUCCEEDED else error
