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
import json
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import NoReturn, TypeVar

from google.adk.tools.tool_confirmation import ToolConfirmation

from perdure.adk.codec import UnknownType
from perdure.adk.determinism import TurnClock
from perdure.adk.journal import Journal, SettledGroup
from perdure.adk.lanes import Call, Gate, Group, Lane, LaneId, LaneState, ToolRun
from perdure.adk.outcomes import apply_actions, apply_state, read_outcome
from perdure.errors import NonDeterminismError
from perdure.session.model import JsonObject, RecordStatus
from perdure.session.runner import CallRecord, CallRequest, ModelCall, RecordedTurn

T = TypeVar("T")


class TurnDropped(BaseException):
    """Unwinds the invocation of a turn that is dropped from memory.

    Not an ``Exception`` and not a cancellation, so that neither the application's handlers nor ADK's clean-up callbacks
    take it for something that happened to the agent.
    """


class Conductor:
    """The traffic control of one live turn."""

    def __init__(self, recorded: RecordedTurn, clock: TurnClock, nudge: Callable[[], None]) -> None:
        self.journal = Journal(recorded)
        self.closing = False
        self.failure: Exception | None = None
        """Fails the turn from outside: what ``drive`` and ``call_tool`` raise."""
        self.ended = False
        self.model_keys: list[str] = []
        """Keys of the model calls made or answered since this was last taken."""
        self._clock = clock
        self._nudge = nudge
        self._lanes: dict[LaneId, Lane] = {}
        self._groups: dict[str, Group] = {}
        self._calls: dict[str, Call] = {}
        self._groups_of_key: Counter[str] = Counter()
        self._key_of_call: dict[str, str] = {}
        self._given: dict[str, CallRecord] = {}
        self._driving = False
        self._nudged = False
        self._watchers: list[asyncio.Future[None]] = []

    # ------------------------------------------------------------ what the invocation reports

    def guard(self) -> None:
        """Stops the invocation here if its turn is being dropped."""
        if self.closing:
            raise TurnDropped

    async def enter_model(self, lane_id: LaneId, key: str) -> ModelCall | None:
        """Waits until a model call may go on.  Returns its record; ``None``: call the model."""
        self.guard()
        lane = self._lane(lane_id)
        lane.state = LaneState.GATED
        lane.gate = Gate(key, asyncio.get_running_loop().create_future())
        opened = lane.gate.opened
        self.advance()
        return await self.park(opened)

    def leave_model(self, lane_id: LaneId, key: str, call_ids: Iterable[str]) -> None:
        """A model call ended; its response has these calls."""
        lane = self._lane(lane_id)
        lane.state = LaneState.RUNNING
        lane.model_key = key
        self.model_keys.append(key)
        for call_id in call_ids:
            self._key_of_call[call_id] = key

    def is_call_known(self, call_id: str) -> bool:
        """Whether a model response of this turn has a call of this id already."""
        return call_id in self._key_of_call

    def open_group(self, lane_id: LaneId, call_ids: Sequence[str]) -> None:
        """The invocation is about to carry out these calls."""
        lane = self._lane(lane_id)
        base = next((self._key_of_call[i] for i in call_ids if i in self._key_of_call), None)
        if base is None:  # a callback made them up
            base = f"{lane.model_key or '|'.join(str(part) for part in lane_id)}|callback"
        self._groups_of_key[base] += 1
        count = self._groups_of_key[base]
        group = Group(base if count == 1 else f"{base}/{count}", lane)
        for call_id in call_ids:
            call = self._calls[call_id] = Call(call_id, group)
            group.calls[call_id] = call
        self._groups[group.key] = group

    def request(
        self, call_id: str, tool_name: str, arguments: JsonObject, build: Callable[[str], CallRequest], run: ToolRun
    ) -> Call:
        """A tool is to be run.  Wait for its record with ``record_of``.

        Args:
            build: makes the request, given the key of the group; not called for a call that is in the journal.
        """
        self.guard()
        call = self._calls[call_id]
        recorded = self.journal.call(call_id)
        if recorded is not None:
            then = recorded.request
            if then.tool_name != tool_name or then.arguments != arguments:
                self.fail_replay(
                    call_id,
                    f"a call of tool {then.tool_name!r} with {then.arguments!r}",
                    f"a call of tool {tool_name!r} with {arguments!r}",
                )
            call.request = then
            call.fresh = False
            self.journal.came_back(call_id)
        else:
            call.request = build(call.group.key)
        call.run = run
        call.settled = asyncio.get_running_loop().create_future()
        self.account(call_id)
        return call

    async def record_of(self, call: Call) -> Call:
        """Waits until a requested call has its record."""
        assert call.settled is not None
        try:
            await self.park(call.settled)
        except asyncio.CancelledError:
            call.given_up = True
            call.group.lane.state = LaneState.RUNNING
            raise
        return call

    def account(self, call_id: str) -> None:
        """It is known what becomes of a call: it is requested, answered by a callback, or it steers ADK."""
        call = self._calls.get(call_id)
        if call is None or call.accounted:
            return
        call.accounted = True
        group = call.group
        if group.accounted and group.open_calls:
            self._apply_early(group)
            group.lane.state = LaneState.WAITING
        elif group.accounted:
            del self._groups[group.key]
        # Not at once: the call that is being requested must be waiting, too, when its group's records are handed out,
        # so that the calls go on in the order of the records.
        asyncio.get_running_loop().call_soon(self.advance)

    def end_lane(self, lane_id: LaneId) -> None:
        """An agent's run is over."""
        if self._lanes.pop(lane_id, None) is not None:
            self.advance()

    def end(self) -> None:
        """The invocation is over."""
        self.ended = True
        self.advance()

    # ------------------------------------------------------------ waiting inside the invocation

    async def park(self, future: asyncio.Future[T]) -> T:
        """Waits inside the invocation; a dropped turn unwinds from here."""
        try:
            return await future
        except asyncio.CancelledError:
            self.guard()
            raise

    async def park_for_ever(self) -> NoReturn:
        """Keeps the invocation where it is until the turn is dropped."""
        await self.park(asyncio.get_running_loop().create_future())
        raise AssertionError("a future that nobody resolves was resolved")

    # ------------------------------------------------------------ failing from outside

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

    # ------------------------------------------------------------ the engine's side

    @property
    def driving(self) -> bool:
        return self._driving

    def set_driving(self, driving: bool) -> None:
        self._driving = driving
        self._nudged = False
        self.advance()

    def give(self, records: Iterable[CallRecord]) -> None:
        """Takes records to hand out; those that were handed out before are ignored."""
        for record in records:
            call = self._calls.get(record.call_id)
            if call is None or call.record is None:
                self._given[record.call_id] = record
        self.advance()

    def find_call(self, call_id: str) -> Call | None:
        """A requested call whose group is complete."""
        call = self._calls.get(call_id)
        return call if call is not None and call.request is not None and call.group.accounted else None

    @property
    def at_rest(self) -> bool:
        """Whether no lane can move by itself.  (Without lanes, ADK is on its way to or from an agent.)"""
        return bool(self._lanes) and all(
            lane.state in (LaneState.GATED, LaneState.WAITING) for lane in self._lanes.values()
        )

    @property
    def blocked(self) -> bool:
        """Whether every lane waits for the record of some call."""
        return bool(self._lanes) and all(lane.state is LaneState.WAITING for lane in self._lanes.values())

    def unreported_calls(self) -> list[CallRequest]:
        """The calls of complete groups that nobody was told of; the journal's own are left out."""
        return [
            call.request for group in self._unreported() for call in group.open_calls if call.fresh and call.request
        ]

    def take_unreported_calls(self) -> tuple[CallRequest, ...]:
        """The same, and counts them as told."""
        calls = tuple(self.unreported_calls())
        for group in self._unreported():
            group.reported = True
        return calls

    def _unreported(self) -> list[Group]:
        return [group for group in self._groups.values() if group.accounted and not group.reported]

    async def changed(self) -> None:
        """Waits until something may have changed."""
        watcher: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._watchers.append(watcher)
        await watcher

    # ------------------------------------------------------------ moving on

    def advance(self) -> None:
        """Lets everything go on that may, and wakes those who watch."""
        if self.failure is None and not self.closing:
            while self._advance_once():
                pass
            self._check_journal()
            self._tell_engine()
        watchers, self._watchers = self._watchers, []
        for watcher in watchers:
            if not watcher.done():
                watcher.set_result(None)

    def _advance_once(self) -> bool:
        entry = self.journal.next
        if isinstance(entry, ModelCall):
            lane = self._gated_at(entry.key)
            if lane is None:
                return False
            self.journal.hand_out_next()
            self._clock.advance(entry.settled_at_ms)
            self._open_gate(lane, entry, LaneState.RUNNING)
            return True
        if isinstance(entry, SettledGroup):
            group = self._groups.get(entry.group)
            if group is None or not self._hand_out(group, entry.records):
                return False
            self.journal.hand_out_next()
            self.model_keys.clear()
            return True
        return self._advance_live()

    def _advance_live(self) -> bool:
        if not self.journal.replayed:
            return False
        if self._given:
            given = [(group, self._records_of(group)) for group in self._groups.values()]
            given = [(group, records) for group, records in given if records]
            for group, records in sorted(given, key=lambda pair: pair[1][-1].sequence):
                if self._hand_out(group, records):
                    return True
        if self._driving:
            for lane in self._lanes.values():
                if lane.state is LaneState.GATED:
                    if len(self._lanes) == 1:
                        self._clock.freeze()  # ADK takes the time of each partial response
                    self._open_gate(lane, None, LaneState.IN_MODEL)
                    return True
        return False

    def _records_of(self, group: Group) -> list[CallRecord]:
        """The records that were given for a group, with those that the journal had before."""
        records: list[CallRecord] = []
        for call in group.open_calls:
            recorded = self.journal.call(call.call_id)
            record = self._given.get(call.call_id) or (recorded.record if recorded else None)
            if record is not None:
                records.append(record)
        return sorted(records, key=lambda record: record.sequence)

    def _gated_at(self, key: str) -> Lane | None:
        for lane in self._lanes.values():
            if lane.state is LaneState.GATED and lane.gate is not None and lane.gate.key == key:
                return lane
        return None

    def _open_gate(self, lane: Lane, record: ModelCall | None, state: LaneState) -> None:
        assert lane.gate is not None
        gate, lane.gate, lane.state = lane.gate, None, state
        if not gate.opened.done():
            gate.opened.set_result(record)

    def _hand_out(self, group: Group, records: Sequence[CallRecord]) -> bool:
        """Hands out a group's records if they are all that it waits for."""
        waiting = group.open_calls
        if not group.accounted or {call.call_id for call in waiting} - {record.call_id for record in records}:
            return False
        settled: list[Call] = []
        for record in sorted(records, key=lambda record: record.sequence):
            self._given.pop(record.call_id, None)
            call = group.calls.get(record.call_id)
            if call is None or not call.open:
                continue
            self._clock.advance(record.settled_at_ms)
            if not self._take(call, record):
                return False
            settled.append(call)
        group.lane.state = LaneState.RUNNING
        for call in settled:
            if call.settled is not None and not call.settled.done():
                call.settled.set_result(None)
        del self._groups[group.key]
        return True

    def _take(self, call: Call, record: CallRecord) -> bool:
        """Gives a call its record and brings the session to what the record says."""
        assert call.run is not None
        context = call.run.tool_context
        kept = call.live_outcome is not None and call.live_outcome == record.outcome
        if not kept and call.baseline is not None:
            call.baseline.restore()
        if record.outcome is not None:
            try:
                call.outcome = read_outcome(_parsed(record.outcome))
            except UnknownType as error:
                self.fail_replay(call.call_id, f"a value of class {error}", "no such class")
                return False
            if not kept:
                if not call.state_applied:
                    apply_state(context, call.outcome)
                apply_actions(context, call.outcome)
        recorded = self.journal.call(call.call_id)
        if record.status is RecordStatus.REJECTED:
            context.tool_confirmation = ToolConfirmation(confirmed=False)
        elif recorded is not None and recorded.approval is not None:
            context.tool_confirmation = ToolConfirmation(confirmed=True, payload=recorded.approval.payload)
        call.record = record
        call.baseline = None
        return True

    def _apply_early(self, group: Group) -> None:
        """Calls that have their record changed the state before their siblings, which are yet to run, can see it."""
        known = [call for call in group.open_calls if not call.fresh]
        records = [recorded.record for call in known if (recorded := self.journal.call(call.call_id)) is not None]
        if None not in records and len(records) == len(group.open_calls):
            return  # complete: handed out in its place
        for record in sorted((r for r in records if r is not None), key=lambda record: record.sequence):
            call = group.calls[record.call_id]
            if record.outcome is None or call.run is None:
                continue
            try:
                apply_state(call.run.tool_context, read_outcome(_parsed(record.outcome)))
            except UnknownType as error:
                self.fail_replay(call.call_id, f"a value of class {error}", "no such class")
                return
            call.state_applied = True

    def _check_journal(self) -> None:
        """Rule R3."""
        if self.journal.replayed or not (self.ended or self.at_rest):
            return
        step, expected = self.journal.missing()
        gated = next((lane.gate.key for lane in self._lanes.values() if lane.gate is not None), None)
        found = "the end of the invocation" if self.ended else f"model call {gated!r}" if gated else "other calls"
        self.fail_replay(step, expected, found)

    def _tell_engine(self) -> None:
        if self._driving or self._nudged or self.failure is not None or not self.journal.replayed:
            return
        if self.at_rest and (self.unreported_calls() or not self.blocked):
            self._nudged = True
            self._nudge()

    # ------------------------------------------------------------ small lookups

    def _lane(self, lane_id: LaneId) -> Lane:
        lane = self._lanes.get(lane_id)
        if lane is None:
            lane = self._lanes[lane_id] = Lane(lane_id)
        return lane


def _parsed(outcome: str) -> JsonObject:
    parsed: JsonObject = json.loads(outcome)
    return parsed
