"""The lanes, groups and calls of one live invocation, and what can be read off them.  Knows nothing of the journal."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from perdure.adk.lanes import Call, Group, Lane, LaneId, LaneState
from perdure.errors import UsageError
from perdure.session.runner import CallRequest


class Floor:
    """Where everything in the invocation stands."""

    def __init__(self) -> None:
        self._lanes: dict[LaneId, Lane] = {}
        self._groups: dict[str, Group] = {}
        self._calls: dict[str, Call] = {}
        self._unreported: list[Group] = []
        self._key_of_call: dict[str, str] = {}
        self._groups_of_key: dict[str, int] = {}

    # ------------------------------------------------------------ lanes

    def lane(self, lane_id: LaneId) -> Lane:
        """The lane, begun if it is not there."""
        lane = self._lanes.get(lane_id)
        if lane is None:
            lane = self._lanes[lane_id] = Lane(lane_id)
        return lane

    def end_lane(self, lane_id: LaneId) -> bool:
        """Takes a lane away.  Whether there was one."""
        return self._lanes.pop(lane_id, None) is not None

    @property
    def is_single(self) -> bool:
        """Whether one lane is all there is."""
        return len(self._lanes) == 1

    @property
    def at_rest(self) -> bool:
        """Whether no lane can move by itself.  (Without lanes, ADK is on its way to or from an agent.)"""
        for lane in self._lanes.values():
            if lane.state is not LaneState.GATED and lane.state is not LaneState.WAITING:
                return False
        return bool(self._lanes)

    @property
    def blocked(self) -> bool:
        """Whether every lane waits for the record of some call."""
        for lane in self._lanes.values():
            if lane.state is not LaneState.WAITING:
                return False
        return bool(self._lanes)

    def gated(self) -> list[Lane]:
        """The lanes that want to make a model call."""
        return [lane for lane in self._lanes.values() if lane.gate is not None]

    # ------------------------------------------------------------ calls and groups

    def note_calls(self, key: str, call_ids: Iterable[str]) -> None:
        """The response of a model call has these calls."""
        for call_id in call_ids:
            self._key_of_call[call_id] = key

    def knows(self, call_id: str) -> bool:
        """Whether a model response of this turn has a call of this id."""
        return call_id in self._key_of_call

    def open_group(self, lane_id: LaneId, call_ids: Sequence[str]) -> Group:
        """Begins the group of these calls.  Its key is that of the model call; with a number if that had another."""
        lane = self.lane(lane_id)
        base = next((self._key_of_call[i] for i in call_ids if i in self._key_of_call), None)
        if base is None:  # a callback made them up
            base = f"{lane.model_key or '|'.join(str(part) for part in lane_id)}|callback"
        count = self._groups_of_key[base] = self._groups_of_key.get(base, 0) + 1
        group = Group(base if count == 1 else f"{base}/{count}", lane)
        for call_id in call_ids:
            call = self._calls[call_id] = Call(call_id, group)
            group.calls[call_id] = call
        self._groups[group.key] = group
        return group

    def to_request(self, call_id: str, lane_id: LaneId) -> Call:
        """The call that is about to be requested.

        Raises:
            UsageError: it is requested already.
        """
        call = self._calls.get(call_id)
        if call is None:
            call = self.open_group(lane_id, [call_id]).calls[call_id]
        if call.request is not None:
            raise UsageError(
                f"two tool calls have the same id, {call_id!r}: a callback made one of them up; leave the id out"
            )
        return call

    def account(self, call_id: str) -> Group | None:
        """It is known what becomes of a call.  Returns its group if that is now known of all its calls."""
        call = self._calls.get(call_id)
        if call is None or call.accounted:
            return None
        call.accounted = True
        group = call.group
        if not group.accounted:
            return None
        if group.open_calls:
            self._unreported.append(group)
            group.lane.state = LaneState.WAITING
        else:
            del self._groups[group.key]
        return group

    def close_group(self, group: Group) -> None:
        """All calls of the group have their records."""
        del self._groups[group.key]
        group.lane.state = LaneState.RUNNING

    def group(self, key: str) -> Group | None:
        return self._groups.get(key)

    def waiting_groups(self) -> list[Group]:
        """The groups that wait for records, and of whose calls everything else is known."""
        return [group for group in self._groups.values() if group.accounted]

    def call(self, call_id: str) -> Call | None:
        return self._calls.get(call_id)

    def requested_call(self, call_id: str) -> Call | None:
        """A requested call whose group is complete."""
        call = self._calls.get(call_id)
        return call if call is not None and call.request is not None and call.group.accounted else None

    # ------------------------------------------------------------ what the engine is to be told

    @property
    def has_unreported_calls(self) -> bool:
        """Whether there are calls of complete groups that the engine was not told of."""
        return any(call.fresh for group in self._unreported for call in group.open_calls)

    def take_unreported_calls(self) -> tuple[CallRequest, ...]:
        """Those calls; from now on the engine knows of them.  The journal's own are left out."""
        groups, self._unreported = self._unreported, []
        return tuple(call.request for group in groups for call in group.open_calls if call.fresh and call.request)
