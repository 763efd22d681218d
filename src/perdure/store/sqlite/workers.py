"""Workers and what they own: registration, leases, reaping, claims.

Each function returns a write for the writer's thread; what only looks takes a reader's connection.
"""

from __future__ import annotations

import json
import os
import sqlite3
from collections.abc import Sequence

from perdure.errors import LeaseLost
from perdure.faults import DurableWrite
from perdure.session.model import TurnStatus, Usage
from perdure.session.runner import AnsweredQuestion, QuestionWait
from perdure.store.base import ClaimedSession, DueSession, InboxItem, Lease, StoredQuestion, StoredTurn, Worker
from perdure.store.codec import ending_from_json, error_from_json, message_from_json
from perdure.store.sqlite import rows
from perdure.store.sqlite.client import session_not_found
from perdure.store.sqlite.queries import sql
from perdure.store.sqlite.reading import stored_questions
from perdure.store.sqlite.writer import Transaction, Write

_CALLS_OF_TURN = sql("calls_of_turn")
_DUE_SESSIONS = sql("due_sessions")
_INBOX_ITEMS = sql("inbox_items")
_LEGS_OF_TURN = sql("legs_of_turn")
_MAX_SEQUENCE = sql("max_sequence")
_NEXT_DEADLINE = sql("next_deadline")
_NEXT_WAKE = sql("next_wake")
_OPEN_MODEL_STEP = sql("open_model_step")
_OPEN_TURN = sql("open_turn")
_OVERDUE_SESSIONS = sql("overdue_sessions")
_OVERDUE_WAKES = sql("overdue_wakes")
_QUESTIONS_LATE = sql("questions_late")
_RAISED_BY_TURN = sql("raised_by_turn")
_SESSIONS_FREE = sql("sessions_free")
_SESSIONS_TO_CHECK = sql("sessions_to_check")
_SESSION_CLAIM = sql("session_claim")
_SESSION_KEY = sql("session_key")
_WAKING_SESSIONS = sql("waking_sessions")
_WORKERS_ALL = sql("workers_all")
_WORKER_DEFINITIONS = sql("worker_definitions")
_WORKER_DELETE = sql("worker_delete")
_WORKER_EXISTS = sql("worker_exists")
_WORKER_FLOWS_DELETE = sql("worker_flows_delete")
_WORKER_FLOW_INSERT = sql("worker_flow_insert")
_WORKER_INSERT = sql("worker_insert")
_WORKER_RENEW = sql("worker_renew")


def worker_lost(worker_id: str) -> LeaseLost:
    return LeaseLost(
        f"worker {worker_id} is not registered (any more): it was given up for dead and owns nothing; register it anew",
        worker_id=worker_id,
        session_id=None,
    )


# ---------------------------------------------------------------- workers


def register_worker(worker: Worker, now_ms: int) -> Write[None]:
    """Makes the worker known, and due what was recorded under other code than it has."""

    definitions = dict(worker.definitions)

    def write(transaction: Transaction) -> None:
        row = (worker.worker_id, os.getpid(), worker.lease_ms, now_ms + worker.lease_ms)
        transaction.execute(_WORKER_INSERT, row)
        transaction.execute(_WORKER_FLOWS_DELETE, (worker.worker_id,))
        for flow_type, definition in definitions.items():
            transaction.execute(_WORKER_FLOW_INSERT, (flow_type, worker.worker_id, definition))
            to_check = transaction.execute(_SESSIONS_TO_CHECK, (now_ms, flow_type, definition)).fetchall()
            transaction.changed((session_id for (session_id,) in to_check), work=bool(to_check))

    return write


def renew_worker(worker_id: str, now_ms: int) -> Write[None]:
    """Moves the end of the worker's lease."""

    def write(transaction: Transaction) -> None:
        if transaction.execute(_WORKER_RENEW, (now_ms, worker_id)).rowcount == 0:
            raise worker_lost(worker_id)

    return write


def remove_workers(worker_ids: Sequence[str], now_ms: int) -> Write[int]:
    """Takes workers out and frees what they own; their leases are void from then on.  Returns how many there were."""

    def write(transaction: Transaction) -> int:
        removed = 0
        for worker_id in worker_ids:
            removed += transaction.execute(_WORKER_DELETE, (worker_id,)).rowcount
            transaction.execute(_WORKER_FLOWS_DELETE, (worker_id,))
            _free(transaction, worker_id, (), now_ms)
        return removed

    return write


