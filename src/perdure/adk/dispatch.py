"""Who goes on next in a live invocation, and with what: records of the journal first, then what settles now.

Whoever got a record goes on alone until it stands still again, so that what it does to the session comes in the same
order in every replay.  Code that runs for long keeps the others waiting no longer than ``patience.SECONDS``.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from perdure.adk.calls import Group
from perdure.adk.codec import UnknownType
from perdure.adk.determinism import TurnClock
from perdure.adk.floor import Floor
from perdure.adk.journal import Journal, SettledGroup, key_of, question_key
from perdure.adk.patience import Patience
from perdure.adk.runs import Run, RunState
from perdure.adk.settling import settle, show_state_early
from perdure.session.runner import Answer, CallRecord, ModelCall, Settled

_TURNS = 50
"""Of the event loop, in which whoever awaited a call or a run goes on: many more than ADK takes."""


@dataclass(frozen=True, slots=True, eq=False)
class _SettledModel:
    """A model call that has its record and waits until it may go on."""

    call: ModelCall
    run: Run
    arrived: int
    due: asyncio.Future[None]


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
        self._given: dict[str, Settled] = {}
        self._settled: list[_SettledModel] = []
        self._given_up_keys: set[str] = set()
        self._arrivals = itertools.count()
        self._arrived: dict[str, int] = {}
        self._seen = journal.tail()
        self._impatient = False
        self._until_still = Patience(self._lose_patience)

    def give(self, records: Iterable[Settled]) -> None:
        """Takes records to hand out; those that were handed out before are ignored."""
        for record in records:
            if not self._was_handed_out(record):
                self._given[key_of(record)] = record

    def _was_handed_out(self, record: Settled) -> bool:
        if isinstance(record, Answer):
            asked = self._floor.question(record.question_id)
            return asked is not None and asked.answer is not None
        call = self._floor.call(record.call_id)
        return call is not None and call.record is not None

    def add_model_call(self, run: Run, call: ModelCall) -> asyncio.Future[None]:
        """Takes a model call that has its record now.  The future is done when it may go on."""
        due: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._settled.append(_SettledModel(call, run, next(self._arrivals), due))
        due.add_done_callback(self._forget)
        return due

    def _forget(self, due: asyncio.Future[None]) -> None:
        self._settled = [settled for settled in self._settled if settled.due is not due]

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

        turn(_TURNS)

    def next(self, *, driving: bool) -> bool:
        """Lets one go on, if one may.  New model calls are made only while the engine drives."""
        entry = self._journal.next
        if entry is not None:
            return self._repeat(entry)
        return self._journal.replayed and (self._hand_out_first() or (driving and self._open_gates()))

    def _repeat(self, entry: ModelCall | SettledGroup) -> bool:
        """Hands an entry of the journal out, if the invocation has come to it."""
        if self._is_given_up(entry):
            self._journal.hand_out_next()
            return True
        if isinstance(entry, SettledGroup):
            group = self._floor.group(entry.group)
            if group is None or not self._is_whole(group, entry.records) or not self._may_go_on():
                return False
            self._journal.hand_out_next()
            self._hand_out(group, entry.records)
        else:
            run = next((run for run in self._floor.gated() if run.gate and run.gate.key == entry.key), None)
            if run is None or not self._may_go_on():
                return False
            self._journal.hand_out_next()
            self._clock.advance(entry.settled_at_ms)
            _open_gate(run, entry, RunState.RUNNING)
        return True

    def _is_given_up(self, entry: ModelCall | SettledGroup) -> bool:
        """Whether the run that would get the entry was stopped before it, as it was then."""
        if isinstance(entry, ModelCall):
            return entry.key in self._given_up_keys
        return all(self._nobody_waits_for(record) for record in entry.records)

    def _nobody_waits_for(self, record: Settled) -> bool:
        if isinstance(record, Answer):
            asked = self._floor.question(record.question_id)
            return asked is not None and asked.settled.cancelled()
        call = self._floor.call(record.call_id)
        return call is not None and call.given_up

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
        """Hands out what came first: the record of a model call, or those of a group when the last of them came."""
        ready = self._ready_groups()
        settled = self._settled[0] if self._settled else None
        if not (ready or settled) or not self._may_go_on():
            return False
        group, records = min(ready, key=lambda one: self._arrived[one[0].key], default=(None, []))
        if settled is not None and (group is None or settled.arrived < self._arrived[group.key]):
            self._forget(settled.due)
            self._clock.advance(settled.call.settled_at_ms)
            settled.run.state = RunState.RUNNING
            if not settled.due.done():
                settled.due.set_result(None)
        elif group is not None:
            self._hand_out(group, records)
        return True

    def _ready_groups(self) -> list[tuple[Group, list[Settled]]]:
        """The groups that have all records; takes note of those that have them only now."""
        if not self._given:
            return []
        candidates = [(group, self._records_of(group)) for group in self._floor.waiting_groups()]
        ready = [(group, records) for group, records in candidates if self._is_whole(group, records)]
        for group, records in sorted(ready, key=lambda one: one[1][-1].sequence):
            if group.key not in self._arrived:
                self._arrived[group.key] = next(self._arrivals)
                self._seen.append(records[-1].sequence)
        return ready

    def take_seen(self) -> list[int]:
        """The groups that came since this was last asked, by the sequences of their last records."""
        seen, self._seen = self._seen, []
        return seen

    @staticmethod
    def _is_whole(group: Group, records: Sequence[Settled]) -> bool:
        """Whether the records are all that the group waits for."""
        waiting = set(group.open_keys)
        return group.accounted and bool(waiting) and not waiting - {key_of(record) for record in records}

    def _records_of(self, group: Group) -> list[Settled]:
        """The records that were given for a group, with those that the journal had before."""
        found = (self._given.get(key) or self._journal.record(key) for key in group.open_keys)
        return sorted((record for record in found if record is not None), key=lambda record: record.sequence)

    def _open_gates(self) -> bool:
        """Lets new model calls go on."""
        gated = self._floor.gated()
        for run in gated:
            _open_gate(run, None, RunState.IN_MODEL)
        return bool(gated)

    def _hand_out(self, group: Group, records: Sequence[Settled]) -> None:
        """Hands out the records of a group, in their order."""
        calls = {call.call_id: call for call in group.open_calls}
        questions = {question_key(asked.question.question_id): asked for asked in group.open_questions}
        waiting: list[asyncio.Future[None] | None] = []
        for record in records:
            key = key_of(record)
            self._given.pop(key, None)
            if key not in calls and key not in questions:
                continue
            self._clock.advance(record.settled_at_ms)
            if isinstance(record, Answer):
                questions[key].answer = record
                waiting.append(questions[key].settled)
                continue
            waiting.append(calls[key].settled)
            recorded = self._journal.call(key)
            try:
                settle(calls[key], record, recorded.approval if recorded else None, self._journal.asides)
            except UnknownType as error:
                self._differs(key, f"a value of class {error}", "no such class")
                return
        self._floor.close_group(group)
        if group.owner.children:
            self.linger(group.owner)
        self._floor.forget_model_keys(group.owner)
        for settled in waiting:  # whole first, then on: what follows sees the session as all of them left it
            if settled is not None and not settled.done():
                settled.set_result(None)

    def show_states_early(self, group: Group) -> None:
        """Calls that ran have changed the state before their siblings, which are yet to run, can see it."""
        records = {record.call_id: record for record in self._records_of(group) if isinstance(record, CallRecord)}
        if len(records) == len(group.open_calls):
            return  # complete: handed out in its place
        for call_id in [*records, *(call.call_id for call in group.open_calls if call.call_id not in records)]:
            recorded = self._journal.call(call_id)
            approval = recorded.approval if recorded else None
            try:
                show_state_early(group.calls[call_id], records.get(call_id), approval, self._journal.asides)
            except UnknownType as error:
                self._differs(call_id, f"a value of class {error}", "no such class")
                return


def _open_gate(run: Run, record: ModelCall | None, state: RunState) -> None:
    assert run.gate is not None
    gate, run.gate, run.state = run.gate, None, state
    if not gate.opened.done():
        gate.opened.set_result(record)
