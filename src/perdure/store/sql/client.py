"""What clients write: new sessions, inbox items, deletions.  Answers are in ``answers``.

Each function prepares its texts at once (so that later changes of the caller's objects do not matter, and what cannot
be stored is refused before anything is queued) and returns the write for the writer's thread.
"""

from __future__ import annotations

from dataclasses import dataclass

from perdure.clock import to_datetime
from perdure.errors import (
    RequestConflict,
    SessionAlreadyExists,
    SessionClosed,
    SessionNotFound,
    TurnNotFound,
)
from perdure.faults import DurableWrite
from perdure.session.events import cursor_for
from perdure.session.loop import wait_step_name
from perdure.session.model import (
    AgentEvent,
    AgentEventType,
    Interrupt,
    InterruptStatus,
    JsonObject,
    StepName,
    StepStatus,
    UserMessage,
)
from perdure.store.base import InboxKind, NewSession, Request
from perdure.store.codec import Packed, message_to_json, pack
from perdure.store.sql import rows
from perdure.store.sql.events import Ring, append, event_row
from perdure.store.sql.state import apply_delta, split_delta
from perdure.store.sql.transaction import Transaction, Write


def name_store(new_id: str) -> Write[str]:
    """Gives the store an id, unless it has one.  Returns the one that it has then."""

    def write(transaction: Transaction) -> str:
        transaction.execute("store_id_insert", (new_id,))
        found: str = transaction.execute("store_id").fetchone()[0]
        return found

    return write


@dataclass(frozen=True, slots=True)
class ClientSession:
    """The row of ``session_for_client``."""

    key: int
    fingerprint: str
    first_turn_id: str | None
    status: str
    closing: int
    closed: int
    blocked: str | None
    open_turn_key: int | None
    await_step_id: str | None


def find_session(transaction: Transaction, session_id: str) -> ClientSession | None:
    row = transaction.execute("session_for_client", (session_id,)).fetchone()
    return None if row is None else ClientSession(*row)


def session_not_found(session_id: str) -> SessionNotFound:
    return SessionNotFound(
        f"session {session_id!r} does not exist; start it first, or check the id and the store's address",
        session_id=session_id,
    )


def known_session(transaction: Transaction, session_id: str) -> ClientSession:
    session = find_session(transaction, session_id)
    if session is None:
        raise session_not_found(session_id)
    return session


# ---------------------------------------------------------------- idempotent requests


@dataclass(frozen=True, slots=True)
class EarlierRequest:
    """What an earlier request under the same id returned."""

    turn_id: str | None


def earlier_request(transaction: Transaction, key: int, session_id: str, request: Request) -> EarlierRequest | None:
    """The same request, if it was made before.

    Raises:
        RequestConflict: the id was used for another request.
    """
    if request.request_id is None:
        return None
    row = transaction.execute("request_find", (key, request.request_id)).fetchone()
    if row is None:
        return None
    fingerprint, turn_id = row
    if fingerprint != request.fingerprint:
        raise RequestConflict(
            f"request {request.request_id!r} of session {session_id!r} was made before with other arguments; use a new "
            "request id for a new request",
            session_id=session_id,
            request_id=request.request_id,
        )
    return EarlierRequest(turn_id)


def remember(transaction: Transaction, key: int, request: Request, turn_id: str | None, now_ms: int) -> None:
    if request.request_id is not None:
        transaction.execute("request_insert", (key, request.request_id, request.fingerprint, turn_id, now_ms))


# ---------------------------------------------------------------- sessions and messages


