"""Keeps a live invocation and the journal of its turn in step: what may go on, what must wait, who is told.

The seams (wrapped agents, models and tools) report here what the invocation does, and wait here for records.  The
engine's side (``turn``) waits here for the invocation to be blocked or over.  No I/O; everything happens in one event
loop.

A replay is held to the journal by three rules:

* R1: entries are handed out in the order in which they settled, each when the invocation has come to it;
* R2: what has no record waits until all of the journal has come back;
* R3: when nothing can move and the journal has not come back, the code has changed: the turn is failed from outside,
  and the invocation stays where it is.  Not at once, since not everything that moves can be seen.  But soon, if a model
  call is to be made that has no record although all that were made have theirs.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import contextmanager

from perdure.adk.live.calls import Call, NodeWork, ToolRun
from perdure.adk.live.determinism import TurnClock
from perdure.adk.live.dispatch import TURNS, Dispatcher, Place
from perdure.adk.live.floor import Floor
from perdure.adk.live.journal import Journal
from perdure.adk.live.parking import Parking
from perdure.adk.live.patience import HARDLY, Patience
from perdure.adk.live.questions import Asked, AskedGroup
from perdure.adk.live.runs import Gate, Run, RunState, current_run
from perdure.errors import NonDeterminismError, UsageError
from perdure.session.model import JsonObject
from perdure.session.runner import Answer, CallRequest, ModelCall, Question, RecordedTurn, Settled


class Conductor:
    """The traffic control of one live turn.

    Attributes:
        failure: fails the turn from outside: what ``drive`` and ``call_tool`` raise.
        ended: the invocation is over.
    """

    def __init__(
        self,
        recorded: RecordedTurn,
        clock: TurnClock,
        nudge: Callable[[], None],
        ids: Callable[[str], Iterator[str]],
    ) -> None:
        self.journal = Journal(recorded)
        self.floor = Floor(ids)
        self.parking = Parking()
        self.failure: Exception | None = None
        self.ended = False
        self._nudge = nudge
        self._nudged = False
        self._driving = False
        self._dispatcher = Dispatcher(self.floor, self.journal, clock, self.fail_replay, self.advance)
        self._watchers: list[tuple[Callable[[], bool], asyncio.Future[None]]] = []
        self._until_journal = Patience(self._miss_journal)
        self._until_difference = Patience(self._miss_journal, HARDLY)
        self._no_new_model_call = False

    # ------------------------------------------------------------ what the invocation reports

    def begin_run(self, name: str, *, scope: str | None = None, place: str | None = None) -> Run:
        """Begins a run inside the current one.  Its code must find it as the current one (``runs.streamed``).

        Args:
            name: of the agent or node; of a scope the call's id.
            scope, place: of a scope (see ``Run``).
        """
        self.parking.guard()
        return self.floor.begin_run(current_run.get() or self.floor.root, name, scope=scope, place=place)

    def end_run(self, run: Run) -> None:
        """A run is over, however it ended."""
        parent = run.parent
        if parent is not None and (len(parent.children) > 1 or parent.waiting):
            self._dispatcher.linger(parent)
        self.floor.end_run(run)
        self.advance()

    @contextmanager
    def run(self, name: str, *, scope: str | None = None, place: str | None = None) -> Generator[Run]:
        """A run that begins and ends here; for code that is no generator."""
        run = self.begin_run(name, scope=scope, place=place)
        token = current_run.set(run)
        try:
            yield run
        finally:
            current_run.reset(token)
            self.end_run(run)

    async def enter_model(self, run: Run, key: str) -> ModelCall | None:
        """Waits until a model call may go on.  Returns its record; ``None``: call the model."""
        self.parking.guard()
        gate = run.gate = Gate(key, asyncio.get_running_loop().create_future())
        run.state = RunState.GATED
        self.floor.changes += 1
        self.advance()
        try:
            return await self.parking.wait(gate.opened)
        except asyncio.CancelledError:
            self._dispatcher.give_up_model_call(key)
            run.gate, run.state = None, RunState.RUNNING
            raise

    def seen(self) -> list[int]:
        """What the record of a model call says of the groups before it (see ``journal``)."""
        return self._dispatcher.take_seen()

    def take_place(self, run: Run) -> Place:
        """A place for a record.  Take it as the record gets its sequence: a replay goes by both."""
        return self._dispatcher.take_place(run)

    async def settle_model(self, place: Place, call: ModelCall) -> None:
        """A model call has its record.  Returns when it may go on with it."""
        place.run.state, place.call = RunState.SETTLED, call
        self.floor.changes += 1
        self.advance()
        await self.parking.wait(place.due)

    def leave_place(self, place: Place) -> None:
        """There will be no record, or nobody waits for it any more."""
        place.run.state = RunState.RUNNING
        self._dispatcher.leave_place(place)
        asyncio.get_running_loop().call_soon(self.advance)

    def leave_model(self, run: Run, key: str, call_ids: Iterable[str]) -> None:
        """A model call ended; its response has these calls."""
        run.state = RunState.RUNNING
        self.floor.note_model_call(run, key, call_ids)

    def request(
        self,
        call_id: str,
        run: Run,
        tool_name: str,
        arguments: JsonObject,
        build: Callable[[str], CallRequest],
        work: ToolRun | NodeWork,
    ) -> Call:
        """A tool is to be run.  Wait for its record with ``record_of``.

        Args:
            build: makes the request, given the key of the group; not called for a call that is in the journal.

        Raises:
            UsageError: a call of this id was requested already.
        """
        self.parking.guard()
        call = self.floor.to_request(call_id, run)
        recorded = self.journal.call(call_id)
        if recorded is None:
            call.request = build(call.group.key)
        else:
            then = recorded.request
            if then.tool_name != tool_name or then.arguments != arguments:
                self.fail_call(call_id, _in_words(tool_name, arguments))
            call.request = then
            call.fresh = False
            call.asked = recorded.asked
            self.journal.came_back(call_id)
        call.run = work
        call.settled = asyncio.get_running_loop().create_future()
        self.account(call_id)
        return call

    async def record_of(self, call: Call) -> None:
        """Waits until a requested call has its record."""
        assert call.settled is not None
        try:
            await self.parking.wait(call.settled)
        except asyncio.CancelledError:
            self.give_up(call)
            raise

    def give_up(self, call: Call) -> None:
        """Nobody waits for a call any more.

        Raises:
            TurnDropped: because its turn is being dropped.
        """
        self.parking.guard()
        self.floor.give_up(call)
        call.stop_reading()

    async def ask(self, run: Run, questions: Sequence[Question]) -> list[Answer]:
        """Asks questions of one group and waits until all of them have an answer."""
        self.parking.guard()
        asked = {question.question_id: self._ask(question) for question in questions}
        group = AskedGroup(questions[0].group, run, asked, asyncio.get_running_loop().create_future())
        self.floor.open_questions(group)
        asyncio.get_running_loop().call_soon(self.advance)
        try:
            return await self.parking.wait(group.answers)
        except asyncio.CancelledError:
            self.floor.give_up_questions(group)
            raise

    def announce(self, question: Question) -> None:
        """Lets a question be answered already for which somebody waits only later, or nobody."""
        asked = self._ask(question)
        self.floor.announce(asked.question, fresh=asked.fresh)
        asyncio.get_running_loop().call_soon(self.advance)

    def _ask(self, question: Question) -> Asked:
        then = self.journal.question(question.question_id)
        if then is not None and (then.tool_name, then.arguments) != (question.tool_name, question.arguments):
            expected = f"a question of {then.tool_name!r} with {then.arguments!r}"
            found = f"a question of {question.tool_name!r} with {question.arguments!r}"
            self.fail_replay(question.question_id, expected, found)
        self.journal.was_asked_again(question.question_id)
        fresh = then is None and not self.floor.is_announced(question.question_id)
        return Asked(then or question, fresh=fresh)

    async def siblings_of(self, call_id: str) -> None:
        """Waits until all other calls of a model response are done, with their callbacks."""
        call = self.floor.call(call_id)
        if call is None:
            return
        batch = call.group.batch
        try:
            await self.until(lambda: not (batch.open_calls or batch.owner.children))
            for _ in range(TURNS):  # whoever waited for the last one goes on
                await asyncio.sleep(0)
        except asyncio.CancelledError:
            self.parking.guard()
            raise

    def end_call(self, call_id: str) -> None:
        """ADK is through with a call, with its callbacks."""
        call = self.floor.call(call_id)
        if call is not None:
            self.floor.end_call(call)
            asyncio.get_running_loop().call_soon(self.advance)

    def account(self, call_id: str) -> None:
        """It is known what becomes of a call: it is requested, answered by a callback, or it steers ADK."""
        batch = self.floor.account(call_id)
        if batch is None:
            return
        self._dispatcher.show_states_early(batch)
        # Not at once: the call that is being requested must be waiting, too, when its group's records are handed out,
        # so that the calls go on in the order of the records.
        asyncio.get_running_loop().call_soon(self.advance)

    def end(self) -> None:
        """The invocation is over."""
        self.ended = True
        self.advance()
        self._be_patient_no_longer()

    # ------------------------------------------------------------ failing from outside

    def drop(self) -> None:
        """The turn leaves memory: nobody gets past a seam any more, inside or outside."""
        self.parking.closing = True
        self.fail(UsageError("the live turn was dropped from memory; open the turn again"))
        self._be_patient_no_longer()

    def _be_patient_no_longer(self) -> None:
        """A timer would keep the whole turn, and with it the flow, in memory until it is due."""
        self._until_journal.stop()
        self._until_difference.stop()
        self._dispatcher.stop()

    def fail(self, error: Exception) -> None:
        """Fails the turn from outside; whoever is inside parks at the next seam."""
        if self.failure is None:
            self.failure = error
        self.advance()

    def fail_replay(self, step: str, expected: str, found: str) -> None:
        """The code does not repeat the journal."""
        self.fail(
            NonDeterminismError(
                f"step {step!r}: the journal has {expected}, but the code now gives {found}; deploy code that repeats "
                "what was recorded (tools, their names and parameters)",
                step=step,
                expected=expected,
                found=found,
            )
        )

    def fail_call(self, call_id: str, found: str) -> None:
        """A call that the journal has does not come back as it was."""
        recorded = self.journal.call(call_id)
        assert recorded is not None
        self.fail_replay(call_id, _in_words(recorded.request.tool_name, recorded.request.arguments), found)

    # ------------------------------------------------------------ the engine's side

    @property
    def driving(self) -> bool:
        """Whether the engine drives the turn: only then may a model be called."""
        return self._driving

    def set_driving(self, driving: bool) -> None:
        self._driving = driving
        self._nudged = False
        self.advance()

    def give(self, records: Iterable[Settled]) -> None:
        """Takes records and answers to hand out; those that were handed out before are ignored."""
        self._dispatcher.give(records)
        self.advance()

    @property
    def has_news(self) -> bool:
        """Whether ``drive`` has something to return with."""
        floor = self.floor
        return self.failure is not None or self.ended or floor.blocked or floor.has_unreported

    async def until(self, condition: Callable[[], bool]) -> None:
        """Waits until ``condition`` holds; it is tried whenever something has changed."""
        if condition():
            return
        watcher: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._watchers.append((condition, watcher))
        await watcher

    def expect_no_new_model_call(self) -> None:
        """Until all of the journal has come back, a model call without a record is a difference: all that were made
        have theirs."""
        # An answer that came since the turn was at rest may have let somebody go on to a new one.
        self._no_new_model_call = not self.journal.tail()
        self.advance()

    # ------------------------------------------------------------ moving on

    def advance(self) -> None:
        """Lets everything go on that may, and wakes those whose condition holds."""
        if self.failure is None and not self.parking.closing:
            while self._dispatcher.next(driving=self._driving):
                pass
            self._check_journal()
            self._tell_engine()
        if self._watchers:
            watchers, self._watchers = self._watchers, []
            for condition, watcher in watchers:
                if watcher.done():
                    continue
                if condition():
                    watcher.set_result(None)
                else:
                    self._watchers.append((condition, watcher))

    def _check_journal(self) -> None:
        """Rule R3."""
        if self.journal.replayed or not (self.ended or self.floor.at_rest):
            self._until_journal.stop()
            self._until_difference.stop()
        elif self.ended:
            self._miss_journal()
        else:
            self._until_journal.wait(self.floor.changes)
            if self._no_new_model_call and self._wants_new_model_call():
                self._until_difference.wait(self.floor.changes)
            else:
                self._until_difference.stop()

    def _wants_new_model_call(self) -> bool:
        return any(run.gate and not self.journal.knows_model_call(run.gate.key) for run in self.floor.gated())

    def _miss_journal(self) -> None:
        step, expected = self.journal.missing()
        gated = next((run.gate.key for run in self.floor.gated() if run.gate), None)
        found = "the end of the invocation" if self.ended else f"model call {gated!r}" if gated else "other calls"
        self.fail_replay(step, expected, found)

    def _tell_engine(self) -> None:
        """Says that there is something to drive on with, if nobody drives."""
        if self._driving or self._nudged or self.failure is not None or not self.journal.replayed:
            return
        floor = self.floor
        if floor.at_rest and (not floor.blocked or floor.has_unreported or floor.has_announced):
            self._nudged = True
            self._nudge()


def _in_words(tool_name: str, arguments: JsonObject) -> str:
    return f"a call of tool {tool_name!r} with {arguments!r}"
