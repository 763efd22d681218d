"""One owned session: feeds inputs to the reducer, stores what follows, and has run what was commanded.

The order is always the same (J8): reduce, write, wait until the write is on disk, then run.  Whatever goes wrong in
here ends the actor, never the session: its worker frees the session and somebody claims it anew from what is stored.
"""

from __future__ import annotations

import asyncio
import enum
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import fields, replace
from datetime import timedelta

from perdure.clock import Clock, to_ms
from perdure.engine.arrivals import Arrival, inbox_arrival
from perdure.engine.attachments import NOTHING, Attachment, SessionFacts
from perdure.engine.book import TurnBook, next_deadline_ms, restore_book, restore_state
from perdure.engine.feed import FeedHub, SessionFeed
from perdure.engine.limits import ensure_storable_messages
from perdure.engine.running import RunningSteps
from perdure.engine.scribe import Draft
from perdure.engine.turn_log import StoreTurnLog
from perdure.errors import EngineError, UsageError
from perdure.faults import DurableWrite
from perdure.session.flow import reduce
from perdure.session.model import NO_USAGE, Interrupt, InterruptStatus, SessionStatus, TurnStatus, UserMessage
from perdure.session.runner import AgentSessionFlow, ClosedCall, NewMessage
from perdure.session.state import (
    AttemptFailed,
    AttemptStarted,
    CallAsked,
    CallPhase,
    CallSettled,
    CheckCode,
    Command,
    DrainRequested,
    DropTurn,
    EndTurn,
    HandOut,
    InterruptExpired,
    MessageArrived,
    ModelStepSettled,
    RunCall,
    RunModel,
    SessionState,
    StopStep,
    TakenOver,
    TurnHasNews,
)
from perdure.store.base import ClaimedSession, InboxItem, SessionStore, SessionWrite

FLUSH_DELAY = timedelta(milliseconds=50)
"""How long a text delta or a model call's record waits for a write to go along with before it gets its own."""


class _Signal(enum.Enum):
    LOOK = "look"
    """Something may be in the inbox, or a deadline may have passed."""
    WAKE = "wake"
    """A task ended, or the session is to be drained."""
    FLUSH = "flush"
    """What waits for a write has waited long enough."""


_TOOL_NEWS = (AttemptStarted, AttemptFailed, CallAsked, CallSettled)


class _Mailbox(asyncio.Queue["Arrival | _Signal"]):
    """What came for an actor, in order."""

    _queue: deque[Arrival | _Signal]

    def peek(self) -> Arrival | _Signal:
        """The next item, left where it is.  Only when there is one."""
        return self._queue[0]


