"""The session loop: a pure function ``(state, input) -> (state, commands)``.

No I/O, no clock, no framework: both engines feed it and carry out what it says, so the semantics exist once.
The rules, by id (``docs/invariants.md``):

* J1  messages are handled in the order in which they were accepted: none lost, none doubled;
* J2  a single-attempt call is started at most once;
* J3  a settled step never changes;
* J4  no call is without a record when its turn ends;
* J6  an interrupt is answered at most once;
* J7  a cancelled or failed turn leaves the session usable.

An input that no longer applies (a late result, a second answer, a cancel that came too late) changes nothing.
"""

from __future__ import annotations

from dataclasses import replace
from typing import assert_never

from perdure.session.model import (
    ErrorInfo,
    InterruptStatus,
    RecordStatus,
    StepName,
    StepStatus,
    TurnStatus,
)
from perdure.session.policy import EFFECT_RULES, ToolEffect, step_name_for
from perdure.session.state import (
    MAX_MODEL_STEP_TAKEOVERS,
    AttemptFailed,
    AttemptStarted,
    BeginTurn,
    BlockSession,
    Call,
    CallPhase,
    CallSettled,
    CancelRequested,
    CheckCode,
    CloseRequested,
    CloseSession,
    CodeDiffers,
    CodeFits,
    Command,
    ContinueTurn,
    DropMessage,
    DropTurn,
    Ending,
    EndTurn,
    HandOut,
    Input,
    InterruptAnswered,
    InterruptExpired,
    MessageArrived,
    ModelBlocked,
    ModelFailed,
    ModelFinished,
    ModelStep,
    ModelStepSettled,
    OpenTurn,
    PutRecord,
    PutStep,
    RaiseInterrupt,
    Reason,
    RequestedCall,
    RunCall,
    RunModel,
    SessionState,
    SettleInterrupt,
    StopStep,
    SuspendTurn,
    TakenOver,
    TurnHasNews,
    UnblockSession,
)

RECORD_TO_STEP: dict[RecordStatus, StepStatus] = {
    RecordStatus.SUCCEEDED: StepStatus.SUCCEEDED,
    RecordStatus.FAILED: StepStatus.FAILED,
    RecordStatus.REJECTED: StepStatus.REJECTED,
    RecordStatus.OUTCOME_UNKNOWN: StepStatus.OUTCOME_UNKNOWN,
}

WORKERS_LOST = "workers_lost"
"""Error code of a turn that was given up because its workers kept dying in it."""

TURN_STALLED = "turn_stalled"
"""Error code of a turn whose invocation waits for nothing that perdure knows of."""


def await_step_id(turns: int) -> str:
    """Id of the ``AwaitUserMessage`` step behind ``turns`` turns."""
    return f"await/{turns + 1}"


def call_step_id(turn_id: str, call_id: str) -> str:
    return f"{turn_id}/call/{call_id}"


def approval_step_id(turn_id: str, call_id: str) -> str:
    return f"{turn_id}/approve/{call_id}"


def interrupt_id_for(turn_id: str, call_id: str) -> str:
    """Ours, stable over restarts, distinct even for equal calls (their ids differ)."""
    return f"{turn_id}:{call_id}"


def reduce(state: SessionState, given: Input) -> tuple[SessionState, tuple[Command, ...]]:
    """What follows from ``given`` in ``state``: the new state, and what is to be stored and then done, in order."""
    loop = _Loop(state)
    loop.take(given)
    loop.advance()
    return loop.state, tuple(loop.commands)


