"""The questions of a session: those that a turn waits for, and those that outlive the turn that asked them.

A live turn waits for those with ``QuestionWait.LIVE``, the next leg of a turn for those with ``NEXT_LEG``; nobody waits
for those with ``NEXT_TURN``: the message that answers one of them starts a turn.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import replace

from perdure.session.loop import Loop, wait_step_name
from perdure.session.model import InterruptKind, InterruptStatus, StepStatus
from perdure.session.runner import QuestionWait
from perdure.session.state import (
    InterruptAnswered,
    InterruptExpired,
    LateQuestion,
    OpenTurn,
    PutStep,
    Question,
    RaiseQuestion,
    RequestedQuestion,
    SettleInterrupt,
    SettleQuestion,
)
from perdure.session.turn_calls import awaiting_call, call_answered


def raise_question(loop: Loop, requested: RequestedQuestion) -> None:
    """The invocation asks.  One that is known already was asked by a replay."""
    turn = loop.turn
    if requested.question_id in turn.questions:
        return
    interrupt_id, step_id = loop.new_wait(requested.kind, requested.question_id)
    loop.do(RaiseQuestion(interrupt_id, requested.question_id, step_id))
    late = requested.wait is QuestionWait.NEXT_TURN
    question = Question(
        question_id=requested.question_id,
        step_id=step_id,
        interrupt_id=interrupt_id,
        kind=requested.kind,
        group=requested.group,
        wait=requested.wait,
        settled=late,
    )
    _put(loop, question)
    if late:
        loop.late = {**loop.late, interrupt_id: LateQuestion(turn.turn_id, step_id, interrupt_id, requested.kind)}


def _put(loop: Loop, question: Question) -> None:
    turn = loop.turn
    loop.turn = replace(turn, questions={**turn.questions, question.question_id: question})


# ---------------------------------------------------------------- answers


def interrupt_ended(loop: Loop, given: InterruptAnswered | InterruptExpired) -> None:
    """A person answered, or the deadline passed: the first word counts (J6)."""
    turn = loop.open_turn()
    call = awaiting_call(turn, given.interrupt_id) if turn is not None else None
    question = _open_question(turn, given.interrupt_id) if turn is not None else None
    if call is not None:
        call_answered(loop, call, given)
    elif question is not None:
        _answered(loop, question, given)
    elif isinstance(given, InterruptExpired) and given.interrupt_id in loop.late:
        _settle_late(loop, loop.late[given.interrupt_id], InterruptStatus.EXPIRED, StepStatus.EXPIRED)


def _open_question(turn: OpenTurn, interrupt_id: str) -> Question | None:
    questions = (question for question in turn.questions.values() if not question.settled)
    return next((question for question in questions if question.interrupt_id == interrupt_id), None)


def _answered(loop: Loop, question: Question, given: InterruptAnswered | InterruptExpired) -> None:
    """The open turn has an answer, and its branch goes on when that was the last one of its group."""
    if isinstance(given, InterruptExpired):
        _end_wait(loop, question, InterruptStatus.EXPIRED, StepStatus.EXPIRED)
    elif not given.approved:
        _end_wait(loop, question, InterruptStatus.REJECTED, StepStatus.REJECTED)
    else:
        _end_wait(loop, question, _yes(question.kind), StepStatus.SUCCEEDED)
    loop.do(SettleQuestion(question.interrupt_id, question.question_id, isinstance(given, InterruptExpired)))
    _put(loop, replace(question, settled=True, rank=loop.next_rank()))
    group = [one for one in loop.turn.questions.values() if one.group == question.group]
    if question.wait is QuestionWait.LIVE and all(one.settled for one in group):
        loop.resume()


def _yes(kind: InterruptKind) -> InterruptStatus:
    return InterruptStatus.ANSWERED if kind.takes_value else InterruptStatus.APPROVED


def answer_late(loop: Loop, interrupt_ids: Iterable[str]) -> None:
    """A message came that answers questions which outlived their turn."""
    for interrupt_id in interrupt_ids:
        late = loop.late.get(interrupt_id)
        if late is not None:
            _settle_late(loop, late, _yes(late.kind), StepStatus.SUCCEEDED)


# ---------------------------------------------------------------- without an answer


def withdraw_questions(loop: Loop, *, only: QuestionWait | None = None) -> None:
    """The open turn does not wait for its questions (of one kind) any more."""
    for question in loop.turn.questions.values():
        if not question.settled and only in (None, question.wait):
            _withdraw(loop, question)


def _withdraw(loop: Loop, question: Question) -> None:
    _end_wait(loop, question, InterruptStatus.WITHDRAWN, StepStatus.WITHDRAWN)
    loop.do(SettleQuestion(question.interrupt_id))
    _put(loop, replace(question, settled=True))


def withdraw_unasked(loop: Loop, asked: Collection[str]) -> None:
    """The invocation has ended and asks the next leg's questions: those that it asked early and drops are withdrawn."""
    for question in loop.turn.questions.values():
        early = question.wait is QuestionWait.NEXT_LEG and question.question_id not in asked
        if early and not question.settled:
            _withdraw(loop, question)


def withdraw_late(loop: Loop, turn_id: str | None = None) -> None:
    """Nobody may answer what outlived its turn any more.  ``turn_id``: what this turn asked; ``None``: all."""
    for late in loop.late.values():
        if turn_id in (None, late.turn_id):
            _settle_late(loop, late, InterruptStatus.WITHDRAWN, StepStatus.WITHDRAWN)


def _settle_late(loop: Loop, late: LateQuestion, status: InterruptStatus, step: StepStatus) -> None:
    loop.do(
        SettleInterrupt(late.interrupt_id, status),
        PutStep(late.step_id, late.turn_id, wait_step_name(late.kind), step, 1),
        SettleQuestion(late.interrupt_id),
    )
    loop.late = {name: other for name, other in loop.late.items() if name != late.interrupt_id}


def _end_wait(loop: Loop, question: Question, status: InterruptStatus, step: StepStatus) -> None:
    name, turn_id = wait_step_name(question.kind), loop.turn.turn_id
    loop.do(
        SettleInterrupt(question.interrupt_id, status),
        PutStep(question.step_id, turn_id, name, step, 1, question.question_id),
    )


def ready_questions(turn: OpenTurn) -> list[Question]:
    """The questions of complete groups whose answers the live turn does not have yet, in the order of settlement."""
    live = [question for question in turn.questions.values() if question.wait is QuestionWait.LIVE]
    incomplete = {question.group for question in live if not question.settled}
    ready = [one for one in live if not one.handed_out and one.group not in incomplete and one.rank]
    return sorted(ready, key=lambda question: question.rank)
