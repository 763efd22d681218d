"""Turns the reducer's commands into one write of the store, and into the events that are shown once it is on disk."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence

from perdure.clock import to_datetime
from perdure.engine.attachments import NOTHING, Attachment, SessionFacts
from perdure.engine.book import NOTHING_CARRIED, TurnBook, step_error
from perdure.engine.feed import SessionFeed
from perdure.engine.reasons import reason_error
from perdure.engine.waits import WaitsDraft
from perdure.faults import DurableWrite
from perdure.session.model import (
    AgentEventType,
    ErrorInfo,
    Interrupt,
    JsonObject,
    RecordStatus,
    StepName,
    StepStatus,
    TurnInfo,
    TurnStatus,
    Usage,
    UserMessage,
)
from perdure.session.runner import CallRecord, ModelCall, NewMessage, TurnStart
from perdure.session.state import (
    AnnounceEnd,
    BeginLeg,
    BeginTurn,
    BlockSession,
    Call,
    CloseSession,
    Command,
    ContinueTurn,
    DropMessage,
    Ending,
    EndLeg,
    EndTurn,
    PutRecord,
    PutStep,
    RaiseInterrupt,
    RaiseQuestion,
    SessionState,
    SettleInterrupt,
    SettleQuestion,
    SuspendTurn,
)
from perdure.store.base import (
    CallPut,
    LegBegin,
    LegEnd,
    RecordPut,
    SessionPut,
    SessionWrite,
    StepPut,
    TurnBegin,
    TurnChange,
)

_ENDED = {
    TurnStatus.COMPLETED: AgentEventType.TURN_COMPLETED,
    TurnStatus.FAILED: AgentEventType.TURN_FAILED,
    TurnStatus.CANCELLED: AgentEventType.TURN_CANCELLED,
}

_WAITS = (StepName.AWAIT_USER_MESSAGE, StepName.AWAIT_TOOL_APPROVAL, StepName.AWAIT_ANSWER)
_STEP_OF_CALL = (StepName.CALL_TOOL, StepName.CALL_SINGLE_ATTEMPT_TOOL)


class Draft:
    """One write under way: fed with inputs' attachments and the commands that follow from them, then finished."""

    def __init__(
        self,
        facts: SessionFacts,
        feed: SessionFeed,
        book: TurnBook | None,
        messages: dict[str, UserMessage],
        late: dict[str, Interrupt],
        message_count: int,
        now_ms: int,
    ) -> None:
        self.book = book
        self.message_count = message_count
        self._facts = facts
        self._feed = feed
        self._messages = messages
        self._attached = NOTHING
        self.now_ms = now_ms
        self._kinds: list[DurableWrite] = []
        self._consumed: list[int] = []
        self._steps: list[StepPut] = []
        self._records: list[RecordPut] = []
        self._waits = WaitsDraft(facts, late, self._show, now_ms)
        self._new_messages: list[NewMessage] = []
        self._dropped: list[str] = []
        self._begin: TurnBegin | None = None
        self._change: TurnChange | None = None
        self._ending: Ending | None = None
        self._leg_end: LegEnd | None = None
        self._leg_begin: LegBegin | None = None
        self._turn_id = book.turn_id if book is not None else None
        """Of the turn that the messages and model calls of this write belong to."""
        self._models: tuple[ModelCall, ...] = ()
        if book is not None and book.unwritten_models:
            self._models = tuple(book.unwritten_models)
            book.unwritten_models.clear()
            self._kinds.append(DurableWrite.MODEL_RECORDED)
        self._take_early_messages()

    # ------------------------------------------------------------ feeding

    def attach(self, attachment: Attachment) -> None:
        """What comes with the input whose commands are taken next."""
        self._attached = attachment
        self._kinds += attachment.kinds
        self._consumed += attachment.consumed
        book, progress = self.book, attachment.progress
        if book is None:
            return
        book.requests.update(attachment.requests)
        for question_id, question in attachment.questions.items():
            # What a replay asks again is in the book already, as it was asked first.
            book.questions.setdefault(question_id, question)
        if progress is None:
            return
        for control in progress.control_calls:
            data: JsonObject = {
                "tool_name": control.tool_name,
                "tool_call_id": control.call_id,
                "arguments": control.arguments,
            }
            self._show(AgentEventType.TOOL_CALL_STARTED, data)
            self._show(AgentEventType.TOOL_CALL_FINISHED, {**data, "status": RecordStatus.SUCCEEDED.value})
        self.add_messages(progress.messages)

    @property
    def new_items(self) -> list[JsonObject]:
        """The framework items of the messages that this write stores."""
        return [json.loads(message.item) for message in self._new_messages]

    def add_messages(self, messages: Sequence[NewMessage]) -> None:
        book = self.book
        assert book is not None
        for message in messages:
            index = book.accept(message)
            if index is not None:
                self._new_messages.append(message)
                # Readers get the item itself from the message: it is not stored twice.
                self._show(AgentEventType.MESSAGE, {"index": index})
        self.message_count = book.message_count

    def _take_early_messages(self) -> None:
        """Takes along the messages that were counted, and put on the stream, when something came behind them."""
        book = self.book
        if book is not None and book.unwritten_messages:
            self._new_messages += book.unwritten_messages
            book.unwritten_messages.clear()
            self.message_count = book.message_count

    def take(self, command: Command) -> None:
        """Takes one command that is to be stored; ignores the others."""
        match command:
            case PutStep():
                self._put_step(command)
            case PutRecord():
                self._put_record(command)
            case RaiseInterrupt():
                self._waits.raise_interrupt(self._open_book, command, self._attached)
            case RaiseQuestion():
                self._waits.raise_question(self._open_book, command)
            case SettleInterrupt():
                self._waits.settle_interrupt(self.book, command, self._attached)
            case SettleQuestion():
                self._waits.settle_question(self.book, command, self._attached)
            case BeginTurn(turn_id, number):
                self._begin_turn(turn_id, number)
            case SuspendTurn(turn_id):
                self._change = TurnChange(turn_id, TurnStatus.WAITING)
                self._show_turn(AgentEventType.TURN_SUSPENDED, TurnStatus.WAITING)
            case ContinueTurn(turn_id):
                self._change = TurnChange(turn_id, TurnStatus.RUNNING)
            case EndLeg():
                self._kinds.append(DurableWrite.LEG_ENDED)
                carry = self._open_book.next_carry = self._attached.carry or NOTHING_CARRIED
                self._leg_end = LegEnd(carry)
            case BeginLeg(_, leg):
                self._kinds.append(DurableWrite.LEG_STARTED)
                self._leg_begin = LegBegin(leg)
                self.book = self._open_book.next_leg()
            case AnnounceEnd(_, status, error):
                self._ending = Ending(status, error)
            case EndTurn(turn_id, status, error):
                self._end_turn(turn_id, status, error)
            case DropMessage(turn_id):
                self._dropped.append(turn_id)
                self._messages.pop(turn_id, None)
                self._show_dropped(turn_id)
            case BlockSession(error):
                self._kinds.append(DurableWrite.SESSION_BLOCKED)
                self._show(AgentEventType.SESSION_BLOCKED, {"error": error.model_dump(mode="json")})
            case CloseSession():
                self._kinds.append(DurableWrite.SESSION_CLOSED)
                self._show(AgentEventType.SESSION_CLOSED, {})
            case _:
                pass

    # ------------------------------------------------------------ commands

    def _put_step(self, put: PutStep) -> None:
        error = None
        if put.call_id is not None and self.book is not None and put.name in _STEP_OF_CALL:
            record = self.book.records.get(put.call_id)
            if put.status.settled and record is not None:
                error = step_error(record.status, record.error)
            if put.status is StepStatus.RUNNING:
                self._show_call(AgentEventType.TOOL_CALL_STARTED, put.call_id, put.step_id, put.attempts)
            elif put.status.settled:
                self._show_call(AgentEventType.TOOL_CALL_FINISHED, put.call_id, put.step_id, put.attempts)
        key = put.call_id or ""
        if put.name is StepName.RUN_MODEL and put.status.settled and self._attached.progress is not None:
            key = " ".join(self._attached.progress.model_keys)
        waits = put.name in _WAITS
        started = put.status is StepStatus.RUNNING or (waits and not put.status.settled)
        instant = put.name is StepName.RESUME_TURN
        self._steps.append(
            StepPut(
                step_id=put.step_id,
                turn_id=put.turn_id,
                name=put.name,
                status=put.status,
                attempts=put.attempts,
                key=key,
                call_id=put.call_id,
                started_at_ms=self.now_ms if started or instant else None,
                settled_at_ms=self.now_ms if put.status.settled else None,
                error=error,
            )
        )

    def _put_record(self, put: PutRecord) -> None:
        book = self.book
        assert book is not None
        tool = self._attached.tool if put.reason is None else None
        assert (tool is None) == (put.reason is not None)
        error = tool.error if tool is not None else None
        if put.reason is not None:
            error = reason_error(put.reason, rejection=self._attached.rejection, asked=put.call_id in book.asked)
        record = CallRecord(
            call_id=put.call_id,
            sequence=book.next_sequence(),
            status=put.status,
            outcome=tool.outcome if tool is not None else book.asked.get(put.call_id),
            error=error,
            settled_at_ms=self.now_ms,
        )
        book.records[put.call_id] = record
        self._records.append(
            RecordPut(
                turn_id=book.turn_id,
                call_id=put.call_id,
                sequence=record.sequence,
                status=put.status,
                settled_at_ms=self.now_ms,
                outcome=record.outcome,
                result=tool.result if tool is not None else None,
                error=error,
            )
        )
        if DurableWrite.STEP_SETTLED not in self._kinds:
            self._kinds.append(DurableWrite.STEP_SETTLED)

    def _begin_turn(self, turn_id: str, number: int) -> None:
        self._kinds.append(DurableWrite.TURN_STARTED)
        self._begin = TurnBegin(turn_id, number, self.now_ms)
        start = TurnStart(
            session_id=self._facts.session_id,
            incarnation=self._facts.incarnation,
            user_id=self._facts.user_id,
            turn_id=turn_id,
            number=number,
            message=self._messages.pop(turn_id),
            started_at_ms=self.now_ms,
            history_length=self.message_count,
        )
        self.book = TurnBook(start)
        self._show_turn(AgentEventType.TURN_STARTED, TurnStatus.RUNNING)

    def _end_turn(self, turn_id: str, status: TurnStatus, error: ErrorInfo | None) -> None:
        book = self.book
        assert book is not None
        self._kinds.append(DurableWrite.TURN_ENDED)
        self._change = TurnChange(turn_id, status, self.now_ms, error)
        info = book.info(status, ended_at_ms=self.now_ms, error=error)
        self._show(_ENDED[status], info.model_dump(mode="json"))
        self.book = None

    # ------------------------------------------------------------ showing

    @property
    def _open_book(self) -> TurnBook:
        assert self.book is not None
        return self.book

    def _show(self, kind: AgentEventType, data: JsonObject, turn_id: str | None = None) -> None:
        shown_for = self.book.turn_id if turn_id is None and self.book is not None else turn_id
        self._feed.add(kind, self.now_ms, turn_id=shown_for, data=data)

    def _show_turn(self, kind: AgentEventType, status: TurnStatus) -> None:
        assert self.book is not None
        self._show(kind, self.book.info(status).model_dump(mode="json"))

    def _show_dropped(self, turn_id: str) -> None:
        """A message that never begins is a turn that was cancelled; it has the number 0."""
        at = to_datetime(self.now_ms)
        info = TurnInfo(turn_id=turn_id, number=0, status=TurnStatus.CANCELLED, started_at=at, ended_at=at)
        data: JsonObject = info.model_dump(mode="json")
        self._feed.add(AgentEventType.TURN_CANCELLED, self.now_ms, turn_id=turn_id, data=data)

    def _show_call(self, kind: AgentEventType, call_id: str, step_id: str, attempt: int) -> None:
        assert self.book is not None
        request = self.book.requests[call_id]
        data: JsonObject = {
            "tool_name": request.tool_name,
            "tool_call_id": call_id,
            "arguments": request.arguments,
        }
        if kind is AgentEventType.TOOL_CALL_FINISHED:
            data["status"] = self.book.records[call_id].status.value
        self._feed.add(kind, self.now_ms, turn_id=self.book.turn_id, step_id=step_id, attempt=attempt, data=data)

    # ------------------------------------------------------------ finishing

    def finish(self, before: SessionState, after: SessionState) -> SessionWrite:
        """The write, when all commands are taken."""
        self._take_early_messages()  # their events are among those that wait to be stored
        session = None
        # A status that a client's write made `running` is set right by whoever takes the item.
        touched = self._begin is not None or bool(self._consumed)
        if touched or _session_row(before) != _session_row(after):
            session = SessionPut(
                status=after.status,
                await_step_id=after.await_step_id,
                blocked=after.blocked,
                closed=after.closed,
                definition=self._facts.definition if after.turn is not None else None,
            )
        return SessionWrite(
            kinds=tuple(dict.fromkeys(self._kinds)),
            session=session,
            consumed=tuple(self._consumed),
            begin=self._begin,
            turn=self._change,
            ending=self._ending,
            leg_end=self._leg_end,
            leg_begin=self._leg_begin,
            usage=_sum_usage(self._models),
            steps=tuple(self._steps),
            calls=self._call_puts(before, after),
            records=tuple(self._records),
            model_calls=self._models,
            interrupts=tuple(self._waits.raised),
            interrupt_ends=tuple(self._waits.ended),
            questions=tuple(self._waits.asked),
            question_ends=tuple(self._waits.settled),
            messages=tuple(self._new_messages),
            turn_id=self._turn_id or (self.book.turn_id if self.book is not None else None),
            dropped=tuple(self._dropped),
            events=self._feed.take_unstored(),
        )

    def _call_puts(self, before: SessionState, after: SessionState) -> tuple[CallPut, ...]:
        """The calls whose stored facts this step of the loop changed."""
        turn = after.turn
        if turn is None:
            return ()
        same = before.turn is not None and (before.turn.turn_id, before.turn.leg) == (turn.turn_id, turn.leg)
        known: Mapping[str, Call] = before.turn.calls if same and before.turn is not None else {}
        requests = self.book.requests if self.book is not None else {}
        asked = self.book.asked if self.book is not None else {}
        puts: list[CallPut] = []
        for call in turn.calls.values():
            old = known.get(call.call_id)
            if old is not None and _call_row(old) == _call_row(call):
                continue
            puts.append(
                CallPut(
                    turn_id=turn.turn_id,
                    call_id=call.call_id,
                    phase=call.phase,
                    attempts=call.attempts,
                    step_id=call.step_id,
                    approval_step_id=call.approval_step_id,
                    interrupt_id=call.interrupt_id,
                    request=requests.get(call.call_id) if old is None else None,
                    asks=call.asks,
                    asked=asked.get(call.call_id) if old is not None and old.asks != call.asks else None,
                )
            )
        return tuple(puts)


def _session_row(state: SessionState) -> tuple[object, ...]:
    return (state.status, state.await_step_id, state.blocked, state.closed)


def _call_row(call: Call) -> tuple[object, ...]:
    return (call.phase, call.attempts, call.asks, call.interrupt_id)


def _sum_usage(models: Sequence[ModelCall]) -> Usage | None:
    return sum((call.usage for call in models), Usage()) if models else None