class _Loop:
    """One reduction.  Holds the state under way and collects the commands."""

    def __init__(self, state: SessionState) -> None:
        self.state = state
        self.commands: list[Command] = []

    def do(self, *commands: Command) -> None:
        self.commands.extend(commands)

    # ------------------------------------------------------------ inputs

    def take(self, given: Input) -> None:
        match given:
            case MessageArrived(turn_id):
                self._message_arrived(turn_id)
            case CancelRequested(turn_id):
                self._cancel_requested(turn_id)
            case CloseRequested():
                self._close_requested()
            case TakenOver(check):
                self._taken_over(check)
            case CodeFits():
                self._code_fits()
            case CodeDiffers(error):
                self._code_differs(error)
            case InterruptAnswered() | InterruptExpired():
                self._interrupt_ended(given)
            case ModelStepSettled() | TurnHasNews():
                self._model_moved(given)
            case AttemptStarted() | AttemptFailed() | CallSettled():
                self._call_moved(given)
            case _:
                assert_never(given)

    def _message_arrived(self, turn_id: str) -> None:
        if self.state.closed:
            self.do(DropMessage(turn_id))
        elif turn_id not in self.state.queue:
            self.state = replace(self.state, queue=(*self.state.queue, turn_id))

    def _cancel_requested(self, turn_id: str | None) -> None:
        if turn_id is not None and turn_id in self.state.queue:
            self.state = replace(self.state, queue=tuple(waiting for waiting in self.state.queue if waiting != turn_id))
            self.do(DropMessage(turn_id))
        elif self.state.turn is not None and turn_id in (None, self.state.turn.turn_id):
            self._cancel(self.state.turn)

    def _close_requested(self) -> None:
        if self.state.closed:
            return
        if self.state.turn is not None:
            self._cancel(self.state.turn)
        self.do(*(DropMessage(turn_id) for turn_id in self.state.queue))
        if self.state.await_step_id is not None:
            self.do(PutStep(self.state.await_step_id, None, StepName.AWAIT_USER_MESSAGE, StepStatus.CANCELLED, 0))
        self.state = replace(self.state, closed=True, queue=(), await_step_id=None)
        self.do(CloseSession())

    def _interrupt_ended(self, given: InterruptAnswered | InterruptExpired) -> None:
        turn = self.state.turn
        call = next((c for c in turn.calls.values() if c.interrupt_id == given.interrupt_id), None) if turn else None
        if turn is None or call is None or call.phase is not CallPhase.AWAITING:
            return
        if isinstance(given, InterruptExpired):
            self._end_interrupt(turn, call, InterruptStatus.EXPIRED, StepStatus.EXPIRED)
            self._settle(call.call_id, RecordStatus.FAILED, Reason.EXPIRED)
        elif given.approved:
            self._end_interrupt(turn, call, InterruptStatus.APPROVED, StepStatus.SUCCEEDED)
            self._put_call(replace(call, phase=CallPhase.DUE))
            self._put_call_step(replace(call, phase=CallPhase.DUE), StepStatus.PENDING)
        else:
            self._end_interrupt(turn, call, InterruptStatus.REJECTED, StepStatus.REJECTED)
            self._settle(call.call_id, RecordStatus.REJECTED, Reason.REJECTED)

    def _end_interrupt(self, turn: OpenTurn, call: Call, status: InterruptStatus, step: StepStatus) -> None:
        assert call.interrupt_id is not None
        assert call.approval_step_id is not None
        self.do(
            SettleInterrupt(call.interrupt_id, status),
            PutStep(call.approval_step_id, turn.turn_id, StepName.AWAIT_TOOL_APPROVAL, step, 1, call.call_id),
        )

    # ------------------------------------------------------------ ownership and code

    def _taken_over(self, check: bool) -> None:
        turn = self.state.turn
        self.state = replace(self.state, checking=turn is not None and (check or self.state.blocked is not None))
        if turn is None:
            return
        for call in tuple(turn.calls.values()):
            self._recover(call)
        turn = self._turn()
        if turn.model is not None:
            self._recover_model(turn, turn.model)
        elif all(call.phase is CallPhase.SETTLED for call in turn.calls.values()):
            self._new_model_step()
        if self.state.checking:
            self.do(CheckCode())

    def _recover(self, call: Call) -> None:
        """The worker that ran this call is gone."""
        if call.phase is CallPhase.STARTED:
            rule = EFFECT_RULES[call.effect]
            if rule.single_attempt or call.attempts >= call.max_attempts:
                self._settle(call.call_id, rule.exhausted, Reason.INTERRUPTED)
            else:
                self._put_call(replace(call, phase=CallPhase.DUE, issued=False))
        elif call.issued:
            self._put_call(replace(call, issued=False))

    def _recover_model(self, turn: OpenTurn, model: ModelStep) -> None:
        if model.attempts >= MAX_MODEL_STEP_TAKEOVERS:
            error = ErrorInfo(
                code=WORKERS_LOST,
                message=f"{model.attempts} workers died while they ran this turn; it was given up so that it stops "
                "taking workers down. Look for a crash or for memory running out in the model or the callbacks.",
            )
            self._put_model_step(model, StepStatus.FAILED)
            self._put_turn(replace(turn, model=None, ending=Ending(TurnStatus.FAILED, error)))
        else:
            self._put_turn(replace(turn, model=replace(model, issued=False)))

    def _code_fits(self) -> None:
        if self.state.blocked is not None:
            self.do(UnblockSession())
        self.state = replace(self.state, checking=False, blocked=None)

    def _code_differs(self, error: ErrorInfo) -> None:
        """Nothing of the turn could run under this code: take back what was handed to the live turn."""
        turn = self.state.turn
        if turn is None:
            return
        self.state = replace(self.state, checking=False, blocked=error)
        for call in turn.calls.values():
            if call.issued and call.phase is CallPhase.STARTED and not EFFECT_RULES[call.effect].single_attempt:
                idle = replace(call, phase=CallPhase.DUE, attempts=call.attempts - 1, issued=False)
                self._put_call(idle)
                self._put_call_step(idle, StepStatus.PENDING)
            elif call.issued:
                self._put_call(replace(call, issued=False))
        turn = self._turn()
        if turn.model is not None and turn.model.issued:
            idle_model = replace(turn.model, attempts=turn.model.attempts - 1, issued=False)
            self._put_turn(replace(turn, model=idle_model))
            self._put_model_step(idle_model, StepStatus.PENDING)
        self.do(BlockSession(error), DropTurn())

    # ------------------------------------------------------------ the model step

    def _model_moved(self, given: ModelStepSettled | TurnHasNews) -> None:
        turn = self.state.turn
        if turn is None or turn.ending is not None:
            return
        if isinstance(given, TurnHasNews):
            if turn.model is None:
                self._new_model_step()
            return
        if turn.model is None or turn.model.step_id != given.step_id:
            return
        model = turn.model
        self._put_turn(replace(turn, model=None))
        match given.outcome:
            case ModelBlocked(calls, more):
                self._put_model_step(model, StepStatus.SUCCEEDED)
                for requested in calls:
                    self._ask(requested)
                if more or turn.handed_out_late:
                    self._new_model_step()
                elif all(call.phase is CallPhase.SETTLED for call in self._turn().calls.values()):
                    self._stall()
            case ModelFinished():
                self._put_model_step(model, StepStatus.SUCCEEDED)
                self._put_turn(replace(self._turn(), ending=Ending(TurnStatus.COMPLETED)))
            case ModelFailed(error):
                self._put_model_step(model, StepStatus.FAILED)
                self._put_turn(replace(self._turn(), ending=Ending(TurnStatus.FAILED, error)))
            case _:
                assert_never(given.outcome)

    def _stall(self) -> None:
        """Blocked although every call is settled: unless records are about to be handed out, it would stay so."""
        if any(not call.handed_out for call in self._turn().calls.values()):
            return
        error = ErrorInfo(
            code=TURN_STALLED,
            message="the invocation waits for something that is neither a model call nor a tool call that perdure runs",
        )
        self._put_turn(replace(self._turn(), ending=Ending(TurnStatus.FAILED, error)))

    def _ask(self, requested: RequestedCall) -> None:
        turn = self._turn()
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
            self._put_call(call)
            self._put_call_step(call, StepStatus.PENDING)
            return
        step_id = approval_step_id(turn.turn_id, call.call_id)
        interrupt_id = interrupt_id_for(turn.turn_id, call.call_id)
        self._put_call(
            replace(call, phase=CallPhase.AWAITING, approval_step_id=step_id, interrupt_id=interrupt_id),
        )
        self.do(
            PutStep(step_id, turn.turn_id, StepName.AWAIT_TOOL_APPROVAL, StepStatus.PENDING, 0, call.call_id),
            RaiseInterrupt(interrupt_id, call.call_id, requested.ask),
        )

    # ------------------------------------------------------------ tool steps

    def _call_moved(self, given: AttemptStarted | AttemptFailed | CallSettled) -> None:
        turn = self.state.turn
        call = next((c for c in turn.calls.values() if c.step_id == given.step_id), None) if turn else None
        if call is None or call.phase not in (CallPhase.DUE, CallPhase.STARTED):
            return
        match given:
            case AttemptStarted():
                if call.phase is CallPhase.DUE and call.issued:
                    started = replace(call, phase=CallPhase.STARTED, attempts=1)
                    self._put_call(started)
                    self._put_call_step(started, StepStatus.RUNNING)
            case AttemptFailed():
                if call.phase is CallPhase.STARTED and not EFFECT_RULES[call.effect].single_attempt:
                    again = replace(call, attempts=call.attempts + 1)
                    self._put_call(again)
                    self._put_call_step(again, StepStatus.RUNNING)
            case CallSettled(_, status):
                self._settle(call.call_id, status, None)
            case _:
                assert_never(given)

    def _settle(self, call_id: str, status: RecordStatus, reason: Reason | None) -> None:
        """Gives a call its record; the only place that does (J3, J4)."""
        turn = self._turn()
        call = turn.calls[call_id]
        assert call.phase is not CallPhase.SETTLED, "J3: a settled step never changes"
        self.do(PutRecord(call_id, call.step_id, status, reason))
        asked_only = call.phase is CallPhase.AWAITING
        settled = replace(call, phase=CallPhase.SETTLED, record=status, rank=turn.settled + 1, issued=False)
        self._put_turn(replace(turn, settled=turn.settled + 1))
        self._put_call(settled)
        if not asked_only:
            self._put_call_step(settled, RECORD_TO_STEP[status])
        self._resume_if_complete(call.group)

    def _resume_if_complete(self, group: str) -> None:
        """When the last call of a model response is settled, its branch goes on."""
        turn = self._turn()
        calls = [call for call in turn.calls.values() if call.group == group]
        if turn.ending is not None or any(call.phase is not CallPhase.SETTLED for call in calls):
            return
        resume_id = f"{turn.turn_id}/resume/{turn.steps + 1}"
        self._put_turn(replace(turn, steps=turn.steps + 1))
        self.do(PutStep(resume_id, turn.turn_id, StepName.RESUME_TURN, StepStatus.SUCCEEDED, 1))
        if self._turn().model is None:
            self._new_model_step()

    # ------------------------------------------------------------ ends

    def _cancel(self, turn: OpenTurn) -> None:
        if self.state.blocked is not None:
            self.do(UnblockSession())
        self.state = replace(self.state, blocked=None, checking=False)
        if turn.model is not None:
            self.do(StopStep(turn.model.step_id))
            self._put_model_step(turn.model, StepStatus.CANCELLED)
        self._put_turn(replace(turn, model=None, ending=Ending(TurnStatus.CANCELLED)))
        for call in tuple(self._turn().calls.values()):
            self._stop(call, wait_for_writes=False)

    def _stop(self, call: Call, *, wait_for_writes: bool) -> None:
        """Ends a call with its turn.  What never started did not run; a running read is stopped; a running write may
        have happened, so it is waited for (the turn ended by itself) or its outcome is unknown (it was cancelled)."""
        if call.phase is CallPhase.AWAITING:
            self._end_interrupt(self._turn(), call, InterruptStatus.WITHDRAWN, StepStatus.WITHDRAWN)
            self._settle(call.call_id, RecordStatus.FAILED, Reason.NOT_RUN)
        elif call.phase is CallPhase.DUE:
            if call.issued:
                self.do(StopStep(call.step_id))
            self._settle(call.call_id, RecordStatus.FAILED, Reason.NOT_RUN)
        elif call.phase is CallPhase.STARTED:
            if call.effect is ToolEffect.READ:
                self.do(StopStep(call.step_id))
                self._settle(call.call_id, RecordStatus.FAILED, Reason.STOPPED)
            elif not wait_for_writes:
                self.do(StopStep(call.step_id))
                self._settle(call.call_id, RecordStatus.OUTCOME_UNKNOWN, Reason.INTERRUPTED)

    def _end_turn(self, turn: OpenTurn, ending: Ending) -> None:
        assert all(call.record is not None for call in turn.calls.values()), "J4: every call has its record"
        self.do(EndTurn(turn.turn_id, ending.status, ending.error), DropTurn())
        self.state = replace(self.state, turn=None)
        if not self.state.closed:
            step_id = await_step_id(self.state.turns)
            self.state = replace(self.state, await_step_id=step_id)
            self.do(PutStep(step_id, None, StepName.AWAIT_USER_MESSAGE, StepStatus.PENDING, 0))

    # ------------------------------------------------------------ going on

    def advance(self) -> None:
        """Brings the session as far as it can go without another input."""
        turn = self.state.turn
        if turn is not None and turn.ending is not None:
            for call in tuple(turn.calls.values()):
                self._stop(call, wait_for_writes=True)
            turn = self._turn()
            if all(call.phase is CallPhase.SETTLED for call in turn.calls.values()):
                self._end_turn(turn, turn.ending or Ending(TurnStatus.COMPLETED))
        if self.state.closed or self.state.blocked is not None or self.state.checking:
            return
        if self.state.turn is None and self.state.queue:
            self._begin_turn()
        if self.state.turn is not None and self.state.turn.ending is None:
            self._dispatch()
            self._suspend_or_continue()

    def _begin_turn(self) -> None:
        turn_id, *rest = self.state.queue
        number = self.state.turns + 1
        if self.state.await_step_id is not None:
            self.do(PutStep(self.state.await_step_id, turn_id, StepName.AWAIT_USER_MESSAGE, StepStatus.SUCCEEDED, 1))
        self.do(BeginTurn(turn_id, number))
        self.state = replace(
            self.state, queue=tuple(rest), turns=number, await_step_id=None, turn=OpenTurn(turn_id, number)
        )
        self._new_model_step()

    def _dispatch(self) -> None:
        turn = self._turn()
        for call in tuple(turn.calls.values()):
            if call.phase is not CallPhase.DUE or call.issued:
                continue
            single = EFFECT_RULES[call.effect].single_attempt
            if single:
                issued = replace(call, issued=True)
            else:
                issued = replace(call, issued=True, phase=CallPhase.STARTED, attempts=call.attempts + 1)
                self._put_call_step(issued, StepStatus.RUNNING)
            self._put_call(issued)
            self.do(RunCall(call.step_id, call.call_id, call.attempts + 1, single))
        ready = self._take_ready()
        model = self._turn().model
        if model is not None and not model.issued:
            running = replace(model, issued=True, attempts=model.attempts + 1)
            self._put_turn(replace(self._turn(), model=running, handed_out_late=False))
            self._put_model_step(running, StepStatus.RUNNING)
            self.do(RunModel(model.step_id, ready))
        elif ready:
            self._put_turn(replace(self._turn(), handed_out_late=True))
            self.do(HandOut(ready))

    def _take_ready(self) -> tuple[str, ...]:
        """The settled calls of complete groups that the live turn does not have yet, in the order they settled."""
        calls = self._turn().calls
        waiting = {call.group for call in calls.values() if call.phase is not CallPhase.SETTLED}
        ready = [call for call in calls.values() if not call.handed_out and call.group not in waiting]
        for call in ready:
            self._put_call(replace(call, handed_out=True))
        return tuple(call.call_id for call in sorted(ready, key=lambda call: call.rank))

    def _suspend_or_continue(self) -> None:
        turn = self._turn()
        busy = turn.model is not None or any(
            call.phase in (CallPhase.DUE, CallPhase.STARTED) for call in turn.calls.values()
        )
        if not busy and not turn.suspended:
            self.do(SuspendTurn(turn.turn_id))
        elif busy and turn.suspended:
            self.do(ContinueTurn(turn.turn_id))
        self._put_turn(replace(turn, suspended=not busy))

    # ------------------------------------------------------------ small hands

    def _turn(self) -> OpenTurn:
        assert self.state.turn is not None
        return self.state.turn

    def _put_turn(self, turn: OpenTurn) -> None:
        self.state = replace(self.state, turn=turn)

    def _put_call(self, call: Call) -> None:
        turn = self._turn()
        self._put_turn(replace(turn, calls={**turn.calls, call.call_id: call}))

    def _put_call_step(self, call: Call, status: StepStatus) -> None:
        name = step_name_for(call.effect)
        self.do(PutStep(call.step_id, self._turn().turn_id, name, status, call.attempts, call.call_id))

    def _put_model_step(self, model: ModelStep, status: StepStatus) -> None:
        self.do(PutStep(model.step_id, self._turn().turn_id, StepName.RUN_MODEL, status, model.attempts))

    def _new_model_step(self) -> None:
        turn = self._turn()
        step_id = f"{turn.turn_id}/model/{turn.steps + 1}"
        model = ModelStep(step_id)
        self._put_turn(replace(turn, steps=turn.steps + 1, model=model))
        self._put_model_step(model, StepStatus.PENDING)
