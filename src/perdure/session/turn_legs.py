"""The legs of a turn: an invocation that ended with questions open, and the one that begins with their answers."""

from __future__ import annotations

from dataclasses import replace

from perdure.session.loop import Loop
from perdure.session.runner import QuestionWait
from perdure.session.state import BeginLeg, DropTurn, EndLeg
from perdure.session.turn_ends import leave_calls
from perdure.session.turn_questions import withdraw_questions


def end_leg(loop: Loop) -> None:
    """The invocation ended at a frontier: what was done so far is a checkpoint."""
    loop.turn = replace(loop.turn, at_frontier=True)
    loop.do(EndLeg(loop.turn.turn_id, loop.turn.leg))


def go_to_next_leg(loop: Loop, *, wait_for_writes: bool = True) -> None:
    """Brings a leg at its frontier to its end.  As at the end of a turn, writes that run get their records first."""
    leave_calls(loop, wait_for_writes=wait_for_writes)
    withdraw_questions(loop, only=QuestionWait.LIVE)
    if loop.turn.all_settled and not loop.turn.over:
        loop.turn = replace(loop.turn, over=True)
        loop.do(DropTurn())


def begin_leg(loop: Loop) -> None:
    """All questions of the frontier are answered: the turn goes on with an invocation of its own journal."""
    turn = loop.turn
    loop.turn = replace(
        turn, leg=turn.leg + 1, calls={}, questions={}, settled=0, at_frontier=False, over=False, drive_again=False
    )
    loop.do(BeginLeg(turn.turn_id, turn.leg + 1))
    loop.resume()
