"""Keeps a live invocation and the journal of its turn in step: what may go on, what must wait, who is told.

The seams (wrapped agents, models and tools) report here what the invocation does, and wait here for records.  The
engine's side (``turn``) waits here for the invocation to be blocked or over.  No I/O; everything happens in one event
loop.

Whoever got a record goes on alone until it stands still again, so that what it does to the session comes in the same
order in every replay.  A replay is held to the journal by three rules:

* R1: entries are handed out in the order in which they settled, each when the invocation has come to it;
* R2: what has no record waits until all of the journal has come back;
* R3: when nothing can move and the journal has not come back, the code has changed: the turn is failed from outside,
  and the invocation stays where it is.

Code that runs for long keeps the others waiting no longer than ``patience.SECONDS``; and as not everything that moves
can be seen, R3 waits that long, too.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from perdure.adk.calls import Call, Group, ToolRun
from perdure.adk.codec import UnknownType
from perdure.adk.determinism import TurnClock
from perdure.adk.floor import Floor
from perdure.adk.journal import Journal, SettledGroup
from perdure.adk.parking import Parking
from perdure.adk.patience import Patience
from perdure.adk.runs import Gate, Run, RunState, current_run
from perdure.adk.settling import settle, show_state_early
from perdure.errors import NonDeterminismError, UsageError
from perdure.session.model import JsonObject
from perdure.session.runner import CallRecord, CallRequest, ModelCall, RecordedTurn


@dataclass(frozen=True, slots=True, eq=False)
class _SettledModel:
    """A model call that has its record and waits until it may go on."""

    call: ModelCall
    run: Run
    due: asyncio.Future[None]


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
        self._clock = clock
        self._nudge = nudge
        self._nudged = False
        self._driving = False
        self._given: dict[str, CallRecord] = {}
        self._settled: list[_SettledModel] = []
        self._given_up_keys: set[str] = set()
        self._model_keys: list[tuple[Run, str]] = []
        self._watchers: list[tuple[Callable[[], bool], asyncio.Future[None]]] = []
        self._impatient = False
        self._until_still = Patience(self._lose_patience)
        self._until_journal = Patience(self._miss_journal)

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
            self._given_up_keys.add(key)
            run.gate, run.state = None, RunState.RUNNING
            raise

    async def settle_model(self, run: Run, call: ModelCall) -> None:
        """A model call has its record.  Returns when it may go on with it."""
        settled = _SettledModel(call, run, asyncio.get_running_loop().create_future())
        run.state = RunState.SETTLED
        self.floor.changes += 1
        self._settled.append(settled)
        self.advance()
        try:
            await self.parking.wait(settled.due)
        finally:
            if settled in self._settled:
                self._settled.remove(settled)

    def leave_model(self, run: Run, key: str, call_ids: Iterable[str]) -> None:
        """A model call ended; its response has these calls."""
        run.state = RunState.RUNNING
        run.model_key = key
        self._model_keys.append((run, key))
        self.floor.note_calls(key, call_ids)

    def request(
        self,
        call_id: str,
        run: Run,
        tool_name: str,
        arguments: JsonObject,
        build: Callable[[str], CallRequest],
        tool_run: ToolRun,
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
            self.journal.came_back(call_id)
        call.run = tool_run
        call.settled = asyncio.get_running_loop().create_future()
        self.account(call_id)
        return call

    async def record_of(self, call: Call) -> None:
        """Waits until a requested call has its record."""
        assert call.settled is not None
        try:
            await self.parking.wait(call.settled)
        except asyncio.CancelledError:
            self.floor.give_up(call)
            raise

    def account(self, call_id: str) -> None:
        """It is known what becomes of a call: it is requested, answered by a callback, or it steers ADK."""
        group = self.floor.account(call_id)
        if group is None:
            return
        self._show_states_early(group)
        # Not at once: the call that is being requested must be waiting, too, when its group's records are handed out,
        # so that the calls go on in the order of the records.
        asyncio.get_running_loop().call_soon(self.advance)

    def end(self) -> None:
        """The invocation is over."""
        self.ended = True
        self.advance()

    # ------------------------------------------------------------ failing from outside

    def drop(self) -> None:
        """The turn leaves memory: nobody gets past a seam any more, inside or outside."""
        self.parking.closing = True
        self.fail(UsageError("the live turn was dropped from memory; open the turn again"))

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

    def give(self, records: Iterable[CallRecord]) -> None:
        """Takes records to hand out; those that were handed out before are ignored."""
        for record in records:
            call = self.floor.call(record.call_id)
            if call is None or call.record is None:
                self._given[record.call_id] = record
        self.advance()

    @property
    def has_news(self) -> bool:
        """Whether ``drive`` has something to return with."""
        floor = self.floor
        return self.failure is not None or self.ended or floor.blocked or floor.has_unreported_calls

    def take_model_keys(self) -> tuple[str, ...]:
        """Keys of the model calls made or answered since this was last asked, without those of earlier steps."""
        keys = tuple(key for _, key in self._model_keys)
        self._model_keys.clear()
        return keys

    async def until(self, condition: Callable[[], bool]) -> None:
        """Waits until ``condition`` holds; it is tried whenever something has changed."""
        if condition():
            return
        watcher: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._watchers.append((condition, watcher))
        await watcher

    # ------------------------------------------------------------ moving on

    def advance(self) -> None:
        """Lets everything go on that may, and wakes those whose condition holds."""
        if self.failure is None and not self.parking.closing:
            while self._advance_once():
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

    def _advance_once(self) -> bool:
        entry = self.journal.next
        if entry is not None:
            return self._repeat(entry)
        return self.journal.replayed and (self._hand_out_first() or self._open_gates())

    def _repeat(self, entry: ModelCall | SettledGroup) -> bool:
        """Hands an entry of the journal out, if the invocation has come to it."""
        if self._is_given_up(entry):
            self.journal.hand_out_next()
            return True
        if isinstance(entry, SettledGroup):
            group = self.floor.group(entry.group)
            if group is None or not self._is_whole(group, entry.records) or not self._may_go_on():
                return False
            self.journal.hand_out_next()
            self._hand_out(group, entry.records)
        else:
            run = next((run for run in self.floor.gated() if run.gate and run.gate.key == entry.key), None)
            if run is None or not self._may_go_on():
                return False
            self.journal.hand_out_next()
            self._clock.advance(entry.settled_at_ms)
            _open_gate(run, entry, RunState.RUNNING)
        return True

    def _is_given_up(self, entry: ModelCall | SettledGroup) -> bool:
        """Whether the run that would get the entry was stopped before it, as it was then."""
        if isinstance(entry, ModelCall):
            return entry.key in self._given_up_keys
        calls = [self.floor.call(record.call_id) for record in entry.records]
        return all(call is not None and call.given_up for call in calls)

    def _may_go_on(self) -> bool:
        """Whether somebody may get a record: nobody else is on the move, or keeps the others waiting for too long."""
        if self.floor.still or self._impatient:
            self._impatient = False
            self._until_still.stop()
            return True
        self._until_still.wait(0)
        return False

    def _lose_patience(self) -> None:
        self._impatient = True
        self.advance()
        self._impatient = False

    def _hand_out_first(self) -> bool:
        """Hands out what settled first: the record of a model call, or those of a group if all of them are here."""
        ready = self._ready_groups()
        settled = min(self._settled, key=lambda settled: settled.call.sequence, default=None)
        if not (ready or settled) or not self._may_go_on():
            return False
        group, records = min(ready, key=lambda one: one[1][-1].sequence, default=(None, []))
        if settled is not None and (group is None or settled.call.sequence < records[-1].sequence):
            self._settled.remove(settled)
            self._clock.advance(settled.call.settled_at_ms)
            settled.run.state = RunState.RUNNING
            if not settled.due.done():
                settled.due.set_result(None)
        elif group is not None:
            self._hand_out(group, records)
        return True

    def _ready_groups(self) -> list[tuple[Group, list[CallRecord]]]:
        if not self._given:
            return []
        candidates = [(group, self._records_of(group)) for group in self.floor.waiting_groups()]
        return [(group, records) for group, records in candidates if self._is_whole(group, records)]

    @staticmethod
    def _is_whole(group: Group, records: Sequence[CallRecord]) -> bool:
        """Whether the records are all that the group waits for."""
        waiting = {call.call_id for call in group.open_calls}
        return group.accounted and bool(waiting) and not waiting - {record.call_id for record in records}

    def _records_of(self, group: Group) -> list[CallRecord]:
        """The records that were given for a group, with those that the journal had before."""
        records: list[CallRecord] = []
        for call in group.open_calls:
            recorded = self.journal.call(call.call_id)
            record = self._given.get(call.call_id) or (recorded.record if recorded else None)
            if record is not None:
                records.append(record)
        return sorted(records, key=lambda record: record.sequence)

    def _open_gates(self) -> bool:
        """Lets new model calls go on, while the engine drives."""
        if not self._driving:
            return False
        gated = self.floor.gated()
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
            recorded = self.journal.call(record.call_id)
            try:
                settle(call, record, recorded.approval if recorded else None)
            except UnknownType as error:
                self.fail_replay(call.call_id, f"a value of class {error}", "no such class")
                return
        self.floor.close_group(group)
        # The model call that asked for them belongs to a step that was told of before.
        self._model_keys = [entry for entry in self._model_keys if entry[0] is not group.owner]
        for call in settled:  # whole first, then on: what follows sees the session as all of them left it
            if call.settled is not None and not call.settled.done():
                call.settled.set_result(None)

    def _show_states_early(self, group: Group) -> None:
        """Calls that have their record changed the state before their siblings, which are yet to run, can see it."""
        records = self._records_of(group)
        if len(records) == len(group.open_calls):
            return  # complete: handed out in its place
        for record in records:
            try:
                show_state_early(group.calls[record.call_id], record)
            except UnknownType as error:
                self.fail_replay(record.call_id, f"a value of class {error}", "no such class")
                return

    def _check_journal(self) -> None:
        """Rule R3."""
        if self.journal.replayed or not (self.ended or self.floor.at_rest):
            self._until_journal.stop()
        elif self.ended:
            self._miss_journal()
        else:
            self._until_journal.wait(self.floor.changes)

    def _miss_journal(self) -> None:
        step, expected = self.journal.missing()
        gated = next((run.gate.key for run in self.floor.gated() if run.gate), None)
        found = "the end of the invocation" if self.ended else f"model call {gated!r}" if gated else "other calls"
        self.fail_replay(step, expected, found)

    def _tell_engine(self) -> None:
        """Says that there is something to drive on with, if nobody drives."""
        if self._driving or self._nudged or self.failure is not None or not self.journal.replayed:
            return
        if self.floor.at_rest and (not self.floor.blocked or self.floor.has_unreported_calls):
            self._nudged = True
            self._nudge()


def _open_gate(run: Run, record: ModelCall | None, state: RunState) -> None:
    assert run.gate is not None
    gate, run.gate, run.state = run.gate, None, state
    if not gate.opened.done():
        gate.opened.set_result(record)


def _in_words(tool_name: str, arguments: JsonObject) -> str:
    return f"a call of tool {tool_name!r} with {arguments!r}"
