"""A world for the session loop: a faithful engine over a ``Journal``, and whoever talks to it.

The engine runs what it is commanded, and nothing else, and keeps to the one rule that is an engine's: a single-attempt
call runs only when its start mark is stored.  The world counts what really happened (tool bodies begun, records handed
to the live turn), so that the rules of ``flow_rules`` can compare it with what the loop says, after every input.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from tests.support.journal import Journal

from perdure.session.flow import await_step_id, reduce
from perdure.session.model import ErrorInfo, InterruptKind, RecordStatus, SessionStatus
from perdure.session.state import (
    AttemptFailed,
    AttemptStarted,
    CallAsked,
    CallSettled,
    CheckCode,
    CodeDiffers,
    CodeFits,
    Command,
    DropTurn,
    HandOut,
    Input,
    InterruptAnswered,
    MessageArrived,
    ModelBlocked,
    ModelFailed,
    ModelFinished,
    ModelStepSettled,
    PutStep,
    RunCall,
    RunModel,
    SessionState,
    StopStep,
    TakenOver,
    TurnHasNews,
)

Reducer = Callable[[SessionState, Input], tuple[SessionState, tuple[Command, ...]]]

DIFFERENT = ErrorInfo(code="non_determinism", message="another tool was called")
BROKEN = ErrorInfo(code="model_error", message="the model raised")


@dataclass(frozen=True)
class Pass:
    """One reduction.

    Attributes:
        running: ids of the steps that ran before it, without the one that it reports the end of.
        owed: ``World.owed`` before it.
        meaningless: the input says nothing that could matter in this state.
    """

    before: SessionState
    given: Input
    commands: tuple[Command, ...]
    after: SessionState
    running: frozenset[str]
    owed: bool
    meaningless: bool


@dataclass
class Job:
    """A tool step that this worker runs.  ``began``: a tool body was entered."""

    run: RunCall
    attempt: int
    began: bool = False


class World:
    """One session, its store and its owner.

    Attributes:
        accepted: ids of all messages that were sent, in order.
        model: the step that drives the live turn now.
        jobs: the tool steps that run now, by step id.
        check: id of the turn that is being compared with the code.
        live: calls whose records the live turn has; ``None`` while no live turn is in memory.
        answered: questions whose answers it has.
        late_answers: by turn id, what the message that starts it answers.
        owed: the live turn has something that no drive is sure to have seen.
        bodies: how often the body of a tool was entered, by step id.
        drives: how many workers drove the live turn, by model step; those that found other code do not count.
        deaths: of owners, in a row and without a step of the open turn being settled.
        stopped: ids of steps that were stopped, or whose worker died; they may still report.
        overlaps: what was commanded although it ran already.
        broken: a rule was found not to hold.
        undelivered: accepted messages that a new owner has still to hear of.
    """

    def __init__(
        self, reducer: Reducer = reduce, *, rules: Sequence[Callable[[World], None]] = (), keeps_endings: bool = True
    ) -> None:
        self.reducer = reducer
        self.rules = rules
        self.counts_deaths = True
        self.journal = Journal(keeps_endings=keeps_endings)
        self.state = SessionState("s", await_step_id=await_step_id(0))
        self.passes: list[Pass] = []
        self.accepted: list[str] = []
        self.model: RunModel | None = None
        self.jobs: dict[str, Job] = {}
        self.check: str | None = None
        self.live: set[str] | None = None
        self.answered: set[str] = set()
        self.late_answers: dict[str, tuple[str, ...]] = {}
        self.owed = False
        self.bodies: Counter[str] = Counter()
        self.drives: Counter[str] = Counter()
        self.deaths = 0
        self.stopped: set[str] = set()
        self.overlaps: list[Command] = []
        self.broken = False
        self.undelivered: list[str] = []

    # ------------------------------------------------------------ the engine

    def tell(self, given: Input, *, meaningless: bool = False) -> Pass:
        """Reduces, stores, starts or stops what was commanded, and looks whether every rule holds."""
        before = self.state
        after, commands = self.reducer(before, given)
        done = Pass(before, given, commands, after, self._running(), self.owed, meaningless)
        self.state = after
        self.journal.apply(given, commands)
        self.passes.append(done)
        if after.turn is None or any(isinstance(c, PutStep) and c.status.settled for c in commands):
            self.deaths = 0
        for command in commands:
            self._carry_out(command)
        if isinstance(given, AttemptStarted | AttemptFailed) and commands and given.step_id in self.jobs:
            self._enter_body(self.jobs[given.step_id], another=isinstance(given, AttemptFailed))
        self.broken = True
        for rule in self.rules:
            rule(self)
        self.broken = False
        return done

    def _running(self) -> frozenset[str]:
        return frozenset([*self.jobs, *([self.model.step_id] if self.model is not None else [])])

    def _enter_body(self, job: Job, *, another: bool = False) -> None:
        job.began = True
        job.attempt += another
        self.bodies[job.run.step_id] += 1

    def _carry_out(self, command: Command) -> None:
        match command:
            case RunModel():
                if self.model is not None:
                    self.overlaps.append(command)
                self.model, self.owed = command, False
                self.drives[command.step_id] += 1
                self._hand(command.call_ids, command.question_ids)
            case HandOut():
                if self.model is None:
                    self.overlaps.append(command)
                self.owed = True
                self._hand(command.call_ids, command.question_ids)
            case RunCall():
                if command.step_id in self.jobs:
                    self.overlaps.append(command)
                self.jobs[command.step_id] = Job(command, command.attempt)
                self._hand(())
            case CheckCode():
                self.check = command.turn_id
                self._hand(())
            case StopStep(step_id):
                self._stop(step_id)
            case DropTurn():
                self._forget_live_turn()
            case _:
                pass

    def _hand(self, call_ids: tuple[str, ...], question_ids: tuple[str, ...] = ()) -> None:
        """The live turn gets records; a replay brings it to memory first, with those that it hands out by itself."""
        if self.live is None:
            turn = self.journal.open_turn
            self.live = set() if turn is None else self.journal.complete_calls(turn.turn_id)
            self.answered = set() if turn is None else self.journal.complete_questions(turn.turn_id)
        self.live.update(call_ids)
        self.answered.update(question_ids)

    def _stop(self, step_id: str) -> None:
        self.stopped.add(step_id)
        self.jobs.pop(step_id, None)
        if self.model is not None and self.model.step_id == step_id:
            self.model = None

    def _forget_live_turn(self) -> None:
        for step_id in self._running():
            self._stop(step_id)
        self.check, self.live, self.owed = None, None, False

    # ------------------------------------------------------------ the live turn reports

    def model_reports(self, outcome: ModelBlocked | ModelFinished | ModelFailed) -> Pass:
        """The drive that is under way ends."""
        assert self.model is not None
        step_id, self.model = self.model.step_id, None
        self.stopped.add(step_id)
        self.owed |= isinstance(outcome, ModelBlocked) and outcome.more
        return self.tell(ModelStepSettled(step_id, outcome))

    def report_news(self, *, named: bool = True) -> Pass:
        """The live turn asked for something; nobody can say whether the drive that is under way saw it."""
        turn = self.state.turn
        self.owed = True
        return self.tell(TurnHasNews(turn.turn_id if turn is not None and named else None))

    def begin(self, step_id: str) -> None:
        """Enters the body of a tool.  A single-attempt call first has its start mark stored; without it, it stops."""
        job = self.jobs[step_id]
        if job.began:
            return
        if not job.run.single_attempt:
            self._enter_body(job)
        elif not self.tell(AttemptStarted(step_id)).commands:
            del self.jobs[step_id]

    def fail_attempt(self, step_id: str) -> None:
        """An attempt fails; the next one begins when that is stored."""
        self.begin(step_id)
        self.tell(AttemptFailed(step_id))

    def settle(self, step_id: str, status: RecordStatus = RecordStatus.SUCCEEDED) -> None:
        """A tool step ends."""
        self.begin(step_id)
        if self.jobs.pop(step_id, None) is not None:
            self.stopped.add(step_id)
            self.tell(CallSettled(step_id, status))

    def ask_in_the_middle(self, step_id: str, kind: InterruptKind = InterruptKind.CONFIRMATION) -> None:
        """A tool runs as far as a question to a person."""
        self.begin(step_id)
        if self.jobs.pop(step_id, None) is not None:
            self.stopped.add(step_id)
            self.tell(CallAsked(step_id, kind))

    def code_fits(self) -> None:
        turn_id, self.check = self.check, None
        self.tell(CodeFits(turn_id))

    def code_differs(self, *, unstarted: tuple[str, ...] = ()) -> None:
        """The replay, or a step, finds that the code has changed."""
        turn = self.state.turn
        self.check = None
        if self.model is not None:
            self.drives[self.model.step_id] -= 1
        self.tell(CodeDiffers(DIFFERENT, turn.turn_id if turn is not None else None, unstarted))

    # ------------------------------------------------------------ people and workers

    def say(self, turn_id: str, *answers: str) -> None:
        """A client's message is accepted, and reaches the owner.  ``answers``: interrupts that it answers."""
        self.accepted.append(turn_id)
        self.journal.accept(turn_id)
        self.late_answers[turn_id] = answers
        self.tell(MessageArrived(turn_id, answers))

    def answer(self, interrupt_id: str, *, approved: bool) -> None:
        self.tell(InterruptAnswered(interrupt_id, approved))

    def die(self, *, check: bool = False) -> None:
        """The owner dies (or gave a session up in which nothing ran), and another one takes over what is stored."""
        self.deaths = self.deaths + 1 if self.model or self.jobs or self.check else 0
        self._forget_live_turn()
        self.state = self.journal.rebuild()
        self.undelivered = list(self.journal.inbox)
        self.tell(TakenOver(check, lost=self.deaths if self.counts_deaths else 0))
        while self.undelivered:
            turn_id = self.undelivered.pop(0)
            self.tell(MessageArrived(turn_id, self.late_answers[turn_id]))

    def lose_workers(self, *, check: bool = False) -> None:
        """All that ran is gone, but the loop's own state is not: so it is where an engine keeps the state for us."""
        self._forget_live_turn()
        self.tell(TakenOver(check))

    # ------------------------------------------------------------ looking

    @property
    def turn_id(self) -> str:
        assert self.state.turn is not None
        return self.state.turn.turn_id

    @property
    def rests(self) -> bool:
        """Whether nothing runs and nobody is asked whose answer something waits for."""
        return not (self.model or self.jobs or self.check or self.waited_for())

    def waited_for(self) -> list[str]:
        """The pending interrupts but for those that outlive their turn."""
        late = self.journal.late()
        return [interrupt_id for interrupt_id in self.journal.pending_interrupts() if interrupt_id not in late]

    def come_to_rest(self, *, approve: bool, patient: bool, limit: int) -> None:
        """Lets the engine do all that was commanded, and people answer everything.

        Args:
            patient: whether the invocation waits for all its calls before it ends.
            limit: how many moves it may take.

        Raises:
            AssertionError: it takes more.
        """
        moves = 0
        while not self.rests:
            moves += 1
            assert moves <= limit, f"liveness: the session does not come to rest, it is at {self.state}"
            if self.check is not None:
                self.code_fits()
            elif self.jobs:
                self.settle(next(iter(self.jobs)))
            elif self.model is not None:
                turn = self.state.turn
                waits = patient and turn is not None and turn.waits_live
                self.model_reports(ModelBlocked(()) if waits else ModelFinished())
            else:
                self.answer(self.waited_for()[0], approved=approve)

    def status(self) -> SessionStatus:
        return self.state.status
