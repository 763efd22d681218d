"""What an owner keeps in memory of the open turn beside the reducer's state: texts, arguments, records, counts.

The reducer's state holds ids and phases; the book holds what belongs to them.  Both are rebuilt from the store when a
session is claimed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from perdure.clock import to_datetime, to_ms
from perdure.session.model import (
    NO_USAGE,
    ErrorInfo,
    Interrupt,
    InterruptStatus,
    RecordStatus,
    TurnInfo,
    TurnStatus,
    Usage,
)
from perdure.session.policy import EFFECT_RULES
from perdure.session.runner import Approval, CallRecord, CallRequest, ModelCall, NewMessage, RecordedTurn, TurnStart
from perdure.session.state import Call, CallPhase, ModelStep, OpenTurn, SessionState
from perdure.store.base import ClaimedSession, StoredCall


@dataclass(slots=True)
class TurnBook:
    """The open turn.

    Attributes:
        interrupts: those whose end the loop has not seen; pending, or answered with the answer on its way.
        sequence: of the last record.
        stored_messages: how many messages of the turn are stored.
        unwritten_models: records of model calls that the next write takes along.
        unwritten_messages: messages likewise, that came before something that is shown already.
        sealed: the turn's last messages are being written; what its invocation still says is not heard.
    """

    start: TurnStart
    requests: dict[str, CallRequest] = field(default_factory=dict[str, CallRequest])
    approvals: dict[str, Approval] = field(default_factory=dict[str, Approval])
    records: dict[str, CallRecord] = field(default_factory=dict[str, CallRecord])
    interrupts: dict[str, Interrupt] = field(default_factory=dict[str, Interrupt])
    sequence: int = 0
    stored_messages: int = 0
    usage: Usage = NO_USAGE
    unwritten_models: list[ModelCall] = field(default_factory=list[ModelCall])
    unwritten_messages: list[NewMessage] = field(default_factory=list[NewMessage])
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

    def next_deadline_ms(self) -> int | None:
        """The earliest deadline of a pending interrupt."""
        return min((to_ms(one.deadline) for one in self.pending() if one.deadline is not None), default=None)


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
        closed=claimed.closed,
        blocked=claimed.blocked,
    )


def _restore_turn(claimed: ClaimedSession, book: TurnBook | None) -> OpenTurn | None:
    stored = claimed.turn
    if stored is None or book is None:
        return None
    waiting = {call.request.group for call in claimed.calls if call.phase is not CallPhase.SETTLED}
    settled = sorted(book.records.values(), key=lambda record: record.sequence)
    ranks = {record.call_id: rank for rank, record in enumerate(settled, start=1)}
    calls = {call.request.call_id: _restore_call(call, waiting, ranks) for call in claimed.calls}
    model = None if claimed.model_step is None else ModelStep(claimed.model_step[0], claimed.model_step[1])
    return OpenTurn(
        turn_id=stored.turn_id,
        number=stored.number,
        steps=stored.step_count,
        model=model,
        calls=calls,
        settled=len(settled),
        ending=stored.ending,
        suspended=stored.status is TurnStatus.WAITING,
    )


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
        approval_step_id=stored.approval_step_id,
        interrupt_id=stored.interrupt_id,
        record=stored.record,
        rank=ranks.get(request.call_id, 0),
        # A replay hands out the records of complete groups by itself.
        handed_out=settled and request.group not in waiting,
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
    )
    return TurnBook(
        start=start,
        requests={call.request.call_id: call.request for call in claimed.calls},
        records={call.request.call_id: call.record for call in recorded.calls if call.record is not None},
        approvals={call.request.call_id: call.approval for call in claimed.calls if call.approval is not None},
        interrupts={one.interrupt_id: one for one in interrupts},
        sequence=claimed.max_sequence,
        stored_messages=stored.stored_messages,
        usage=stored.usage,
    )


def max_attempts_of(request: CallRequest) -> int:
    """How often a call may be started in all."""
    return 1 if EFFECT_RULES[request.effect].single_attempt else request.retry.max_attempts


def step_error(status: RecordStatus, error: ErrorInfo | None) -> ErrorInfo | None:
    """The error that a step shows: none for a call that succeeded."""
    return None if status is RecordStatus.SUCCEEDED else error
