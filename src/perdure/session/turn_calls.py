"""The tool calls of the open turn, from request to record: what each asks for, waits for and comes to."""

from __future__ import annotations

from dataclasses import replace
from typing import assert_never

from perdure.session.loop import RECORD_TO_STEP, Loop, approval_step_id, call_step_id, interrupt_id_for
from perdure.session.model import InterruptStatus, RecordStatus, StepName, StepStatus
from perdure.session.state import (
    AttemptFailed,
    AttemptStarted,
    Call,
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
        step_id=call_step_id(turn.turn_id, requested.call_id),
        group=requested.group,
        effect=requested.effect,
        max_attempts=requested.max_attempts,
        phase=CallPhase.DUE,
    )
    if requested.ask is None:
        loop.put_call(call, StepStatus.PENDING)
        return
    step_id = approval_step_id(turn.turn_id, call.call_id)
    interrupt_id = interrupt_id_for(turn.turn_id, call.call_id)
    loop.put_call(replace(call, phase=CallPhase.AWAITING, approval_step_id=step_id, interrupt_id=interrupt_id))
    loop.do(
        PutStep(step_id, turn.turn_id, StepName.AWAIT_TOOL_APPROVAL, StepStatus.PENDING, 0, call.call_id),
        RaiseInterrupt(interrupt_id, call.call_id, requested.ask),
    )


def interrupt_ended(loop: Loop, given: InterruptAnswered | InterruptExpired) -> None:
    """A person answered, or the deadline passed: the first word counts (J6)."""
    turn = loop.open_turn()
    calls = turn.calls.values() if turn is not None else ()
    call = next((c for c in calls if c.interrupt_id == given.interrupt_id), None)
    if call is None or call.phase is not CallPhase.AWAITING:
        return
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
    """Ends the wait of a call that is ``AWAITING``, and its ``AwaitToolApproval`` step."""
    assert call.interrupt_id is not None
    assert call.approval_step_id is not None
    turn_id = loop.turn.turn_id
    loop.do(
        SettleInterrupt(call.interrupt_id, status),
        PutStep(call.approval_step_id, turn_id, StepName.AWAIT_TOOL_APPROVAL, step, 1, call.call_id),
    )


def call_moved(loop: Loop, given: AttemptStarted | AttemptFailed | CallSettled) -> None:
    """A tool step reports.  Only one that this worker was told to run, and not to stop, has anything to say."""
    turn = loop.open_turn()
    calls = turn.calls.values() if turn is not None else ()
    call = next((c for c in calls if c.step_id == given.step_id), None)
    if call is None or not call.issued:
        return
    match given:
        case AttemptStarted():
            if call.phase is CallPhase.DUE:
                loop.put_call(replace(call, phase=CallPhase.STARTED, attempts=1), StepStatus.RUNNING)
        case AttemptFailed():
            if not call.single_attempt and call.attempts < call.max_attempts:
                loop.put_call(replace(call, attempts=call.attempts + 1), StepStatus.RUNNING)
        case CallSettled(_, status):
            settle(loop, call, status, None)
        case _:
            assert_never(given)


def settle(loop: Loop, call: Call, status: RecordStatus, reason: Reason | None) -> None:
    """Gives a call its record; nothing else does (J3, J4)."""
    assert not call.settled, "J3: a settled step never changes"
    rank = loop.turn.settled + 1
    loop.turn = replace(loop.turn, settled=rank)
    loop.do(PutRecord(call.call_id, call.step_id, status, reason))
    # A call that nobody agreed to never became a tool step.
    step = None if call.phase is CallPhase.AWAITING else RECORD_TO_STEP[status]
    loop.put_call(replace(call, phase=CallPhase.SETTLED, record=status, rank=rank, issued=False), step)
    _resume_if_complete(loop, call.group)


def _resume_if_complete(loop: Loop, group: str) -> None:
    """When the last call of a model response is settled, its branch goes on."""
    turn = loop.turn
    if turn.ending is not None or not all(call.settled for call in turn.calls.values() if call.group == group):
        return
    loop.turn = replace(turn, steps=turn.steps + 1)
    resume_id = f"{turn.turn_id}/resume/{turn.steps + 1}"
    loop.do(PutStep(resume_id, turn.turn_id, StepName.RESUME_TURN, StepStatus.SUCCEEDED, 1))
    if turn.model is None:
        loop.new_model_step()


def ready_calls(turn: OpenTurn) -> list[Call]:
    """The calls of complete groups whose records the live turn does not have yet, in the order of settlement."""
    incomplete = {call.group for call in turn.calls.values() if not call.settled}
    ready = [call for call in turn.calls.values() if not call.handed_out and call.group not in incomplete]
    return sorted(ready, key=lambda call: call.rank)
