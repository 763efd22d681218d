"""The session loop: a pure function ``(state, input) -> (state, commands)``.

No I/O, no clock, no framework: both engines feed it and carry out what it says, so the semantics of a session exist
once.  The rules, by id (``docs/invariants.md``):

* J1  messages are handled in the order in which they were accepted: none lost, none doubled;
* J2  a single-attempt call is started at most once each time that it was let through;
* J3  a settled step never changes;
* J4  no call is without a record when its turn ends;
* J6  an interrupt is answered at most once;
* J7  a cancelled or failed turn leaves the session usable;
* J12 a question has one answer, which reaches the invocation, the leg or the turn that it is for;
* J13 a leg begins when every question of the one before has its answer;
* J18 a message that steers is seen once: by the turn that it joined, or by a turn of its own.

An input that no longer applies (a late result, a second answer, a cancel that came too late) changes nothing and gives
no commands.

This module owns the way through: each input goes to the rule that takes it, then the session is brought as far as it
can go without another input.  The rules are in ``turn_calls``, ``turn_questions``, ``turn_model``, ``turn_legs``,
``turn_ends`` and ``ownership``.
"""

from __future__ import annotations

from dataclasses import replace
from typing import assert_never

from perdure.session.loop import (
    RECORD_TO_STEP,
    Loop,
    answer_step_id,
    approval_step_id,
    await_step_id,
    call_step_id,
    interrupt_id_for,
)
from perdure.session.model import StepName, StepStatus
from perdure.session.ownership import WORKERS_LOST, code_differs, code_fits, taken_over
from perdure.session.state import (
    AttemptFailed,
    AttemptStarted,
    BeginTurn,
    CallAsked,
    CallPhase,
    CallSettled,
    CancelRequested,
    CloseRequested,
    CodeDiffers,
    CodeFits,
    Command,
    ContinueTurn,
    DrainRequested,
    DropMessage,
    HandOut,
    Input,
    InterruptAnswered,
    InterruptExpired,
    JoinRequested,
    JoinTurn,
    MessageArrived,
    ModelStepSettled,
    OpenTurn,
    PutStep,
    RunCall,
    RunModel,
    SessionState,
    SuspendTurn,
    TakenOver,
    TurnHasNews,
)
from perdure.session.turn_calls import call_moved, ready_calls
from perdure.session.turn_ends import cancel, close, wind_down
from perdure.session.turn_legs import begin_leg, go_to_next_leg
from perdure.session.turn_model import TURN_STALLED, model_step_settled, turn_has_news
from perdure.session.turn_questions import answer_late, interrupt_ended, ready_questions

__all__ = [
    "RECORD_TO_STEP",
    "TURN_STALLED",
    "WORKERS_LOST",
    "answer_step_id",
    "approval_step_id",
    "await_step_id",
    "call_step_id",
    "interrupt_id_for",
    "reduce",
]


def reduce(state: SessionState, given: Input) -> tuple[SessionState, tuple[Command, ...]]:
    """What follows from ``given`` in ``state``: the new state, and what is to be stored and then done, in order."""
    loop = Loop(state)
    _take(loop, given)
    _advance(loop)
    return loop.state(), tuple(loop.commands)


# ---------------------------------------------------------------- what an input changes


def _take(loop: Loop, given: Input) -> None:
    match given:
        case MessageArrived():
            _message_arrived(loop, given)
        case JoinRequested():
            _join_requested(loop, given)
        case CancelRequested():
            _cancel_requested(loop, given.turn_id)
        case CloseRequested():
            close(loop)
        case InterruptAnswered() | InterruptExpired():
            interrupt_ended(loop, given)
        case ModelStepSettled():
            model_step_settled(loop, given)
        case TurnHasNews():
            turn_has_news(loop, given)
        case AttemptStarted() | AttemptFailed() | CallAsked() | CallSettled():
            call_moved(loop, given)
        case TakenOver():
            taken_over(loop, given)
        case DrainRequested():
            loop.draining = True
        case CodeFits():
            code_fits(loop, given)
        case CodeDiffers():
            code_differs(loop, given)
        case _:
            assert_never(given)


def _message_arrived(loop: Loop, given: MessageArrived) -> None:
    answer_late(loop, given.answers)
    if loop.closed:
        loop.do(DropMessage(given.turn_id))
    elif given.turn_id not in loop.queue and loop.open_turn(given.turn_id) is None:
        loop.queue = (*loop.queue, given.turn_id)