def create_session(
    new: NewSession, message: tuple[str, UserMessage] | None, request: Request, now_ms: int
) -> Write[str | None]:
    """SESSION_CREATED, and MESSAGE_ACCEPTED when it comes with a message."""
    where = f"session {new.session_id!r}"
    state = split_delta(new.state, f"{where}, state")
    turn_id = None if message is None else message[0]
    text = None if message is None else pack(message_to_json(message[1], f"{where}, message"), f"{where}, message")

    def write(transaction: Transaction) -> str | None:
        known = find_session(transaction, new.session_id)
        if known is not None:
            if known.fingerprint == request.fingerprint:
                return known.first_turn_id
            raise SessionAlreadyExists(
                f"{where} exists already and was started otherwise; choose another id, or send it a message",
                session_id=new.session_id,
            )
        transaction.starts(DurableWrite.SESSION_CREATED)
        if text is not None:
            transaction.starts(DurableWrite.MESSAGE_ACCEPTED)
        names = (new.session_id, new.incarnation, request.fingerprint, turn_id)
        scope = (new.flow_type, new.app_name, new.user_id)
        row = (*names, *scope, new.await_step_id, new.event_capacity_bytes, now_ms, now_ms)
        inserted = transaction.execute("session_insert", row).fetchone()
        if inserted is None:
            return write(transaction)  # Another process made it just now.
        key = inserted[0]
        name, pending = StepName.AWAIT_USER_MESSAGE.value, StepStatus.PENDING.value
        step = (key, 0, new.await_step_id, None, name, pending, 0, "", None, now_ms, None, None)
        transaction.execute("step_put", step)
        apply_delta(transaction, key, new.app_name, new.user_id, state)
        if text is not None:
            put_into_inbox(transaction, key, InboxKind.MESSAGE, now_ms, turn_id=turn_id, content=text)
        remember(transaction, key, request, turn_id, now_ms)
        transaction.changed((new.session_id,), work=text is not None)
        return turn_id

    return write


def accept_message(session_id: str, turn_id: str, message: UserMessage, request: Request, now_ms: int) -> Write[str]:
    """MESSAGE_ACCEPTED."""
    where = f"session {session_id!r}, message"
    text = pack(message_to_json(message, where), where)

    def write(transaction: Transaction) -> str:
        session = known_session(transaction, session_id)
        earlier = earlier_request(transaction, session.key, session_id, request)
        if earlier is not None:
            return earlier.turn_id or turn_id
        if session.closing:
            raise SessionClosed(
                f"session {session_id!r} is closed and takes no more messages; start a new session",
                session_id=session_id,
            )
        transaction.starts(DurableWrite.MESSAGE_ACCEPTED)
        put_into_inbox(transaction, session.key, InboxKind.MESSAGE, now_ms, turn_id=turn_id, content=text)
        remember(transaction, session.key, request, turn_id, now_ms)
        transaction.changed((session_id,), work=True)
        return turn_id

    return write


def put_into_inbox(
    transaction: Transaction,
    key: int,
    kind: InboxKind,
    now_ms: int,
    *,
    turn_id: str | None = None,
    interrupt_id: str | None = None,
    content: Packed | None = None,
    more_needed: bool = False,
) -> None:
    """Appends an inbox item and makes the session due.

    Args:
        more_needed: a session that waits will wait on when it has the item.
    """
    position = transaction.execute("session_take_position", (key, kind.value, now_ms, more_needed)).fetchone()[0]
    stored = transaction.keep(key, content)
    transaction.execute("inbox_insert", (key, position, kind.value, turn_id, interrupt_id, now_ms, stored))


# ---------------------------------------------------------------- cancel, close, delete


def accept_cancel(session_id: str, turn_id: str | None, request: Request, now_ms: int) -> Write[None]:
    """REQUEST_ACCEPTED, unless there is nothing to cancel."""

    def write(transaction: Transaction) -> None:
        session = known_session(transaction, session_id)
        if earlier_request(transaction, session.key, session_id, request) is not None:
            return
        if turn_id is not None and not _is_live(transaction, session, turn_id):
            raise TurnNotFound(
                f"turn {turn_id!r} of session {session_id!r} is neither open nor queued: it has ended, or never was",
                session_id=session_id,
                turn_id=turn_id,
            )
        # Whichever turn is open now is meant, not one that begins before the owner looks.
        meant = turn_id or _open_turn_id(transaction, session)
        if meant is None:
            return
        transaction.starts(DurableWrite.REQUEST_ACCEPTED)
        put_into_inbox(transaction, session.key, InboxKind.CANCEL, now_ms, turn_id=meant)
        remember(transaction, session.key, request, meant, now_ms)
        transaction.changed((session_id,), work=True)

    return write


def _open_turn_id(transaction: Transaction, session: ClientSession) -> str | None:
    if session.open_turn_key is None:
        return None
    turn_id: str = transaction.execute("turn_id_of", (session.open_turn_key,)).fetchone()[0]
    return turn_id


def _is_live(transaction: Transaction, session: ClientSession, turn_id: str) -> bool:
    if _open_turn_id(transaction, session) == turn_id:
        return True
    return transaction.execute("inbox_has_message", (session.key, turn_id)).fetchone() is not None


