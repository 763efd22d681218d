"""What people answer: the compare-and-set on an interrupt, and the inbox item that tells its session (J6)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NoReturn

from perdure.clock import to_datetime
from perdure.errors import (
    InterruptAlreadyResolved,
    InterruptExpired,
    InterruptNotFound,
    InterruptWithdrawn,
    SessionBlocked,
    SessionClosed,
    UsageError,
)
from perdure.faults import DurableWrite
from perdure.session.model import Interrupt, InterruptStatus, QuestionAnswer, UserMessage
from perdure.session.runner import QuestionWait
from perdure.store.base import GivenAnswer, InboxKind, Reply, Request
from perdure.store.codec import Packed, answer_to_json, error_from_json, from_json, message_to_json, pack, same_json
from perdure.store.sql import rows
from perdure.store.sql.client import (
    ClientSession,
    earlier_request,
    known_session,
    put_into_inbox,
    remember,
)
from perdure.store.sql.transaction import Transaction, Write


@dataclass(frozen=True, slots=True)
class _Given:
    """An answer, ready to be stored."""

    interrupt_id: str
    answer: GivenAnswer
    where: str
    text: str
    packed: Packed

    @property
    def status(self) -> InterruptStatus:
        if isinstance(self.answer, Reply):
            return InterruptStatus.ANSWERED
        return InterruptStatus.APPROVED if self.answer.approved else InterruptStatus.REJECTED


def _prepare(session_id: str, interrupt_id: str, answer: GivenAnswer) -> _Given:
    where = f"session {session_id!r}, interrupt {interrupt_id!r}"
    text = answer_to_json(answer, where)
    return _Given(interrupt_id, answer, where, text, pack(text, where))


def answer_interrupt(
    session_id: str, interrupt_id: str, answer: GivenAnswer, request: Request, now_ms: int, turn_id: str | None
) -> Write[Interrupt]:
    """ANSWER_ACCEPTED, and MESSAGE_ACCEPTED when the answer starts a turn."""
    given = _prepare(session_id, interrupt_id, answer)

    def write(transaction: Transaction) -> Interrupt:
        session = known_session(transaction, session_id)
        repeated = earlier_request(transaction, session.key, session_id, request) is not None
        found = _read_interrupt(transaction, session, session_id, given)
        if repeated or _is_answered_so(found, given):
            return found
        return _Acceptance(transaction, session, session_id, turn_id, now_ms).accept([given], request)[0]

    return write


def answer_interrupts(
    session_id: str, answers: Mapping[str, GivenAnswer], request: Request, now_ms: int, turn_id: str, whole: bool
) -> Write[tuple[Interrupt, ...]]:
    """Several pending interrupts of a session at once, or all (``whole``); writes as ``answer_interrupt``."""
    everything = [_prepare(session_id, interrupt_id, answer) for interrupt_id, answer in answers.items()]

    def write(transaction: Transaction) -> tuple[Interrupt, ...]:
        session = known_session(transaction, session_id)
        repeated = earlier_request(transaction, session.key, session_id, request) is not None
        found = [_read_interrupt(transaction, session, session_id, given) for given in everything]
        if repeated or all(_is_answered_so(one, given) for one, given in zip(found, everything, strict=True)):
            return tuple(found)
        acceptance = _Acceptance(transaction, session, session_id, turn_id, now_ms)
        if whole:
            acceptance.check_whole([given.interrupt_id for given in everything])
        return tuple(acceptance.accept(everything, request))

    return write


class _Acceptance:
    """Answers being accepted: first all are checked, then all are stored."""

    def __init__(
        self, transaction: Transaction, session: ClientSession, session_id: str, turn_id: str | None, now_ms: int
    ) -> None:
        self._transaction = transaction
        self._session = session
        self._session_id = session_id
        self._turn_id = turn_id
        self._now_ms = now_ms

    def check_whole(self, named: list[str]) -> None:
        """Raises: UsageError, when something is pending that is not named."""
        rows_found = self._transaction.execute("pending_ids", (self._session.key,)).fetchall()
        missing = [interrupt_id for (interrupt_id,) in rows_found if interrupt_id not in named]
        if missing:
            raise UsageError(
                f"session {self._session_id!r} also asks {', '.join(map(repr, missing))}; answer all that is pending, "
                "or one by one with resolve_interrupt and answer_question",
                session_id=self._session_id,
                missing=missing,
            )

    def accept(self, everything: list[_Given], request: Request) -> list[Interrupt]:
        """Stores the answers.

        Raises:
            UsageError, InterruptAlreadyResolved, InterruptExpired, InterruptWithdrawn, SessionBlocked, SessionClosed
        """
        found = [_read_interrupt(self._transaction, self._session, self._session_id, given) for given in everything]
        late: list[tuple[_Given, Interrupt]] = []
        for given, interrupt in zip(everything, found, strict=True):
            if self._check(given, interrupt):
                late.append((given, interrupt))
        message = self._late_message(late) if late else None
        self._transaction.starts(DurableWrite.ANSWER_ACCEPTED)
        if message is not None:
            self._transaction.starts(DurableWrite.MESSAGE_ACCEPTED)
        for given in everything:
            self._resolve(given)
        starts_turn = {given.interrupt_id for given, _ in late}
        for given in everything:
            if given.interrupt_id not in starts_turn:
                self._tell_owner(given)
        key, turn_id = self._session.key, self._turn_id if late else None
        if message is not None:
            put_into_inbox(self._transaction, key, InboxKind.MESSAGE, self._now_ms, turn_id=turn_id, content=message)
        remember(self._transaction, key, request, turn_id, self._now_ms)
        self._transaction.changed((self._session_id,), work=True)
        return [_read_interrupt(self._transaction, self._session, self._session_id, given) for given in everything]

    def _check(self, given: _Given, found: Interrupt) -> bool:
        """Refuses what cannot be accepted.  Returns whether the answer starts a turn."""
        _check_kind(self._session_id, given, found)
        if found.status is not InterruptStatus.PENDING:
            _refuse_late_answer(self._session_id, found)
        if found.deadline is not None and found.deadline <= to_datetime(self._now_ms):
            _refuse_expired(self._session_id, found)
        wait = self._wait(given)
        late = wait is not None and wait[0] is QuestionWait.NEXT_TURN
        if self._session.blocked is not None and not late:
            _refuse_blocked(self._session_id, self._session.blocked)
        return late

    def _wait(self, given: _Given) -> tuple[QuestionWait, bool] | None:
        """Who waits for the answer to a question, and whether for more than that; ``None``: it is a call that asks."""
        row = self._transaction.execute("question_wait", (self._session.key, given.interrupt_id)).fetchone()
        return None if row is None else (QuestionWait(row[0]), bool(row[1]))

    def _resolve(self, given: _Given) -> None:
        stored = self._transaction.keep(self._session.key, given.packed)
        facts = (given.status.value, given.answer.resolved_by, self._now_ms, stored)
        self._transaction.execute("interrupt_answer", (*facts, self._session.key, given.interrupt_id))

    def _tell_owner(self, given: _Given) -> None:
        wait = self._wait(given)
        put_into_inbox(
            self._transaction,
            self._session.key,
            InboxKind.ANSWER,
            self._now_ms,
            interrupt_id=given.interrupt_id,
            content=given.packed,
            more_needed=wait is not None and wait[1],
        )

    def _late_message(self, late: list[tuple[_Given, Interrupt]]) -> Packed:
        """The message that starts a turn with these answers."""
        if self._session.closing:
            raise SessionClosed(
                f"session {self._session_id!r} is closed, and the answer would start a turn",
                session_id=self._session_id,
            )
        if self._turn_id is None:
            raise UsageError(f"{late[0][0].where} starts a turn with its answer; give that an id")
        answers = tuple(
            QuestionAnswer(
                question_id=found.tool_call_id,
                tool_name=found.tool_name,
                value=from_json(given.text, given.where),
                interrupt_id=found.interrupt_id,
            )
            for given, found in late
        )
        where = f"session {self._session_id!r}, answer"
        return pack(message_to_json(UserMessage(text="", answers=answers), where), where)


def _is_answered_so(found: Interrupt, given: _Given) -> bool:
    return found.response is not None and same_json(found.response, from_json(given.text, given.where))


def _read_interrupt(transaction: Transaction, session: ClientSession, session_id: str, given: _Given) -> Interrupt:
    row = transaction.execute("interrupt", (session.key, given.interrupt_id)).fetchone()
    if row is None:
        raise interrupt_not_found(session_id, given.interrupt_id)
    return rows.read_row(rows.interrupt, row, given.where, transaction.connection)


def _check_kind(session_id: str, given: _Given, found: Interrupt) -> None:
    if found.kind.takes_value == isinstance(given.answer, Reply):
        return
    right = "answer_question" if found.kind.takes_value else "resolve_interrupt"
    raise UsageError(
        f"interrupt {found.interrupt_id!r} of session {session_id!r} ({found.kind.value}, {found.tool_name}) is "
        f"answered with {right}",
        session_id=session_id,
        interrupt_id=found.interrupt_id,
        kind=found.kind.value,
    )


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
        f"interrupt {found.interrupt_id!r} of session {session_id!r} expired at {deadline}; it counts as not answered, "
        "and the agent may ask again",
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
