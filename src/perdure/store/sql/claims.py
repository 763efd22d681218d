"""What a worker takes: which sessions are due, the claim itself, and all that a session's loop needs with it."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass, replace

from perdure.faults import DurableWrite
from perdure.session.model import TurnStatus, Usage
from perdure.session.runner import AnsweredQuestion, QuestionWait
from perdure.store.base import (
    ClaimedSession,
    DueSession,
    InboxItem,
    Lease,
    Ownership,
    StoredCall,
    StoredQuestion,
    StoredTurn,
)
from perdure.store.codec import Unreadable, ending_from_json, error_from_json, message_from_json
from perdure.store.sql import rows
from perdure.store.sql.client import session_not_found
from perdure.store.sql.connection import Connection, Row, Rows
from perdure.store.sql.reading import stored_questions
from perdure.store.sql.transaction import Transaction, Write
from perdure.store.sql.workers import worker_lost

logger = logging.getLogger(__name__)

SET_ASIDE_MS = 60_000
"""How long a session is left alone that could not be read: others are not, and a repaired one goes on by itself."""


def due_sessions(connection: Connection, flow_types: Sequence[str], limit: int, now_ms: int) -> list[tuple[int, int]]:
    """Sessions that can be claimed, oldest first, as (due since, session key)."""
    found: dict[int, int] = {}
    for flow_type in flow_types:
        waking = connection.execute("waking_sessions", (flow_type, now_ms, limit))
        due = connection.execute("due_sessions", (flow_type, limit))
        found.update((key, since) for since, key in waking.fetchall())
        found.update((key, min(since, found.get(key, since))) for since, key in due.fetchall())
    return sorted((since, key) for key, since in found.items())[:limit]


def ownership(connection: Connection, session_id: str) -> Ownership:
    """Who has a session."""
    row = connection.execute("session_ownership", (session_id,)).fetchone()
    if row is None:
        raise session_not_found(session_id)
    return Ownership(*row)


def next_wake(connection: Connection, flow_types: Sequence[str]) -> int | None:
    """The earliest wake-up of an unowned session of these types."""
    wakes = [connection.execute("next_wake", (flow_type,)).fetchone()[0] for flow_type in flow_types]
    return min((wake for wake in wakes if wake is not None), default=None)


def claim(worker_id: str, flow_types: Sequence[str], limit: int, now_ms: int) -> Write[Sequence[ClaimedSession]]:
    """SESSION_CLAIMED, unless there is nothing to claim.  What cannot be read is set aside."""
    types = tuple(flow_types)

    def write(transaction: Transaction) -> Sequence[ClaimedSession]:
        if transaction.execute("worker_to_claim", (worker_id,)).fetchone() is None:
            raise worker_lost(worker_id)
        claimed: list[ClaimedSession] = []
        tried: set[int] = set()
        definitions: dict[str, str] | None = None
        skipped = True
        while skipped and len(claimed) < limit:
            skipped = False
            due = due_sessions(transaction.connection, types, limit + len(tried), now_ms)
            for key in [key for _, key in due if key not in tried][: limit - len(claimed)]:
                if definitions is None:
                    transaction.starts(DurableWrite.SESSION_CLAIMED)
                    definitions = dict(transaction.execute("worker_definitions", (worker_id,)).fetchall())
                tried.add(key)
                session = _claim(transaction, worker_id, key, definitions, now_ms)
                if session is None:
                    skipped = True  # Somebody else writes it at this moment, or it cannot be; perhaps there are others.
                else:
                    claimed.append(session)
        transaction.changed((session.lease.session_id for session in claimed), work=False)
        return tuple(claimed)

    return write


def adopt(worker_id: str, session_id: str, fence: int) -> Write[ClaimedSession | None]:
    """SESSION_CLAIMED, of one session, whoever owns it; nothing if its fence is another by now."""

    def write(transaction: Transaction) -> ClaimedSession | None:
        # First the worker, then the session: in the order of those that take a worker out.
        if transaction.execute("worker_to_claim", (worker_id,)).fetchone() is None:
            raise worker_lost(worker_id)
        transaction.lock("lock_sessions", (transaction.connection.array([session_id]),))
        found = transaction.execute("session_key", (session_id,)).fetchone()
        if found is None:
            raise session_not_found(session_id)
        transaction.starts(DurableWrite.SESSION_CLAIMED)
        definitions = dict(transaction.execute("worker_definitions", (worker_id,)).fetchall())
        row = transaction.execute("session_adopt", (worker_id, found[0], fence)).fetchone()
        if row is None:
            return None
        transaction.changed((session_id,), work=False)
        return _claimed(transaction.connection, worker_id, found[0], definitions, row)

    return write


def list_due(connection: Connection, flow_type: str, before_ms: int, limit: int) -> tuple[DueSession, ...]:
    """Sessions that nobody owns and that are due, or whose time came, since ``before_ms`` or longer."""
    found: dict[DueSession, int] = {}
    for query in ("overdue_wakes", "overdue_sessions"):
        for since, session_id, fence in connection.execute(query, (flow_type, before_ms, limit)).fetchall():
            found.setdefault(DueSession(session_id, fence), since)
    return tuple(sorted(found, key=found.__getitem__)[:limit])


def _claim(
    transaction: Transaction, worker_id: str, key: int, definitions: dict[str, str], now_ms: int
) -> ClaimedSession | None:
    row = transaction.execute("session_claim", (worker_id, key)).fetchone()
    if row is None:
        return None
    try:
        return _claimed(transaction.connection, worker_id, key, definitions, row)
    except Unreadable as error:
        # One session that nobody can run must not keep everybody from all others.
        logger.error(
            "%s cannot be read (%s), so the session stands still, and is tried again in %d s; restore the database "
            "from a backup, or delete the session",
            error.where,
            error.reason,
            SET_ASIDE_MS // 1000,
        )
        transaction.execute("session_set_aside", (key, now_ms + SET_ASIDE_MS))
        return None


def _claimed(connection: Connection, worker_id: str, key: int, definitions: dict[str, str], row: Row) -> ClaimedSession:
    """A session that was just taken, from what taking it returned.  Reads the rest."""
    session_id, fence, incarnation, flow_type, user_id, turns, closed, blocked, await_step_id, lost, *counts = row
    message_count, step_count, definition, turn_key = counts
    where = f"session {session_id!r}"
    # All that can be asked at once is asked before the first answer is waited for.
    late = connection.execute("questions_late", (key,))
    inbox = connection.execute("inbox_items", (key, 0))
    deadline = connection.execute("next_deadline", (key,))
    open_turn = None if turn_key is None else _open_turn(connection, key, turn_key, message_count, step_count, where)
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
        check=blocked is not None or (open_turn is not None and definition != definitions.get(flow_type)),
        turn=None if open_turn is None else open_turn.turn,
        calls=() if open_turn is None else open_turn.calls,
        questions=() if open_turn is None else open_turn.questions,
        late=tuple(rows.read_row(rows.late_question, one, f"{where}, question {one[2]!r}") for one in late.fetchall()),
        model_step=None if open_turn is None else open_turn.model_step,
        max_sequence=0 if open_turn is None else open_turn.max_sequence,
        lost=lost,
        inbox=_inbox(connection, inbox, session_id),
        next_deadline_ms=deadline.fetchone()[0],
    )


@dataclass(frozen=True, slots=True)
class _OpenTurn:
    """What a claim tells of the open turn."""

    turn: StoredTurn
    calls: tuple[StoredCall, ...]
    questions: tuple[StoredQuestion, ...]
    model_step: tuple[str, int] | None
    max_sequence: int


def _open_turn(
    connection: Connection, session_key: int, turn_key: int, message_count: int, step_count: int, where: str
) -> _OpenTurn:
    max_sequence = connection.execute("max_sequence", (turn_key,))
    raised = connection.execute("raised_by_turn", (turn_key,))
    row = connection.execute("open_turn", (turn_key,)).fetchone()
    turn_id, first_step, leg = row[0], row[6], row[11]
    calls = connection.execute("calls_of_turn", (turn_key, session_key, leg, leg))
    model_step = connection.execute("open_model_step", (session_key, first_step - 1, turn_id))
    legs = connection.execute("legs_of_turn", (turn_key, leg))
    turn = rows.read_row(
        _stored_turn, row, f"{where}, open turn", connection, turn_key, message_count, step_count, legs
    )
    return _OpenTurn(
        turn=replace(turn, raised=dict(raised.fetchall())),
        calls=tuple(
            rows.read_row(rows.stored_call, call, f"{where}, call {call[-1]!r}", connection)
            for call in calls.fetchall()
        ),
        questions=stored_questions(connection, turn_key, leg, where),
        model_step=model_step.fetchone(),
        max_sequence=max_sequence.fetchone()[0],
    )


def _stored_turn(
    row: Row, where: str, connection: Connection, turn_key: int, message_count: int, step_count: int, legs_found: Rows
) -> StoredTurn:
    turn_id, number, status, message, started, first_message, first_step, *rest = row
    tokens_in, tokens_out, model_calls, ending, leg = rest
    legs = {found: more for found, *more in legs_found.fetchall()}
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
        ending=ending_from_json(ending, where),
    )


def read_inbox(connection: Connection, session_key: int, session_id: str, after: int = 0) -> tuple[InboxItem, ...]:
    """The inbox of a session behind a position, in order."""
    return _inbox(connection, connection.execute("inbox_items", (session_key, after)), session_id)


def _inbox(connection: Connection, found: Rows, session_id: str) -> tuple[InboxItem, ...]:
    return tuple(
        rows.read_row(rows.inbox_item, row, f"session {session_id!r}, inbox item {row[0]}", connection)
        for row in found.fetchall()
    )
