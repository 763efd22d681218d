"""A session changes hands: what a new owner makes of what the former one left, and whether its code fits."""

from __future__ import annotations

from dataclasses import replace

from perdure.session.loop import Loop
from perdure.session.model import ErrorInfo, StepStatus, TurnStatus
from perdure.session.policy import EFFECT_RULES
from perdure.session.state import (
    MAX_MODEL_STEP_TAKEOVERS,
    BlockSession,
    Call,
    CallPhase,
    CheckCode,
    CodeDiffers,
    CodeFits,
    DropTurn,
    Ending,
    Reason,
    StopStep,
    TakenOver,
    UnblockSession,
)
from perdure.session.turn_calls import settle
from perdure.session.turn_ends import end_at_once
from perdure.session.turn_legs import go_to_next_leg

WORKERS_LOST = "workers_lost"
"""Error code of a turn that was given up because its workers kept dying in it."""


def taken_over(loop: Loop, given: TakenOver) -> None:
    """A new owner: nothing of the open turn runs any more."""
    loop.checking = loop.draining = False
    if loop.open_turn() is None:
        return
    calls = loop.turn.calls.values()
    incomplete = {call.group for call in calls if not call.settled}
    for call in calls:
        if call.settled:
            # A replay hands out the records of complete groups by itself, and no others.
            loop.put_call(replace(call, handed_out=call.group not in incomplete))
        else:
            _recover_call(loop, call)
    _recover_questions(loop)
    if loop.goes_on:
        _recover_turn(loop, given)


def _recover_questions(loop: Loop) -> None:
    questions = loop.turn.questions
    incomplete = {question.group for question in questions.values() if not question.settled}
    loop.turn = replace(
        loop.turn,
        questions={
            name: replace(one, handed_out=one.settled and one.group not in incomplete)
            for name, one in questions.items()
        },
    )


def _recover_call(loop: Loop, call: Call) -> None:
    """The worker that ran this call is gone.  An attempt that it started counts, and a single one is the last."""
    if call.phase is not CallPhase.STARTED:
        loop.put_call(replace(call, issued=False))
    elif call.single_attempt or call.tries >= call.max_attempts:
        settle(loop, call, EFFECT_RULES[call.effect].exhausted, Reason.INTERRUPTED)
    else:
        loop.put_call(replace(call, phase=CallPhase.DUE, issued=False), StepStatus.PENDING)


def _recover_turn(loop: Loop, given: TakenOver) -> None:
    """The worker that drove the live turn is gone."""
    model = loop.turn.model
    deaths = max(given.lost, model.attempts if model is not None else 0)
    if deaths >= MAX_MODEL_STEP_TAKEOVERS:
        _give_up(loop, deaths)
        return
    if model is not None:
        loop.put_model(replace(model, issued=False), StepStatus.PENDING)
    elif loop.turn.at_frontier:
        return  # The invocation has ended; the next leg begins under whatever code there is.
    elif not loop.turn.waits_live:
        # No loop leaves a turn like this; should a store hold one, it is driven, not stuck.
        loop.new_model_step()
    if given.check or loop.blocked is not None:
        loop.checking = True
        loop.do(CheckCode(loop.turn.turn_id, at_rest=loop.turn.model is None))


def _give_up(loop: Loop, deaths: int) -> None:
    """A turn that kills its workers must not kill them all."""
    turn = loop.turn
    error = ErrorInfo(
        code=WORKERS_LOST,
        message=f"{deaths} workers died while they ran this turn; it was given up so that it stops taking workers "
        "down. Look for a crash or for memory running out in the model, the tools or the callbacks.",
        facts={"turn_id": turn.turn_id, "workers": deaths},
    )
    if turn.model is not None:
        loop.put_model(turn.model, StepStatus.FAILED)
    loop.end_with(Ending(TurnStatus.FAILED, error))


def code_fits(loop: Loop, given: CodeFits) -> None:
    """The turn may go on under this worker's code."""
    if not loop.checking or loop.open_turn(given.turn_id) is None:
        return
    if loop.blocked is not None:
        loop.do(UnblockSession())
    loop.blocked, loop.checking = None, False


def code_differs(loop: Loop, given: CodeDiffers) -> None:
    """The turn cannot go on under this worker's code: everything stops where it is, until compatible code is back."""
    turn = loop.open_turn(given.turn_id)
    if turn is None or loop.halted:
        return
    if turn.ending is not None:
        # It needs its code no longer.  The live turn cannot go on, so what runs in it is lost.
        end_at_once(loop, turn.ending)
        return
    if turn.at_frontier:
        go_to_next_leg(loop, wait_for_writes=False)  # likewise
        return
    loop.blocked, loop.checking = given.error, False
    for call in turn.calls.values():
        if call.issued:
            _halt_call(loop, call, never_began=call.step_id in given.unstarted)
    if turn.model is not None and turn.model.issued:
        # A worker that notices is no worker that died.
        loop.do(StopStep(turn.model.step_id))
        idle = replace(turn.model, attempts=turn.model.attempts - 1, issued=False)
        loop.put_model(idle, StepStatus.PENDING)
    loop.do(BlockSession(given.error), DropTurn())


def _halt_call(loop: Loop, call: Call, *, never_began: bool) -> None:
    """Takes back a call that this worker has.  A start mark is never taken back (J2)."""
    loop.do(StopStep(call.step_id))
    if never_began and not call.single_attempt:
        idle = replace(call, phase=CallPhase.DUE, attempts=call.attempts - 1, issued=False)
        loop.put_call(idle, StepStatus.PENDING)
    else:
        loop.put_call(replace(call, issued=False))
