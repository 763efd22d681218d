"""What the stored history of a session must show, whatever its workers went through (docs/invariants.md)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from tests.support.troupe import World

from perdure import (
    AgentEvent,
    AgentEventType,
    AgentSessionClient,
    AgentSnapshot,
    Message,
    SessionStatus,
    StepName,
    StepRecord,
    StepStatus,
)
from perdure.session.model import PASSING_EVENTS

ENDED = frozenset({AgentEventType.TURN_COMPLETED, AgentEventType.TURN_FAILED, AgentEventType.TURN_CANCELLED})
CALLS = frozenset({StepName.CALL_TOOL, StepName.CALL_SINGLE_ATTEMPT_TOOL})
WAITS = frozenset({StepName.AWAIT_TOOL_APPROVAL, StepName.AWAIT_ANSWER})
DELTAS = PASSING_EVENTS


@dataclass(frozen=True)
class Stored:
    """All that is stored of one session."""

    snapshot: AgentSnapshot
    messages: Sequence[Message]
    steps: Sequence[StepRecord]
    events: Sequence[AgentEvent]

    @property
    def turn_ids(self) -> list[str]:
        """The turns that began, in order."""
        return list(dict.fromkeys(step.turn_id for step in self.steps if step.turn_id is not None))

    def shape(self) -> list[str]:
        return [f"{step.name.value} {step.status.value}" for step in self.steps]


async def read_stored(client: AgentSessionClient, session_id: str) -> Stored:
    store = client._store
    snapshot = await client.get_agent_snapshot(session_id)
    messages = (await client.list_messages(session_id, limit=1000)).items
    steps = (await client.read_step_history(session_id, limit=1000)).items
    events = (await store.read_events(session_id, None, 100_000)).events
    return Stored(snapshot, messages, steps, events)


def check_rules(stored: Stored, world: World) -> None:
    """Holds a session that is idle or closed against the rules; ``AssertionError`` names the one that it breaks."""
    assert stored.snapshot.status in (SessionStatus.IDLE, SessionStatus.CLOSED)
    _check_messages(stored)
    _check_steps(stored)
    _check_world(stored, world)
    check_events(stored.events)
    _check_events_tell_all(stored)


def _check_messages(stored: Stored) -> None:
    messages = stored.messages
    assert [message.index for message in messages] == list(range(len(messages))), "J5: no gap, nothing twice"
    turn_ids = [message.turn_id for message in messages]
    assert list(dict.fromkeys(turn_ids)) == stored.turn_ids, "J1: one turn after the other"
    for turn_id in stored.turn_ids:
        ordinals = [message.framework_item["ordinal"] for message in messages if message.turn_id == turn_id]
        assert ordinals == list(range(len(ordinals))), f"J5: {turn_id}"
        positions = [index for index, of in enumerate(turn_ids) if of == turn_id]
        assert positions == list(range(positions[0], positions[-1] + 1)), f"J1: {turn_id} is of one piece"


def _check_steps(stored: Stored) -> None:
    steps = stored.steps
    assert not [item for item, count in Counter(step.step_id for step in steps).items() if count > 1]
    pending = [step for step in steps if not step.status.settled and step.name is not StepName.AWAIT_ANSWER]
    closed = stored.snapshot.status is SessionStatus.CLOSED
    assert [step.name for step in pending] == ([] if closed else [StepName.AWAIT_USER_MESSAGE]), "J4"
    asked = [step for step in steps if not step.status.settled and step.name is StepName.AWAIT_ANSWER]
    late = stored.snapshot.pending_interrupts
    assert [step.tool_call_id for step in asked] == [one.tool_call_id for one in late], "J12"
    for step in steps:
        if step.name in CALLS:
            assert (step.result is not None) == (step.status is StepStatus.SUCCEEDED), "J3"


def _check_world(stored: Stored, world: World) -> None:
    session_id = stored.snapshot.session_id
    began = Counter(line.split()[2] for line in world.lines(f"begin {session_id} "))
    ended = Counter(line.split()[2] for line in world.lines(f"end {session_id} "))
    asked = Counter(line.split()[2] for line in world.lines(f"asked {session_id} "))
    for step in stored.steps:
        if step.name not in CALLS:
            continue
        call_id = step.tool_call_id or ""
        may_run = (1 if step.name is StepName.CALL_SINGLE_ATTEMPT_TOOL else 3) + asked[call_id]
        assert step.attempts <= may_run, f"J2: {call_id} has {step.attempts} attempts"
        assert began[call_id] <= step.attempts, f"J8: {call_id} ran without a stored attempt"
        if step.name is StepName.CALL_SINGLE_ATTEMPT_TOOL:
            assert began[call_id] <= 1 + asked[call_id], f"J2: {call_id} ran twice"
        if step.status is StepStatus.SUCCEEDED:
            assert ended[call_id] >= 1, f"{call_id} has a result that it never gave"
    known = {step.tool_call_id for step in stored.steps}
    assert set(began) <= known, "J8: a call ran that is not stored"
    used = Counter(line.split()[2] for line in world.lines(f"model {session_id} "))
    recorded = {key for step in stored.steps if step.name is StepName.RUN_MODEL for key in step.key.split()}
    assert recorded <= set(used), "J10: a record of a model call that nobody made"


def check_events(events: Sequence[AgentEvent]) -> None:
    """Cursors go up, and what has a beginning and an end has each once (J11)."""
    cursors = [event.cursor for event in events]
    assert cursors == sorted(set(cursors)), "cursors only go up"
    for kind in (ENDED, {AgentEventType.TURN_STARTED}):
        turns = [event.turn_id for event in events if event.type in kind]
        assert len(turns) == len(set(turns)), f"once per turn: {kind}"
    for type_, key in (
        (AgentEventType.TOOL_CALL_FINISHED, "tool_call_id"),
        (AgentEventType.INTERRUPT_REQUESTED, "interrupt_id"),
    ):
        of = [(event.turn_id, event.data[key]) for event in events if event.type is type_]
        assert len(of) == len(set(of)), f"once each: {type_}"
    indexes = [event.data["index"] for event in events if event.type is AgentEventType.MESSAGE]
    assert indexes == sorted(set(indexes)), "messages in order, each once"


def _check_events_tell_all(stored: Stored) -> None:
    """Nothing is stored of which the stream does not tell."""
    events = stored.events
    indexes = [event.data["index"] for event in events if event.type is AgentEventType.MESSAGE]
    assert indexes == [message.index for message in stored.messages]
    # A message that never began is told of as a cancelled turn with the number 0.
    assert [e.turn_id for e in events if e.type in ENDED and e.data["number"]] == stored.turn_ids
    finished = {event.data["tool_call_id"]: event.data["status"] for event in events if _is_end_of_call(event)}
    calls = [step for step in stored.steps if step.name in CALLS]
    assert finished == {step.tool_call_id: step.status.value for step in calls}
    asked = [e.data["interrupt_id"] for e in events if e.type is AgentEventType.INTERRUPT_REQUESTED]
    answered = [e.data["interrupt_id"] for e in events if e.type is AgentEventType.INTERRUPT_RESOLVED]
    open_ = [one.interrupt_id for one in stored.snapshot.pending_interrupts]
    assert sorted(asked) == sorted([*answered, *open_]), "J6: each question has one end"
    assert len(asked) == sum(step.name in WAITS for step in stored.steps)


def _is_end_of_call(event: AgentEvent) -> bool:
    return event.type is AgentEventType.TOOL_CALL_FINISHED and event.step_execution_id is not None
