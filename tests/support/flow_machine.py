"""Hypothesis machines that do to a ``World`` whatever can happen to a session, in any order."""

from __future__ import annotations

import enum
from collections.abc import Callable, Sequence
from typing import ClassVar, TypeVar

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from tests.support.flow_nonsense import nonsense
from tests.support.flow_rules import RULES
from tests.support.flow_world import BROKEN, Job, Reducer, World

from perdure.session.flow import reduce
from perdure.session.model import InterruptKind, RecordStatus, SessionStatus, TurnStatus
from perdure.session.policy import ToolEffect
from perdure.session.runner import QuestionWait
from perdure.session.state import (
    MAX_MODEL_STEP_TAKEOVERS,
    CallSettled,
    CancelRequested,
    CloseRequested,
    DrainRequested,
    InterruptExpired,
    JoinRequested,
    ModelBlocked,
    ModelFailed,
    ModelFinished,
    RequestedCall,
    RequestedQuestion,
)

T = TypeVar("T")

LEGS = 4
"""How many legs one turn has at most."""

MESSAGES = 5
"""How many messages one run sends at most, besides the last one."""

RESULTS = st.sampled_from([RecordStatus.SUCCEEDED, RecordStatus.FAILED, RecordStatus.OUTCOME_UNKNOWN])
WHICH = st.integers(0, 5)
"""Which of the things that are there; the first ones are found first when an example is simplified."""

ASKS = st.lists(
    st.tuples(
        st.integers(0, 2),
        st.sampled_from(ToolEffect),
        st.integers(1, 3),
        st.sampled_from([None, None, *InterruptKind]),
    ),
    min_size=1,
    max_size=4,
)
"""New calls: number of the group, effect, attempts, what to ask for."""

QUESTIONS = st.lists(
    st.tuples(st.integers(0, 1), st.sampled_from(InterruptKind), st.booleans()), min_size=1, max_size=3
)
"""New questions: number of the group, kind, whether the turn waits for it."""


class Answer(enum.Enum):
    YES = enum.auto()
    NO = enum.auto()
    NONE_IN_TIME = enum.auto()


class Mishap(enum.Enum):
    """What happens to a session and is none of its own doing."""

    WORKER_DIES = enum.auto()
    WORKERS_LOST = enum.auto()
    DRAINED = enum.auto()
    CODE_DIFFERS = enum.auto()
    CANCELLED = enum.auto()
    CLOSED = enum.auto()


def choose(things: list[T], which: int) -> T:
    return things[which % len(things)]


