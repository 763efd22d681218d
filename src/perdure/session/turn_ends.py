"""How a turn ends: by itself, cancelled, or with its session; and what becomes of the calls that it leaves."""

from __future__ import annotations

from perdure.session.loop import Loop, await_step_id
from perdure.session.model import InterruptStatus, RecordStatus, StepName, StepStatus, TurnStatus
from perdure.session.policy import EFFECT_RULES, ToolEffect
from perdure.session.state import (
    AnnounceEnd,
    Call,
    CallPhase,
    CloseSession,
    DropMessage,
    DropTurn,
    Ending,
    EndTurn,
    PutStep,
    Reason,
    StopStep,
    UnblockSession,
)
from perdure.session.turn_calls import settle, settle_interrupt
from perdure.session.turn_questions import withdraw_late, withdraw_questions


def cancel(loop: Loop) -> None:
    """Ends the open turn at once, whatever of it runs."""
    model = loop.turn.model
    if model is not None:
        if model.issued:
            loop.do(StopStep(model.step_id))
        loop.put_model(model, StepStatus.CANCELLED)
    end_at_once(loop, Ending(TurnStatus.CANCELLED))


def close(loop: Loop) -> None:
    """Cancels the open turn, drops what is queued, and takes no more messages."""
    if loop.closed:
        return
    loop.closed = True
    if loop.open_turn() is not None:
        cancel(loop)
    withdraw_late(loop)
    loop.do(*(DropMessage(turn_id) for turn_id in loop.queue))
    loop.queue = ()
    if loop.await_step_id is not None:
        loop.do(PutStep(loop.await_step_id, None, StepName.AWAIT_USER_MESSAGE, StepStatus.CANCELLED, 0))
        loop.await_step_id = None
    loop.do(CloseSession())


def end_at_once(loop: Loop, ending: Ending) -> None:
    """Ends the open turn without waiting for the writes that run: what becomes of them is not known."""
    loop.end_with(ending)
    leave_calls(loop, wait_for_writes=False)
    _end_turn(loop, ending)


def wind_down(loop: Loop, ending: Ending) -> None:
    """Ends a turn that is over, as soon as the writes that run have their records."""
    leave_calls(loop, wait_for_writes=True)
    withdraw_questions(loop)
    if loop.turn.all_settled:
        _end_turn(loop, ending)
    elif loop.before.turn is None or loop.before.turn.ending is None:
        loop.do(AnnounceEnd(loop.turn.turn_id, ending.status, ending.error))


def leave_calls(loop: Loop, *, wait_for_writes: bool) -> None:
    """Settles the calls of an invocation that is over; without those writes that it waits for."""
    for call in loop.turn.calls.values():
        _leave(loop, call, wait_for_writes=wait_for_writes)


def _leave(loop: Loop, call: Call, *, wait_for_writes: bool) -> None:
    """Settles a call with its turn.  What never started was not run.  A read is stopped.  A write that started may have
    happened: it is waited for, if the turn may wait; else its outcome is unknown."""
    if call.settled:
        return
    writes = call.effect is not ToolEffect.READ
    if writes and wait_for_writes and call.phase is CallPhase.STARTED:
        return
    if call.issued:
        loop.do(StopStep(call.step_id))
    if call.phase is CallPhase.AWAITING:
        settle_interrupt(loop, call, InterruptStatus.WITHDRAWN, StepStatus.WITHDRAWN)
    if call.tries == 0:
        settle(loop, call, RecordStatus.FAILED, Reason.NOT_RUN)
    else:
        settle(loop, call, EFFECT_RULES[call.effect].exhausted, Reason.INTERRUPTED if writes else Reason.STOPPED)


def _end_turn(loop: Loop, ending: Ending) -> None:
    turn = loop.turn
    assert all(call.record is not None for call in turn.calls.values()), "J4: every call has its record"
    withdraw_questions(loop)
    if ending.status is not TurnStatus.COMPLETED:
        withdraw_late(loop, turn.turn_id)
    if loop.blocked is not None:
        loop.do(UnblockSession())
    loop.do(EndTurn(turn.turn_id, ending.status, ending.error), DropTurn())
    loop.no_turn()
    loop.blocked, loop.checking = None, False
    if not loop.closed:
        loop.await_step_id = await_step_id(loop.turns)
        loop.do(PutStep(loop.await_step_id, None, StepName.AWAIT_USER_MESSAGE, StepStatus.PENDING, 0))