def free_unheld(worker_id: str, held: Sequence[str], now_ms: int) -> Write[int]:
    """Frees what a live worker owns but does not run.  Returns how many sessions that were."""
    return lambda transaction: _free(transaction, worker_id, held, now_ms)


def _free(transaction: Transaction, worker_id: str, held: Sequence[str], now_ms: int) -> int:
    freed = transaction.execute(_SESSIONS_FREE, (worker_id, now_ms, json.dumps(held))).fetchall()
    transaction.changed((session_id for (session_id,) in freed), work=bool(freed))
    return len(freed)


def all_workers(connection: sqlite3.Connection) -> list[tuple[str, int]]:
    """Each worker's id and the end of its lease."""
    return connection.execute(_WORKERS_ALL).fetchall()


# ---------------------------------------------------------------- claims


def due_sessions(
    connection: sqlite3.Connection, flow_types: Sequence[str], limit: int, now_ms: int
) -> list[tuple[int, int]]:
    """Sessions that can be claimed, oldest first, as (due since, session key)."""
    found: dict[int, int] = {}
    for flow_type in flow_types:
        for since, key in connection.execute(_WAKING_SESSIONS, (flow_type, now_ms, limit)):
            found[key] = since
        for since, key in connection.execute(_DUE_SESSIONS, (flow_type, limit)):
            found[key] = min(since, found.get(key, since))
    return sorted((since, key) for key, since in found.items())[:limit]


def next_wake(connection: sqlite3.Connection, flow_types: Sequence[str]) -> int | None:
    """The earliest wake-up of an unowned session of these types."""
    wakes = [connection.execute(_NEXT_WAKE, (flow_type,)).fetchone()[0] for flow_type in flow_types]
    return min((wake for wake in wakes if wake is not None), default=None)


def claim(worker_id: str, flow_types: Sequence[str], limit: int, now_ms: int) -> Write[Sequence[ClaimedSession]]:
    """SESSION_CLAIMED, unless there is nothing to claim."""
    types = tuple(flow_types)

    def write(transaction: Transaction) -> Sequence[ClaimedSession]:
        if transaction.execute(_WORKER_EXISTS, (worker_id,)).fetchone() is None:
            raise worker_lost(worker_id)
        due = due_sessions(transaction.connection, types, limit, now_ms)
        if not due:
            return ()
        transaction.starts(DurableWrite.SESSION_CLAIMED)
        definitions = dict(transaction.execute(_WORKER_DEFINITIONS, (worker_id,)).fetchall())
        claimed = [_claim(transaction, worker_id, key, definitions) for _, key in due]
        transaction.changed((session.lease.session_id for session in claimed), work=False)
        return tuple(claimed)

    return write


def adopt(worker_id: str, session_id: str) -> Write[ClaimedSession]:
    """SESSION_CLAIMED, of one session, whoever owns it."""

    def write(transaction: Transaction) -> ClaimedSession:
        if transaction.execute(_WORKER_EXISTS, (worker_id,)).fetchone() is None:
            raise worker_lost(worker_id)
        found = transaction.execute(_SESSION_KEY, (session_id,)).fetchone()
        if found is None:
            raise session_not_found(session_id)
        transaction.starts(DurableWrite.SESSION_CLAIMED)
        definitions = dict(transaction.execute(_WORKER_DEFINITIONS, (worker_id,)).fetchall())
        claimed = _claim(transaction, worker_id, found[0], definitions)
        transaction.changed((session_id,), work=False)
        return claimed

    return write


def list_due(connection: sqlite3.Connection, flow_type: str, before_ms: int, limit: int) -> tuple[DueSession, ...]:
    """Sessions that nobody owns and that are due, or whose time came, since ``before_ms`` or longer."""
    found: dict[DueSession, int] = {}
    for query in (_OVERDUE_WAKES, _OVERDUE_SESSIONS):
        for since, session_id, fence in connection.execute(query, (flow_type, before_ms, limit)):
            found.setdefault(DueSession(session_id, fence), since)
    return tuple(sorted(found, key=found.__getitem__)[:limit])