class SessionMachine(RuleBasedStateMachine):
    """A session at work: messages, model steps, tool calls, answers, and what comes too late.

    Each run ends by letting the session come to rest and asking one more thing of it.
    """

    reducer: ClassVar[Reducer] = staticmethod(reduce)
    watched: ClassVar[Sequence[Callable[[World], None]]] = RULES

    @initialize(thorough_engine=st.booleans(), approve=st.booleans(), patient=st.booleans())
    def open_session(self, thorough_engine: bool, approve: bool, patient: bool) -> None:
        self.world = World(type(self).reducer, rules=self.watched, keeps_endings=thorough_engine)
        self.world.counts_deaths = thorough_engine
        self.approve = approve
        self.patient = patient
        self.groups = 0
        self.say()

    # ------------------------------------------------------------ people

    @precondition(lambda self: len(self.world.accepted) < MESSAGES)
    @rule()
    def say(self) -> None:
        self.world.say(f"t{len(self.world.accepted) + 1}")

    @precondition(lambda self: self.world.journal.pending_interrupts())
    @rule(which=WHICH, answer=st.sampled_from(Answer))
    def answer(self, which: int, answer: Answer) -> None:
        interrupt_id = choose(self.world.journal.pending_interrupts(), which)
        if answer is Answer.NONE_IN_TIME:
            self.world.tell(InterruptExpired(interrupt_id))
        else:
            self.world.answer(interrupt_id, approved=answer is Answer.YES)

    @precondition(lambda self: self.world.journal.late() and len(self.world.accepted) < MESSAGES)
    @rule(which=WHICH, both=st.booleans())
    def answer_late(self, which: int, both: bool) -> None:
        """A message answers what outlived its turn, or will."""
        late = list(self.world.journal.late())
        chosen = late if both else [choose(late, which)]
        self.world.say(f"t{len(self.world.accepted) + 1}", *chosen)

    @precondition(lambda self: self.world.state.queue)
    @rule(which=WHICH)
    def cancel_queued(self, which: int) -> None:
        turn_id = choose(list(self.world.state.queue), which)
        self.world.tell(CancelRequested(turn_id))
        assert turn_id in self.world.journal.dropped, "cancel: the message stays in the queue"

    @precondition(lambda self: self.world.model is not None and self.world.state.queue)
    @rule(which=WHICH, both=st.booleans())
    def join(self, which: int, both: bool) -> None:
        """A model call takes along what steers."""
        queue = list(self.world.state.queue)
        chosen = tuple(queue) if both else (choose(queue, which),)
        self.world.tell(JoinRequested(self.world.turn_id, chosen))

    # ------------------------------------------------------------ the live turn

    @precondition(lambda self: self.world.model is not None)
    @rule(asks=ASKS, more=st.booleans(), same_group=st.booleans())
    def model_asks(
        self, asks: list[tuple[int, ToolEffect, int, InterruptKind | None]], more: bool, same_group: bool
    ) -> None:
        """Ask for calls of new model responses, or for further ones of an earlier response."""
        known = self.world.journal.calls_of(self.world.turn_id)
        first = self.groups if same_group else self.groups + 1
        calls = tuple(
            RequestedCall(f"c{len(known) + number}", f"g{first + group}", effect, attempts, ask)
            for number, (group, effect, attempts, ask) in enumerate(asks, 1)
        )
        self.groups = first + 2
        self.world.model_reports(ModelBlocked(calls, more))

    @precondition(lambda self: self.world.model is not None and self.world.state.turn.calls)
    @rule(more=st.booleans())
    def model_asks_again(self, more: bool) -> None:
        """A replay asks for what is known already."""
        rows = self.world.journal.calls_of(self.world.turn_id).values()
        self.world.model_reports(ModelBlocked(tuple(row.requested for row in rows), more))

    @precondition(lambda self: self.world.model is not None and self.world.state.turn.calls)
    @rule(outcome=st.sampled_from([ModelBlocked(()), ModelFinished(), ModelFailed(BROKEN)]))
    def model_ends(self, outcome: ModelBlocked | ModelFinished | ModelFailed) -> None:
        self.world.model_reports(outcome)

    @precondition(lambda self: self.world.model is not None)
    @rule(asks=QUESTIONS, more=st.booleans(), same_group=st.booleans())
    def model_asks_people(self, asks: list[tuple[int, InterruptKind, bool]], more: bool, same_group: bool) -> None:
        """Ask new questions, some of which may be in a group of earlier ones; nobody waits for some of them."""
        first = self.groups if same_group else self.groups + 1
        questions = self._new_questions(asks, QuestionWait.LIVE, first)
        self.groups = first + 1
        self.world.model_reports(ModelBlocked((), more, questions))

    @precondition(lambda self: self.world.model is not None and self.world.state.turn.questions)
    @rule(more=st.booleans())
    def model_asks_people_again(self, more: bool) -> None:
        """A replay asks what is known already."""
        rows = self.world.journal.questions_of(self.world.turn_id).values()
        self.world.model_reports(ModelBlocked((), more, tuple(row.requested for row in rows)))

    @precondition(lambda self: self.world.model is not None and self.world.state.turn.leg < LEGS)
    @rule(asks=QUESTIONS)
    def leg_ends(self, asks: list[tuple[int, InterruptKind, bool]]) -> None:
        """The invocation ends with questions open, whatever of it still runs."""
        early = [row.requested for row in self.world.journal.questions_of(self.world.turn_id).values()]
        asked = (one for one in early if one.wait is QuestionWait.NEXT_LEG)
        self.world.model_reports(ModelFinished((*asked, *self._new_questions(asks, QuestionWait.NEXT_LEG, 0))))

    @precondition(lambda self: self.world.model is not None and self.world.state.turn.leg < LEGS)
    @rule(asks=QUESTIONS, more=st.booleans())
    def model_asks_early(self, asks: list[tuple[int, InterruptKind, bool]], more: bool) -> None:
        """The invocation goes on, and what the next leg is to begin with may be answered already."""
        self.world.model_reports(ModelBlocked((), more, self._new_questions(asks, QuestionWait.NEXT_LEG, 0)))

    def _new_questions(
        self, asks: list[tuple[int, InterruptKind, bool]], wait: QuestionWait, first_group: int
    ) -> tuple[RequestedQuestion, ...]:
        known = len(self.world.journal.questions_of(self.world.turn_id))
        return tuple(
            RequestedQuestion(
                f"c{known + number}", f"g{first_group + group}", kind, wait if waits else QuestionWait.NEXT_TURN
            )
            for number, (group, kind, waits) in enumerate(asks, 1)
        )

    @precondition(lambda self: self.world.live is not None and not self.world.owed)
    @rule(named=st.booleans())
    def news(self, named: bool) -> None:
        self.world.report_news(named=named)

    # ------------------------------------------------------------ tools

    def _jobs(self, *, began: bool) -> list[Job]:
        return [job for job in self.world.jobs.values() if job.began is began]

    @precondition(lambda self: self._jobs(began=False))
    @rule(which=WHICH)
    def call_begins(self, which: int) -> None:
        self.world.begin(choose(self._jobs(began=False), which).run.step_id)

    @precondition(lambda self: self._jobs(began=False))
    @rule(which=WHICH)
    def call_cannot_begin(self, which: int) -> None:
        """The engine finds that the tool cannot be run at all."""
        step_id = choose(self._jobs(began=False), which).run.step_id
        del self.world.jobs[step_id]
        self.world.tell(CallSettled(step_id, RecordStatus.FAILED))

    @precondition(lambda self: self._failing())
    @rule(which=WHICH)
    def attempt_fails(self, which: int) -> None:
        self.world.fail_attempt(choose(self._failing(), which))

    def _failing(self) -> list[str]:
        """Steps that have an attempt left behind the one that runs."""
        calls = self.world.journal.calls
        return [
            job.run.step_id
            for job in self._jobs(began=True)
            if not job.run.single_attempt and job.attempt - job.run.asks < calls[job.run.step_id].requested.max_attempts
        ]

    @precondition(lambda self: self._jobs(began=True))
    @rule(which=WHICH, status=RESULTS)
    def call_settles(self, which: int, status: RecordStatus) -> None:
        self.world.settle(choose(self._jobs(began=True), which).run.step_id, status)

    @precondition(lambda self: self._jobs(began=True))
    @rule(which=WHICH, kind=st.sampled_from([InterruptKind.CONFIRMATION, InterruptKind.CREDENTIAL]))
    def call_asks(self, which: int, kind: InterruptKind) -> None:
        self.world.ask_in_the_middle(choose(self._jobs(began=True), which).run.step_id, kind)

    @precondition(lambda self: self.world.check is not None)
    @rule()
    def code_fits(self) -> None:
        self.world.code_fits()
        assert self.world.status() is not SessionStatus.BLOCKED, "check: blocked although the code fits"

    # ------------------------------------------------------------ what comes too late, or never made sense

    @invariant()
    def nonsense(self) -> None:
        """Every third of all the nonsense that there is; another third the next time."""
        for given in nonsense(self.world)[len(self.world.passes) % 3 :: 3]:
            if self.world.reducer(self.world.state, given) != (self.world.state, ()):
                self.world.tell(given, meaningless=True)

    # ------------------------------------------------------------ the end

    def teardown(self) -> None:
        world = self.world
        if world.broken:
            return  # That is what is to be told, not what comes of it.
        self._come_to_rest()
        if world.status() is SessionStatus.BLOCKED or world.state.draining:
            # Compatible code is back; or the session was given up, and somebody takes it.
            world.die()
            self._come_to_rest()
        assert world.status() in (SessionStatus.IDLE, SessionStatus.CLOSED), f"liveness: at rest as {world.status()}"
        world.say("last")
        world.come_to_rest(approve=True, patient=True, limit=2)
        if world.state.closed:
            assert "last" in world.journal.dropped, "J1: a message to a closed session is lost without a word"
        else:
            assert world.journal.turns["last"].status is TurnStatus.COMPLETED, "J7: the session is not usable"

    def _come_to_rest(self) -> None:
        limit = 10 + 5 * (len(self.world.journal.calls) + len(self.world.journal.questions)) + 3 * MESSAGES
        self.world.come_to_rest(approve=self.approve, patient=self.patient, limit=limit)