def _join_requested(loop: Loop, given: JoinRequested) -> None:
    """What was cancelled meanwhile joins nothing, and nothing joins a turn that ends: it waits for its own."""
    if loop.open_turn(given.turn_id) is None or not loop.goes_on:
        return
    for message_id in given.message_ids:
        if message_id in loop.queue:
            _leave_queue(loop, message_id)
            loop.do(JoinTurn(given.turn_id, message_id))


def _leave_queue(loop: Loop, turn_id: str) -> None:
    loop.queue = tuple(queued for queued in loop.queue if queued != turn_id)


def _cancel_requested(loop: Loop, turn_id: str | None) -> None:
    if turn_id is not None and turn_id in loop.queue:
        _leave_queue(loop, turn_id)
        loop.do(DropMessage(turn_id))
    elif loop.open_turn(turn_id) is not None:
        cancel(loop)


# ---------------------------------------------------------------- how it goes on


def _advance(loop: Loop) -> None:
    """Brings the session as far as it can go without another input."""
    turn = loop.open_turn()
    if turn is not None and turn.ending is not None:
        wind_down(loop, turn.ending)
    elif turn is not None and turn.at_frontier:
        go_to_next_leg(loop)
    if loop.blocked is not None:
        return
    if not loop.checking and not loop.draining:
        _start_what_is_due(loop)
    if loop.goes_on:
        _suspend_or_continue(loop)


def _start_what_is_due(loop: Loop) -> None:
    if loop.queue and loop.open_turn() is None:
        _begin_turn(loop)
    if loop.goes_on and loop.turn.over and loop.turn.all_answered:
        begin_leg(loop)
    if loop.goes_on and not loop.turn.at_frontier:
        _run_calls(loop)
        _drive(loop)


def _begin_turn(loop: Loop) -> None:
    turn_id, *queue = loop.queue
    loop.queue = tuple(queue)
    loop.turns += 1
    if loop.await_step_id is not None:
        loop.do(PutStep(loop.await_step_id, turn_id, StepName.AWAIT_USER_MESSAGE, StepStatus.SUCCEEDED, 1))
        loop.await_step_id = None
    loop.do(BeginTurn(turn_id, loop.turns))
    loop.turn = OpenTurn(turn_id, loop.turns)
    loop.new_model_step()


def _run_calls(loop: Loop) -> None:
    """Runs what is due.  A single attempt counts when its start mark is stored, any other one from here on."""
    for call in loop.turn.calls.values():
        if call.phase is not CallPhase.DUE or call.issued:
            continue
        if call.single_attempt:
            loop.put_call(replace(call, issued=True))
        else:
            started = replace(call, phase=CallPhase.STARTED, attempts=call.attempts + 1, issued=True)
            loop.put_call(started, StepStatus.RUNNING)
        loop.do(RunCall(call.step_id, call.call_id, call.attempts + 1, call.single_attempt, call.asks))


def _drive(loop: Loop) -> None:
    """Hands out what is ready: with a new drive, or to the one that is under way."""
    ready, answered = ready_calls(loop.turn), ready_questions(loop.turn)
    for call in ready:
        loop.put_call(replace(call, handed_out=True))
    got = {question.question_id: replace(question, handed_out=True) for question in answered}
    loop.turn = replace(loop.turn, questions={**loop.turn.questions, **got})
    call_ids, question_ids = tuple(call.call_id for call in ready), tuple(got)
    model = loop.turn.model
    if model is not None and not model.issued:
        loop.turn = replace(loop.turn, drive_again=False)
        loop.put_model(replace(model, attempts=model.attempts + 1, issued=True), StepStatus.RUNNING)
        loop.do(RunModel(model.step_id, call_ids, model.attempts + 1, question_ids))
    elif ready or answered:
        # The drive may be over by now, with its result on the way here.
        loop.turn = replace(loop.turn, drive_again=True)
        loop.do(HandOut(call_ids, question_ids))


def _suspend_or_continue(loop: Loop) -> None:
    turn = loop.turn
    if turn.suspended != turn.busy:
        return
    loop.turn = replace(turn, suspended=not turn.busy)
    loop.do(ContinueTurn(turn.turn_id) if turn.busy else SuspendTurn(turn.turn_id))
