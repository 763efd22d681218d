"""Random writes of clients and of two workers against each store, compared with a model that fits in the head.

Invariants by their ids: J1 messages keep their order and begin once, J3 what is settled never changes, J5 the log has
each message once, J6 an interrupt is answered once, alone or with all others, J12 a question has one answer, J13 a leg
has a journal of its own; and: only the holder of the newest fence writes, a request counts
once, the event ring keeps to its budget and its order.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import initialize, invariant, precondition, rule
from tests.support.postgres import Server
from tests.support.store_machine import EITHER, StoreClients
from tests.support.store_model import RING, WORKERS, Session, Turn
from tests.support.stores import Backend, PostgresBackend
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
    question,
    record,
    step,
    worker,
    write,
)

from perdure.errors import (
    LeaseLost,
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
from perdure.session.runner import Answer as RunnerAnswer
from perdure.session.runner import QuestionWait
from perdure.session.state import CallPhase
from perdure.store.base import (
    CallPut,
    InboxKind,
    InterruptEnd,
    InterruptPut,
    Lease,
    LegBegin,
    LegEnd,
    QuestionEnd,
    QuestionPut,
    SessionPut,
    TurnBegin,
    TurnChange,
)
from perdure.store.sql.store import SqlStore


class StoreMachine(StoreClients):
    """What workers and owners do, past and present."""

    @initialize(which=EITHER, more=st.booleans())
    def begin_somewhere(self, which: int, more: bool) -> None:
        """A session with an open turn, and perhaps a queued message."""
        self.create("a", which, "one")
        for _ in range(1 + more):
            self.send("a", which, None, False)
        self.claim(which, 1)
        self._begin(self.leases[0], self.model["a"])

    # ------------------------------------------------------------ workers

    @rule(which=EITHER, limit=st.integers(1, 2))
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
            assert {one.interrupt_id for one in found.late} == {name for name, is_open in known.late.items() if is_open}
            if known.turn is not None:
                assert found.turn is not None
                assert found.turn.leg == known.turn.leg
                assert [call.request.call_id for call in found.calls] == known.turn.calls
                assert {call.request.call_id for call in found.calls if call.record} == set(known.turn.records)

    @rule(which=EITHER)
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

    @rule(which=EITHER)
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
        at_work = [lease for lease in self.leases if self._is_at_work(lease)]
        lease = data.draw(st.sampled_from([*at_work, *at_work, *self.leases]))
        return lease, self.model.get(lease.session_id)

    def _is_at_work(self, lease: Lease) -> bool:
        known = self.model.get(lease.session_id)
        return known is not None and (known.owner, known.fence) == (lease.worker_id, lease.fence)

    has_leases = precondition(lambda self: bool(self.leases))

    @has_leases
    @rule(data=st.data())
    def begin(self, data: st.DataObject) -> None:
        """J1: the oldest message begins, once."""
        lease, known = self.held(data)
        if known is None or known.turn is not None or not known.queue:
            return
        self._begin(lease, known)

    def _begin(self, lease: Lease, known: Session) -> None:
        turn_id, number = known.queue[0], len(known.begun) + 1
        if self.commit(lease, session=RUNNING, begin=TurnBegin(turn_id, number, NOW), turn_id=turn_id):
            known.queue.pop(0)
            known.status = SessionStatus.RUNNING
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
        interrupt_id = f"{turn.turn_id}:{call_id}:{turn.leg}"
        asked = CallPut(turn.turn_id, call_id, CallPhase.AWAITING, 0, "s", "a", interrupt_id, call_request(call_id))
        raised = InterruptPut(interrupt_id, turn.turn_id, call_id, InterruptKind.APPROVAL, NOW, NOW + 1000)
        if self.commit(lease, calls=(asked,), interrupts=(raised,)):
            turn.calls.append(call_id)
            known.interrupts[interrupt_id] = (InterruptStatus.PENDING, None)

    @has_leases
    @rule(data=st.data(), wait=st.sampled_from(QuestionWait))
    def ask_question(self, data: st.DataObject, wait: QuestionWait) -> None:
        lease, known = self.held(data)
        turn = known.turn if known else None
        if known is None or turn is None:
            return
        self.made += 1
        name, turn_id = f"p{self.made}", turn.turn_id
        interrupt_id = f"{turn_id}:{name}"
        asked = QuestionPut(interrupt_id, turn_id, f"{turn_id}/answer/{name}", question(name, wait))
        raised = InterruptPut(interrupt_id, turn_id, name, InterruptKind.INPUT, NOW, NOW + 1000)
        if self.commit(lease, questions=(asked,), interrupts=(raised,)):
            known.interrupts[interrupt_id] = (InterruptStatus.PENDING, None)
            known.waits[interrupt_id] = wait
            known.places[interrupt_id] = (turn_id, turn.leg, wait)
            if wait is QuestionWait.NEXT_TURN:
                known.late[interrupt_id] = True
            if wait is QuestionWait.LIVE:
                turn.questions[name] = None

    @has_leases
    @rule(data=st.data(), answered=st.booleans())
    def end_question(self, data: st.DataObject, answered: bool) -> None:
        """J12: the first end counts."""
        lease, known = self.held(data)
        turn = known.turn if known else None
        if known is None or turn is None or not known.waits:
            return
        interrupt_id = data.draw(st.sampled_from(sorted(known.waits)))
        name = interrupt_id.split(":")[1]
        self.made += 1
        wanted = answered and known.waits[interrupt_id] is not QuestionWait.NEXT_TURN
        given = RunnerAnswer(name, self.made, {"n": self.made}, None, NOW) if wanted else None
        if self.commit(lease, question_ends=(QuestionEnd(interrupt_id, given),)):
            if known.late.get(interrupt_id):
                known.late[interrupt_id] = False
            if turn.questions.get(name, -1) is None:
                turn.questions[name] = self.made if wanted else -1

    @has_leases
    @rule(data=st.data())
    def next_leg(self, data: st.DataObject) -> None:
        """J13"""
        lease, known = self.held(data)
        turn = known.turn if known else None
        if turn is None or not self.commit(lease, turn_id=turn.turn_id, leg_end=LegEnd(f'{{"leg":{turn.leg}}}')):
            return
        if self.commit(lease, turn_id=turn.turn_id, leg_begin=LegBegin(turn.leg + 1)):
            turn.leg += 1
            turn.earlier += turn.calls
            turn.calls, turn.records, turn.models, turn.questions = [], {}, {}, {}

    @has_leases
    @rule(data=st.data(), status=st.sampled_from([InterruptStatus.EXPIRED, InterruptStatus.WITHDRAWN]))
    def end_interrupt(self, data: st.DataObject, status: InterruptStatus) -> None:
        """J6: whoever is first"""
        lease, known = self.held(data)
        if known is None or not known.interrupts:
            return
        interrupt_id = data.draw(st.sampled_from(sorted(known.interrupts)))
        found = known.interrupts[interrupt_id][0]
        answered = found in (InterruptStatus.APPROVED, InterruptStatus.REJECTED, InterruptStatus.ANSWERED)
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
                known.rest(SessionStatus.WAITING)
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
            known.rest(SessionStatus.IDLE)

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
        assert {asked.question.question_id: asked.answer and asked.answer.sequence for asked in recorded.questions} == {
            name: sequence for name, sequence in known.turn.questions.items() if sequence != -1
        }
        earlier = self.run(store.read_earlier_calls(session_id, known.turn.turn_id))
        assert [call.request.call_id for call in earlier] == known.turn.earlier
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
