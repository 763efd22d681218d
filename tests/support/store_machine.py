"""A hypothesis machine over two stores on one place, as two processes would have them: what clients write."""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Coroutine
from pathlib import Path
from typing import Any

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, rule
from tests.support.store_model import RING, SESSIONS, WORKERS, Session, T
from tests.support.stores import Backend, SqliteBackend
from tests.unit.store.builders import (
    NOW,
    new_session,
    request,
    text_message,
    worker,
)

from perdure.errors import (
    InterruptAlreadyResolved,
    InterruptExpired,
    InterruptWithdrawn,
    PerdureError,
    RequestConflict,
    SessionAlreadyExists,
    SessionNotFound,
    UsageError,
)
from perdure.session.model import (
    InterruptStatus,
    StepStatus,
)
from perdure.session.runner import QuestionWait
from perdure.store.base import (
    Answer,
    GivenAnswer,
    Lease,
    Reply,
)

ANY_SESSION = st.sampled_from(SESSIONS)
EITHER = st.integers(0, 1)
"""Which of the two stores."""


class StoreClients(RuleBasedStateMachine):
    """Two stores on one place, the model, and what clients do to both."""

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
        """An empty place; in the folder, if it needs one."""
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

    @rule(session_id=ANY_SESSION, which=EITHER, fingerprint=st.sampled_from(["one", "two"]))
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

    @rule(session_id=ANY_SESSION, which=EITHER, request_id=st.sampled_from([None, "r1", "r2"]), other=st.booleans())
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
        known.take(message=True)
        if request_id is not None:
            known.requests[request_id] = (fingerprint, turn_id)

    @rule(session_id=ANY_SESSION, which=EITHER, data=st.data(), yes=st.booleans(), late=st.booleans())
    def answer(self, session_id: str, which: int, data: st.DataObject, yes: bool, late: bool) -> None:
        known = self.model.get(session_id)
        if known is None or not known.interrupts:
            return
        interrupt_id = data.draw(st.sampled_from(sorted(known.interrupts)))
        given = Answer(yes, payload={"n": 1}, resolved_by=f"w{which}")
        at = NOW + 1000 if late else NOW
        answering = self.stores[which].answer_interrupt(session_id, interrupt_id, given, request(), at)
        status, first = known.interrupts[interrupt_id]
        if interrupt_id in known.waits:
            self.refused(UsageError if status is InterruptStatus.PENDING else PerdureError, answering)
        elif status is InterruptStatus.PENDING and late:
            self.refused(InterruptExpired, answering)
        elif status is InterruptStatus.PENDING:
            self.run(answering)
            settled = InterruptStatus.APPROVED if yes else InterruptStatus.REJECTED
            known.interrupts[interrupt_id] = (settled, given)
            known.take()
        elif status is InterruptStatus.EXPIRED:
            self.refused(InterruptExpired, answering)
        elif status is InterruptStatus.WITHDRAWN:
            self.refused(InterruptWithdrawn, answering)
        elif isinstance(first, Answer) and first.approved == yes:
            assert self.run(answering).resolved_by == first.resolved_by
        else:
            self.refused(InterruptAlreadyResolved, answering)

    @rule(session_id=ANY_SESSION, which=EITHER, data=st.data(), value=st.integers(0, 1))
    def answer_question(self, session_id: str, which: int, data: st.DataObject, value: int) -> None:
        """J12; and J1: a late answer is a message."""
        known = self.model.get(session_id)
        if known is None or not known.waits:
            return
        interrupt_id = data.draw(st.sampled_from(sorted(known.waits)))
        self.made += 1
        turn_id, given = f"t{self.made}", Reply({"n": value}, f"w{which}")
        answering = self.stores[which].answer_interrupt(
            session_id, interrupt_id, given, request(), NOW, turn_id=turn_id
        )
        status, first = known.interrupts[interrupt_id]
        if status is InterruptStatus.PENDING:
            self.run(answering)
            self._answered(known, {interrupt_id: given}, turn_id)
        elif isinstance(first, Reply) and first.value == given.value:
            assert self.run(answering).resolved_by == first.resolved_by
        else:
            self.refused(PerdureError, answering)

    @rule(session_id=ANY_SESSION, which=EITHER, missing=st.booleans())
    def answer_everything(self, session_id: str, which: int, missing: bool) -> None:
        """J6: all or nothing."""
        known = self.model.get(session_id)
        if known is None:
            return
        pending = [name for name, (status, _) in known.interrupts.items() if status is InterruptStatus.PENDING]
        given: dict[str, GivenAnswer] = {
            name: Reply({"all": 1}) if name in known.waits else Answer(True, payload={"n": 1})
            for name in pending[int(missing) :]
        }
        if not given:
            return
        self.made += 1
        turn_id = f"t{self.made}"
        answering = self.stores[which].answer_interrupts(session_id, given, request(), NOW, turn_id=turn_id)
        if missing:
            self.refused(UsageError, answering)
        else:
            self.run(answering)
            self._answered(known, given, turn_id)

    def _answered(self, known: Session, given: dict[str, GivenAnswer], turn_id: str) -> None:
        """What accepted answers change."""
        for name, answer in given.items():
            status = InterruptStatus.APPROVED if isinstance(answer, Answer) else InterruptStatus.ANSWERED
            known.interrupts[name] = (status, answer)
        for name in given:
            if known.waits.get(name) is not QuestionWait.NEXT_TURN:
                known.take(more_needed=known.needs_more(name))
        if any(known.waits.get(name) is QuestionWait.NEXT_TURN for name in given):
            known.queue.append(turn_id)
            known.take(message=True)

    @rule(session_id=ANY_SESSION, which=EITHER)
    def delete(self, session_id: str, which: int) -> None:
        deleting = self.stores[which].delete_session(session_id)
        if self.model.pop(session_id, None) is None:
            self.refused(SessionNotFound, deleting)
        else:
            self.run(deleting)
