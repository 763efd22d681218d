"""Keeps a live invocation and the journal of its turn in step: what may go on, what must wait, who is told.

The seams (wrapped model, tool clones, plugins) report here what the invocation does, and wait here for records.  The
engine's side (``turn``) waits here for the invocation to be blocked or over.  No I/O; everything happens in one event
loop.

A replay is held to the journal by three rules:

* R1: entries are handed out in the order in which they settled, each when the invocation has come to it;
* R2: what has no record waits until all of the journal has come back;
* R3: when nothing can move and the journal has not come back, the code has changed: the turn is failed from outside,
  and the invocation stays where it is.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence

from perdure.adk.codec import UnknownType
from perdure.adk.determinism import TurnClock
from perdure.adk.floor import Floor
from perdure.adk.journal import Journal, SettledGroup
from perdure.adk.lanes import Call, Gate, Group, Lane, LaneId, LaneState, ToolRun
from perdure.adk.parking import Parking
from perdure.adk.settling import settle, show_state_early
from perdure.errors import NonDeterminismError, UsageError
from perdure.session.model import JsonObject
from perdure.session.runner import CallRecord, CallRequest, ModelCall, RecordedTurn


class Conductor:
    """The traffic control of one live turn.

    Attributes:
        failure: fails the turn from outside: what ``drive`` and ``call_tool`` raise.
        ended: the invocation is over.
    """

    def __init__(self, recorded: RecordedTurn, clock: TurnClock, nudge: Callable[[], None]) -> None:
        self.journal = Journal(recorded)
        self.floor = Floor()
        self.parking = Parking()
        self.failure: Exception | None = None
        self.ended = False
        self._clock = clock
        self._nudge = nudge
        self._nudged = False
        self._driving = False
        self._given: dict[str, CallRecord] = {}
        self._model_keys: list[tuple[LaneId, str]] = []
        self._watchers: list[tuple[Callable[[], bool], asyncio.Future[None]]] = []

    # ------------------------------------------------------------ what the invocation reports

    async def enter_model(self, lane_id: LaneId, key: str) -> ModelCall | None:
        """Waits until a model call may go on.  Returns its record; ``None``: call the model."""
        self.parking.guard()
        lane = self.floor.lane(lane_id)
        lane.state = LaneState.GATED
        lane.gate = Gate(key, asyncio.get_running_loop().create_future())
        opened = lane.gate.opened
        self.advance()
        return await self.parking.wait(opened)

    def leave_model(self, lane_id: LaneId, key: str, call_ids: Iterable[str]) -> None:
        """A model call ended; its response has these calls."""
        lane = self.floor.lane(lane_id)
        lane.state = LaneState.RUNNING
        lane.model_key = key
        self._model_keys.append((lane_id, key))
        self.floor.note_calls(key, call_ids)

    def request(
        self,
        call_id: str,
        lane_id: LaneId,
        tool_name: str,
        arguments: JsonObject,
        build: Callable[[str], CallRequest],
        run: ToolRun,
    ) -> Call:
        """A tool is to be run.  Wait for its record with ``record_of``.

        Args:
            build: makes the request, given the key of the group; not called for a call that is in the journal.

        Raises:
            UsageError: a call of this id was requested already.
        """
        self.parking.guard()
        call = self.floor.to_request(call_id, lane_id)
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
        call.run = run
        call.settled = asyncio.get_running_loop().create_future()
        self.account(call_id)
        return call

    async def record_of(self, call: Call) -> None:
        """Waits until a requested call has its record."""
        assert call.settled is not None
        try:
            await self.parking.wait(call.settled)
        except asyncio.CancelledError:
            call.given_up = True
            call.group.lane.state = LaneState.RUNNING
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

    def end_lane(self, lane_id: LaneId) -> None:
        """An agent's run is over."""
        if self.floor.end_lane(lane_id):
            self.advance()

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
        if entry is None:
            return self.journal.replayed and (self._hand_out_given() or self._open_gates())
        if isinstance(entry, SettledGroup):
            group = self.floor.group(entry.group)
            moved = group is not None and self._hand_out(group, entry.records)
        else:
            lane = next((lane for lane in self.floor.gated() if lane.gate and lane.gate.key == entry.key), None)
            moved = lane is not None
            if lane is not None:
                self._clock.advance(entry.settled_at_ms)
                _open_gate(lane, entry, LaneState.RUNNING)
        if moved:
            self.journal.hand_out_next()
        return moved

    def _hand_out_given(self) -> bool:
        """Hands out the records of one group, if all that it waits for were given; the one that settled first."""
        if not self._given:
            return False
        candidates = [(group, self._records_of(group)) for group in self.floor.waiting_groups()]
        ready = [(group, records) for group, records in candidates if records and len(records) == len(group.open_calls)]
        if not ready:
            return False
        group, records = min(ready, key=lambda candidate: candidate[1][-1].sequence)
        return self._hand_out(group, records)

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
        if gated and self.floor.is_single:
            self._clock.freeze()  # ADK takes the time of each partial response
        for lane in gated:
            _open_gate(lane, None, LaneState.IN_MODEL)
        return bool(gated)

    def _hand_out(self, group: Group, records: Sequence[CallRecord]) -> bool:
        """Hands out the records of a group, in their order, if they are all that it waits for."""
        waiting = {call.call_id: call for call in group.open_calls}
        if not group.accounted or waiting.keys() - {record.call_id for record in records}:
            return False
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
                settle(call, record, recorded.approval if recorded else None, self.journal.asides)
            except UnknownType as error:
                self.fail_replay(call.call_id, f"a value of class {error}", "no such class")
                return False
        self.floor.close_group(group)
        # The model call that asked for them belongs to a step that was told of before.
        self._model_keys = [entry for entry in self._model_keys if entry[0] != group.lane.id]
        for call in settled:  # whole first, then on: what follows sees the session as all of them left it
            if call.settled is not None and not call.settled.done():
                call.settled.set_result(None)
        return True

    def _show_states_early(self, group: Group) -> None:
        """Calls that have their record changed the state before their siblings, which are yet to run, can see it."""
        records = self._records_of(group)
        if len(records) == len(group.open_calls):
            return  # complete: handed out in its place
        for record in records:
            recorded = self.journal.call(record.call_id)
            try:
                show_state_early(
                    group.calls[record.call_id], record, recorded.approval if recorded else None, self.journal.asides
                )
            except UnknownType as error:
                self.fail_replay(record.call_id, f"a value of class {error}", "no such class")
                return

    def _check_journal(self) -> None:
        """Rule R3."""
        if self.journal.replayed or not (self.ended or self.floor.at_rest):
            return
        step, expected = self.journal.missing()
        gated = next((lane.gate.key for lane in self.floor.gated() if lane.gate), None)
        found = "the end of the invocation" if self.ended else f"model call {gated!r}" if gated else "other calls"
        self.fail_replay(step, expected, found)

    def _tell_engine(self) -> None:
        """Says that there is something to drive on with, if nobody drives."""
        if self._driving or self._nudged or self.failure is not None or not self.journal.replayed:
            return
        if self.floor.at_rest and (not self.floor.blocked or self.floor.has_unreported_calls):
            self._nudged = True
            self._nudge()


def _open_gate(lane: Lane, record: ModelCall | None, state: LaneState) -> None:
    assert lane.gate is not None
    gate, lane.gate, lane.state = lane.gate, None, state
    if not gate.opened.done():
        gate.opened.set_result(record)


def _in_words(tool_name: str, arguments: JsonObject) -> str:
    return f"a call of tool {tool_name!r} with {arguments!r}"
