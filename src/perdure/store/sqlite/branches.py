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
from perdure.store.sqlite.client import find_session, session_not_found
from perdure.store.sqlite.events import Ring, append, event_row
from perdure.store.sqlite.prepare import prepare_message
from perdure.store.sqlite.queries import sql
from perdure.store.sqlite.state import apply_delta, shared_state_text
from perdure.store.sqlite.writer import Transaction, Write

_SESSION_APPEND = sql("session_append")
_SESSION_COUNT_EVENTS = sql("session_count_events")
_INBOX_HAS_ITEMS = sql("inbox_has_items")
_TURN_APPEND = sql("turn_append")
_MESSAGE_INSERT = sql("message_insert")
_FORK_POINT = sql("fork_point")
_FORK_SESSION = sql("fork_session")
_FORK_TURNS = sql("fork_turns")
_FORK_MESSAGES = sql("fork_messages")
_FORK_STATE = sql("fork_state")
_FORK_PAYLOADS = sql("fork_payloads")
_LAST_TURN_BEFORE = sql("last_turn_before")
_STEP_PUT = sql("step_put")


def append_message(session_id: str, turn_id: str, message: NewMessage, now_ms: int) -> Write[None]:
    """MESSAGE_ACCEPTED: a message that no turn said becomes a turn of its own, which is completed at once.

    An owner that is about to let the session go loses it: what it has in memory is older than the log.
    """
    where = f"session {session_id!r}, appended message"
    prepared = prepare_message(message, where)
    nothing = pack(message_to_json(UserMessage(text=""), where), where)

    def write(transaction: Transaction) -> None:
        session = find_session(transaction, session_id)
        if session is None:
            raise session_not_found(session_id)
        if session.closing:
            raise SessionClosed(
                f"session {session_id!r} is closed and takes no more messages; start a new session",
                session_id=session_id,
            )
        busy = transaction.execute(_INBOX_HAS_ITEMS, (session.key,)).fetchone() is not None
        if busy or session.open_turn_key is not None:
            raise Conflict(
                f"session {session_id!r} has a turn that runs, waits or is queued; append when it is idle",
                session_id=session_id,
            )
        transaction.starts(DurableWrite.MESSAGE_ACCEPTED)
        row = transaction.execute(_SESSION_APPEND, (session.key, now_ms)).fetchone()
        app_name, user_id, number, position, first_step, fence, *ring = row
        shared = shared_state_text(transaction.connection, app_name, user_id)
        facts = (session.key, turn_id, number, now_ms, position, first_step, transaction.keep(session.key, nothing))
        turn_key = transaction.execute(_TURN_APPEND, (*facts, shared)).lastrowid
        texts = (transaction.keep(session.key, prepared.text), transaction.keep(session.key, prepared.item))
        transaction.execute(_MESSAGE_INSERT, (session.key, position, turn_key, *prepared.head, *texts))
        apply_delta(transaction, session.key, app_name, user_id, prepared.delta, turn_number=number)
        told = _events(turn_id, number, position, now_ms)
        _tell(transaction, session.key, session_id, fence, Ring(*ring), told, now_ms)
        transaction.changed((session_id,), work=False)

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
    transaction.execute(_SESSION_COUNT_EVENTS, (ring.size, ring.trimmed_fence, ring.trimmed_number, session_key))


def fork_session(source_id: str, new: NewFork, now_ms: int) -> Write[Fork]:
    """SESSION_CREATED: a session with the turns before one of another's, and the state as it was then."""

    def write(transaction: Transaction) -> Fork:
        source = find_session(transaction, source_id)
        if source is None:
            raise session_not_found(source_id)
        if find_session(transaction, new.session_id) is not None:
            raise SessionAlreadyExists(
                f"session {new.session_id!r} exists already; choose another id", session_id=new.session_id
            )
        point = transaction.execute(_FORK_POINT, (source.key, new.before_turn_id)).fetchone()
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
        key = transaction.execute(_FORK_SESSION, (source.key, *names, number, messages, now_ms)).lastrowid
        assert key is not None
        waits = (StepName.AWAIT_USER_MESSAGE.value, StepStatus.PENDING.value)
        transaction.execute(_STEP_PUT, (key, 0, step_id, None, *waits, 0, "", None, now_ms, None, None))
        transaction.execute(_FORK_TURNS, (source.key, key, number))
        transaction.execute(_FORK_MESSAGES, (source.key, key, messages))
        transaction.execute(_FORK_STATE, (source.key, key, number))
        transaction.execute(_FORK_PAYLOADS, (source.key, key))
        transaction.changed((new.session_id,), work=False)
        last = transaction.execute(_LAST_TURN_BEFORE, (key, number)).fetchone()
        return Fork(new.session_id, None if last is None else last[0])

    return write
