"""What everybody may read: snapshots, lists, the log, the journal of a turn, state.

Each function takes a reader's connection and sees one state of the database.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from perdure.clock import to_datetime
from perdure.errors import TurnNotFound, UsageError
from perdure.session.events import cursor_for, parse_cursor
from perdure.session.model import (
    AgentSnapshot,
    ErrorInfo,
    Interrupt,
    JsonObject,
    Message,
    Page,
    SessionStatus,
    SessionSummary,
    StepRecord,
    TurnStatus,
    Usage,
)
from perdure.session.runner import AnsweredQuestion, QuestionWait, RecordedCall, RecordedTurn
from perdure.store.base import EventBatch, SessionFilter, StoredQuestion
from perdure.store.codec import error_from_json, from_json
from perdure.store.sql import rows
from perdure.store.sql.answers import interrupt_not_found
from perdure.store.sql.client import session_not_found
from perdure.store.sql.connection import Connection, Row
from perdure.store.sql.state import SessionState

_NEWEST = f"{2**62}.{2**62}"
_LIST_CURSOR = re.compile(r"(\d{1,19})\.(\d{1,19})")


def store_id(connection: Connection) -> str | None:
    """The store's id, if it has one."""
    row = connection.execute("store_id").fetchone()
    return None if row is None else str(row[0])


def _key(connection: Connection, session_id: str) -> int:
    row = connection.execute("session_key", (session_id,)).fetchone()
    if row is None:
        raise session_not_found(session_id)
    key: int = row[0]
    return key


# ---------------------------------------------------------------- sessions


def status(connection: Connection, session_id: str) -> tuple[SessionStatus, int]:
    """A session's status, and how many messages are queued."""
    row = connection.execute("session_status", (session_id,)).fetchone()
    if row is None:
        raise session_not_found(session_id)
    return SessionStatus(row[0]), row[1]


def snapshot(connection: Connection, session_id: str, now_ms: int) -> AgentSnapshot:
    """A session at this moment."""
    row = connection.execute("snapshot", (session_id, now_ms)).fetchone()
    if row is None:
        raise session_not_found(session_id)
    return rows.read_row(_snapshot, row, f"session {session_id!r}", connection, session_id)


def _snapshot(row: Row, where: str, connection: Connection, session_id: str) -> AgentSnapshot:
    key, flow_type, app_name, user_id, status, blocked, _, *rest = row
    pending = connection.execute("interrupts_pending", (key,))
    state = SessionState(connection, key, session_id, app_name, user_id)
    tokens_in, tokens_out, model_calls, created, updated, queued, served, lost, *turn_row = rest
    turn = None if turn_row[0] is None else rows.read_row(rows.turn_info, turn_row, f"{where}, turn {turn_row[0]!r}")
    error: ErrorInfo | None = error_from_json(blocked, where)
    if error is None and turn is not None and turn.status is TurnStatus.FAILED:
        error = turn.error
    newest = connection.execute("newest_event", (key,)).fetchone()
    return AgentSnapshot(
        session_id=session_id,
        flow_type=flow_type,
        user_id=user_id,
        status=SessionStatus(status),
        turn=turn,
        pending_interrupts=tuple(
            rows.read_row(rows.interrupt, one, f"{where}, interrupt {one[0]!r}", connection)
            for one in pending.fetchall()
        ),
        queued_messages=queued,
        usage=Usage(input_tokens=tokens_in, output_tokens=tokens_out, model_calls=model_calls),
        state=state.own() | state.shared(),
        error=error,
        served=bool(served),
        lost_workers=lost,
        cursor=None if newest is None else cursor_for(*newest),
        created_at=to_datetime(created),
        updated_at=to_datetime(updated),
    )


def list_sessions(connection: Connection, chosen: SessionFilter, after: str | None, limit: int) -> Page[SessionSummary]:
    """Sessions, the most recently changed first.  The cursor is the last one's time of change and key."""
    parsed = _LIST_CURSOR.fullmatch(after or _NEWEST)
    if parsed is None:
        raise UsageError(
            f"after: {after!r} is no cursor of a session list; pass a Page's next_cursor, or None", cursor=after
        )
    status = None if chosen.status is None else chosen.status.value
    facts = (chosen.user_id, status, chosen.flow_type, int(parsed[1]), int(parsed[2]), limit + 1)
    found = connection.execute(_list_query(chosen), facts).fetchall()
    items = tuple(rows.read_row(rows.summary, row, f"session {row[0]!r}") for row in found[:limit])
    cursor = f"{found[limit - 1][8]}.{found[limit - 1][9]}" if len(found) > limit else None
    return Page(items=items, next_cursor=cursor)


def _list_query(chosen: SessionFilter) -> str:
    """The name of the query whose index leaves least to look through."""
    if chosen.user_id is not None:
        return "list_by_user"
    if chosen.status is not None:
        return "list_by_status"
    if chosen.flow_type is not None:
        return "list_by_flow"
    return "list_by_change"


def interrupt(connection: Connection, session_id: str, interrupt_id: str) -> Interrupt:
    """One interrupt, pending or not."""
    row = connection.execute("interrupt", (_key(connection, session_id), interrupt_id)).fetchone()
    if row is None:
        raise interrupt_not_found(session_id, interrupt_id)
    return rows.read_row(rows.interrupt, row, f"session {session_id!r}, interrupt {interrupt_id!r}", connection)


# ---------------------------------------------------------------- lists of one session


