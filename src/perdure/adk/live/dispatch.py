"""Who goes on next in a live invocation, and with what: records of the journal first, then what settles now.

Whoever got a record goes on alone until it stands still again, so that what it does to the session comes in the same
order in every replay.  Code that runs for long keeps the others waiting no longer than ``patience.SECONDS``.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import assert_never

from perdure.adk.live.calls import Batch, Call, Group
from perdure.adk.live.determinism import TurnClock
from perdure.adk.live.floor import Floor
from perdure.adk.live.journal import Entry, Journal, SettledGroup, SettledQuestions
from perdure.adk.live.patience import Patience
from perdure.adk.live.questions import AskedGroup
from perdure.adk.live.runs import Run, RunState
from perdure.adk.live.settling import settle, show_state_early
from perdure.adk.records.codec import UnknownType
from perdure.session.runner import Answer, CallRecord, ModelCall, Settled

TURNS = 50
"""Of the event loop, in which whoever awaited a call or a run goes on: many more than ADK takes."""


@dataclass(slots=True, eq=False)
class Place:
    """Where a record stands among all that comes: behind what came before it was made, ahead of what comes later.

    Attributes:
        seen: what had come before it, for the record (see ``journal``).
        call: the record; ``None`` while it is on its way to the disk.
        due: done when its run may go on with it.
    """

    run: Run
    arrived: int
    seen: list[int]
    due: asyncio.Future[None]
    call: ModelCall | None = None


class Dispatcher:
    """Hands records out and opens the gates of model calls.

    Args:
        differs: told of a record that the code cannot take any more: the step, what was expected, what was found.
        wake: called when it has waited long enough for somebody to stand still.
    """

    def __init__(
        self,
        floor: Floor,
        journal: Journal,
        clock: TurnClock,
        differs: Callable[[str, str, str], None],
        wake: Callable[[], None],
    ) -> None:
        self._floor = floor
        self._journal = journal
        self._clock = clock
        self._differs = differs
        self._wake = wake
        self._given: dict[str, CallRecord] = {}
        self._answers: dict[str, Answer] = {}
        self._early: set[str] = set()
        self._places: list[Place] = []
        self._given_up_keys: set[str] = set()
        self._arrivals = itertools.count()
        self._arrived: dict[str, int] = {}
        self._seen = journal.tail()
        self._impatient = False
        self._until_still = Patience(self._lose_patience)

    def give(self, settled: Iterable[Settled]) -> None:
        """Takes records and answers to hand out; those that were handed out before are ignored."""
        for one in settled:
            if isinstance(one, Answer):
                self._answers[one.question_id] = one
                continue
            call = self._floor.call(one.call_id)
            if call is None or call.record is None:
                self._given[one.call_id] = one

    def take_place(self, run: Run) -> Place:
        """A place for a record that is made now.  What comes later goes on later, as it will in a replay."""
        due: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        place = Place(run, next(self._arrivals), self.take_seen(), due)
        self._places.append(place)
        due.add_done_callback(lambda _: self._leave(place))
        return place

    def leave_place(self, place: Place) -> None:
        """There is no record, or nobody waits for it: what had come before it is for the next one to say."""
        self._seen[:0] = place.seen
        place.due.cancel()

    def _leave(self, place: Place) -> None:
        self._places = [other for other in self._places if other is not place]

    def stop(self) -> None:
        """Nobody is waited for any more."""
        self._until_still.stop()

    def give_up_model_call(self, key: str) -> None:
        """The run that waited at the gate of this model call was stopped."""
        self._given_up_keys.add(key)

    def linger(self, run: Run) -> None:
        """Keeps a run on the move for a moment although it waits for others: whoever waited in it for one goes on."""
        run.busy += 1

        def turn(left: int) -> None:
            if left:
                asyncio.get_running_loop().call_soon(turn, left - 1)
            else:
                run.busy -= 1
                self._wake()

        turn(TURNS)

    def next(self, *, driving: bool) -> bool:
        """Lets one go on, if one may.  New model calls are made only while the engine drives."""
        entry = self._journal.next
        if entry is not None or not self._journal.replayed:
            return self._answer_early() or (entry is not None and self._repeat(entry))
        return self._hand_out_first() or (driving and self._open_gates())

    def _repeat(self, entry: Entry) -> bool:
        """Hands an entry of the journal out, if the invocation has come to it."""
        if self._is_given_up(entry):
            self._journal.hand_out_next()
            return True
        if isinstance(entry, SettledQuestions) and self._floor.is_early(entry.group):
            self._put_aside(entry)
            return True
        go = self._way_on(entry)
        if go is None or not self._may_go_on():
            return False
        self._journal.hand_out_next()
        go()
        return True

    def _put_aside(self, entry: SettledQuestions) -> None:
        """Somebody answered before the invocation waited for it: it gets the answers when it does."""
        self._journal.hand_out_next()
        self._early.add(entry.group)
        self._seen = [sequence for sequence in self._seen if sequence != entry.sequence]

    def _answer_early(self) -> bool:
        """Hands out answers that a replay has put aside, if the invocation waits for them now."""
        for asked in self._floor.open_question_groups():
            answers = self._answers_of(asked)
            if asked.key not in self._early or len(answers) < len(asked.asked) or not self._may_go_on():
                continue
            self._seen.append(max(answer.sequence for answer in answers))
            self._answer(asked, answers)
            return True
        return False

    def _answers_of(self, asked: AskedGroup) -> list[Answer]:
        """The answers that were given to a group, with those that the journal had before."""
        given = (self._answers.get(question_id) or self._journal.answer(question_id) for question_id in asked.asked)
        return [answer for answer in given if answer is not None]

    def _way_on(self, entry: Entry) -> Callable[[], None] | None:
        """What hands the entry out; ``None`` while nobody waits for it."""
        match entry:
            case ModelCall():
                run = next((run for run in self._floor.gated() if run.gate and run.gate.key == entry.key), None)
                return None if run is None else partial(self._answer_model_call, run, entry)
            case SettledGroup():
                group = self._floor.group(entry.group)
                whole = group is not None and self._is_whole(group, entry.records)
                return partial(self._hand_out, group, entry.records) if group is not None and whole else None
            case SettledQuestions():
                asked = self._floor.questions(entry.group)
                return None if asked is None else partial(self._answer, asked, entry.answers)
            case _:
                assert_never(entry)

    def _answer_model_call(self, run: Run, record: ModelCall) -> None:
        self._clock.advance(record.settled_at_ms)
        _open_gate(run, record, RunState.RUNNING)

    def _is_given_up(self, entry: Entry) -> bool:
        """Whether the run that would get the entry was stopped before it, as it was then."""
        if isinstance(entry, ModelCall):
            return entry.key in self._given_up_keys
        if isinstance(entry, SettledQuestions):
            return entry.group in self._floor.given_up_questions
        calls = [self._floor.call(record.call_id) for record in entry.records]
        return all(call is not None and call.given_up for call in calls)

    def _may_go_on(self) -> bool:
        """Whether somebody may get a record: nobody else is on the move, or keeps the others waiting for too long."""
        if self._floor.still or self._impatient:
            self._impatient = False
            self._until_still.stop()
            return True
        self._until_still.wait(0)
        return False

    def _lose_patience(self) -> None:
        self._impatient = True
        self._wake()
        self._impatient = False

    def _hand_out_first(self) -> bool:
        """Hands out what came first; a group came when the last of its records did."""
        ready = self._ready()
        if not ready or not self._may_go_on():
            return False
        _, go = min(ready, key=lambda one: one[0])
        if go is None:
            return False
        go()
        return True

    def _ready(self) -> list[tuple[int, Callable[[], None] | None]]:
        """What may be handed out, with its number among all that came; takes note of what came only now.

        ``None``: it is on its way to the disk, and keeps its place.
        """
        ready: list[tuple[str, int, Callable[[], None]]] = []
        if self._given:
            for group in self._floor.waiting_groups():
                records = self._records_of(group)
                if self._is_whole(group, records):
                    ready.append((group.key, records[-1].sequence, partial(self._hand_out, group, records)))
        for asked in self._floor.open_question_groups():
            answers = self._answers_of(asked)
            if len(answers) == len(asked.asked):
                last = max(answer.sequence for answer in answers)
                ready.append((f"?{asked.key}", last, partial(self._answer, asked, answers)))
        for key, sequence, _ in sorted(ready, key=lambda one: one[1]):
            if key not in self._arrived:
                self._arrived[key] = next(self._arrivals)
                self._seen.append(sequence)
        places = (
            (one.arrived, None if one.call is None else partial(self._let_go, one, one.call)) for one in self._places
        )
        return [*((self._arrived[key], go) for key, _, go in ready), *places]

    def _let_go(self, place: Place, call: ModelCall) -> None:
        """Lets a run go on that has its record."""
        self._leave(place)
        self._clock.advance(call.settled_at_ms)
        place.run.state = RunState.RUNNING
        if not place.due.done():
            place.due.set_result(None)

    def _answer(self, group: AskedGroup, answers: Sequence[Answer]) -> None:
        """Answers the questions of a group."""
        by_id = {answer.question_id: answer for answer in answers}
        for answer in answers:
            self._answers.pop(answer.question_id, None)
            self._clock.advance(answer.settled_at_ms)
        self._early.discard(group.key)
        self._floor.close_questions(group)
        self._floor.forget_model_keys(group.owner)
        if not group.answers.done():
            group.answers.set_result([by_id[question_id] for question_id in group.asked])

    def take_seen(self) -> list[int]:
        """The groups that came since this was last asked, by the sequences of their last records."""
        seen, self._seen = self._seen, []
        return seen

    @staticmethod
    def _is_whole(group: Group, records: Sequence[CallRecord]) -> bool:
        """Whether the records are all that the group waits for."""
        waiting = {call.call_id for call in group.open_calls}
        return group.batch.accounted and bool(waiting) and not waiting - {record.call_id for record in records}

    def _records_of(self, group: Group | Batch) -> list[CallRecord]:
        """The records that were given for the open calls, with those that the journal had before."""
        records: list[CallRecord] = []
        for call in group.open_calls:
            recorded = self._journal.call(call.call_id)
            record = self._given.get(call.call_id) or (recorded.record if recorded else None)
            if record is not None:
                records.append(record)
        return sorted(records, key=lambda record: record.sequence)

    def _open_gates(self) -> bool:
        """Lets new model calls go on."""
        gated = self._floor.gated()
        for run in gated:
            _open_gate(run, None, RunState.IN_MODEL)
        return bool(gated)

    def _hand_out(self, group: Group, records: Sequence[CallRecord]) -> None:
        """Hands out the records of a group, in their order."""
        waiting = {call.call_id: call for call in group.open_calls}
        settled: list[Call] = []
        for record in records:
            self._given.pop(record.call_id, None)
            call = waiting.get(record.call_id)
            if call is None:
                continue
            settled.append(call)
            self._clock.advance(record.settled_at_ms)
            recorded = self._journal.call(record.call_id)
            try:
                settle(call, record, recorded.approval if recorded else None, self._journal.asides)
            except (UnknownType, ValueError) as error:
                self._cannot_read(call.call_id, error)
                return
        self._floor.close_group(group)
        self._floor.let_go_on(settled)
        if group.owner.children:
            self.linger(group.owner)
        self._floor.forget_model_keys(group.owner)
        for call in settled:  # whole first, then on: what follows sees the session as all of them left it
            if call.settled is not None and not call.settled.done():
                call.settled.set_result(None)

    def show_states_early(self, batch: Batch) -> None:
        """Calls that ran have changed the state before their siblings, which are yet to run, can see it."""
        records = {record.call_id: record for record in self._records_of(batch)}
        if len(records) == len(batch.open_calls):
            return  # complete: handed out in its place
        for call_id in [*records, *(call.call_id for call in batch.open_calls if call.call_id not in records)]:
            recorded = self._journal.call(call_id)
            approval = recorded.approval if recorded else None
            try:
                show_state_early(batch.calls[call_id], records.get(call_id), approval, self._journal.asides)
            except (UnknownType, ValueError) as error:
                self._cannot_read(call_id, error)
                return

    def _cannot_read(self, call_id: str, error: UnknownType | ValueError) -> None:
        """A record says something that this code has no words for."""
        if isinstance(error, UnknownType):
            self._differs(call_id, f"a value of class {error}", "no such class")
        else:
            self._differs(call_id, "a record of this call", f"none that it can read ({error})")


def _open_gate(run: Run, record: ModelCall | None, state: RunState) -> None:
    assert run.gate is not None
    gate, run.gate, run.state = run.gate, None, state
    if not gate.opened.done():
        gate.opened.set_result(record)
