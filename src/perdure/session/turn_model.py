"""The ``RunModel`` steps of the open turn: what follows when the live turn was driven, and when it has news."""

from __future__ import annotations

from dataclasses import replace
from typing import assert_never

from perdure.session.loop import Loop
from perdure.session.model import ErrorInfo, StepStatus, TurnStatus
from perdure.session.runner import QuestionWait
from perdure.session.state import Ending, ModelBlocked, ModelFailed, ModelFinished, ModelStepSettled, TurnHasNews
from perdure.session.turn_calls import ask, ready_calls
from perdure.session.turn_legs import end_leg
from perdure.session.turn_questions import raise_question, ready_questions, withdraw_unasked

TURN_STALLED = "turn_stalled"
"""Error code of a turn whose invocation waits for nothing that perdure knows of."""


def turn_has_news(loop: Loop, given: TurnHasNews) -> None:
    """The live turn wants to be driven.  While it is being driven already, that may be too late for it to notice."""
    turn = loop.open_turn(given.turn_id)
    if turn is None or turn.ending is not None or turn.at_frontier or loop.halted:
        return
    if turn.model is None:
        loop.new_model_step()
    else:
        loop.turn = replace(turn, drive_again=True)


def model_step_settled(loop: Loop, given: ModelStepSettled) -> None:
    """The live turn was driven as far as it goes.  Only the step that this worker runs has anything to say."""
    turn = loop.open_turn()
    model = turn.model if turn is not None else None
    if model is None or model.step_id != given.step_id or not model.issued:
        return
    match given.outcome:
        case ModelBlocked():
            loop.put_model(model, StepStatus.SUCCEEDED)
            _blocked(loop, given.outcome)
        case ModelFinished(questions):
            loop.put_model(model, StepStatus.SUCCEEDED)
            for requested in questions:
                raise_question(loop, requested)
            withdraw_unasked(loop, {requested.question_id for requested in questions})
            if any(requested.wait is QuestionWait.NEXT_LEG for requested in questions):
                end_leg(loop)
            else:
                loop.end_with(Ending(TurnStatus.COMPLETED))
        case ModelFailed(error):
            loop.put_model(model, StepStatus.FAILED)
            loop.end_with(Ending(TurnStatus.FAILED, error))
        case _:
            assert_never(given.outcome)


def _blocked(loop: Loop, outcome: ModelBlocked) -> None:
    for requested in outcome.calls:
        ask(loop, requested)
    for question in outcome.questions:
        raise_question(loop, question)
    turn = loop.turn
    if outcome.more or turn.drive_again or ready_calls(turn) or ready_questions(turn):
        loop.new_model_step()
    elif not turn.waits_live:
        error = ErrorInfo(
            code=TURN_STALLED,
            message="the invocation waits for something that is no model call, no tool call and no question that "
            "perdure knows of. Look for an event, a lock or a future that a tool or a callback waits for and nobody "
            "sets.",
        )
        loop.end_with(Ending(TurnStatus.FAILED, error))
