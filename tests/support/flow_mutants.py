"""Session loops that are wrong in one way each, to prove that the rules of ``flow_rules`` can fail.

Each wraps the real ``reduce`` and spoils what goes in or comes out.  Several were real faults once.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from tests.support.flow_world import DIFFERENT

from perdure.session.flow import reduce
from perdure.session.model import InterruptStatus, RecordStatus, StepName, StepStatus
from perdure.session.state import (
    BlockSession,
    Call,
    CallPhase,
    CallSettled,
    CancelRequested,
    CloseSession,
    CodeDiffers,
    Command,
    Input,
    InterruptAnswered,
    JoinRequested,
    MessageArrived,
    ModelBlocked,
    ModelStepSettled,
    PutRecord,
    PutStep,
    Reason,
    RequestedCall,
    RunModel,
    SessionState,
    SettleInterrupt,
    SettleQuestion,
    StopStep,
    SuspendTurn,
    TakenOver,
    TurnHasNews,
    UnblockSession,
)

Reduced = tuple[SessionState, tuple[Command, ...]]


def with_calls(state: SessionState, change: Callable[[Call], Call]) -> SessionState:
    """``state`` with every call of its open turn changed."""
    turn = state.turn
    if turn is None:
        return state
    return replace(state, turn=replace(turn, calls={call_id: change(call) for call_id, call in turn.calls.items()}))


def with_requests(given: Input, change: Callable[[RequestedCall], RequestedCall]) -> Input:
    """``given`` with every requested call changed."""
    if not isinstance(given, ModelStepSettled) or not isinstance(given.outcome, ModelBlocked):
        return given
    outcome = replace(given.outcome, calls=tuple(change(requested) for requested in given.outcome.calls))
    return replace(given, outcome=outcome)


def without(reduced: Reduced, unwanted: Callable[[Command], bool]) -> Reduced:
    """``reduced`` without some of its commands."""
    state, commands = reduced
    return state, tuple(command for command in commands if not unwanted(command))


def find_call(state: SessionState, **facts: Any) -> Call | None:
    """The call of the open turn that has all these facts."""
    calls = state.turn.calls.values() if state.turn is not None else ()
    return next((c for c in calls if all(getattr(c, name) == value for name, value in facts.items())), None)


# ---------------------------------------------------------------- messages and turns


def drops_a_queued_message_on_cancel(state: SessionState, given: Input) -> Reduced:
    if isinstance(given, CancelRequested) and state.turn is not None:
        return reduce(replace(state, queue=state.queue[1:]), given)
    return reduce(state, given)


def lets_messages_join_and_stay(state: SessionState, given: Input) -> Reduced:
    after, commands = reduce(state, given)
    return (replace(after, queue=state.queue), commands) if isinstance(given, JoinRequested) else (after, commands)


def lets_messages_join_any_turn(state: SessionState, given: Input) -> Reduced:
    if isinstance(given, JoinRequested) and state.turn is not None:
        return reduce(state, replace(given, turn_id=state.turn.turn_id))
    return reduce(state, given)


def takes_the_newest_message_first(state: SessionState, given: Input) -> Reduced:
    return reduce(replace(state, queue=state.queue[::-1]), given)


def takes_the_message_of_its_open_turn_again(state: SessionState, given: Input) -> Reduced:
    if isinstance(given, MessageArrived) and state.turn is not None and state.turn.turn_id == given.turn_id:
        return replace(state, queue=(*state.queue, given.turn_id)), ()
    return reduce(state, given)


def stays_blocked_when_cancelled(state: SessionState, given: Input) -> Reduced:
    after, commands = reduce(state, given)
    if isinstance(given, CancelRequested) and after.turn is None:
        after = replace(after, blocked=state.blocked)
    return after, commands


def waits_for_no_further_message(state: SessionState, given: Input) -> Reduced:
    return without(reduce(state, given), lambda c: isinstance(c, PutStep) and c.name is StepName.AWAIT_USER_MESSAGE)


def stops_nothing(state: SessionState, given: Input) -> Reduced:
    return without(reduce(state, given), lambda c: isinstance(c, StopStep))


def closes_the_session_before_its_turn(state: SessionState, given: Input) -> Reduced:
    after, commands = reduce(state, given)
    return after, tuple(sorted(commands, key=lambda command: not isinstance(command, CloseSession)))


# ---------------------------------------------------------------- calls and records


def forgets_the_start_mark(state: SessionState, given: Input) -> Reduced:
    def forget(call: Call) -> Call:
        started = call.single_attempt and call.phase is CallPhase.STARTED
        return replace(call, phase=CallPhase.DUE, attempts=0) if started else call

    return reduce(with_calls(state, forget) if isinstance(given, TakenOver) else state, given)


def forgets_attempts(state: SessionState, given: Input) -> Reduced:
    def forget(call: Call) -> Call:
        return call if call.single_attempt or call.settled else replace(call, attempts=0)

    return reduce(with_calls(state, forget) if isinstance(given, TakenOver) else state, given)


def settles_twice(state: SessionState, given: Input) -> Reduced:
    if isinstance(given, CallSettled):
        call = find_call(state, step_id=given.step_id, settled=True)
        if call is not None:
            return state, (PutRecord(call.call_id, call.step_id, RecordStatus.FAILED),)
    return reduce(state, given)


def touches_a_settled_step(state: SessionState, given: Input) -> Reduced:
    after, commands = reduce(state, given)
    settled = [c for c in commands if isinstance(c, PutStep) and c.name is StepName.RUN_MODEL and c.status.settled]
    return after, (*commands, *(replace(put, status=StepStatus.PENDING) for put in settled))


def ends_a_turn_without_records(state: SessionState, given: Input) -> Reduced:
    return without(reduce(state, given), lambda c: isinstance(c, PutRecord) and c.reason is Reason.NOT_RUN)


def says_that_what_started_was_not_run(state: SessionState, given: Input) -> Reduced:
    after, commands = reduce(state, given)
    lies = (
        replace(c, reason=Reason.NOT_RUN) if isinstance(c, PutRecord) and c.reason is Reason.INTERRUPTED else c
        for c in commands
    )
    return after, tuple(lies)


def takes_the_late_result_of_a_stopped_call(state: SessionState, given: Input) -> Reduced:
    def run(call: Call) -> Call:
        stopped = isinstance(given, CallSettled) and call.step_id == given.step_id and not call.settled
        return replace(call, issued=call.issued or (stopped and call.phase is not CallPhase.AWAITING))

    return reduce(with_calls(state, run) if isinstance(given, CallSettled) else state, given)


def waits_for_all_branches(state: SessionState, given: Input) -> Reduced:
    return reduce(state, with_requests(given, lambda requested: replace(requested, group="all")))


def hands_out_each_record_by_itself(state: SessionState, given: Input) -> Reduced:
    return reduce(state, with_requests(given, lambda requested: replace(requested, group=requested.call_id)))


# ---------------------------------------------------------------- interrupts


def does_not_withdraw_interrupts(state: SessionState, given: Input) -> Reduced:
    return without(
        reduce(state, given), lambda c: isinstance(c, SettleInterrupt) and c.status is InterruptStatus.WITHDRAWN
    )


def takes_a_second_answer(state: SessionState, given: Input) -> Reduced:
    if isinstance(given, InterruptAnswered):
        call = find_call(state, interrupt_id=given.interrupt_id)
        if call is not None and call.phase is not CallPhase.AWAITING:
            return state, (SettleInterrupt(given.interrupt_id, InterruptStatus.REJECTED),)
    return reduce(state, given)


def ignores_answers(state: SessionState, given: Input) -> Reduced:
    return (state, ()) if isinstance(given, InterruptAnswered) else reduce(state, given)


def asks_nobody(state: SessionState, given: Input) -> Reduced:
    return reduce(state, with_requests(given, lambda requested: replace(requested, ask=None)))


def makes_a_step_of_a_rejected_call(state: SessionState, given: Input) -> Reduced:
    after, commands = reduce(state, given)
    steps = [
        PutStep(c.step_id, state.turn.turn_id, StepName.CALL_TOOL, StepStatus.REJECTED, 0, c.call_id)
        for c in commands
        if isinstance(c, PutRecord) and c.status is RecordStatus.REJECTED and state.turn is not None
    ]
    return after, (*commands, *steps)


def never_says_that_it_waits(state: SessionState, given: Input) -> Reduced:
    after, commands = reduce(state, given)
    if after.turn is not None:
        after = replace(after, turn=replace(after.turn, suspended=False))
    return after, tuple(command for command in commands if not isinstance(command, SuspendTurn))


# ---------------------------------------------------------------- questions and legs


def loses_an_answer(state: SessionState, given: Input) -> Reduced:
    after, commands = reduce(state, given)
    lost = (replace(c, question_id=None) if isinstance(c, SettleQuestion) else c for c in commands)
    return after, tuple(lost)


def asks_on_in_a_closed_session(state: SessionState, given: Input) -> Reduced:
    after, commands = reduce(state, given)
    return (replace(after, late=state.late) if after.closed else after), commands


def begins_a_leg_with_the_first_answer(state: SessionState, given: Input) -> Reduced:
    turn = state.turn
    if isinstance(given, InterruptAnswered) and turn is not None and turn.at_frontier:
        enough = {
            name: replace(one, settled=one.settled or one.interrupt_id != given.interrupt_id)
            for name, one in turn.questions.items()
        }
        state = replace(state, turn=replace(turn, questions=enough))
    return reduce(state, given)


def lets_a_rejected_tool_run_again(state: SessionState, given: Input) -> Reduced:
    if isinstance(given, InterruptAnswered):
        call = find_call(state, interrupt_id=given.interrupt_id)
        if call is not None and call.asks:
            given = replace(given, approved=True)
    return reduce(state, given)


# ---------------------------------------------------------------- the model step


def does_not_drive_on_when_a_call_is_settled(state: SessionState, given: Input) -> Reduced:
    return without(reduce(state, given), lambda c: isinstance(c, RunModel) and isinstance(given, CallSettled))


def misses_news_that_come_while_it_drives(state: SessionState, given: Input) -> Reduced:
    if isinstance(given, TurnHasNews) and state.turn is not None and state.turn.model is not None:
        return state, ()
    return reduce(state, given)


def remembers_news_for_ever(state: SessionState, given: Input) -> Reduced:
    after, commands = reduce(state, given)
    if state.turn is not None and state.turn.drive_again and after.turn is not None and after.turn.model is not None:
        after = replace(after, turn=replace(after.turn, drive_again=True))
    return after, commands


def drives_twice_at_a_time(state: SessionState, given: Input) -> Reduced:
    after, commands = reduce(state, given)
    turn = state.turn
    if isinstance(given, TurnHasNews) and turn is not None and turn.model is not None and turn.model.issued:
        commands = (*commands, RunModel(turn.model.step_id, ()))
    return after, commands


def never_gives_a_turn_up(state: SessionState, given: Input) -> Reduced:
    turn = state.turn
    if isinstance(given, TakenOver):
        given = replace(given, lost=0)
        if turn is not None and turn.model is not None:
            state = replace(state, turn=replace(turn, model=replace(turn.model, attempts=1)))
    return reduce(state, given)


# ---------------------------------------------------------------- ownership


def leaves_before_it_came(state: SessionState, given: Input) -> Reduced:
    after, commands = reduce(state, given)
    if isinstance(given, TakenOver):
        after = replace(after, draining=state.draining)
    return after, commands


def does_not_check_its_code(state: SessionState, given: Input) -> Reduced:
    return reduce(state, replace(given, check=False) if isinstance(given, TakenOver) else given)


def unblocks_what_is_not_blocked(state: SessionState, given: Input) -> Reduced:
    after, commands = reduce(state, given)
    return after, (*commands, UnblockSession()) if isinstance(given, CancelRequested) else commands


def does_not_store_why_it_is_blocked(state: SessionState, given: Input) -> Reduced:
    return without(reduce(state, given), lambda c: isinstance(c, BlockSession))


def lets_the_check_of_another_turn_block_this_one(state: SessionState, given: Input) -> Reduced:
    return reduce(state, CodeDiffers(DIFFERENT) if isinstance(given, CodeDiffers) else given)