def _claim(transaction: Transaction, worker_id: str, key: int, definitions: dict[str, str]) -> ClaimedSession:
    row = transaction.execute(_SESSION_CLAIM, (worker_id, key)).fetchone()
    session_id, fence, incarnation, flow_type, user_id, turns, closed, blocked, await_step_id, lost, *counts = row
    message_count, step_count, definition, turn_key = counts
    connection = transaction.connection
    where = f"session {session_id!r}"
    turn: StoredTurn | None = None
    calls: list[rows.Row] = []
    questions: tuple[StoredQuestion, ...] = ()
    model_step: tuple[str, int] | None = None
    max_sequence = 0
    if turn_key is not None:
        turn_row = connection.execute(_OPEN_TURN, (turn_key,)).fetchone()
        counts = (message_count, step_count)
        turn = rows.read_row(_stored_turn, turn_row, f"{where}, open turn", connection, turn_key, *counts)
        calls = connection.execute(_CALLS_OF_TURN, (turn_key, key, turn.leg, turn.leg)).fetchall()
        questions = stored_questions(connection, turn_key, turn.leg, where)
        model_step = connection.execute(_OPEN_MODEL_STEP, (key, turn_row[6] - 1, turn.turn_id)).fetchone()
        (max_sequence,) = connection.execute(_MAX_SEQUENCE, (turn_key,)).fetchone()
    return ClaimedSession(
        lease=Lease(session_id, worker_id, fence),
        incarnation=incarnation,
        flow_type=flow_type,
        user_id=user_id,
        turns=turns,
        closed=bool(closed),
        blocked=error_from_json(blocked, where),
        await_step_id=await_step_id,
        message_count=message_count,
        check=blocked is not None or (turn is not None and definition != definitions.get(flow_type)),
        turn=turn,
        calls=tuple(rows.read_row(rows.stored_call, call, f"{where}, call {call[-1]!r}", connection) for call in calls),
        questions=questions,
        late=tuple(
            rows.read_row(rows.late_question, late, f"{where}, question {late[2]!r}")
            for late in connection.execute(_QUESTIONS_LATE, (key,)).fetchall()
        ),
        model_step=model_step,
        max_sequence=max_sequence,
        lost=lost,
        inbox=read_inbox(connection, key, session_id),
        next_deadline_ms=connection.execute(_NEXT_DEADLINE, (key,)).fetchone()[0],
    )


def _stored_turn(
    row: rows.Row, where: str, connection: sqlite3.Connection, turn_key: int, message_count: int, step_count: int
) -> StoredTurn:
    turn_id, number, status, message, started, first_message, first_step, *rest = row
    tokens_in, tokens_out, model_calls, ending, leg = rest
    legs = {found: more for found, *more in connection.execute(_LEGS_OF_TURN, (turn_key, leg)).fetchall()}
    leg_first, carry = legs.get(leg, (first_message, None))
    _, next_carry = legs.get(leg + 1, (None, None))
    before = stored_questions(connection, turn_key, leg - 1, where) if leg > 1 else ()
    return StoredTurn(
        turn_id=turn_id,
        number=number,
        status=TurnStatus(status),
        message=message_from_json(rows.load(connection, message, where), where),
        started_at_ms=started,
        first_index=first_message,
        stored_messages=message_count - first_message,
        step_count=step_count - first_step,
        usage=Usage(input_tokens=tokens_in, output_tokens=tokens_out, model_calls=model_calls),
        leg=leg,
        leg_first_index=leg_first,
        answers=tuple(
            AnsweredQuestion(one.question, one.answer) for one in before if one.question.wait is QuestionWait.NEXT_LEG
        ),
        carry=None if carry is None else rows.load(connection, carry, where),
        next_carry=None if next_carry is None else rows.load(connection, next_carry, where),
        raised=dict(connection.execute(_RAISED_BY_TURN, (turn_key,)).fetchall()),
        ending=ending_from_json(ending, where),
    )


def read_inbox(
    connection: sqlite3.Connection, session_key: int, session_id: str, after: int = 0
) -> tuple[InboxItem, ...]:
    """The inbox of a session behind a position, in order."""
    return tuple(
        rows.read_row(rows.inbox_item, row, f"session {session_id!r}, inbox item {row[0]}", connection)
        for row in connection.execute(_INBOX_ITEMS, (session_key, after)).fetchall()
    )
