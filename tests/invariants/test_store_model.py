"""Random writes of clients and of two workers against each store, compared with a model that fits in the head.

Invariants by their ids: J1 messages keep their order and begin once, J3 what is settled never changes, J5 the log has
each message once, J6 an interrupt is answered once; and: only the holder of the newest fence writes, a request counts
once, the event ring keeps to its budget and its order.
"""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Coroutine
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from tests.support.postgres import Server
from tests.support.stores import Backend, PostgresBackend, SqliteBackend
from tests.unit.store.builders import (
    FLOW,
    IDLE,
    LEASE_MS,
    NOW,
    RUNNING,
    WAITING,
    call_request,
    event,
    message,
    model_call,
    new_session,
    record,
    request,
    step,
    text_message,
    worker,
    write,
)

from perdure.errors import (
    InterruptAlreadyResolved,
    InterruptExpired,
    InterruptWithdrawn,
    LeaseLost,
    PerdureError,
    RequestConflict,
    SessionAlreadyExists,
    SessionNotFound,
)
from perdure.session.events import cursor_for
from perdure.session.model import (
    InterruptKind,
    InterruptStatus,
    RecordStatus,
    SessionStatus,
    StepStatus,
    TurnStatus,
)
from perdure.session.state import CallPhase
from perdure.store.base import (
    Answer,
    CallPut,
    InboxKind,
    InterruptEnd,
    InterruptPut,
    Lease,
    SessionPut,
    TurnBegin,
    TurnChange,
)
from perdure.store.sql.store import SqlStore

SESSIONS = ("a", "b")
WORKERS = ("w0", "w1")
RING = 2000
T = TypeVar("T")


@dataclass
class Turn:
    turn_id: str
    status: TurnStatus = TurnStatus.RUNNING
    first: int = 0
    texts: list[str] = field(default_factory=list[str])
    records: dict[str, tuple[RecordStatus, int]] = field(default_factory=dict[str, tuple[RecordStatus, int]])
    calls: list[str] = field(default_factory=list[str])
    models: dict[str, int] = field(default_factory=dict[str, int])


@dataclass
class Session:
    """What a session must look like."""

    fingerprint: str
    owner: str | None = None
    fence: int | None = None
    queue: list[str] = field(default_factory=list[str])
    begun: list[str] = field(default_factory=list[str])
    turn: Turn | None = None
    log: list[str] = field(default_factory=list[str])
    steps: dict[str, StepStatus] = field(default_factory=dict[str, StepStatus])
    interrupts: dict[str, tuple[InterruptStatus, Answer | None]] = field(
        default_factory=dict[str, tuple[InterruptStatus, "Answer | None"]]
    )
    answers: int = 0
    requests: dict[str, tuple[str, str]] = field(default_factory=dict[str, tuple[str, str]])
    events: list[str] = field(default_factory=list[str])

    @property
    def due(self) -> bool:
        if self.owner is not None:
            return False
        if self.turn is not None and self.turn.status is TurnStatus.WAITING:
            return self.answers > 0  # a message cannot begin before the turn ends
        return bool(self.queue) or self.answers > 0 or self.turn is not None

    @property
    def status(self) -> SessionStatus:
        if self.turn is None:
            return SessionStatus.RUNNING if self.queue else SessionStatus.IDLE
        return SessionStatus.WAITING if self.turn.status is TurnStatus.WAITING else SessionStatus.RUNNING