def accept_close(session_id: str, request: Request, now_ms: int) -> Write[None]:
    """REQUEST_ACCEPTED; and SESSION_CLOSED when there is nothing to wait for.

    An owner that keeps the session for a while loses it.
    """

    def write(transaction: Transaction) -> None:
        session = known_session(transaction, session_id)
        if earlier_request(transaction, session.key, session_id, request) is not None or session.closing:
            return
        queued = transaction.execute("inbox_has_items", (session.key,)).fetchone() is not None
        at_once = session.open_turn_key is None and not queued
        if at_once:
            transaction.starts(DurableWrite.REQUEST_ACCEPTED, DurableWrite.SESSION_CLOSED)
            _close(transaction, session, session_id, now_ms)
        else:
            transaction.starts(DurableWrite.REQUEST_ACCEPTED)
            put_into_inbox(transaction, session.key, InboxKind.CLOSE, now_ms)
            transaction.execute("session_closing", (session.key,))
        remember(transaction, session.key, request, None, now_ms)
        transaction.changed((session_id,), work=True)

    return write


def _close(transaction: Transaction, session: ClientSession, session_id: str, now_ms: int) -> None:
    """Closes a session that has nothing to do."""
    fence, capacity, size, *trimmed = transaction.execute("session_close", (session.key, now_ms)).fetchone()
    withdrawn = _withdraw_late(transaction, session, session_id, now_ms)
    if session.await_step_id is not None:
        name, status = StepName.AWAIT_USER_MESSAGE.value, StepStatus.CANCELLED.value
        step = (session.key, -1, session.await_step_id, None, name, status, 0, "", None, None, now_ms, None)
        transaction.execute("step_put", step)
    rest = Ring(capacity, size, trimmed[0], trimmed[1], newest=0)
    closing: list[tuple[AgentEventType, str | None, JsonObject]] = [
        *((AgentEventType.INTERRUPT_RESOLVED, one.turn_id, one.model_dump(mode="json")) for one in withdrawn),
        (AgentEventType.SESSION_CLOSED, None, {}),
    ]
    events = [
        AgentEvent(
            cursor=cursor_for(fence, number),
            type=kind,
            session_id=session_id,
            turn_id=turn_id,
            data=data,
            created_at=to_datetime(now_ms),
        )
        for number, (kind, turn_id, data) in enumerate(closing, start=1)
    ]
    append(transaction, session.key, fence, rest, [event_row(n, event) for n, event in enumerate(events, start=1)])
    transaction.execute("session_count_events", (rest.size, rest.trimmed_fence, rest.trimmed_number, session.key))


def _withdraw_late(transaction: Transaction, session: ClientSession, session_id: str, now_ms: int) -> list[Interrupt]:
    """Nobody may answer what outlived its turn any more.  Returns what was still pending, as it is now."""
    connection, where = transaction.connection, f"session {session_id!r}, interrupt"
    pending = [
        rows.read_row(rows.interrupt, row, f"{where} {row[0]!r}", connection)
        for row in transaction.execute("interrupts_pending", (session.key,)).fetchall()
    ]
    transaction.execute("late_withdraw", (session.key, now_ms))
    for row in transaction.execute("questions_late", (session.key,)).fetchall():
        late = rows.read_row(rows.late_question, row, f"{where} {row[2]!r}")
        name, status = wait_step_name(late.kind).value, StepStatus.WITHDRAWN.value
        step = (session.key, -1, late.step_id, late.turn_id, name, status, 1, "", None, None, now_ms, None)
        transaction.execute("step_put", step)
        transaction.execute("question_end", (None, None, None, None, session.key, late.interrupt_id))
    ended = {"status": InterruptStatus.WITHDRAWN, "resolved_at": to_datetime(now_ms)}
    return [one.model_copy(update=ended) for one in pending]


def delete_session(session_id: str) -> Write[None]:
    """Removes every row of a session, and the long texts that only it refers to."""

    def write(transaction: Transaction) -> None:
        session = known_session(transaction, session_id)
        for statement in transaction.connection.deletions:
            transaction.execute(statement, (session.key,))
        transaction.changed((session_id,), work=True)  # An owner has to notice that it lost its lease.

    return write