class DyingWorkers(SessionMachine):
    """Workers die, again and again."""

    @rule(times=st.integers(1, MAX_MODEL_STEP_TAKEOVERS), loop_survives=st.booleans())
    def die(self, times: int, loop_survives: bool) -> None:
        for _ in range(times):
            if loop_survives:
                self.world.lose_workers()
            else:
                self.world.die()


class AnyMishap(SessionMachine):
    """All that can come over a session, at any time."""

    @precondition(lambda self: self.world.state.turn is not None or len(self.world.accepted) == MESSAGES)
    @rule(mishap=st.sampled_from(Mishap), detail=st.integers(0, 3))
    def mishap(self, mishap: Mishap, detail: int) -> None:
        match mishap:
            case Mishap.WORKER_DIES:
                self.world.die(check=detail == 1)
            case Mishap.WORKERS_LOST:
                self.world.lose_workers(check=detail == 1)
            case Mishap.DRAINED:
                self.world.tell(DrainRequested())
            case Mishap.CODE_DIFFERS if self.world.live is not None:
                self._code_differs(known=detail)
            case Mishap.CANCELLED if self.world.state.turn is not None:
                self._cancel(named=detail == 1)
            case Mishap.CLOSED if len(self.world.accepted) >= MESSAGES - 2:
                self._close()
            case _:
                self.world.die()

    def _code_differs(self, known: int) -> None:
        """Found by the check or by any step; some of the calls that have not begun are known not to have."""
        unstarted = tuple(job.run.step_id for job in self._jobs(began=False))
        self.world.code_differs(unstarted=unstarted[:known])
        assert not self.world.jobs, "check: tools run under code that differs"

    def _cancel(self, *, named: bool) -> None:
        turn_id = self.world.turn_id
        self.world.tell(CancelRequested(turn_id if named else None))
        assert self.world.journal.turns[turn_id].status is TurnStatus.CANCELLED, "cancel: the turn goes on"

    def _close(self) -> None:
        self.world.tell(CloseRequested())
        assert self.world.status() is SessionStatus.CLOSED, "close: the session is open"