class StoreMachine(RuleBasedStateMachine):
    """Two stores on one place, as two processes would have them, and the model."""

    def __init__(self) -> None:
        super().__init__()
        self.runner = asyncio.Runner()
        self.directory = tempfile.TemporaryDirectory()
        self.backend = self.new_backend(Path(self.directory.name))
        self.stores = [self.backend.new_store() for _ in WORKERS]
        for store, worker_id in zip(self.stores, WORKERS, strict=True):
            self.run(store.open())
            self.run(store.register_worker(worker(worker_id), NOW))
        self.model: dict[str, Session] = {}
        self.leases: list[Lease] = []
        self.made = 0
        self.numbers: dict[tuple[str, int], int] = {}

    def new_backend(self, folder: Path) -> Backend:
        return SqliteBackend(folder / "x.db", folder / "run")

    def teardown(self) -> None:
        for store in self.stores:
            self.run(store.close())
        self.runner.close()
        self.directory.cleanup()

    def run(self, what: Coroutine[Any, Any, T]) -> T:
        return self.runner.run(what)

    def refused(self, error: type[PerdureError], what: Coroutine[Any, Any, object]) -> None:
        with pytest.raises(error):
            self.run(what)

    # ------------------------------------------------------------ clients

    sessions = st.sampled_from(SESSIONS)
    either = st.integers(0, 1)

    @rule(session_id=sessions, which=either, fingerprint=st.sampled_from(["one", "two"]))
    def create(self, session_id: str, which: int, fingerprint: str) -> None:
        new = new_session(session_id, event_capacity_bytes=RING)
        creation = self.stores[which].create_session(new, None, request(None, fingerprint), NOW)
        known = self.model.get(session_id)
        if known is not None and known.fingerprint != fingerprint:
            self.refused(SessionAlreadyExists, creation)
            return
        self.run(creation)
        if known is None:
            self.model[session_id] = Session(fingerprint, steps={"await/1": StepStatus.PENDING})

    @rule(session_id=sessions, which=either, request_id=st.sampled_from([None, "r1", "r2"]), other=st.booleans())
    def send(self, session_id: str, which: int, request_id: str | None, other: bool) -> None:
        self.made += 1
        turn_id = f"t{self.made}"
        fingerprint = f"other-{self.made}" if other else "same"
        sending = self.stores[which].accept_message(
            session_id, turn_id, text_message(turn_id), request(request_id, fingerprint), NOW
        )
        known = self.model.get(session_id)
        if known is None:
            self.refused(SessionNotFound, sending)
            return
        earlier = known.requests.get(request_id or "")
        if earlier is not None and earlier[0] != fingerprint:
            self.refused(RequestConflict, sending)
            return
        returned = self.run(sending)
        if earlier is not None:
            assert returned == earlier[1]
            return
        assert returned == turn_id
        known.queue.append(turn_id)
        if request_id is not None:
            known.requests[request_id] = (fingerprint, turn_id)

    @rule(session_id=sessions, which=either, data=st.data(), yes=st.booleans(), late=st.booleans())
    def answer(self, session_id: str, which: int, data: st.DataObject, yes: bool, late: bool) -> None:
        known = self.model.get(session_id)
        if known is None or not known.interrupts:
            return
        interrupt_id = data.draw(st.sampled_from(sorted(known.interrupts)))
        given = Answer(yes, payload={"n": 1}, resolved_by=f"w{which}")
        at = NOW + 1000 if late else NOW
        answering = self.stores[which].answer_interrupt(session_id, interrupt_id, given, request(), at)
        status, first = known.interrupts[interrupt_id]
        if status is InterruptStatus.PENDING and late:
            self.refused(InterruptExpired, answering)
        elif status is InterruptStatus.PENDING:
            self.run(answering)
            settled = InterruptStatus.APPROVED if yes else InterruptStatus.REJECTED
            known.interrupts[interrupt_id] = (settled, given)
            known.answers += 1
        elif status is InterruptStatus.EXPIRED:
            self.refused(InterruptExpired, answering)
        elif status is InterruptStatus.WITHDRAWN:
            self.refused(InterruptWithdrawn, answering)
        elif first is not None and first.approved == yes:
            assert self.run(answering).resolved_by == first.resolved_by
        else:
            self.refused(InterruptAlreadyResolved, answering)

    @rule(session_id=sessions, which=either)
    def delete(self, session_id: str, which: int) -> None:
        deleting = self.stores[which].delete_session(session_id)
        if self.model.pop(session_id, None) is None:
            self.refused(SessionNotFound, deleting)
        else:
            self.run(deleting)

    # ------------------------------------------------------------ workers

    @rule(which=either, limit=st.integers(1, 2))
    def claim(self, which: int, limit: int) -> None:
        due = {session_id for session_id, known in self.model.items() if known.due}
        claimed = self.run(self.stores[which].claim(WORKERS[which], [FLOW], limit, NOW))
        assert len(claimed) == min(limit, len(due))
        for found in claimed:
            session_id = found.lease.session_id
            known = self.model[session_id]
            assert session_id in due
            assert known.fence is None or found.lease.fence > known.fence
            assert all(found.lease.fence > old.fence for old in self.leases if old.session_id == session_id)
            known.owner, known.fence = WORKERS[which], found.lease.fence
            self.leases.append(found.lease)
            messages = [item.turn_id for item in found.inbox if item.kind is InboxKind.MESSAGE]
            assert messages == known.queue
            assert (found.turn.turn_id if found.turn else None) == (known.turn.turn_id if known.turn else None)
            assert found.message_count == len(known.log)
            if known.turn is not None:
                assert [call.request.call_id for call in found.calls] == known.turn.calls
                assert {call.request.call_id for call in found.calls if call.record} == set(known.turn.records)

    @rule(which=either)
    def die_and_come_back(self, which: int) -> None:
        """The system lets go of the lock; the other worker notices; then the process starts again."""
        self.run(self.backend.die(self.stores[which]))
        assert self.run(self.stores[1 - which].reap_workers(NOW)) == 1
        for known in self.model.values():
            if known.owner == WORKERS[which]:
                known.owner = None
        self.refused(LeaseLost, self.stores[which].renew_worker(WORKERS[which], NOW))
        self.run(self.stores[which].close())
        self.stores[which] = self.backend.new_store()
        self.run(self.stores[which].open())
        self.run(self.stores[which].register_worker(worker(WORKERS[which]), NOW))

    @rule(which=either)
    def stall(self, which: int) -> None:
        """A worker does not renew its lease, but holds its lock."""
        self.run(self.stores[1 - which].renew_worker(WORKERS[1 - which], NOW))
        assert self.run(self.stores[1 - which].reap_workers(NOW + LEASE_MS)) == 1
        for known in self.model.values():
            if known.owner == WORKERS[which]:
                known.owner = None
        self.run(self.stores[which].register_worker(worker(WORKERS[which]), NOW))

    # ------------------------------------------------------------ owners, past and present

    def commit(self, lease: Lease, **parts: Any) -> Session | None:
        """Writes under a lease; the session if the lease held, ``None`` if the write was rightly refused."""
        store = self.stores[WORKERS.index(lease.worker_id)]
        number = self.numbers.get((lease.session_id, lease.fence), 0) + 1
        self.numbers[lease.session_id, lease.fence] = number
        writing = store.commit(lease, write(events=(event(number),), **parts), NOW)
        known = self.model.get(lease.session_id)
        if known is None or (known.owner, known.fence) != (lease.worker_id, lease.fence):
            self.refused(LeaseLost, writing)
            return None
        self.run(writing)
        known.events.append(cursor_for(lease.fence, number))
        return known

    def held(self, data: st.DataObject) -> tuple[Lease, Session | None]:
        """Some lease, and its session as its holder believes it to be (it may be wrong about it)."""
        lease = data.draw(st.sampled_from(self.leases))
        return lease, self.model.get(lease.session_id)

    has_leases = precondition(lambda self: bool(self.leases))

    @has_leases
    @rule(data=st.data())
    def begin(self, data: st.DataObject) -> None:
        """J1: the oldest message begins, once."""
        lease, known = self.held(data)
        if known is None or known.turn is not None or not known.queue:
            return
        turn_id, number = known.queue[0], len(known.begun) + 1
        if self.commit(lease, session=RUNNING, begin=TurnBegin(turn_id, number, NOW), turn_id=turn_id):
            known.queue.pop(0)
            known.begun.append(turn_id)
            known.turn = Turn(turn_id, first=len(known.log))

    @has_leases
    @rule(data=st.data(), again=st.integers(0, 2), new=st.integers(0, 2))
    def log(self, data: st.DataObject, again: int, new: int) -> None:
        """J5: messages come again under their ordinals and are not stored twice."""
        lease, known = self.held(data)
        turn = known.turn if known else None
        if known is None or turn is None:
            return
        stored = len(turn.texts)
        ordinals = range(max(0, stored - again), stored + new)
        texts = [f"{turn.turn_id}.{n}" if n >= stored else "changed" for n in ordinals]
        batch = tuple(message(n, text) for n, text in zip(ordinals, texts, strict=True))
        if self.commit(lease, turn_id=turn.turn_id, messages=batch):
            fresh = [text for n, text in zip(ordinals, texts, strict=True) if n >= stored]
            turn.texts += fresh
            known.log += fresh

    @has_leases
    @rule(data=st.data(), name=st.sampled_from(["x", "y"]), status=st.sampled_from(list(StepStatus)))
    def put_step(self, data: st.DataObject, name: str, status: StepStatus) -> None:
        """J3"""
        lease, _ = self.held(data)
        known = self.commit(lease, steps=(step(name, status),))
        if known and not known.steps.get(name, StepStatus.PENDING).settled:
            known.steps[name] = status

    @has_leases
    @rule(data=st.data(), call_id=st.sampled_from(["c1", "c2"]), status=st.sampled_from(list(RecordStatus)))
    def put_record(self, data: st.DataObject, call_id: str, status: RecordStatus) -> None:
        """J3"""
        lease, known = self.held(data)
        turn = known.turn if known else None
        if turn is None:
            return
        self.made += 1
        parts = {
            "calls": (CallPut(turn.turn_id, call_id, CallPhase.DUE, 0, "s", request=call_request(call_id)),),
            "records": (record(call_id, turn_id=turn.turn_id, status=status, sequence=self.made),),
            "model_calls": (model_call(call_id, self.made),),
            "turn_id": turn.turn_id,
        }
        if self.commit(lease, **parts):
            if call_id not in turn.calls:
                turn.calls.append(call_id)
            turn.records.setdefault(call_id, (status, self.made))
            turn.models.setdefault(call_id, self.made)

    @has_leases
    @rule(data=st.data(), call_id=st.sampled_from(["q1", "q2"]))
    def ask(self, data: st.DataObject, call_id: str) -> None:
        lease, known = self.held(data)
        turn = known.turn if known else None
        if known is None or turn is None or call_id in turn.calls:
            return
        interrupt_id = f"{turn.turn_id}:{call_id}"
        asked = CallPut(turn.turn_id, call_id, CallPhase.AWAITING, 0, "s", "a", interrupt_id, call_request(call_id))
        raised = InterruptPut(interrupt_id, turn.turn_id, call_id, InterruptKind.APPROVAL, NOW, NOW + 1000)
        if self.commit(lease, calls=(asked,), interrupts=(raised,)):
            turn.calls.append(call_id)
            known.interrupts[interrupt_id] = (InterruptStatus.PENDING, None)

    @has_leases
    @rule(data=st.data(), status=st.sampled_from([InterruptStatus.EXPIRED, InterruptStatus.WITHDRAWN]))
    def end_interrupt(self, data: st.DataObject, status: InterruptStatus) -> None:
        """J6: whoever is first"""
        lease, known = self.held(data)
        if known is None or not known.interrupts:
            return
        interrupt_id = data.draw(st.sampled_from(sorted(known.interrupts)))
        found = known.interrupts[interrupt_id][0]
        answered = found in (InterruptStatus.APPROVED, InterruptStatus.REJECTED)
        if answered and status is InterruptStatus.EXPIRED:
            return  # refused; the model of a write knows no such thing
        if (
            self.commit(lease, interrupt_ends=(InterruptEnd(interrupt_id, status),))
            and found is InterruptStatus.PENDING
        ):
            known.interrupts[interrupt_id] = (status, None)

    @has_leases
    @rule(data=st.data(), suspend=st.booleans())
    def release(self, data: st.DataObject, suspend: bool) -> None:
        lease, known = self.held(data)
        turn = known.turn if known else None
        store = self.stores[WORKERS.index(lease.worker_id)]
        try:
            inbox = self.run(store.read_inbox(lease))
        except LeaseLost:
            inbox = ()
        answers = tuple(item.position for item in inbox if item.kind is InboxKind.ANSWER)
        parts: dict[str, Any] = {"release": True, "consumed": answers}
        if suspend and turn is not None:
            parts |= {"session": WAITING, "turn": TurnChange(turn.turn_id, TurnStatus.WAITING)}
        if self.commit(lease, **parts) and known is not None:
            known.owner, known.answers = None, 0
            if suspend and turn is not None:
                turn.status = TurnStatus.WAITING

    @has_leases
    @rule(data=st.data())
    def end(self, data: st.DataObject) -> None:
        lease, known = self.held(data)
        turn = known.turn if known else None
        if known is None or turn is None:
            return
        change = TurnChange(turn.turn_id, TurnStatus.COMPLETED, NOW)
        if self.commit(lease, session=SessionPut(IDLE.status, await_step_id="await/9"), turn=change):
            known.turn = None

    # ------------------------------------------------------------ what must always hold

    @invariant()
    def all_is_as_the_model_says(self) -> None:
        for session_id, known in self.model.items():
            store = self.stores[self.made % 2]
            snapshot = self.run(store.read_snapshot(session_id, NOW))
            assert (snapshot.status, snapshot.queued_messages) == (known.status, len(known.queue))
            assert [one.interrupt_id for one in snapshot.pending_interrupts] == [
                name for name, (status, _) in known.interrupts.items() if status is InterruptStatus.PENDING
            ]
            log = self.run(store.list_messages(session_id, None, 1000)).items
            assert [one.text for one in log] == known.log
            assert [one.index for one in log] == list(range(len(known.log)))
            steps = self.run(store.read_steps(session_id, None, 1000)).items
            assert {one.step_id: one.status for one in steps} == known.steps
            self._turn_is_as_the_model_says(store, session_id, known)
            self._ring_is_as_the_model_says(store, session_id, known)

    def _turn_is_as_the_model_says(self, store: SqlStore, session_id: str, known: Session) -> None:
        if known.turn is None:
            return
        recorded = self.run(store.read_recorded_turn(session_id, known.turn.turn_id))
        assert recorded.stored_messages == len(known.turn.texts)
        assert {call.key: call.sequence for call in recorded.model_calls} == known.turn.models
        assert [call.request.call_id for call in recorded.calls] == known.turn.calls
        assert {
            call.request.call_id: (call.record.status, call.record.sequence) for call in recorded.calls if call.record
        } == known.turn.records

    def _ring_is_as_the_model_says(self, store: SqlStore, session_id: str, known: Session) -> None:
        kept = self.run(store.read_events(session_id, None, 1000)).events
        cursors = [shown.cursor for shown in kept]
        assert cursors == sorted(cursors)
        assert cursors == known.events[len(known.events) - len(cursors) :]
        assert sum(len(shown.model_dump_json()) for shown in kept) <= RING
        if known.events:
            assert cursors, "the newest event fits, so it is kept"


class PostgresMachine(StoreMachine):
    """The same on PostgreSQL."""

    server: Server

    def new_backend(self, folder: Path) -> Backend:
        return PostgresBackend(self.server, self.server.empty_schema())


@pytest.fixture(autouse=True, scope="module")
def _server(postgres: Server) -> None:
    PostgresMachine.server = postgres


def _settings(examples: int) -> settings:
    health = [HealthCheck.too_slow, HealthCheck.filter_too_much, HealthCheck.data_too_large]
    return settings(max_examples=examples, stateful_step_count=40, deadline=None, suppress_health_check=health)


TestSqliteStoreAgainstItsModel = StoreMachine.TestCase
TestSqliteStoreAgainstItsModel.settings = _settings(30)

TestPostgresStoreAgainstItsModel = PostgresMachine.TestCase
TestPostgresStoreAgainstItsModel.settings = _settings(10)
