"""The loop of one owned session: what comes goes to the reducer, what follows is stored, then it is carried out.

The order is always the same (J8): reduce, write, wait until the write is on disk, then run.  Whatever goes wrong in
here ends the actor, never the session: its worker frees the session and somebody claims it anew from what is stored.

The engines differ in who has a step run, and when, and in who watches the deadlines; see the last part of
``SessionActor``.
"""

from __future__ import annotations

import asyncio
import enum
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta

from perdure.clock import Clock
from perdure.engine.arrivals import Arrival, JoinAsked
from perdure.engine.book import TurnBook
from perdure.engine.feed import FeedHub
from perdure.engine.host import Reduction, SessionHost, is_empty
from perdure.engine.running import RunningSteps
from perdure.engine.turn_log import StoreTurnLog
from perdure.errors import Conflict, EngineError
from perdure.session.model import SessionStatus, TurnStatus
from perdure.session.runner import AgentSessionFlow
from perdure.session.state import (
    AttemptFailed,
    AttemptStarted,
    CallAsked,
    CallSettled,
    CancelRequested,
    CheckCode,
    CloseRequested,
    Command,
    DropTurn,
    EndTurn,
    HandOut,
    ModelStepSettled,
    RunCall,
    RunModel,
    SessionState,
    StopStep,
    TakenOver,
    TurnHasNews,
)
from perdure.store.base import ClaimedSession, Lease, SessionStore

FLUSH_DELAY = timedelta(milliseconds=50)
"""How long a text delta or a model call's record waits for a write to go along with before it gets its own."""


class Signal(enum.Enum):
    LOOK = "look"
    """Something may be in the inbox, or a deadline may have passed."""
    WAKE = "wake"
    """The session is to be drained."""
    FLUSH = "flush"
    """What waits for a write has waited long enough."""


@dataclass(frozen=True, slots=True)
class TaskEnded:
    """The task of a step ended, and what it had to say came before this."""

    key: str


@dataclass(frozen=True, slots=True)
class FlushAsked:
    """Somebody waits until what waits for a write is written."""

    done: asyncio.Future[None]


Mail = Arrival | Signal | TaskEnded | FlushAsked | JoinAsked
"""What comes for an actor."""

_TOOL_NEWS = (AttemptStarted, AttemptFailed, CallAsked, CallSettled)
_STEP_ENDS = (ModelStepSettled, CallAsked, CallSettled)
_CANCELS = (CancelRequested, CloseRequested)
_LINGERING = (SessionStatus.WAITING, SessionStatus.IDLE)


class _Mailbox(asyncio.Queue[Mail]):
    """What came for an actor, in order."""

    _queue: deque[Mail]

    def peek(self) -> Mail:
        """The next item, left where it is.  Only when there is one."""
        return self._queue[0]


