"""What clients write into the log of a session at rest, and new sessions that branch off from one.

Both take what is stored and leave it as it is: an appended message is a turn of its own, a fork copies the turns before
its point.
"""

from __future__ import annotations

from perdure.clock import to_datetime
from perdure.errors import Conflict, SessionAlreadyExists, SessionClosed, TurnNotFound
from perdure.faults import DurableWrite
from perdure.session.events import cursor_for
from perdure.session.flow import await_step_id
from perdure.session.model import (
    AgentEvent,
    AgentEventType,
    JsonObject,
    StepName,
    StepStatus,
    TurnInfo,
    TurnStatus,
    UserMessage,
)
from perdure.session.runner import NewMessage
from perdure.store.base import Fork, NewFork
from perdure.store.codec import message_to_json, pack
from perdure.store.sql.client import find_session, known_session
from perdure.store.sql.events import Ring, append, event_row
from perdure.store.sql.prepare import prepare_message
from perdure.store.sql.state import apply_delta, shared_state_text
from perdure.store.sql.transaction import Transaction, Write


def append_message(session_id: str, turn_id: str, message: NewMessage, now_ms: int) -> Write[None]:
    """MESSAGE_ACCEPTED: a message that no turn said becomes a turn of its own, which is completed at once.

    An owner that keeps the session for a while loses it: what it has in memory is older than the log.
    """
    where = f"session {session_id!r}, appended message"
    prepared = prepare_message(message, where)
    nothing = pack(message_to_json(UserMessage(text=""), where), where)

    def write(transaction: Transaction) -> None:
        session = known_session(transaction, session_id)
        if session.closing:
            raise SessionClosed(
                f"session {session_id!r} is closed and takes no more messages; start a new session",
                session_id=session_id,
            )
        busy = transaction.execute("inbox_has_items", (session.key,)).fetchone() is not None
        if busy or session.open_turn_key is not None:
            raise Conflict(
                f"session {session_id!r} has a turn that runs, waits or is queued; append when it is idle",
                session_id=session_id,
            )
        transaction.starts(DurableWrite.MESSAGE_ACCEPTED)
        row = transaction.execute("session_append", (session.key, now_ms)).fetchone()
        app_name, user_id, number, position, first_step, fence, capacity, size, *trimmed = row
        shared = shared_state_text(transaction.connection, app_name, user_id)
        facts = (session.key, turn_id, number, now_ms, position, first_step, transaction.keep(session.key, nothing))
        turn_key = transaction.execute("turn_append", (*facts, shared)).fetchone()[0]
        texts = (transaction.keep(session.key, prepared.text), transaction.keep(session.key, prepared.item))
        transaction.execute("message_insert", (session.key, position, turn_key, *prepared.head, *texts))
        apply_delta(transaction, session.key, app_name, user_id, prepared.delta, turn_number=number)
        told = _events(turn_id, number, position, now_ms)
        ring = Ring(capacity, size, trimmed[0], trimmed[1], newest=0)
        _tell(transaction, session.key, session_id, fence, ring, told, now_ms)
        transaction.changed((session_id,), work=True)  # An owner has to notice that it lost its lease.

    return write


def _events(turn_id: str, number: int, position: int, now_ms: int) -> list[tuple[AgentEventType, str, JsonObject]]:
    at = to_datetime(now_ms)
    begun = TurnInfo(turn_id=turn_id, number=number, status=TurnStatus.RUNNING, started_at=at)
    ended = begun.model_copy(update={"status": TurnStatus.COMPLETED, "ended_at": at})
    return [
        (AgentEventType.TURN_STARTED, turn_id, begun.model_dump(mode="json")),
        (AgentEventType.MESSAGE, turn_id, {"index": position}),
        (AgentEventType.TURN_COMPLETED, turn_id, ended.model_dump(mode="json")),
    ]


def _tell(
    transaction: Transaction,
    session_key: int,
    session_id: str,
    fence: int,
    ring: Ring,
    told: list[tuple[AgentEventType, str, JsonObject]],
    now_ms: int,
) -> None:
    rows = [
        event_row(
            number,
            AgentEvent(
                cursor=cursor_for(fence, number),
                type=kind,
                session_id=session_id,
                turn_id=turn_id,
                data=data,
                created_at=to_datetime(now_ms),
            ),
        )
        for number, (kind, turn_id, data) in enumerate(told, 1)
    ]
    append(transaction, session_key, fence, ring, rows)
    transaction.execute("session_count_events", (ring.size, ring.trimmed_fence, ring.trimmed_number, session_key))


def fork_session(source_id: str, new: NewFork, now_ms: int) -> Write[Fork]:
    """SESSION_CREATED: a session with the turns before one of another's, and the state as it was then."""

    def write(transaction: Transaction) -> Fork:
        source = known_session(transaction, source_id)
        if find_session(transaction, new.session_id) is not None:
            raise _already_exists(new.session_id)
        point = transaction.execute("fork_point", (source.key, new.before_turn_id)).fetchone()
        if point is None:
            raise TurnNotFound(
                f"session {source_id!r} has no turn {new.before_turn_id!r} that began",
                session_id=source_id,
                turn_id=new.before_turn_id,
            )
        number, messages = point
        transaction.starts(DurableWrite.SESSION_CREATED)
        step_id = await_step_id(number - 1)
        # Its own fingerprint: a start under its id is another session.
        names = (new.session_id, new.incarnation, new.incarnation, step_id)
        inserted = transaction.execute("fork_session", (source.key, *names, number, messages, now_ms)).fetchone()
        if inserted is None:
            raise _already_exists(new.session_id)  # Another process made it just now.
        key = inserted[0]
        waits = (StepName.AWAIT_USER_MESSAGE.value, StepStatus.PENDING.value)
        transaction.execute("step_put", (key, 0, step_id, None, *waits, 0, "", None, now_ms, None, None))
        transaction.execute("fork_turns", (source.key, key, number))
        transaction.execute("fork_messages", (source.key, key, messages))
        transaction.execute("fork_state", (source.key, key, number))
        transaction.connection.share(source.key, key)
        transaction.changed((new.session_id,), work=False)
        last = transaction.execute("last_turn_before", (key, number)).fetchone()
        return Fork(new.session_id, None if last is None else last[0])

    return write


def _already_exists(session_id: str) -> SessionAlreadyExists:
    return SessionAlreadyExists(f"session {session_id!r} exists already; choose another id", session_id=session_id)
