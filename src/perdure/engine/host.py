"""An owner's copy of one session: the loop's state, the book of the open turn, and the writes that come of them.

Both engines have it: a host reduces inputs, makes one write of what follows, and hands that to the store.  When it
does so, and who runs what was commanded, is the business of its actor.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, fields, replace

from perdure.clock import Clock, to_ms
from perdure.engine.arrivals import Arrival, JoinAsked, inbox_arrival
from perdure.engine.attachments import NOTHING, Attachment, SessionFacts
from perdure.engine.book import TurnBook, next_deadline_ms, restore_book, restore_state
from perdure.engine.feed import FeedHub, SessionFeed
from perdure.engine.limits import ensure_storable_messages
from perdure.engine.scribe import Draft
from perdure.engine.turn_log import StoreTurnLog
from perdure.errors import UsageError
from perdure.faults import DurableWrite
from perdure.session.flow import reduce
from perdure.session.model import (
    MAX_STEERING_BYTES,
    NO_USAGE,
    Interrupt,
    InterruptStatus,
    JoinedMessage,
    JoinedMessages,
    TurnStatus,
    UserMessage,
)
from perdure.session.runner import AgentSessionFlow, ClosedCall, ModelCall, NewMessage
from perdure.session.state import (
    AttemptFailed,
    AttemptStarted,
    CallPhase,
    Command,
    DrainRequested,
    EndTurn,
    Input,
    InterruptExpired,
    JoinRequested,
    JoinTurn,
    MessageArrived,
    ModelStepSettled,
    RunCall,
    SessionState,
    TakenOver,
)
from perdure.store.base import ClaimedSession, InboxItem, SessionStore, SessionWrite


@dataclass(frozen=True, slots=True)
class Reduction:
    """One step of the loop: what was reduced, what is to be stored for it, and what then is to be done.

    Attributes:
        inputs: what the reducer was given, in order.
        taken: the arrivals, each with what follows from it.
    """

    inputs: tuple[Input, ...]
    taken: tuple[tuple[Arrival, Sequence[Command]], ...]
    write: SessionWrite
    now_ms: int

    @property
    def commands(self) -> list[Command]:
        """All that follows, in order."""
        return [command for _, follow in self.taken for command in follow]

    @property
    def begins_only(self) -> bool:
        """Whether the write begins a turn and does nothing else that something would have to wait for."""
        write = self.write
        return write.begin is not None and write.turn is None and not any(isinstance(c, RunCall) for c in self.commands)


class SessionHost:
    """One session under a lease.

    Args:
        definition: fingerprint of the flow's code.

    Attributes:
        state: of the session's loop.
        book: of the open turn; ``None`` when none is open.
        draining: the session is about to be given up: nothing new is started.
    """

    def __init__(
        self,
        store: SessionStore,
        clock: Clock,
        hub: FeedHub,
        flow: AgentSessionFlow,
        definition: str,
        claimed: ClaimedSession,
    ) -> None:
        self.session_id = claimed.lease.session_id
        self.lease = claimed.lease
        self.state: SessionState = restore_state(claimed, None)
        self.feed = SessionFeed(hub, self.session_id, claimed.lease.fence)
        self.book: TurnBook | None = None
        self.draining = False
        self._store = store
        self._clock = clock
        self._flow = flow
        self._claimed: ClaimedSession | None = claimed
        self._facts = SessionFacts(
            session_id=self.session_id,
            incarnation=claimed.incarnation,
            user_id=claimed.user_id,
            definition=definition,
            interrupt_deadline=flow.interrupt_deadline,
        )
        self._messages: dict[str, UserMessage] = {}
        """Of turns that have not begun, by turn id."""
        self._late: dict[str, Interrupt] = {}
        """Pending interrupts that outlived the turn that raised them, or will."""
        self._message_count = claimed.message_count
        self._seen_position = 0

    # ------------------------------------------------------------ what comes

    async def restore(self) -> list[Arrival]:
        """Reads what the claim did not bring.  Returns what comes first: the new owner, then the inbox."""
        claimed, self._claimed = self._claimed, None
        assert claimed is not None
        if claimed.turn is not None:
            recorded = await self._store.read_recorded_turn(self.session_id, claimed.turn.turn_id)
            asked = [call.interrupt_id for call in claimed.calls if call.phase is CallPhase.AWAITING]
            asked += [question.interrupt_id for question in claimed.questions if not question.settled]
            # Also those that are answered by now: the answer is in the inbox, or about to come.
            interrupts = [await self._store.read_interrupt(self.session_id, name) for name in asked if name is not None]
            self.book = restore_book(claimed, recorded, interrupts)
            self.state = restore_state(claimed, self.book)
        for late in claimed.late:
            self._late[late.interrupt_id] = await self._store.read_interrupt(self.session_id, late.interrupt_id)
        return [Arrival(TakenOver(claimed.check, claimed.lost)), *self._unseen(claimed.inbox)]

    async def look(self) -> list[Arrival]:
        """What is new in the inbox, then the deadlines that have passed: an answer that was accepted in time wins."""
        arrivals = self._unseen(await self._store.read_inbox(self.lease, self._seen_position))
        now = self._clock.now_ms()
        for interrupt in self._pending():
            if interrupt.deadline is not None and to_ms(interrupt.deadline) <= now:
                attachment = Attachment(kinds=(DurableWrite.INTERRUPT_SETTLED,))
                arrivals.append(Arrival(InterruptExpired(interrupt.interrupt_id), attachment))
        return arrivals

    def _unseen(self, items: Sequence[InboxItem]) -> list[Arrival]:
        if items:
            self._seen_position = items[-1].position
        return [inbox_arrival(item) for item in items]

    def next_deadline_ms(self) -> int | None:
        """When the first of the pending interrupts expires; ``None``: never."""
        return next_deadline_ms(self._pending())

    def _pending(self) -> list[Interrupt]:
        """The interrupts that nobody has answered yet, as far as is known here."""
        late = [one for one in self._late.values() if one.status is InterruptStatus.PENDING]
        return [*(self.book.pending() if self.book is not None else ()), *late]

    # ------------------------------------------------------------ what follows

    async def reduce(self, arrivals: Sequence[Arrival]) -> Reduction:
        """One step of the loop.  Nothing that follows from it may be done before its write is on disk (J8)."""
        inputs: list[Input] = []
        if self.draining and not self.state.draining:
            inputs.append(DrainRequested())
            self.state, _ = reduce(self.state, inputs[0])
        before = self.state
        draft = Draft(
            self._facts, self.feed, self.book, self._messages, self._late, self._message_count, self._clock.now_ms()
        )
        taken: list[tuple[Arrival, Sequence[Command]]] = []
        for arrival in arrivals:
            if self.draining and isinstance(arrival.given, (TakenOver, AttemptStarted, AttemptFailed)):
                taken.append((arrival, ()))  # It would start something; that is left to the next owner.
                continue
            inputs.append(arrival.given)
            taken.append((arrival, await self._take(arrival, draft)))
        write = draft.finish(before, self.state)
        self.book, self._message_count = draft.book, draft.message_count
        return Reduction(tuple(inputs), tuple(taken), write, draft.now_ms)

    async def _take(self, arrival: Arrival, draft: Draft) -> Sequence[Command]:
        """Reduces one input into the draft.  Returns what follows from it."""
        if arrival.attachment.message is not None:
            turn_id, message = arrival.attachment.message
            self._messages[turn_id] = message
        if isinstance(arrival.given, MessageArrived):
            for interrupt_id in self._late.keys() & set(arrival.given.answers):
                # As it was answered, with who and when.
                self._late[interrupt_id] = await self._store.read_interrupt(self.session_id, interrupt_id)
        self.state, commands = reduce(self.state, arrival.given)
        stale = isinstance(arrival.given, ModelStepSettled) and not commands
        draft.attach(NOTHING if stale else arrival.attachment)
        for command in commands:
            if isinstance(command, EndTurn) and command.status is not TurnStatus.COMPLETED:
                if draft.book is not None:
                    draft.book.sealed = True
                draft.add_messages(await self._closing_messages(draft, command))
            draft.take(command)
        return commands

    async def _closing_messages(self, draft: Draft, ended: EndTurn) -> tuple[NewMessage, ...]:
        book = draft.book
        assert book is not None
        start = book.start
        first, new = start.history_length, draft.new_items
        stored = await self._store.read_history(self.session_id, first, first + book.stored_messages - len(new))
        earlier = await self._store.read_earlier_calls(self.session_id, start.turn_id) if start.leg > 1 else ()
        calls = [ClosedCall(call.request, call.record) for call in earlier if call.record is not None]
        calls += [ClosedCall(request, book.records[call_id]) for call_id, request in book.requests.items()]

        def close(calls: Sequence[ClosedCall]) -> tuple[NewMessage, ...]:
            return self._flow.runner.closing_messages(
                start, [*stored, *new], book.joined, calls, ended.status, ended.error, draft.now_ms
            )

        try:
            messages = close(calls)
            ensure_storable_messages(messages)
        except UsageError:
            # All together it is more than a store takes.  What became of each call is told all the same.
            messages = close([replace(call, record=replace(call.record, outcome=None)) for call in calls])
        return messages

    # ------------------------------------------------------------ what steers

    def _steering(self) -> tuple[str, ...]:
        """The messages of the queue that steer; of many long ones the first that go into one record."""
        steering: list[str] = []
        room = MAX_STEERING_BYTES
        for message_id, message in self._messages.items():
            if not message.steers:
                continue
            room -= len(message.text.encode())
            if room < 0:
                break
            steering.append(message_id)
        return tuple(steering)

    async def join(self, asked: JoinAsked) -> Reduction | None:
        """Takes messages out of the queue and into the open turn, in a write of its own.  ``None``: none may join.

        Nothing is changed before that write is on disk: a client may cancel one of them up to then.

        Raises:
            Conflict: a client was first; nothing was written.
            LeaseLost, StoreError
        """
        given = JoinRequested(asked.turn_id, self._steering())
        state, commands = reduce(self.state, given)
        ids = tuple(command.message_id for command in commands if isinstance(command, JoinTurn))
        if not ids or self.book is None:
            return None
        messages = [JoinedMessage(message_id=one, message=self._messages[one]) for one in ids]
        response = JoinedMessages(seen=asked.seen, messages=tuple(messages)).model_dump_json()
        now_ms = self._clock.now_ms()
        record = ModelCall(asked.key, asked.sequence, response, NO_USAGE, now_ms)
        kinds = (DurableWrite.MESSAGES_JOINED,)
        write = SessionWrite(kinds, turn_id=asked.turn_id, model_calls=(record,), joined=ids)
        await self.commit(write, now_ms)
        self.state = state
        self.book.joined += messages
        for message_id in ids:
            del self._messages[message_id]
        return Reduction((given,), ((Arrival(given), commands),), write, now_ms)

    # ------------------------------------------------------------ writing

    async def commit(self, write: SessionWrite, now_ms: int | None = None) -> None:
        """Stores a write, and shows what it tells of.

        Raises:
            LeaseLost, StoreError
        """
        await self._store.commit(self.lease, write, self._clock.now_ms() if now_ms is None else now_ms)
        self.feed.stored(write.events)

    def unwritten(self) -> SessionWrite:
        """What waits for a write to go along with: records of model calls, messages that came early, and deltas."""
        book = self.book
        models = tuple(book.unwritten_models) if book is not None else ()
        messages = tuple(book.unwritten_messages) if book is not None else ()
        if book is not None:
            book.unwritten_models.clear()
            book.unwritten_messages.clear()
            self._message_count = book.message_count
        events = self.feed.take_unstored()
        kinds = (DurableWrite.MODEL_RECORDED,) if models else (DurableWrite.EVENTS_APPENDED,) if events else ()
        return SessionWrite(
            kinds=kinds,
            model_calls=models,
            usage=sum((call.usage for call in models), NO_USAGE) if models else None,
            messages=messages,
            turn_id=book.turn_id if book is not None else None,
            events=events,
        )

    @property
    def waits_for_write(self) -> bool:
        """Whether a record of a model call waits for a write."""
        return self.book is not None and bool(self.book.unwritten_models)

    def releasing(self, write: SessionWrite) -> SessionWrite:
        """The same write, which also gives the session up."""
        kinds = (*write.kinds, DurableWrite.SESSION_RELEASED)
        return replace(write, kinds=kinds, release=True, wake_at_ms=self.next_deadline_ms())

    def open_log(
        self,
        book: TurnBook,
        *,
        flush_soon: Callable[[], None],
        flush_now: Callable[[], Awaitable[None]],
        join: Callable[[JoinAsked], None],
        news: Callable[[], None],
    ) -> StoreTurnLog:
        """The log of a live turn.  See ``StoreTurnLog``."""
        return StoreTurnLog(
            self._store,
            self._clock,
            book,
            self.feed,
            fresh=book.is_new,
            flush_soon=flush_soon,
            flush_now=flush_now,
            join=join,
            steered=lambda: bool(self._steering()),
            news=news,
        )


_CONTENT = tuple(part.name for part in fields(SessionWrite) if part.name not in ("kinds", "turn_id"))


def is_empty(write: SessionWrite) -> bool:
    """Whether there is nothing to store; ``kinds`` and ``turn_id`` alone are nothing."""
    return not any(getattr(write, part) for part in _CONTENT)
