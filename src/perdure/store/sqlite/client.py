"""What clients write: new sessions, inbox items, answers, deletions.

Each function prepares its texts at once (so that later changes of the caller's objects do not matter, and what cannot
be stored is refused before anything is queued) and returns the write for the writer's thread.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NoReturn

from perdure.clock import to_datetime
from perdure.errors import (
    InterruptAlreadyResolved,
    InterruptExpired,
    InterruptNotFound,
    InterruptWithdrawn,
    RequestConflict,
    SessionAlreadyExists,
    SessionBlocked,
    SessionClosed,
    SessionNotFound,
    TurnNotFound,
)
from perdure.faults import DurableWrite
from perdure.session.events import cursor_for
from perdure.session.model import (
    AgentEvent,
    AgentEventType,
    Interrupt,
    InterruptStatus,
    StepName,
    StepStatus,
    UserMessage,
)
from perdure.store.base import Answer, InboxKind, NewSession, Request
from perdure.store.codec import Packed, answer_to_json, error_from_json, from_json, message_to_json, pack, same_json
from perdure.store.sqlite import rows
from perdure.store.sqlite.events import Ring, append, event_row
from perdure.store.sqlite.queries import sql
from perdure.store.sqlite.state import apply_delta, split_delta
from perdure.store.sqlite.writer import Transaction, Write

_DELETIONS = [
    sql(name)
    for name in (
        "fence_floor_raise",
        "delete_calls",
        "delete_model_calls",
        "delete_turns",
        "delete_steps",
        "delete_interrupts",
        "delete_messages",
        "delete_inbox",
        "delete_requests",
        "delete_events",
        "delete_session_state",
        "delete_payloads",
        "delete_payload_refs",
        "delete_session",
    )
]
_SESSION_FOR_CLIENT = sql("session_for_client")
_SESSION_INSERT = sql("session_insert")
_SESSION_TAKE_POSITION = sql("session_take_position")
_SESSION_CLOSING = sql("session_closing")
_SESSION_CLOSE = sql("session_close")
_SESSION_COUNT_EVENTS = sql("session_count_events")
_INBOX_INSERT = sql("inbox_insert")
_INBOX_HAS_MESSAGE = sql("inbox_has_message")
_INBOX_HAS_MESSAGES = sql("inbox_has_messages")
_REQUEST_FIND = sql("request_find")
_REQUEST_INSERT = sql("request_insert")
_STEP_PUT = sql("step_put")
_TURN_ID_OF = sql("turn_id_of")
_INTERRUPT = sql("interrupt")
_INTERRUPT_ANSWER = sql("interrupt_answer")


@dataclass(frozen=True, slots=True)
class _Session:
    """The row of ``session_for_client``."""

    key: int
    fingerprint: str
    first_turn_id: str | None
    status: str
    closing: int
    closed: int
    blocked: str | None
    open_turn_key: int | None
    owner: str | None
    await_step_id: str | None


def find_session(transaction: Transaction, session_id: str) -> _Session | None:
    row = transaction.execute(_SESSION_FOR_CLIENT, (session_id,)).fetchone()
    return None if row is None else _Session(*row)


def session_not_found(session_id: str) -> SessionNotFound:
    return SessionNotFound(
        f"session {session_id!r} does not exist; start it first, or check the id and the store's address",
        session_id=session_id,
    )


def _known_session(transaction: Transaction, session_id: str) -> _Session:
    session = find_session(transaction, session_id)
    if session is None:
        raise session_not_found(session_id)
    return session


# ---------------------------------------------------------------- idempotent requests


@dataclass(frozen=True, slots=True)
class _Earlier:
    """What an earlier request under the same id returned."""

    turn_id: str | None


def _earlier(transaction: Transaction, key: int, session_id: str, request: Request) -> _Earlier | None:
    """The same request, if it was made before.

    Raises:
        RequestConflict: the id was used for another request.
    """
    if request.request_id is None:
        return None
    row = transaction.execute(_REQUEST_FIND, (key, request.request_id)).fetchone()
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
    return _Earlier(turn_id)


def _remember(transaction: Transaction, key: int, request: Request, turn_id: str | None, now_ms: int) -> None:
    if request.request_id is not None:
        transaction.execute(_REQUEST_INSERT, (key, request.request_id, request.fingerprint, turn_id, now_ms))


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
        key = transaction.execute(_SESSION_INSERT, row).lastrowid
        assert key is not None
        name, pending = StepName.AWAIT_USER_MESSAGE.value, StepStatus.PENDING.value
        step = (key, 0, new.await_step_id, None, name, pending, 0, "", None, now_ms, None, None)
        transaction.execute(_STEP_PUT, step)
        apply_delta(transaction, key, new.app_name, new.user_id, 0, state)
        if text is not None:
            _put_into_inbox(transaction, key, InboxKind.MESSAGE, now_ms, turn_id=turn_id, content=text)
        _remember(transaction, key, request, turn_id, now_ms)
        transaction.changed((new.session_id,), work=text is not None)
        return turn_id

    return write


def accept_message(session_id: str, turn_id: str, message: UserMessage, request: Request, now_ms: int) -> Write[str]:
    """MESSAGE_ACCEPTED."""
    where = f"session {session_id!r}, message"
    text = pack(message_to_json(message, where), where)

    def write(transaction: Transaction) -> str:
        session = _known_session(transaction, session_id)
        earlier = _earlier(transaction, session.key, session_id, request)
        if earlier is not None:
            return earlier.turn_id or turn_id
        if session.closing:
            raise SessionClosed(
                f"session {session_id!r} is closed and takes no more messages; start a new session",
                session_id=session_id,
            )
        transaction.starts(DurableWrite.MESSAGE_ACCEPTED)
        _put_into_inbox(transaction, session.key, InboxKind.MESSAGE, now_ms, turn_id=turn_id, content=text)
        _remember(transaction, session.key, request, turn_id, now_ms)
        transaction.changed((session_id,), work=True)
        return turn_id

    return write


def _put_into_inbox(
    transaction: Transaction,
    key: int,
    kind: InboxKind,
    now_ms: int,
    *,
    turn_id: str | None = None,
    interrupt_id: str | None = None,
    content: Packed | None = None,
) -> None:
    """Appends an inbox item and makes the session due."""
    position = transaction.execute(_SESSION_TAKE_POSITION, (key, kind.value, now_ms)).fetchone()[0]
    stored = transaction.keep(key, content)
    transaction.execute(_INBOX_INSERT, (key, position, kind.value, turn_id, interrupt_id, now_ms, stored))


# ---------------------------------------------------------------- cancel, close, delete


def accept_cancel(session_id: str, turn_id: str | None, request: Request, now_ms: int) -> Write[None]:
    """REQUEST_ACCEPTED, unless there is nothing to cancel."""

    def write(transaction: Transaction) -> None:
        session = _known_session(transaction, session_id)
        if _earlier(transaction, session.key, session_id, request) is not None:
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
        _put_into_inbox(transaction, session.key, InboxKind.CANCEL, now_ms, turn_id=meant)
        _remember(transaction, session.key, request, meant, now_ms)
        transaction.changed((session_id,), work=True)

    return write


def _open_turn_id(transaction: Transaction, session: _Session) -> str | None:
    if session.open_turn_key is None:
        return None
    turn_id: str = transaction.execute(_TURN_ID_OF, (session.open_turn_key,)).fetchone()[0]
    return turn_id


def _is_live(transaction: Transaction, session: _Session, turn_id: str) -> bool:
    if _open_turn_id(transaction, session) == turn_id:
        return True
    return transaction.execute(_INBOX_HAS_MESSAGE, (session.key, turn_id)).fetchone() is not None


def accept_close(session_id: str, request: Request, now_ms: int) -> Write[None]:
    """REQUEST_ACCEPTED; and SESSION_CLOSED when there is nobody to leave it to and nothing to wait for."""

    def write(transaction: Transaction) -> None:
        session = _known_session(transaction, session_id)
        if _earlier(transaction, session.key, session_id, request) is not None or session.closing:
            return
        queued = transaction.execute(_INBOX_HAS_MESSAGES, (session.key,)).fetchone() is not None
        at_once = session.owner is None and session.open_turn_key is None and not queued
        if at_once:
            transaction.starts(DurableWrite.REQUEST_ACCEPTED, DurableWrite.SESSION_CLOSED)
            _close(transaction, session, session_id, now_ms)
        else:
            transaction.starts(DurableWrite.REQUEST_ACCEPTED)
            _put_into_inbox(transaction, session.key, InboxKind.CLOSE, now_ms)
            transaction.execute(_SESSION_CLOSING, (session.key,))
        _remember(transaction, session.key, request, None, now_ms)
        transaction.changed((session_id,), work=not at_once)

    return write


def _close(transaction: Transaction, session: _Session, session_id: str, now_ms: int) -> None:
    """Closes a session that nobody owns and that has nothing to do."""
    fence, *ring = transaction.execute(_SESSION_CLOSE, (session.key, now_ms)).fetchone()
    if session.await_step_id is not None:
        name, status = StepName.AWAIT_USER_MESSAGE.value, StepStatus.CANCELLED.value
        step = (session.key, -1, session.await_step_id, None, name, status, 0, "", None, None, now_ms, None)
        transaction.execute(_STEP_PUT, step)
    event = AgentEvent(
        cursor=cursor_for(fence, 1),
        type=AgentEventType.SESSION_CLOSED,
        session_id=session_id,
        turn_id=None,
        created_at=to_datetime(now_ms),
    )
    rest = Ring(*ring)
    append(transaction, session.key, fence, rest, [event_row(1, event)])
    transaction.execute(_SESSION_COUNT_EVENTS, (rest.size, rest.trimmed_fence, rest.trimmed_number, session.key))


def delete_session(session_id: str) -> Write[None]:
    """Removes every row of a session, and the long texts that only it refers to."""

    def write(transaction: Transaction) -> None:
        session = _known_session(transaction, session_id)
        for statement in _DELETIONS:
            transaction.execute(statement, (session.key,))
        transaction.changed((session_id,), work=True)  # An owner has to notice that it lost its lease.

    return write


# ---------------------------------------------------------------- answers


def answer_interrupt(
    session_id: str, interrupt_id: str, answer: Answer, request: Request, now_ms: int
) -> Write[Interrupt]:
    """ANSWER_ACCEPTED: the compare-and-set on the interrupt and its inbox item are one write (J6)."""
    where = f"session {session_id!r}, interrupt {interrupt_id!r}"
    text = answer_to_json(answer, where)
    packed = pack(text, where)

    def write(transaction: Transaction) -> Interrupt:
        session = _known_session(transaction, session_id)
        repeated = _earlier(transaction, session.key, session_id, request) is not None
        found = _read_interrupt(transaction, session.key, session_id, interrupt_id, where)
        if repeated or (found.response is not None and same_json(found.response, from_json(text, where))):
            return found
        if found.status is not InterruptStatus.PENDING:
            _refuse_late_answer(session_id, found)
        if found.deadline is not None and found.deadline <= to_datetime(now_ms):
            _refuse_expired(session_id, found)
        if session.blocked is not None:
            _refuse_blocked(session_id, session.blocked)
        transaction.starts(DurableWrite.ANSWER_ACCEPTED)
        status = InterruptStatus.APPROVED if answer.approved else InterruptStatus.REJECTED
        stored = transaction.keep(session.key, packed)
        facts = (status.value, answer.resolved_by, now_ms, stored, session.key, interrupt_id)
        transaction.execute(_INTERRUPT_ANSWER, facts)
        _put_into_inbox(transaction, session.key, InboxKind.ANSWER, now_ms, interrupt_id=interrupt_id, content=packed)
        _remember(transaction, session.key, request, None, now_ms)
        transaction.changed((session_id,), work=True)
        return _read_interrupt(transaction, session.key, session_id, interrupt_id, where)

    return write


def _read_interrupt(
    transaction: Transaction, session_key: int, session_id: str, interrupt_id: str, where: str
) -> Interrupt:
    row = transaction.execute(_INTERRUPT, (session_key, interrupt_id)).fetchone()
    if row is None:
        raise interrupt_not_found(session_id, interrupt_id)
    return rows.read_row(rows.interrupt, row, where, transaction.connection)


def interrupt_not_found(session_id: str, interrupt_id: str) -> InterruptNotFound:
    return InterruptNotFound(
        f"session {session_id!r} never raised interrupt {interrupt_id!r}; take the id from the snapshot's "
        "pending_interrupts",
        session_id=session_id,
        interrupt_id=interrupt_id,
    )


def _refuse_late_answer(session_id: str, found: Interrupt) -> NoReturn:
    where = f"interrupt {found.interrupt_id!r} of session {session_id!r}"
    facts: dict[str, Any] = {"session_id": session_id, "interrupt_id": found.interrupt_id}
    if found.status is InterruptStatus.EXPIRED:
        _refuse_expired(session_id, found)
    if found.status is InterruptStatus.WITHDRAWN:
        raise InterruptWithdrawn(f"{where} was withdrawn when its turn ended; nothing waits for an answer", **facts)
    when = None if found.resolved_at is None else found.resolved_at.isoformat()
    raise InterruptAlreadyResolved(
        f"{where} was {found.status.value} by {found.resolved_by or 'somebody'} at {when}; an answer is final",
        **facts,
        resolved_by=found.resolved_by,
        resolved_at=when,
    )


def _refuse_expired(session_id: str, found: Interrupt) -> NoReturn:
    deadline = None if found.deadline is None else found.deadline.isoformat()
    raise InterruptExpired(
        f"interrupt {found.interrupt_id!r} of session {session_id!r} expired at {deadline}; the call counts as not "
        "approved, and the agent may ask again",
        session_id=session_id,
        interrupt_id=found.interrupt_id,
        deadline=deadline,
    )


def _refuse_blocked(session_id: str, blocked: str) -> NoReturn:
    error = error_from_json(blocked, f"session {session_id!r}")
    assert error is not None
    raise SessionBlocked(
        f"session {session_id!r} is blocked: {error.message}; start a worker with code that fits, or cancel the turn",
        session_id=session_id,
        **{name: error.facts.get(name) for name in ("step", "expected", "found")},
    )
