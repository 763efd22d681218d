"""The tool calls of the open turn, from request to record: what each asks for, waits for and comes to."""

from __future__ import annotations

from dataclasses import replace
from typing import assert_never

from perdure.session.loop import RECORD_TO_STEP, Loop, call_step_id, wait_step_name
from perdure.session.model import InterruptKind, InterruptStatus, RecordStatus, StepStatus
from perdure.session.state import (
    AttemptFailed,
    AttemptStarted,
    Call,
    CallAsked,
    CallPhase,
    CallSettled,
    InterruptAnswered,
    InterruptExpired,
    OpenTurn,
    PutRecord,
    PutStep,
    RaiseInterrupt,
    Reason,
    RequestedCall,
    SettleInterrupt,
)


def ask(loop: Loop, requested: RequestedCall) -> None:
    """The invocation waits for a call: it is due, or a person is asked first."""
    turn = loop.turn
    if requested.call_id in turn.calls:
        return
    call = Call(
        call_id=requested.call_id,
        step_id=call_step_id(turn.turn_id, requested.call_id, turn.leg),
        group=requested.group,
        effect=requested.effect,
        max_attempts=requested.max_attempts,
        phase=CallPhase.DUE,
    )
    if requested.ask is None:
        loop.put_call(call, StepStatus.PENDING)
    else:
        _wait(loop, call, requested.ask)


def _wait(loop: Loop, call: Call, kind: InterruptKind, *, in_the_middle: bool = False) -> None:
    """The call goes on when a person lets it."""
    interrupt_id, step_id = loop.new_wait(kind, call.call_id)
    loop.do(RaiseInterrupt(interrupt_id, call.call_id, kind, in_the_middle))
    waiting = replace(call, approval_step_id=step_id, interrupt_id=interrupt_id, asking=kind)
    loop.put_call(replace(waiting, phase=CallPhase.AWAITING))


def awaiting_call(turn: OpenTurn, interrupt_id: str) -> Call | None:
    """The call that waits for this interrupt."""
    calls = (call for call in turn.calls.values() if call.phase is CallPhase.AWAITING)
    return next((call for call in calls if call.interrupt_id == interrupt_id), None)


def call_answered(loop: Loop, call: Call, given: InterruptAnswered | InterruptExpired) -> None:
    """A person answered what an ``AWAITING`` call asks, or the deadline passed."""
    if isinstance(given, InterruptExpired):
        settle_interrupt(loop, call, InterruptStatus.EXPIRED, StepStatus.EXPIRED)
        settle(loop, call, RecordStatus.FAILED, Reason.EXPIRED)
    elif given.approved:
        settle_interrupt(loop, call, InterruptStatus.APPROVED, StepStatus.SUCCEEDED)
        loop.put_call(replace(call, phase=CallPhase.DUE), StepStatus.PENDING)
    else:
        settle_interrupt(loop, call, InterruptStatus.REJECTED, StepStatus.REJECTED)
        settle(loop, call, RecordStatus.REJECTED, Reason.REJECTED)


def settle_interrupt(loop: Loop, call: Call, status: InterruptStatus, step: StepStatus) -> None:
    """Ends the wait of a call that is ``AWAITING``, and the step that waits with it."""
    assert call.interrupt_id is not None
    assert call.approval_step_id is not None
    assert call.asking is not None
    turn_id = loop.turn.turn_id
    loop.do(
        SettleInterrupt(call.interrupt_id, status),
        PutStep(call.approval_step_id, turn_id, wait_step_name(call.asking), step, 1, call.call_id),
    )


def call_moved(loop: Loop, given: AttemptStarted | AttemptFailed | CallAsked | CallSettled) -> None:
    """A tool step reports.  Only one that this worker was told to run, and not to stop, has anything to say."""
    turn = loop.open_turn()
    calls = turn.calls.values() if turn is not None else ()
    call = next((c for c in calls if c.step_id == given.step_id), None)
    if call is None or not call.issued:
        return
    match given:
        case AttemptStarted():
            if call.phase is CallPhase.DUE:
                started = replace(call, phase=CallPhase.STARTED, attempts=call.attempts + 1)
                loop.put_call(started, StepStatus.RUNNING)
        case AttemptFailed():
            if not call.single_attempt and call.tries < call.max_attempts:
                loop.put_call(replace(call, attempts=call.attempts + 1), StepStatus.RUNNING)
        case CallAsked(_, kind):
            if call.phase is CallPhase.STARTED:
                asked = replace(call, phase=CallPhase.DUE, asks=call.asks + 1, issued=False)
                loop.put_call(asked, StepStatus.PENDING)
                _wait(loop, asked, kind, in_the_middle=True)
        case CallSettled(_, status):
            settle(loop, call, status, None)
        case _:
            assert_never(given)


def settle(loop: Loop, call: Call, status: RecordStatus, reason: Reason | None) -> None:
    """Gives a call its record; nothing else does (J3, J4)."""
    assert not call.settled, "J3: a settled step never changes"
    loop.do(PutRecord(call.call_id, call.step_id, status, reason))
    # A call that nobody agreed to never became a tool step, unless it asked in the middle.
    step = None if call.phase is CallPhase.AWAITING and not call.asks else RECORD_TO_STEP[status]
    settled = replace(call, phase=CallPhase.SETTLED, record=status, rank=loop.next_rank(), issued=False)
    loop.put_call(settled, step)
    _resume_if_complete(loop, call.group)


def _resume_if_complete(loop: Loop, group: str) -> None:
    """When the last call of a model response is settled, its branch goes on."""
    turn = loop.turn
    goes_on = turn.ending is None and not turn.at_frontier
    if goes_on and all(call.settled for call in turn.calls.values() if call.group == group):
        loop.resume()


def ready_calls(turn: OpenTurn) -> list[Call]:
    """The calls of complete groups whose records the live turn does not have yet, in the order of settlement."""
    incomplete = {call.group for call in turn.calls.values() if not call.settled}
    ready = [call for call in turn.calls.values() if not call.handed_out and call.group not in incomplete]
    return sorted(ready, key=lambda call: call.rank)
