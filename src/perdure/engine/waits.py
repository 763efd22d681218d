"""The interrupts and questions of one write under way: what is asked, what is answered, and what is shown of both."""

from __future__ import annotations

from typing import Protocol

from perdure.clock import to_datetime
from perdure.engine.attachments import Attachment, SessionFacts
from perdure.engine.book import TurnBook
from perdure.engine.reasons import expired_answer
from perdure.session.model import AgentEventType, Interrupt, InterruptKind, InterruptStatus, JsonObject
from perdure.session.runner import Answer, Approval, CallRequest, Question, QuestionWait
from perdure.session.state import RaiseInterrupt, RaiseQuestion, SettleInterrupt, SettleQuestion
from perdure.store.base import InterruptEnd, InterruptPut, QuestionEnd, QuestionPut


class Show(Protocol):
    """Adds an event to the live stream.  ``turn_id``: ``None`` for the open turn."""

    def __call__(self, kind: AgentEventType, data: JsonObject, turn_id: str | None = None) -> None: ...


class WaitsDraft:
    """Part of a ``Draft``.

    Args:
        late: the pending interrupts that nobody waits for, by id; kept up to date.

    Attributes:
        raised, ended, asked, settled: what the write stores of interrupts and of questions.
    """

    def __init__(self, facts: SessionFacts, late: dict[str, Interrupt], show: Show, now_ms: int) -> None:
        self._facts = facts
        self._late = late
        self._show = show
        self._now_ms = now_ms
        self.raised: list[InterruptPut] = []
        self.ended: list[InterruptEnd] = []
        self.asked: list[QuestionPut] = []
        self.settled: list[QuestionEnd] = []

    # ------------------------------------------------------------ asking

    def raise_interrupt(self, book: TurnBook, raised: RaiseInterrupt, attached: Attachment) -> None:
        """A call asks: before it runs, or in the middle."""
        request = book.requests[raised.call_id]
        shown: JsonObject | None = None
        if raised.in_the_middle:
            asked = attached.asked
            assert asked is not None
            book.asked[raised.call_id] = asked.outcome
            shown = {"hint": asked.hint, "payload": asked.payload}
        interrupt = self._new_interrupt(book, raised.interrupt_id, raised.kind, request, raised.call_id, shown)
        book.interrupts[raised.interrupt_id] = interrupt

    def raise_question(self, book: TurnBook, raised: RaiseQuestion) -> None:
        """The invocation asks."""
        question = book.questions[raised.question_id]
        interrupt = self._new_interrupt(book, raised.interrupt_id, question.kind, question, question.question_id, None)
        waiting = self._late if question.wait is QuestionWait.NEXT_TURN else book.interrupts
        waiting[raised.interrupt_id] = interrupt
        self.asked.append(QuestionPut(raised.interrupt_id, book.turn_id, raised.step_id, question))

    def _new_interrupt(
        self,
        book: TurnBook,
        interrupt_id: str,
        kind: InterruptKind,
        asker: CallRequest | Question,
        asker_id: str,
        shown: JsonObject | None,
    ) -> Interrupt:
        limit = self._facts.interrupt_deadline
        deadline_ms = None if limit is None else self._now_ms + round(limit.total_seconds() * 1000)
        interrupt = Interrupt(
            interrupt_id=interrupt_id,
            kind=kind,
            turn_id=book.turn_id,
            tool_name=asker.tool_name,
            tool_call_id=asker_id,
            arguments=asker.arguments,
            agent_name=asker.agent_name,
            path=asker.path,
            hint=asker.hint if shown is None else shown["hint"],
            payload=asker.payload if shown is None else shown["payload"],
            created_at=to_datetime(self._now_ms),
            deadline=None if deadline_ms is None else to_datetime(deadline_ms),
        )
        put = InterruptPut(interrupt_id, book.turn_id, asker_id, kind, self._now_ms, deadline_ms, shown)
        self.raised.append(put)
        self._show(AgentEventType.INTERRUPT_REQUESTED, interrupt.model_dump(mode="json"))
        return interrupt

    # ------------------------------------------------------------ answers

    def settle_interrupt(self, book: TurnBook | None, settled: SettleInterrupt, attached: Attachment) -> None:
        """An interrupt was answered, expired or is withdrawn."""
        interrupt_id, status = settled.interrupt_id, settled.status
        if status in (InterruptStatus.EXPIRED, InterruptStatus.WITHDRAWN):
            self.ended.append(InterruptEnd(interrupt_id, status))
        interrupt = book.interrupts.pop(interrupt_id, None) if book is not None else None
        if interrupt is None:
            interrupt = self._late.pop(interrupt_id, None)
        if interrupt is None:
            return
        call_id = interrupt.tool_call_id
        lets_call_run = book is not None and call_id in book.requests and call_id not in book.questions
        if status is InterruptStatus.APPROVED and book is not None and lets_call_run and attached.approval is not None:
            given = Approval(attached.approval.payload, interrupt.kind, book.asked.get(call_id))
            book.approvals[call_id] = given
        resolved = interrupt
        if interrupt.status is InterruptStatus.PENDING:
            at = self._now_ms if attached.resolved_at_ms is None else attached.resolved_at_ms
            facts = {"resolved_at": to_datetime(at), "resolved_by": attached.resolved_by, "response": attached.response}
            resolved = interrupt.model_copy(update={"status": status, **facts})
        self._show(AgentEventType.INTERRUPT_RESOLVED, resolved.for_readers().model_dump(mode="json"), interrupt.turn_id)

    def settle_question(self, book: TurnBook | None, settled: SettleQuestion, attached: Attachment) -> None:
        """Nothing waits for a question any more; the open turn has its answer, if it was for it."""
        answer = None
        if settled.question_id is not None:
            assert book is not None
            error = expired_answer() if settled.expired else None
            answer = Answer(
                question_id=settled.question_id,
                sequence=book.next_sequence(),
                value=attached.response if error is None else {"error": error.message},
                error=error,
                settled_at_ms=self._now_ms,
            )
            book.answers[settled.question_id] = answer
        self.settled.append(QuestionEnd(settled.interrupt_id, answer))
