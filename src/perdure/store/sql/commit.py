"""The owner's write, applied: all that one step of a session's loop stores, whole or not at all.

The lease is checked first, in the same transaction.  Counters of the session's row are read once, moved on in memory
and written once at the end.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any

from perdure.clock import to_datetime
from perdure.errors import Conflict, InterruptAlreadyResolved, LeaseLost, TurnNotFound, UsageError
from perdure.session.model import InterruptStatus, SessionStatus, Usage
from perdure.store.base import InterruptEnd, Lease, SessionPut, SessionWrite, TurnBegin
from perdure.store.codec import ending_to_json, error_to_json
from perdure.store.sql.connection import Connection
from perdure.store.sql.events import Ring, append
from perdure.store.sql.prepare import PreparedMessage, PreparedWrite
from perdure.store.sql.state import apply_delta, shared_state_text
from perdure.store.sql.transaction import Transaction, Write


def lease_lost(lease: Lease) -> LeaseLost:
    return LeaseLost(
        f"session {lease.session_id!r} is no longer owned by worker {lease.worker_id} (fence {lease.fence}); the write "
        "was refused, and whoever owns the session goes on from what is stored",
        session_id=lease.session_id,
    )


def check_lease(connection: Connection, lease: Lease) -> int:
    """The key of an owned session.

    Raises:
        LeaseLost: another worker owns it, or nobody.
    """
    row = connection.execute("lease_key", (lease.session_id, lease.worker_id, lease.fence)).fetchone()
    if row is None:
        raise lease_lost(lease)
    key: int = row[0]
    return key


@dataclass(slots=True)
class _Session:
    """The row of ``owned_session``; changed as the write is applied."""

    key: int
    app_name: str
    user_id: str
    status: str
    closed: int
    blocked: str | None
    await_step_id: str | None
    definition: str | None
    open_turn_key: int | None
    open_turn_id: str | None
    turn_number: int | None
    leg: int | None
    first_message: int | None
    turn_count: int
    message_count: int
    step_count: int
    input_tokens: int
    output_tokens: int
    model_calls: int
    lost: int


def commit(lease: Lease, prepared: PreparedWrite, now_ms: int) -> Write[None]:
    """The write of an owner; its ``kinds`` are its durable writes."""

    def write(transaction: Transaction) -> None:
        row = transaction.execute("owned_session", (lease.session_id, lease.worker_id, lease.fence)).fetchone()
        if row is None:
            raise lease_lost(lease)
        transaction.starts(*prepared.write.kinds)
        _Application(transaction, lease, prepared, now_ms, row).run()

    return write


class _Application:
    """One write being applied."""

    def __init__(
        self, transaction: Transaction, lease: Lease, prepared: PreparedWrite, now_ms: int, row: tuple[Any, ...]
    ) -> None:
        self.transaction = transaction
        self.lease = lease
        self.prepared = prepared
        self.write: SessionWrite = prepared.write
        self.now_ms = now_ms
        facts = len(fields(_Session))
        self.session = _Session(*row[:facts])
        self.ring = Ring(*row[facts:])
        self.turn_keys: dict[str, int] = {}
        if self.session.open_turn_id is not None and self.session.open_turn_key is not None:
            self.turn_keys[self.session.open_turn_id] = self.session.open_turn_key
        self.first_step = self.session.step_count
        self.row_changed = False

    def run(self) -> None:
        write, session = self.write, self.session
        before = self._counters()
        # A turn may end and the next one begin in one write; what is about the one that ends comes first.
        begins_first = session.open_turn_key is None
        if write.begin is not None and begins_first:
            self._begin(write.begin)
        self._put_steps()
        self._put_turn_parts()
        self._put_messages()
        self._change_leg()
        self._change_turn()
        if write.begin is not None and not begins_first:
            self._begin(write.begin)
        self._empty_inbox()
        if self.prepared.events:
            append(self.transaction, session.key, self.lease.fence, self.ring, self.prepared.events)
        if write.usage is not None:
            self._add_usage(write.usage)
        if write.session is not None or self.row_changed:
            self._put_session(write.session)
        elif self._counters() != before:
            self.transaction.execute("session_count", (*self._counters(), session.key))
        if write.release:
            self._release()
        elif session.lost and any(step.status.settled for step in write.steps):
            self.transaction.execute("session_not_lost", (session.key,))
        self.transaction.changed((self.lease.session_id,), work=False)

    # ------------------------------------------------------------ turns

    def _turn_key(self, turn_id: str) -> int:
        try:
            return self.turn_keys[turn_id]
        except KeyError:
            raise TurnNotFound(
                f"turn {turn_id!r} of session {self.lease.session_id!r} is not open",
                session_id=self.lease.session_id,
                turn_id=turn_id,
            ) from None

    def _begin(self, begin: TurnBegin) -> None:
        session = self.session
        if session.open_turn_key is not None:
            raise UsageError(
                f"turn {begin.turn_id!r} of session {self.lease.session_id!r} cannot begin: turn "
                f"{session.open_turn_id!r} is open"
            )
        shared = shared_state_text(self.transaction.connection, session.app_name, session.user_id)
        facts = (session.key, begin.turn_id, begin.number, begin.started_at_ms, session.message_count, self.first_step)
        begun = self.transaction.execute("turn_begin", (*facts, shared)).fetchone()
        if begun is None:
            raise TurnNotFound(
                f"turn {begin.turn_id!r} of session {self.lease.session_id!r} cannot begin: no message of it waits",
                session_id=self.lease.session_id,
                turn_id=begin.turn_id,
            )
        self.transaction.execute("inbox_take_message", (session.key, begin.turn_id))
        self.turn_keys[begin.turn_id] = session.open_turn_key = begun[0]
        session.open_turn_id, session.turn_number, session.leg = begin.turn_id, begin.number, 1
        session.turn_count, session.first_message = begin.number, session.message_count
        self.row_changed = True

    def _change_turn(self) -> None:
        change = self.write.turn
        if change is None:
            return
        key = self._turn_key(change.turn_id)
        facts = (change.status.value, change.ended_at_ms, error_to_json(change.error), key)
        self.transaction.execute("turn_change", facts)
        if change.status.ended and key == self.session.open_turn_key:
            self.session.open_turn_key = None
        self.row_changed = True

    def _change_leg(self) -> None:
        """Behind all that belongs to the leg that ends."""
        write, session = self.write, self.session
        if write.leg_end is not None:
            key, carry = self._turn_key(write.turn_id or ""), self.transaction.keep(session.key, self.prepared.carry)
            self.transaction.execute("leg_end", (key, (session.leg or 0) + 1, session.message_count, carry))
        if write.leg_begin is not None:
            key = self._turn_key(write.turn_id or "")
            shared = shared_state_text(self.transaction.connection, session.app_name, session.user_id)
            self.transaction.execute("leg_begin", (session.message_count, shared, key, write.leg_begin.leg))
            self.transaction.execute("turn_leg", (write.leg_begin.leg, key))

    def _put_turn_parts(self) -> None:
        write = self.write
        if write.ending is not None and write.turn_id is not None:
            self.transaction.execute("turn_announce", (ending_to_json(write.ending), self._turn_key(write.turn_id)))
        if write.calls:
            self._put_calls()
        if write.records:
            self._put_records()
        if write.model_calls:
            self._put_model_calls()
        if write.usage is not None and write.turn_id is not None:
            usage = (write.usage.input_tokens, write.usage.output_tokens, write.usage.model_calls)
            self.transaction.execute("turn_add_usage", (*usage, self._turn_key(write.turn_id)))
        self._put_interrupts()
        for end in write.interrupt_ends:
            self._end_interrupt(end)
        self._end_questions()

    def _put_interrupts(self) -> None:
        session, execute, keep = self.session, self.transaction.execute, self.transaction.keep
        for put, shown in zip(self.write.interrupts, self.prepared.shown, strict=True):
            facts = (session.key, put.interrupt_id, self._turn_key(put.turn_id), session.leg, put.call_id)
            times = (put.created_at_ms, put.deadline_ms)
            execute("interrupt_insert", (*facts, put.kind.value, *times, keep(session.key, shown)))
        for asked, request in zip(self.write.questions, self.prepared.questions, strict=True):
            names = (session.key, asked.interrupt_id, self._turn_key(asked.turn_id), session.leg, asked.step_id)
            question = asked.question
            stored = keep(session.key, request)
            execute("question_insert", (*names, question.wait.value, question.group, question.tool_name, stored))

    def _end_questions(self) -> None:
        session_key = self.session.key
        for end, value in zip(self.write.question_ends, self.prepared.answers, strict=True):
            answer = end.answer
            head: tuple[int | None, int | None, str | None] = (None, None, None)
            if answer is not None:
                head = (answer.sequence, answer.settled_at_ms, error_to_json(answer.error))
            stored = self.transaction.keep(session_key, value)
            self.transaction.execute("question_end", (*head, stored, session_key, end.interrupt_id))

    def _end_interrupt(self, end: InterruptEnd) -> None:
        """Expires or withdraws an interrupt.  The answer of a person who was first counts: it must not expire (J6)."""
        key = self.session.key
        if end.status is InterruptStatus.EXPIRED:
            self._refuse_if_answered(key, end)
        self.transaction.execute("interrupt_end", (end.status.value, self.now_ms, key, end.interrupt_id))

    def _refuse_if_answered(self, key: int, end: InterruptEnd) -> None:
        answer = self.transaction.execute("interrupt_answer_of", (key, end.interrupt_id)).fetchone()
        if answer is not None:
            resolved_by, resolved_at_ms = answer
            raise InterruptAlreadyResolved(
                f"interrupt {end.interrupt_id!r} of session {self.lease.session_id!r} was answered before it expired; "
                "nothing was written: read the inbox, and go on with the answer",
                session_id=self.lease.session_id,
                interrupt_id=end.interrupt_id,
                resolved_by=resolved_by,
                resolved_at=to_datetime(resolved_at_ms).isoformat(),
            )

    # ------------------------------------------------------------ parts of a turn

    def _put_steps(self) -> None:
        rows = self.prepared.steps
        if rows:
            session = self.session
            first = session.step_count
            self.transaction.executemany("step_put", [(session.key, first + i, *row) for i, row in enumerate(rows)])
            session.step_count += len(rows)

    def _put_calls(self) -> None:
        transaction, session = self.transaction, self.session
        for put, request, asked in zip(self.write.calls, self.prepared.requests, self.prepared.asked, strict=True):
            key = (self._turn_key(put.turn_id), session.leg, put.call_id)
            outcome = transaction.keep(session.key, asked)
            state = (put.phase.value, put.attempts, put.asks, outcome, put.approval_step_id, put.interrupt_id)
            if put.request is None:
                transaction.execute("call_change", (*state, *key))
                continue
            tool = (put.request.tool_name, put.request.effect.value)
            stored = transaction.keep(session.key, request)
            transaction.execute("call_insert", (*key, put.step_id, *state, *tool, stored))

    def _put_records(self) -> None:
        keep, session_key = self.transaction.keep, self.session.key
        for record in self.prepared.records:
            texts = (keep(session_key, record.outcome), keep(session_key, record.result))
            key = (self._turn_key(record.turn_id), self.session.leg, record.call_id)
            self.transaction.execute("call_record", (*record.head, *texts, *key))

    def _put_model_calls(self) -> None:
        key = self._turn_key(self.write.turn_id or "")
        for call, response in zip(self.write.model_calls, self.prepared.responses, strict=True):
            usage = (call.usage.input_tokens, call.usage.output_tokens, call.usage.model_calls)
            stored = self.transaction.keep(self.session.key, response)
            row = (key, self.session.leg, call.key, call.sequence, call.settled_at_ms, *usage, stored)
            self.transaction.execute("model_call_insert", row)

    def _put_messages(self) -> None:
        """Appends what is not stored yet: a replay makes the same messages again under the same ordinals (J5)."""
        if not self.prepared.messages:
            return
        session = self.session
        key = self._turn_key(self.write.turn_id or "")
        assert session.first_message is not None
        for message in self.prepared.messages:
            position = session.first_message + message.ordinal
            if position < session.message_count:
                continue
            if position > session.message_count:
                raise UsageError(
                    f"message {message.ordinal} of turn {self.write.turn_id!r} in session {self.lease.session_id!r} "
                    f"leaves a gap: {session.message_count - session.first_message} are stored"
                )
            self._put_message(message, key, position)
            session.message_count += 1

    def _put_message(self, message: PreparedMessage, turn_key: int, position: int) -> None:
        session, keep = self.session, self.transaction.keep
        texts = (keep(session.key, message.text), keep(session.key, message.item))
        self.transaction.execute("message_insert", (session.key, position, turn_key, *message.head, *texts))
        at = {"turn_number": session.turn_number or 0, "leg": session.leg or 1}
        apply_delta(self.transaction, session.key, session.app_name, session.user_id, message.delta, **at)

    # ------------------------------------------------------------ the session

    def _empty_inbox(self) -> None:
        write, session_key = self.write, self.session.key
        for turn_id in write.dropped:
            counts = (self.session.message_count, self.session.step_count)
            self.transaction.execute("turn_drop", (session_key, turn_id, self.now_ms, *counts))
            self.transaction.execute("inbox_take_message", (session_key, turn_id))
        for message_id in write.joined:
            if self.transaction.execute("inbox_join_message", (session_key, message_id)).fetchone() is None:
                raise Conflict(
                    f"message {message_id!r} of session {self.lease.session_id!r} joins no turn: it was cancelled; "
                    "nothing was written: read the inbox, and leave the message out",
                    session_id=self.lease.session_id,
                    turn_id=message_id,
                )
        if write.consumed:
            self.transaction.executemany("inbox_take", [(session_key, position) for position in write.consumed])

    def _put_session(self, put: SessionPut | None) -> None:
        session = self.session
        if put is not None:
            self._take_facts(put)
        self.transaction.execute(
            "session_put",
            (
                session.status,
                session.closed,
                session.closed,
                session.blocked,
                session.await_step_id,
                session.definition,
                session.open_turn_key,
                session.turn_count,
                self.now_ms,
                *self._counters(),
                session.key,
            ),
        )

    def _take_facts(self, put: SessionPut) -> None:
        session = self.session
        session.closed = int(session.closed or put.closed)
        status = SessionStatus.CLOSED if session.closed else put.status
        rests = status in (SessionStatus.IDLE, SessionStatus.WAITING, SessionStatus.BLOCKED)
        if rests and self.transaction.execute("inbox_moves", (session.key, status.value)).fetchone():
            status = SessionStatus.RUNNING
        session.status = status.value
        session.await_step_id = put.await_step_id
        session.blocked = error_to_json(put.blocked)
        session.definition = put.definition or session.definition

    def _add_usage(self, usage: Usage) -> None:
        self.session.input_tokens += usage.input_tokens
        self.session.output_tokens += usage.output_tokens
        self.session.model_calls += usage.model_calls

    def _counters(self) -> tuple[int, ...]:
        """The columns that ``session_count`` and ``session_put`` end with."""
        session, ring = self.session, self.ring
        log = (session.message_count, session.step_count)
        usage = (session.input_tokens, session.output_tokens, session.model_calls)
        return (*log, *usage, ring.size, ring.trimmed_fence, ring.trimmed_number)

    def _release(self) -> None:
        facts = (self.session.key, self.now_ms, self.write.wake_at_ms, self.write.unfinished)
        (due,) = self.transaction.execute("session_release", facts).fetchone()
        self.transaction.changed((self.lease.session_id,), work=due is not None)
