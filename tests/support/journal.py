"""A store for one session, as small as can be: it applies the commands of the session loop as a real store does, and
rebuilds from them what a new owner begins with.

Nothing but inputs and commands goes in, so a state that it rebuilds right shows that the commands say all there is.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field, replace

from perdure.session.flow import await_step_id, call_step_id
from perdure.session.model import (
    ErrorInfo,
    InterruptKind,
    InterruptStatus,
    RecordStatus,
    StepName,
    StepStatus,
    TurnStatus,
)
from perdure.session.runner import QuestionWait
from perdure.session.state import (
    AnnounceEnd,
    BeginLeg,
    BeginTurn,
    BlockSession,
    Call,
    CallPhase,
    CloseSession,
    Command,
    ContinueTurn,
    DropMessage,
    Ending,
    EndLeg,
    EndTurn,
    Input,
    JoinTurn,
    LateQuestion,
    ModelBlocked,
    ModelFinished,
    ModelStep,
    ModelStepSettled,
    OpenTurn,
    PutRecord,
    PutStep,
    Question,
    RaiseInterrupt,
    RaiseQuestion,
    RequestedCall,
    RequestedQuestion,
    SessionState,
    SettleInterrupt,
    SettleQuestion,
    SuspendTurn,
    UnblockSession,
)

PHASES = {StepStatus.PENDING: CallPhase.DUE, StepStatus.RUNNING: CallPhase.STARTED}
"""What the open step of a call says about the call."""

WAITS = (StepName.AWAIT_TOOL_APPROVAL, StepName.AWAIT_ANSWER)


@dataclass
class CallRow:
    """What is stored of a call."""

    requested: RequestedCall
    turn_id: str
    leg: int
    phase: CallPhase
    attempts: int = 0
    asks: int = 0
    approval_step_id: str | None = None
    interrupt_id: str | None = None
    asking: InterruptKind | None = None
    record: RecordStatus | None = None
    rank: int = 0


@dataclass
class QuestionRow:
    """What is stored of a question."""

    requested: RequestedQuestion
    turn_id: str
    leg: int
    step_id: str
    interrupt_id: str
    settled: bool = False
    rank: int = 0


@dataclass
class TurnRow:
    """What is stored of a turn."""

    turn_id: str
    number: int
    leg: int = 1
    ended_leg: int = 0
    raised: Counter[str] = field(default_factory=Counter[str])
    status: TurnStatus = TurnStatus.RUNNING
    ending: Ending | None = None
    error: ErrorInfo | None = None

    @property
    def at_frontier(self) -> bool:
        return self.ended_leg == self.leg


class Journal:
    """All that is stored of one session.

    Attributes:
        inbox: ids of accepted messages that have neither begun nor been dropped, nor joined a turn.
        joined: ids of messages that joined a turn, each with that of the turn.
        steps: the last put of each step that was stored, in the order in which they were first stored.
        puts: every put of each step, ignored ones included.
        questions: by the id of their interrupt.
        waits: the last step that waits for a person, by who asks.
        records: every record put of each call, by step id.
        keeps_endings: whether ``AnnounceEnd`` is stored; an engine may do without.
    """

    def __init__(self, *, keeps_endings: bool = True) -> None:
        self.keeps_endings = keeps_endings
        self.inbox: list[str] = []
        self.begun: list[str] = []
        self.dropped: list[str] = []
        self.joined: list[tuple[str, str]] = []
        self.turns: dict[str, TurnRow] = {}
        self.open_turn: TurnRow | None = None
        self.calls: dict[str, CallRow] = {}
        self.questions: dict[str, QuestionRow] = {}
        self.settled_questions: Counter[str] = Counter()
        self.waits: dict[str, str] = {}
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
        self._asked: dict[str, RequestedQuestion] = {}
        if isinstance(given, ModelStepSettled) and isinstance(given.outcome, ModelBlocked):
            for requested in given.outcome.calls:
                asked.setdefault(requested.call_id, requested)
        if isinstance(given, ModelStepSettled) and isinstance(given.outcome, ModelBlocked | ModelFinished):
            for question in given.outcome.questions:
                self._asked.setdefault(question.question_id, question)
        for command in commands:
            self._apply(command, asked)

    def _apply(self, command: Command, asked: dict[str, RequestedCall]) -> None:
        match command:
            case PutStep():
                self._put(command)
                self._follow_call(command, asked)
            case PutRecord():
                self._put_record(command)
            case RaiseInterrupt():
                self._raise(command.interrupt_id, command.call_id)
                self._wait(command, asked)
            case RaiseQuestion(interrupt_id, question_id, step_id):
                self._raise(interrupt_id, question_id)
                turn = self._open_turn()
                row = QuestionRow(self._asked[question_id], turn.turn_id, turn.leg, step_id, interrupt_id)
                row.settled = row.requested.wait is QuestionWait.NEXT_TURN
                self.questions[interrupt_id] = row
            case SettleQuestion(interrupt_id, question_id):
                self.settled_questions[interrupt_id] += 1
                row = self.questions[interrupt_id]
                row.settled = True
                if question_id is not None:
                    row.rank = self._next_rank()
            case SettleInterrupt(interrupt_id, status):
                self.interrupts.setdefault(interrupt_id, []).append(status)
            case BeginTurn(turn_id, number):
                self.begun.append(turn_id)
                if turn_id in self.inbox:
                    self.inbox.remove(turn_id)
                self.open_turn = self.turns[turn_id] = TurnRow(turn_id, number)
            case EndLeg(turn_id, leg):
                self.turns[turn_id].ended_leg = leg
            case BeginLeg(turn_id, leg):
                self.turns[turn_id].leg = leg
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
            case JoinTurn(turn_id, message_id):
                self.joined.append((message_id, turn_id))
                if message_id in self.inbox:
                    self.inbox.remove(message_id)
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
        if put.call_id is None:
            return
        if put.name in WAITS:
            self.waits[put.call_id] = put.step_id
            return
        row = self._row(put.call_id, asked)
        if not put.status.settled and row.record is None:
            row.phase, row.attempts = PHASES[put.status], put.attempts

    def _raise(self, interrupt_id: str, asker_id: str) -> None:
        self.raised.append(interrupt_id)
        self.interrupts.setdefault(interrupt_id, [])
        self._open_turn().raised[asker_id] += 1

    def _wait(self, raised: RaiseInterrupt, asked: dict[str, RequestedCall]) -> None:
        row = self._row(raised.call_id, asked)
        row.phase, row.asking, row.interrupt_id = CallPhase.AWAITING, raised.kind, raised.interrupt_id
        row.approval_step_id = self.waits[raised.call_id]
        row.asks += raised.in_the_middle

    def _put_record(self, put: PutRecord) -> None:
        self.records[put.step_id].append(put)
        row = self.calls[put.step_id]
        if row.record is None:
            row.rank = self._next_rank()
            row.phase, row.record = CallPhase.SETTLED, put.status

    def _next_rank(self) -> int:
        turn = self._open_turn()
        records = [row for row in self.calls_of(turn.turn_id).values() if row.record is not None]
        return len(records) + sum(row.rank > 0 for row in self.questions_of(turn.turn_id).values()) + 1

    def _open_turn(self) -> TurnRow:
        assert self.open_turn is not None
        return self.open_turn

    def _row(self, call_id: str, asked: dict[str, RequestedCall]) -> CallRow:
        turn = self._open_turn()
        step_id = call_step_id(turn.turn_id, call_id, turn.leg)
        if step_id not in self.calls:
            self.calls[step_id] = CallRow(asked[call_id], turn.turn_id, turn.leg, CallPhase.DUE)
        return self.calls[step_id]

    # ------------------------------------------------------------ reading

    def calls_of(self, turn_id: str) -> dict[str, CallRow]:
        """The calls of a turn's last leg by call id, in the order in which they were asked for."""
        rows = (row for row in self.calls.values() if (row.turn_id, row.leg) == (turn_id, self.turns[turn_id].leg))
        return {row.requested.call_id: row for row in rows}

    def questions_of(self, turn_id: str) -> dict[str, QuestionRow]:
        """The questions of a turn's last leg by question id, in the order in which they were asked."""
        leg = self.turns[turn_id].leg
        rows = (row for row in self.questions.values() if (row.turn_id, row.leg) == (turn_id, leg))
        return {row.requested.question_id: row for row in rows}

    def steps_of(self, turn_id: str) -> list[PutStep]:
        """The steps of a turn, in the order in which they were first stored."""
        return [step for step in self.steps.values() if step.turn_id == turn_id]

    def complete_calls(self, turn_id: str) -> set[str]:
        """Ids of the calls whose model response has all its records: what a replay hands out by itself."""
        calls = self.calls_of(turn_id)
        waiting = {row.requested.group for row in calls.values() if row.record is None}
        return {call_id for call_id, row in calls.items() if row.requested.group not in waiting}

    def complete_questions(self, turn_id: str) -> set[str]:
        """Likewise the questions that a live turn waits for and whose group has all its answers."""
        questions = self.questions_of(turn_id).items()
        live = {name: row for name, row in questions if row.requested.wait is QuestionWait.LIVE}
        waiting = {row.requested.group for row in live.values() if not row.settled}
        return {name for name, row in live.items() if row.rank and row.requested.group not in waiting}

    def late(self) -> dict[str, QuestionRow]:
        """The questions whose answers start turns, as far as they are open, by interrupt id."""
        return {
            name: row
            for name, row in self.questions.items()
            if row.requested.wait is QuestionWait.NEXT_TURN and not self.interrupts[name]
        }

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
            late={
                name: LateQuestion(row.turn_id, row.step_id, row.interrupt_id, row.requested.kind)
                for name, row in self.late().items()
            },
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
            leg=row.leg,
            model=ModelStep(models[-1].step_id, models[-1].attempts) if models else None,
            calls=calls,
            questions={name: self._rebuild_question(one) for name, one in self.questions_of(row.turn_id).items()},
            raised=dict(row.raised),
            settled=self._next_rank() - 1,
            at_frontier=row.at_frontier,
            ending=row.ending if self.keeps_endings else None,
            suspended=row.status is TurnStatus.WAITING,
        )

    def _rebuild_call(self, row: CallRow, *, handed_out: bool) -> Call:
        asked = row.requested
        call = Call(
            call_id=asked.call_id,
            step_id=call_step_id(row.turn_id, asked.call_id, row.leg),
            group=asked.group,
            effect=asked.effect,
            max_attempts=asked.max_attempts,
            phase=row.phase,
            attempts=row.attempts,
            asks=row.asks,
            approval_step_id=row.approval_step_id,
            interrupt_id=row.interrupt_id,
            asking=row.asking,
        )
        return replace(call, record=row.record, rank=row.rank, handed_out=row.record is not None and handed_out)

    def _rebuild_question(self, row: QuestionRow) -> Question:
        asked = row.requested
        return Question(
            question_id=asked.question_id,
            step_id=row.step_id,
            interrupt_id=row.interrupt_id,
            kind=asked.kind,
            group=asked.group,
            wait=asked.wait,
            settled=row.settled,
            rank=row.rank,
        )