def messages(connection: Connection, session_id: str, after: int | None, limit: int) -> Page[Message]:
    """Part of the log."""
    facts = (_key(connection, session_id), -1 if after is None else after, limit + 1)
    found = connection.execute("messages", facts).fetchall()
    where = f"session {session_id!r}, message"
    items = tuple(rows.read_row(rows.message, row, f"{where} {row[0]}", connection) for row in found[:limit])
    return Page(items=items, next_cursor=str(items[-1].index) if len(found) > limit else None)


def steps(connection: Connection, session_id: str, after: int | None, limit: int) -> Page[StepRecord]:
    """Part of the step list."""
    facts = (_key(connection, session_id), -1 if after is None else after, limit + 1)
    found = connection.execute("steps", facts).fetchall()
    where = f"session {session_id!r}, step"
    items = tuple(rows.read_row(rows.step, row, f"{where} {row[1]!r}", connection) for row in found[:limit])
    return Page(items=items, next_cursor=str(found[limit - 1][0]) if len(found) > limit else None)


def events(connection: Connection, session_id: str, after: str | None, limit: int) -> EventBatch:
    """Live events behind a cursor."""
    behind = (-1, -1) if after is None else parse_cursor(after)
    row = connection.execute("ring", (session_id,)).fetchone()
    if row is None:
        raise session_not_found(session_id)
    key, *trimmed = row
    found = connection.execute("events", (key, *behind, limit)).fetchall()
    oldest = connection.execute("oldest_event", (key,)).fetchone()
    where = f"session {session_id!r}, event"
    return EventBatch(
        events=tuple(rows.read_row(rows.event, found_row, f"{where} {found_row[:2]}") for found_row in found),
        oldest=None if oldest is None else cursor_for(*oldest),
        trimmed=after is not None and behind < tuple(trimmed),
    )


# ---------------------------------------------------------------- what a replay needs


def recorded_turn(connection: Connection, session_id: str, turn_id: str) -> RecordedTurn:
    """What the journal holds of the present leg of a turn."""
    row = connection.execute("turn_for_replay", (session_id, turn_id)).fetchone()
    if row is None:
        raise _turn_not_found(connection, session_id, turn_id)
    key, turn_key, leg, stored = row
    where = f"session {session_id!r}, turn {turn_id!r}"
    models = connection.execute("model_calls_of_turn", (turn_key, leg)).fetchall()
    questions = stored_questions(connection, turn_key, leg, where)
    return RecordedTurn(
        model_calls=tuple(
            rows.read_row(rows.model_call, model, f"{where}, model call {model[0]!r}", connection) for model in models
        ),
        calls=_recorded_calls(connection, (turn_key, key, leg, leg), where),
        questions=tuple(
            AnsweredQuestion(one.question, one.answer)
            for one in questions
            if one.question.wait is QuestionWait.LIVE and (one.answer is not None or not one.settled)
        ),
        stored_messages=stored,
    )


def earlier_calls(connection: Connection, session_id: str, turn_id: str) -> Sequence[RecordedCall]:
    """The calls of the legs before the present one."""
    row = connection.execute("turn_for_replay", (session_id, turn_id)).fetchone()
    if row is None:
        raise _turn_not_found(connection, session_id, turn_id)
    key, turn_key, leg, _ = row
    return _recorded_calls(connection, (turn_key, key, 1, leg - 1), f"session {session_id!r}, turn {turn_id!r}")


def _recorded_calls(connection: Connection, legs: tuple[int, int, int, int], where: str) -> tuple[RecordedCall, ...]:
    return tuple(
        RecordedCall(*rows.read_row(rows.recorded_call, call, f"{where}, call {call[-1]!r}", connection))
        for call in connection.execute("calls_of_turn", legs).fetchall()
    )


def stored_questions(connection: Connection, turn_key: int, leg: int, where: str) -> tuple[StoredQuestion, ...]:
    """The questions of a leg, in the order in which they were asked."""
    return tuple(
        rows.read_row(rows.stored_question, found, f"{where}, question {found[2]!r}", connection)
        for found in connection.execute("questions_of_turn", (turn_key, leg)).fetchall()
    )


def _turn_not_found(connection: Connection, session_id: str, turn_id: str) -> TurnNotFound:
    _key(connection, session_id)
    return TurnNotFound(f"session {session_id!r} has no turn {turn_id!r}", session_id=session_id, turn_id=turn_id)


def history(connection: Connection, session_id: str, first: int, end: int) -> Sequence[JsonObject]:
    """The framework items of a range of messages."""
    found = connection.execute("history", (_key(connection, session_id), first, end)).fetchall()
    where = f"session {session_id!r}, message"
    return [rows.read_row(rows.history_item, row, f"{where} {row[0]}", connection) for row in found]


def turn_state(connection: Connection, session_id: str, turn_number: int, leg: int) -> JsonObject:
    """The state at the beginning of a leg of a turn.  For a turn that has not begun: as it is now."""
    row = connection.execute("session_scope", (session_id,)).fetchone()
    if row is None:
        raise session_not_found(session_id)
    key, app_name, user_id = row
    begun_with = connection.execute("turn_shared_state", (key, turn_number, leg))
    state = SessionState(connection, key, session_id, app_name, user_id, before_turn=turn_number, before_leg=leg)
    begun, own = begun_with.fetchone(), state.own()
    if begun is None:
        return own | state.shared()
    if begun[0] is None:
        return own
    where = f"session {session_id!r}, shared state of turn {turn_number}"
    frozen: JsonObject = from_json(rows.load(connection, begun[0], where), where)
    return own | frozen