class SessionActor:
    """Owns one session from its claim to its release.

    Args:
        definition: fingerprint of the flow's code.
        began_to_linger: called each time that nothing is left to do before something comes from outside.
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
        self._clock = clock
        self._hub = hub
        self._host = SessionHost(store, clock, hub, flow, definition, claimed)
        self._began_to_linger = began_to_linger
        self._arrivals = _Mailbox()
        self._running = RunningSteps(
            flow.runner,
            self.session_id,
            post=self._arrivals.put_nowait,
            ended=self._task_ended,
            open_log=self._open_log,
            pause=self._pause,
        )
        self.released = False
        self._leaving = False
        """The session is being given up, or was, or is somebody else's."""
        self.closing = False
        """What ran is being stopped; that should not be cut off."""
        self._looks = False
        """A look into the inbox is on its way."""
        self._heard_first = 0
        """How much of what was accepted before the take-over is to be heard together with it."""
        self._lingers_until: float | None = None
        self._failure: BaseException | None = None
        self._deadline_timer: asyncio.TimerHandle | None = None
        self._flush_timer: asyncio.TimerHandle | None = None

    # ------------------------------------------------------------ for the worker

    @property
    def session_id(self) -> str:
        return self._host.session_id

    @property
    def lease(self) -> Lease:
        return self._host.lease

    @property
    def state(self) -> SessionState:
        """Of the session's loop."""
        return self._host.state

    def poke(self) -> None:
        """Something may be in the inbox."""
        if not self._looks:
            self._looks = True
            self._arrivals.put_nowait(Signal.LOOK)

    def drain(self) -> None:
        """Finish what runs, start nothing new, and release the session."""
        self._host.draining = True
        self._running.leave()
        self._arrivals.put_nowait(Signal.WAKE)

    @property
    def stays(self) -> bool:
        """Whether it will look at what it is told of now."""
        return not (self._leaving or self._host.draining)

    @property
    def lingers_until(self) -> float | None:
        """Until when the session is here only in case an answer or a message comes soon (by the event loop's clock).
        ``None``: it has something to do."""
        return None if self.state.status not in _LINGERING or self._is_busy() else self._lingers_until

    async def run(self, linger: timedelta) -> None:
        """Works until the session rests, then releases it.

        Args:
            linger: how long a session that waits, for an answer or for its next message, is kept in memory.

        Raises:
            LeaseLost: another worker owns the session.
            StoreError: the store failed; what was not written did not happen.
        """
        self._hub.attach(self._host.feed)
        try:
            await self._restore()
            while not self.released:
                await self._one_step(linger)
                if self._failure is not None:
                    raise self._failure
        finally:
            self._leaving = self.closing = True
            self._hub.detach(self._host.feed)
            self._cancel_flush()
            if self._deadline_timer is not None:
                self._deadline_timer.cancel()
            await self._running.close()
            self.closing = False

    # ------------------------------------------------------------ the loop

    async def _restore(self) -> None:
        arrivals = await self._host.restore()
        cancels = (number for number, one in enumerate(arrivals) if isinstance(one.given, _CANCELS))
        self._heard_first = next(cancels, 0) if self.state.turn is not None else 0
        self._put(arrivals)
        self._watch_deadlines()
        deadline_ms = self._host.next_deadline_ms()
        if deadline_ms is not None and deadline_ms <= self._clock.now_ms():
            self.poke()  # It may be all that this session was claimed for.

    async def _one_step(self, linger: timedelta) -> None:
        mail: Mail | None
        if not self._arrivals.empty() or self._is_busy():
            mail = await self._arrivals.get()
        elif self._rests():
            mail = await self._linger(linger)
        else:
            # It would wait for ever.  What is stored says what to do, so a new owner will do it.
            raise EngineError(f"session {self.session_id!r} has something to do, and nothing does it")
        if mail is None:
            await self._release()
        elif mail is Signal.LOOK:
            await self._look()
        elif mail is Signal.FLUSH:
            await self._flush()
        elif isinstance(mail, Arrival):
            await self._apply(self._and_what_goes_with(mail))
        elif isinstance(mail, FlushAsked):
            await self._flush()
            if not mail.done.done():
                mail.done.set_result(None)
        elif isinstance(mail, JoinAsked):
            await self._take_along(mail)
        elif isinstance(mail, TaskEnded):
            self._step_left(mail.key)

    def _rests(self) -> bool:
        return self._host.draining or (self.state.status is not SessionStatus.RUNNING and not self.state.checking)

    async def _linger(self, linger: timedelta) -> Mail | None:
        """Keeps a waiting session in memory for a while.  ``None``: nothing came, release."""
        if self._host.draining or self.state.status not in _LINGERING:
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
        self._looks = False
        self._put(await self._host.look())

    def _put(self, arrivals: list[Arrival]) -> None:
        for arrival in arrivals:
            self._arrivals.put_nowait(arrival)

    async def _apply(self, arrivals: list[Arrival]) -> None:
        """One step of the loop: reduce, write, then run."""
        for arrival in arrivals:
            if isinstance(arrival.given, _STEP_ENDS):
                self._settle(arrival.given.step_id)
        step = await self._host.reduce(arrivals)
        if not self._host.waits_for_write:
            self._cancel_flush()
        self._leaving = self._may_release()
        write = self._host.releasing(step.write) if self._leaving else step.write
        if step.begins_only:
            # Nothing outside depends on it yet: a model call may be repeated, and later writes wait for this one.
            self._running.start(f"begin {write.turn_id}", self._host.commit(write, step.now_ms))
            await asyncio.sleep(0)  # It is handed in now, ahead of whatever this loop writes next.
        elif not is_empty(write):
            await self._host.commit(write, step.now_ms)
        self.released = write.release
        await self._follow(step)

    async def _take_along(self, asked: JoinAsked) -> None:
        """Messages join the turn, behind what is recorded of it.  If one was cancelled, that is heard first."""
        await self._flush()
        try:
            step = await self._host.join(asked)
        except Conflict:
            await self._look()
            self._arrivals.put_nowait(asked)
            return
        record = None
        if step is not None:
            (record,) = step.write.model_calls
            await self._follow(step)
        asked.decided(record)

    async def _follow(self, step: Reduction) -> None:
        """What is to be done when a step of the loop is on disk, or on its way there."""
        for arrival, follow in step.taken:
            if arrival.applied is not None and not arrival.applied.done():
                arrival.applied.set_result(bool(follow))
        commands = step.commands
        for command in commands:
            await self._execute(command)
        if commands:
            self._lingers_until = None
        self._applied(step)
        self._watch_deadlines()

    def _and_what_goes_with(self, arrival: Arrival) -> list[Arrival]:
        """The arrival, and what is to be heard with it: one write for all.

        Behind news of a tool step, more such news; behind the take-over, all up to a cancel that was accepted before
        it: else the turn would go on for a moment, although somebody was told that it stops.
        """
        together = [arrival]
        if isinstance(arrival.given, TakenOver):
            heard = (self._arrivals.get_nowait() for _ in range(self._heard_first))
            return [arrival, *(one for one in heard if isinstance(one, Arrival))]
        while isinstance(together[-1].given, _TOOL_NEWS) and not self._arrivals.empty():
            behind = self._arrivals.peek()
            if not (isinstance(behind, Arrival) and isinstance(behind.given, _TOOL_NEWS)):
                break
            together.append(behind)
            self._arrivals.get_nowait()
        return together

    def _may_release(self) -> bool:
        """Whether the session can be given up with the write that is being made."""
        over = self.state.status in (SessionStatus.CLOSED, SessionStatus.BLOCKED)
        rests = over or (self._host.draining and self.state.status is SessionStatus.IDLE)
        return rests and not self.state.checking and not self._is_busy() and self._arrivals.empty()

    async def _execute(self, command: Command) -> None:
        book = self._host.book
        match command:
            case StopStep(step_id):
                self._running.stop(step_id)
            case EndTurn(status=TurnStatus.COMPLETED):
                self._running.turn_stored()
            case DropTurn():
                await self._running.drop_turn()
            case HandOut() if book is not None:
                self._running.hand_out(command, book)
            case RunModel() | RunCall() | CheckCode() if book is not None:
                self._start(command, book)
            case _:
                pass

    def _task_ended(self, key: str, failure: BaseException | None) -> None:
        self._failure = self._failure or failure
        self._arrivals.put_nowait(TaskEnded(key))

    # ------------------------------------------------------------ writing

    async def _release(self) -> None:
        """Gives the session up.  A turn that waits is dropped from memory; a replay brings it back."""
        self._leaving = True
        await self._host.commit(self._host.releasing(self._host.unwritten()))
        self.released = True

    def _open_log(self, book: TurnBook) -> StoreTurnLog:
        return self._host.open_log(
            book,
            flush_soon=self._flush_soon,
            flush_now=self._flush_now,
            join=self._arrivals.put_nowait,
            news=lambda: self._arrivals.put_nowait(Arrival(TurnHasNews(book.turn_id))),
        )

    def _flush_now(self) -> asyncio.Future[None]:
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._arrivals.put_nowait(FlushAsked(done))
        return done

    def _flush_soon(self) -> None:
        if self._flush_timer is None:
            loop = asyncio.get_running_loop()
            self._flush_timer = loop.call_later(FLUSH_DELAY.total_seconds(), self._flush_due)

    def _flush_due(self) -> None:
        self._flush_timer = None
        # Only the loop writes: a write made here could overtake, or be overtaken by, the one that is being made.
        self._arrivals.put_nowait(Signal.FLUSH)

    def _cancel_flush(self) -> None:
        if self._flush_timer is not None:
            self._flush_timer.cancel()
            self._flush_timer = None

    async def _flush(self) -> None:
        """Writes what waits for a write, if no write of the loop took it along by now."""
        write = self._host.unwritten()
        if not is_empty(write):
            await self._host.commit(write)

    # ------------------------------------------------------------ where the engines differ

    def _start(self, command: RunModel | RunCall | CheckCode, book: TurnBook) -> None:
        """Has a step run."""
        self._running.run(command, book)

    def _settle(self, step_id: str) -> None:
        """A step has its result.  Without its task the session may be released with the very write of it."""
        self._running.forget(step_id)

    def _is_busy(self) -> bool:
        """Whether a step runs, or will without anything else that comes."""
        return bool(self._running)

    def _applied(self, step: Reduction) -> None:
        """A step of the loop is on disk, or on its way there, and what follows was carried out."""
        return

    def _step_left(self, key: str) -> None:
        """The task of a step ended without a result."""
        return

    async def _pause(self, step_id: str, pause: timedelta) -> bool:
        """Waits before the next attempt of a call.  ``False``: there is to be none here."""
        return await self._running.stays_until(asyncio.sleep(pause.total_seconds()))

    def _watch_deadlines(self) -> None:
        """Looks when the next deadline has passed."""
        if self._deadline_timer is not None:
            self._deadline_timer.cancel()
            self._deadline_timer = None
        deadline_ms = self._host.next_deadline_ms()
        if deadline_ms is not None:
            delay = max(0, deadline_ms - self._clock.now_ms() + 1) / 1000
            loop = asyncio.get_running_loop()
            self._deadline_timer = loop.call_later(delay, self._arrivals.put_nowait, Signal.LOOK)
