"""A store for one session, as small as can be: it applies the commands of the session loop as a real store does, and
rebuilds from them what a new owner begins with.

Nothing but inputs and commands goes in, so a state that it rebuilds right shows that the commands say all there is.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, replace

from perdure.session.flow import await_step_id, call_step_id
from perdure.session.model import ErrorInfo, InterruptStatus, RecordStatus, StepName, StepStatus, TurnStatus
from perdure.session.state import (
    AnnounceEnd,
    BeginTurn,
    BlockSession,
    Call,
    CallPhase,
    CloseSession,
    Command,
    ContinueTurn,
    DropMessage,
    Ending,
    EndTurn,
    Input,
    ModelBlocked,
    ModelStep,
    ModelStepSettled,
    OpenTurn,
    PutRecord,
    PutStep,
    RaiseInterrupt,
    RequestedCall,
    SessionState,
    SettleInterrupt,
    SuspendTurn,
    UnblockSession,
)

PHASES = {StepStatus.PENDING: CallPhase.DUE, StepStatus.RUNNING: CallPhase.STARTED}
"""What the open step of a call says about the call."""


@dataclass
class CallRow:
    """What is stored of a call."""

    requested: RequestedCall
    turn_id: str
    phase: CallPhase
    attempts: int = 0
    approval_step_id: str | None = None
    interrupt_id: str | None = None
    record: RecordStatus | None = None
    rank: int = 0


@dataclass
class TurnRow:
    """What is stored of a turn."""

    turn_id: str
    number: int
    status: TurnStatus = TurnStatus.RUNNING
    ending: Ending | None = None
    error: ErrorInfo | None = None


class Journal:
    """All that is stored of one session.

    Attributes:
        inbox: ids of accepted messages that have neither begun nor been dropped.
        steps: the last put of each step that was stored, in the order in which they were first stored.
        puts: every put of each step, ignored ones included.
        records: every record put of each call, by step id.
        keeps_endings: whether ``AnnounceEnd`` is stored; an engine may do without.
    """

    def __init__(self, *, keeps_endings: bool = True) -> None:
        self.keeps_endings = keeps_endings
        self.inbox: list[str] = []
        self.begun: list[str] = []
        self.dropped: list[str] = []
        self.turns: dict[str, TurnRow] = {}
        self.open_turn: TurnRow | None = None
        self.calls: dict[str, CallRow] = {}
        self.steps: dict[str, PutStep] = {}
        self.puts: dict[str, list[PutStep]] = defaultdict(list)
        self.records: dict[str, list[PutRecord]] = defaultdict(list)
        self.raised: list[str] = []
        self.interrupts: dict[str, list[InterruptStatus]] = {}
        self.blocked: ErrorInfo | None = None
        self.closed = False
        self._put(PutStep(await_step_id(0), None, StepName.AWAIT_USER_MESSAGE, StepStatus.PENDING, 0))

    def accept(self, turn_id: str) -> None:
        """A client's message."""
        self.inbox.append(turn_id)

    def apply(self, given: Input, commands: Iterable[Command]) -> None:
        """One transaction."""
        asked: dict[str, RequestedCall] = {}
        if isinstance(given, ModelStepSettled) and isinstance(given.outcome, ModelBlocked):
            for requested in given.outcome.calls:
                asked.setdefault(requested.call_id, requested)
        for command in commands:
            self._apply(command, asked)

    def _apply(self, command: Command, asked: dict[str, RequestedCall]) -> None:
        match command:
            case PutStep():
                self._put(command)
                self._follow_call(command, asked)
            case PutRecord():
                self._put_record(command)
            case RaiseInterrupt(interrupt_id, call_id):
                self.raised.append(interrupt_id)
                self.interrupts.setdefault(interrupt_id, [])
                self._row(call_id).interrupt_id = interrupt_id
            case SettleInterrupt(interrupt_id, status):
                self.interrupts.setdefault(interrupt_id, []).append(status)
            case BeginTurn(turn_id, number):
                self.begun.append(turn_id)
                if turn_id in self.inbox:
                    self.inbox.remove(turn_id)
                self.open_turn = self.turns[turn_id] = TurnRow(turn_id, number)
            case SuspendTurn(turn_id):
                self.turns[turn_id].status = TurnStatus.WAITING
            case ContinueTurn(turn_id):
                self.turns[turn_id].status = TurnStatus.RUNNING
            case AnnounceEnd(turn_id, status, error):
                self.turns[turn_id].ending = Ending(status, error)
            case EndTurn(turn_id, status, error):
                self.turns[turn_id].status, self.turns[turn_id].error = status, error
                self.open_turn = None
            case DropMessage(turn_id):
                self.dropped.append(turn_id)
                if turn_id in self.inbox:
                    self.inbox.remove(turn_id)
            case BlockSession(error):
                self.blocked = error
            case UnblockSession():
                self.blocked = None
            case CloseSession():
                self.closed = True
            case _:
                pass

    def _put(self, put: PutStep) -> None:
        self.puts[put.step_id].append(put)
        stored = self.steps.get(put.step_id)
        if stored is None or not stored.status.settled:
            self.steps[put.step_id] = put

    def _follow_call(self, put: PutStep, asked: dict[str, RequestedCall]) -> None:
        """Keeps the call's row in line with its steps."""
        if put.call_id is None or put.turn_id is None:
            return
        step_id = call_step_id(put.turn_id, put.call_id)
        if step_id not in self.calls:
            self.calls[step_id] = CallRow(asked[put.call_id], put.turn_id, CallPhase.DUE)
        row = self.calls[step_id]
        if put.name is StepName.AWAIT_TOOL_APPROVAL:
            row.approval_step_id = put.step_id
            if not put.status.settled:
                row.phase = CallPhase.AWAITING
        elif not put.status.settled and row.record is None:
            row.phase, row.attempts = PHASES[put.status], put.attempts

    def _put_record(self, put: PutRecord) -> None:
        self.records[put.step_id].append(put)
        row = self.calls[put.step_id]
        if row.record is None:
            settled = [call for call in self.calls.values() if call.turn_id == row.turn_id and call.record is not None]
            row.phase, row.record, row.rank = CallPhase.SETTLED, put.status, len(settled) + 1

    def _row(self, call_id: str) -> CallRow:
        assert self.open_turn is not None
        return self.calls[call_step_id(self.open_turn.turn_id, call_id)]

    # ------------------------------------------------------------ reading

    def calls_of(self, turn_id: str) -> dict[str, CallRow]:
        """The calls of a turn by call id, in the order in which they were asked for."""
        return {row.requested.call_id: row for row in self.calls.values() if row.turn_id == turn_id}

    def steps_of(self, turn_id: str) -> list[PutStep]:
        """The steps of a turn, in the order in which they were first stored."""
        return [step for step in self.steps.values() if step.turn_id == turn_id]

    def complete_calls(self, turn_id: str) -> set[str]:
        """Ids of the calls whose model response has all its records: what a replay hands out by itself."""
        calls = self.calls_of(turn_id)
        waiting = {row.requested.group for row in calls.values() if row.record is None}
        return {call_id for call_id, row in calls.items() if row.requested.group not in waiting}

    def pending_interrupts(self) -> list[str]:
        return [interrupt_id for interrupt_id, ends in self.interrupts.items() if not ends]

    def rebuild(self) -> SessionState:
        """What a worker that claims the session begins with.  Its queue is filled by the inbox."""
        waits = [s for s in self.steps.values() if s.name is StepName.AWAIT_USER_MESSAGE and not s.status.settled]
        return SessionState(
            session_id="s",
            turns=len(self.begun),
            await_step_id=waits[-1].step_id if waits else None,
            turn=None if self.open_turn is None else self._rebuild_turn(self.open_turn),
            closed=self.closed,
            blocked=self.blocked,
        )

    def _rebuild_turn(self, row: TurnRow) -> OpenTurn:
        complete = self.complete_calls(row.turn_id)
        calls = {
            call_id: self._rebuild_call(call, handed_out=call_id in complete)
            for call_id, call in self.calls_of(row.turn_id).items()
        }
        steps = self.steps_of(row.turn_id)
        models = [step for step in steps if step.name is StepName.RUN_MODEL and not step.status.settled]
        return OpenTurn(
            turn_id=row.turn_id,
            number=row.number,
            steps=len(steps),
            model=ModelStep(models[-1].step_id, models[-1].attempts) if models else None,
            calls=calls,
            settled=sum(call.settled for call in calls.values()),
            ending=row.ending if self.keeps_endings else None,
            suspended=row.status is TurnStatus.WAITING,
        )

    def _rebuild_call(self, row: CallRow, *, handed_out: bool) -> Call:
        asked = row.requested
        call = Call(
            call_id=asked.call_id,
            step_id=call_step_id(row.turn_id, asked.call_id),
            group=asked.group,
            effect=asked.effect,
            max_attempts=asked.max_attempts,
            phase=row.phase,
            attempts=row.attempts,
            approval_step_id=row.approval_step_id,
            interrupt_id=row.interrupt_id,
        )
        return replace(call, record=row.record, rank=row.rank, handed_out=row.record is not None and handed_out)