class SessionActor:
    """Owns one session from its claim to its release.

    Args:
        definition: fingerprint of the flow's code.
        began_to_linger: called each time that nothing is left to do before somebody answers.
    """

    def __init__(
        self,
        store: SessionStore,
        clock: Clock,
        hub: FeedHub,
        flow: AgentSessionFlow,
        definition: str,
        claimed: ClaimedSession,
        *,
        began_to_linger: Callable[[], None],
    ) -> None:
        self.session_id = claimed.lease.session_id
        self.lease = claimed.lease
        self.state: SessionState = restore_state(claimed, None)
        self._store = store
        self._clock = clock
        self._flow = flow
        self._claimed: ClaimedSession | None = claimed
        self._began_to_linger = began_to_linger
        self._facts = SessionFacts(
            session_id=self.session_id,
            incarnation=claimed.incarnation,
            user_id=claimed.user_id,
            definition=definition,
            interrupt_deadline=flow.interrupt_deadline,
        )
        self._hub = hub
        self._feed = SessionFeed(hub, self.session_id, claimed.lease.fence)
        self._book: TurnBook | None = None
        self._messages: dict[str, UserMessage] = {}
        """Of turns that have not begun, by turn id."""
        self._late: dict[str, Interrupt] = {}
        """Pending interrupts that outlived the turn that raised them, or will."""
        self._message_count = claimed.message_count
        self._seen_position = 0
        self._arrivals = _Mailbox()
        self._running = RunningSteps(
            flow.runner,
            self.session_id,
            post=self._arrivals.put_nowait,
            ended=self._task_ended,
            open_log=self._open_log,
        )
        self.released = False
        self.closing = False
        """What ran is being stopped; that should not be cut off."""
        self._draining = False
        self._looks = False
        """A look into the inbox is on its way."""
        self._lingers_until: float | None = None
        self._failure: BaseException | None = None
        self._deadline_timer: asyncio.TimerHandle | None = None
        self._flush_timer: asyncio.TimerHandle | None = None

    # ------------------------------------------------------------ for the worker

    def poke(self) -> None:
        """Something may be in the inbox."""
        if not self._looks:
            self._looks = True
            self._arrivals.put_nowait(_Signal.LOOK)

    def drain(self) -> None:
        """Finish what runs, start nothing new, and release the session."""
        self._draining = True
        self._running.leave()
        self._arrivals.put_nowait(_Signal.WAKE)

    @property
    def lingers(self) -> bool:
        """Whether the session is here only in case an answer comes soon."""
        return self.state.status is SessionStatus.WAITING and not self._running

    async def run(self, linger: timedelta) -> None:
        """Works until the session rests, then releases it.

        Args:
            linger: how long a turn that waits for someone is kept in memory.

        Raises:
            LeaseLost: another worker owns the session.
            StoreError: the store failed; what was not written did not happen.
        """
        self._hub.attach(self._feed)
        try:
            await self._restore()
            while not self.released:
                await self._one_step(linger)
                if self._failure is not None:
                    raise self._failure
        finally:
            self.closing = True
            self._hub.detach(self._feed)
            self._cancel_flush()
            if self._deadline_timer is not None:
                self._deadline_timer.cancel()
            await self._running.close()
            self.closing = False

    # ------------------------------------------------------------ the loop

    async def _restore(self) -> None:
        claimed, self._claimed = self._claimed, None
        assert claimed is not None
        if claimed.turn is not None:
            recorded = await self._store.read_recorded_turn(self.session_id, claimed.turn.turn_id)
            asked = [call.interrupt_id for call in claimed.calls if call.phase is CallPhase.AWAITING]
            asked += [question.interrupt_id for question in claimed.questions if not question.settled]
            # Also those that are answered by now: the answer is in the inbox, or about to come.
            interrupts = [await self._store.read_interrupt(self.session_id, name) for name in asked if name is not None]
            self._book = restore_book(claimed, recorded, interrupts)
            self.state = restore_state(claimed, self._book)
        for late in claimed.late:
            self._late[late.interrupt_id] = await self._store.read_interrupt(self.session_id, late.interrupt_id)
        self._arrivals.put_nowait(Arrival(TakenOver(claimed.check, claimed.lost)))
        self._put_items(claimed.inbox)
        self._set_deadline_timer()
        deadline_ms = self._next_deadline_ms()
        if deadline_ms is not None and deadline_ms <= self._clock.now_ms():
            self.poke()  # It may be all that this session was claimed for.

    async def _one_step(self, linger: timedelta) -> None:
        arrival: Arrival | _Signal | None
        if not self._arrivals.empty() or self._running:
            arrival = await self._arrivals.get()
        elif self._rests():
            arrival = await self._linger(linger)
        else:
            # It would wait for ever.  What is stored says what to do, so a new owner will do it.
            raise EngineError(f"session {self.session_id!r} has something to do, and nothing does it")
        if arrival is None:
            await self._release()
        elif arrival is _Signal.LOOK:
            await self._look()
        elif arrival is _Signal.FLUSH:
            await self._flush()
        elif isinstance(arrival, Arrival):
            await self._apply(self._and_what_goes_with(arrival))

    def _rests(self) -> bool:
        return self._draining or (self.state.status is not SessionStatus.RUNNING and not self.state.checking)

    async def _linger(self, linger: timedelta) -> Arrival | _Signal | None:
        """Keeps a waiting turn in memory for a while.  ``None``: nothing came, release."""
        if self._draining or self.state.status is not SessionStatus.WAITING:
            return None
        if self._lingers_until is None:
            self._lingers_until = asyncio.get_running_loop().time() + linger.total_seconds()
            self._began_to_linger()
        try:
            async with asyncio.timeout_at(self._lingers_until):
                return await self._arrivals.get()
        except TimeoutError:
            return None

    async def _look(self) -> None:
        """Reads the inbox, then lets deadlines pass: an answer that was accepted in time wins."""
        self._looks = False
        self._put_items(await self._store.read_inbox(self.lease, self._seen_position))
        now = self._clock.now_ms()
        for interrupt in self._pending():
            if interrupt.deadline is not None and to_ms(interrupt.deadline) <= now:
                attachment = Attachment(kinds=(DurableWrite.INTERRUPT_SETTLED,))
                self._arrivals.put_nowait(Arrival(InterruptExpired(interrupt.interrupt_id), attachment))

    def _pending(self) -> list[Interrupt]:
        """The interrupts that nobody has answered yet, as far as is known here."""
        late = [one for one in self._late.values() if one.status is InterruptStatus.PENDING]
        return [*(self._book.pending() if self._book is not None else ()), *late]

    def _next_deadline_ms(self) -> int | None:
        return next_deadline_ms(self._pending())

    def _put_items(self, items: Sequence[InboxItem]) -> None:
        for item in items:
            self._seen_position = item.position
            self._arrivals.put_nowait(inbox_arrival(item))

    async def _apply(self, arrivals: Sequence[Arrival]) -> None:
        """One step of the loop: reduce, write, then run."""
        if self._draining and not self.state.draining:
            self.state, _ = reduce(self.state, DrainRequested())
        before = self.state
        draft = self._new_draft()
        taken = [(arrival, await self._take(arrival, draft)) for arrival in arrivals]
        write = draft.finish(before, self.state)
        self._book, self._message_count = draft.book, draft.message_count
        if self._book is None or not self._book.unwritten_models:
            self._cancel_flush()
        commands = [command for _, follow in taken for command in follow]
        if self._may_release():
            kinds = (*write.kinds, DurableWrite.SESSION_RELEASED)
            write = replace(write, kinds=kinds, release=True, wake_at_ms=self._next_deadline_ms())
        if _is_begin_only(write, commands):
            # Nothing outside depends on it yet: a model call may be repeated, and later writes wait for this one.
            self._running.start(f"begin {write.turn_id}", self._commit(write, draft.now_ms))
            await asyncio.sleep(0)  # It is handed in now, ahead of whatever this loop writes next.
        elif not _is_empty(write):
            await self._commit(write, draft.now_ms)
        self.released = write.release
        for arrival, follow in taken:
            if arrival.applied is not None and not arrival.applied.done():
                arrival.applied.set_result(bool(follow))
        for command in commands:
            await self._execute(command)
        if commands:
            self._lingers_until = None
        self._set_deadline_timer()

    async def _take(self, arrival: Arrival, draft: Draft) -> Sequence[Command]:
        """Reduces one input into the draft.  Returns what follows from it."""
        if self._draining and isinstance(arrival.given, (TakenOver, AttemptStarted, AttemptFailed)):
            return ()  # It would start something; that is left to the next owner.
        if arrival.attachment.message is not None:
            turn_id, message = arrival.attachment.message
            self._messages[turn_id] = message
        if isinstance(arrival.given, MessageArrived):
            for interrupt_id in self._late.keys() & set(arrival.given.answers):
                # As it was answered, with who and when.
                self._late[interrupt_id] = await self._store.read_interrupt(self.session_id, interrupt_id)
        if isinstance(arrival.given, (ModelStepSettled, CallAsked, CallSettled)):
            # Without its task the session may be released with this very write.
            self._running.forget(arrival.given.step_id)
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

    def _and_what_goes_with(self, arrival: Arrival) -> list[Arrival]:
        """The arrival, and if it is news of a tool step, such news that waits right behind it: one write for all."""
        together = [arrival]
        while isinstance(together[-1].given, _TOOL_NEWS) and not self._arrivals.empty():
            behind = self._arrivals.peek()
            if not (isinstance(behind, Arrival) and isinstance(behind.given, _TOOL_NEWS)):
                break
            together.append(behind)
            self._arrivals.get_nowait()
        return together

    def _may_release(self) -> bool:
        """Whether the session can be given up with the write that is being made."""
        resting = self.state.status in (SessionStatus.IDLE, SessionStatus.CLOSED, SessionStatus.BLOCKED)
        return resting and not self.state.checking and not self._running and self._arrivals.empty()

    async def _execute(self, command: Command) -> None:
        match command:
            case StopStep(step_id):
                self._running.stop(step_id)
            case EndTurn(status=TurnStatus.COMPLETED):
                self._running.turn_stored()
            case DropTurn():
                await self._running.drop_turn()
            case HandOut() if self._book is not None:
                self._running.hand_out(command, self._book)
            case RunModel() | RunCall() | CheckCode() if self._book is not None:
                self._running.run(command, self._book)
            case _:
                pass

    def _task_ended(self, failure: BaseException | None) -> None:
        self._failure = self._failure or failure
        self._arrivals.put_nowait(_Signal.WAKE)

    # ------------------------------------------------------------ writing

    def _new_draft(self) -> Draft:
        return Draft(
            self._facts,
            self._feed,
            self._book,
            self._messages,
            self._late,
            self._message_count,
            self._clock.now_ms(),
        )

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
                start, [*stored, *new], calls, ended.status, ended.error, draft.now_ms
            )

        try:
            messages = close(calls)
            ensure_storable_messages(messages)
        except UsageError:
            # All together it is more than a store takes.  What became of each call is told all the same.
            messages = close([replace(call, record=replace(call.record, outcome=None)) for call in calls])
        return messages

    async def _commit(self, write: SessionWrite, now_ms: int | None = None) -> None:
        await self._store.commit(self.lease, write, self._clock.now_ms() if now_ms is None else now_ms)
        self._feed.stored(write.events)

    async def _release(self) -> None:
        """Gives the session up.  A turn that waits is dropped from memory; a replay brings it back."""
        left = self._take_unwritten()
        await self._commit(
            replace(
                left,
                kinds=(*left.kinds, DurableWrite.SESSION_RELEASED),
                release=True,
                wake_at_ms=self._next_deadline_ms(),
            )
        )
        self.released = True

    def _open_log(self, book: TurnBook) -> StoreTurnLog:
        return StoreTurnLog(
            self._store,
            self._clock,
            book,
            self._feed,
            fresh=book.is_new,
            flush_soon=self._flush_soon,
            flush_now=lambda: self._arrivals.put_nowait(_Signal.FLUSH),
            news=lambda: self._arrivals.put_nowait(Arrival(TurnHasNews(book.turn_id))),
        )

    def _flush_soon(self) -> None:
        if self._flush_timer is None:
            loop = asyncio.get_running_loop()
            self._flush_timer = loop.call_later(FLUSH_DELAY.total_seconds(), self._flush_due)

    def _flush_due(self) -> None:
        self._flush_timer = None
        # Only the loop writes: a write made here could overtake, or be overtaken by, the one that is being made.
        self._arrivals.put_nowait(_Signal.FLUSH)

    def _cancel_flush(self) -> None:
        if self._flush_timer is not None:
            self._flush_timer.cancel()
            self._flush_timer = None

    async def _flush(self) -> None:
        """Writes what waits for a write, if no write of the loop took it along by now."""
        write = self._take_unwritten()
        if not _is_empty(write):
            await self._commit(write)

    def _take_unwritten(self) -> SessionWrite:
        """What waits for a write to go along with: records of model calls, messages that came early, and deltas."""
        book = self._book
        models = tuple(book.unwritten_models) if book is not None else ()
        messages = tuple(book.unwritten_messages) if book is not None else ()
        if book is not None:
            book.unwritten_models.clear()
            book.unwritten_messages.clear()
            self._message_count = book.message_count
        events = self._feed.take_unstored()
        kinds = (DurableWrite.MODEL_RECORDED,) if models else (DurableWrite.EVENTS_APPENDED,) if events else ()
        return SessionWrite(
            kinds=kinds,
            model_calls=models,
            usage=sum((call.usage for call in models), NO_USAGE) if models else None,
            messages=messages,
            turn_id=book.turn_id if book is not None else None,
            events=events,
        )

    def _set_deadline_timer(self) -> None:
        if self._deadline_timer is not None:
            self._deadline_timer.cancel()
            self._deadline_timer = None
        deadline_ms = self._next_deadline_ms()
        if deadline_ms is not None:
            delay = max(0, deadline_ms - self._clock.now_ms() + 1) / 1000
            loop = asyncio.get_running_loop()
            self._deadline_timer = loop.call_later(delay, self._arrivals.put_nowait, _Signal.LOOK)


def _is_begin_only(write: SessionWrite, commands: Sequence[Command]) -> bool:
    """Whether the write begins a turn and does nothing else that something would have to wait for."""
    return write.begin is not None and write.turn is None and not any(isinstance(c, RunCall) for c in commands)


_CONTENT = tuple(part.name for part in fields(SessionWrite) if part.name not in ("kinds", "turn_id"))


def _is_empty(write: SessionWrite) -> bool:
    """Whether there is nothing to store; ``kinds`` and ``turn_id`` alone are nothing."""
    return not any(getattr(write, part) for part in _CONTENT)
