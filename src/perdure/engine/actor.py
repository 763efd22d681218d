"""One owned session: feeds inputs to the reducer, stores what follows, and runs what was commanded.

The order is always the same (J8): reduce, write, wait until the write is on disk, then run.  Whatever goes wrong in
here ends the actor, never the session: its worker frees the session and somebody claims it anew from what is stored.
"""

from __future__ import annotations

import asyncio
import enum
from collections.abc import Coroutine, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import assert_never

from perdure.clock import Clock, to_ms
from perdure.engine.book import TurnBook, max_attempts_of, restore_book, restore_state
from perdure.engine.feed import FeedHub, SessionFeed
from perdure.engine.scribe import NOTHING, Attachment, Draft, SessionFacts
from perdure.engine.steps import ToolStepResult, run_tool_step
from perdure.engine.turn_log import StoreTurnLog
from perdure.errors import LeaseLost, NonDeterminismError, PerdureError, StoreError
from perdure.faults import DurableWrite, InjectedFault
from perdure.session.flow import reduce
from perdure.session.model import (
    NO_USAGE,
    TOOL_CALL_NOT_RUN_ERROR_PREFIX,
    ErrorInfo,
    RecordStatus,
    SessionStatus,
    TurnStatus,
    UserMessage,
)
from perdure.session.runner import (
    AgentSessionFlow,
    Approval,
    ClosedCall,
    DriveBlocked,
    DriveFailed,
    DriveFinished,
    DriveResult,
    LiveTurn,
    NewMessage,
)
from perdure.session.state import (
    AttemptFailed,
    AttemptStarted,
    CallSettled,
    CancelRequested,
    CheckCode,
    CloseRequested,
    CodeDiffers,
    CodeFits,
    Command,
    DropTurn,
    EndTurn,
    HandOut,
    Input,
    InterruptAnswered,
    InterruptExpired,
    MessageArrived,
    ModelBlocked,
    ModelFailed,
    ModelFinished,
    ModelStepSettled,
    RequestedCall,
    RunCall,
    RunModel,
    SessionState,
    StopStep,
    TakenOver,
    TurnHasNews,
)
from perdure.store.base import ClaimedSession, InboxItem, InboxKind, SessionStore, SessionWrite

FLUSH_DELAY = timedelta(milliseconds=20)
"""How long a text delta or a model call's record may wait for a write to go along with before it gets one of its own."""

_ENGINE_FAULTS = (LeaseLost, StoreError, InjectedFault)
"""Failures of the engine's own ground: they end the actor, not the turn."""

_CHECK = "check"
"""Key of the task that finds out whether the code fits."""


class _Signal(enum.Enum):
    LOOK = "look"
    """Something may be in the inbox, or a deadline may have passed."""
    WAKE = "wake"
    """A task failed, or the session is to be drained."""


@dataclass(frozen=True, slots=True)
class _Arrival:
    """An input on its way into the reducer.  ``applied`` is told whether the reducer took it."""

    given: Input
    attachment: Attachment = NOTHING
    applied: asyncio.Future[bool] | None = None


class SessionActor:
    """Owns one session from its claim to its release."""

    def __init__(
        self, store: SessionStore, clock: Clock, hub: FeedHub, flow: AgentSessionFlow, claimed: ClaimedSession
    ) -> None:
        self.session_id = claimed.lease.session_id
        self.lease = claimed.lease
        self.state: SessionState = restore_state(claimed)
        self._store = store
        self._clock = clock
        self._flow = flow
        self._claimed = claimed
        self._facts = SessionFacts(
            session_id=self.session_id,
            incarnation=claimed.incarnation,
            user_id=claimed.user_id,
            definition=flow.runner.definition(),
            interrupt_deadline=flow.interrupt_deadline,
        )
        self._hub = hub
        self._feed = SessionFeed(hub, self.session_id, claimed.lease.fence)
        self._book: TurnBook | None = None
        self._messages: dict[str, UserMessage] = {}
        self._message_count = claimed.message_count
        self._seen_position = 0
        self._arrivals: asyncio.Queue[_Arrival | _Signal] = asyncio.Queue()
        self._live: LiveTurn | None = None
        self._opening = asyncio.Lock()
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._released = False
        self._draining = False
        self._failure: BaseException | None = None
        self._deadline_timer: asyncio.TimerHandle | None = None
        self._flush_timer: asyncio.TimerHandle | None = None

    # ------------------------------------------------------------ for the worker

    def poke(self) -> None:
        """Something may be in the inbox."""
        self._arrivals.put_nowait(_Signal.LOOK)

    def drain(self) -> None:
        """Finish what runs, start nothing new, and release the session."""
        self._draining = True
        self._arrivals.put_nowait(_Signal.WAKE)

    @property
    def lingers(self) -> bool:
        """Whether the session is here only in case an answer comes soon."""
        return self.state.status is SessionStatus.WAITING and not self._tasks

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
            while not self._released:
                await self._one_step(linger)
                if self._failure is not None:
                    raise self._failure
        finally:
            self._hub.detach(self._feed)
            await self._stop_everything()

    # ------------------------------------------------------------ the loop

    async def _restore(self) -> None:
        claimed = self._claimed
        if claimed.turn is not None:
            snapshot = await self._store.read_snapshot(self.session_id, self._clock.now_ms())
            self._book = restore_book(claimed, snapshot.pending_interrupts)
        self._arrivals.put_nowait(_Arrival(TakenOver(claimed.check)))
        self._put_items(claimed.inbox)
        self._set_deadline_timer()

    async def _one_step(self, linger: timedelta) -> None:
        if self._arrivals.empty() and not self._tasks and self._rests():
            arrival = await self._linger(linger)
        else:
            arrival = await self._arrivals.get()
        if arrival is None:
            await self._release()
        elif arrival is _Signal.LOOK:
            await self._look()
        elif isinstance(arrival, _Arrival):
            await self._apply(arrival)

    def _rests(self) -> bool:
        return self._draining or (self.state.status is not SessionStatus.RUNNING and not self.state.checking)

    async def _linger(self, linger: timedelta) -> _Arrival | _Signal | None:
        """Keeps a waiting turn in memory for a while.  ``None``: nothing came, release."""
        if self._draining or self.state.status is not SessionStatus.WAITING:
            return None
        try:
            async with asyncio.timeout(linger.total_seconds()):
                return await self._arrivals.get()
        except TimeoutError:
            return None

    async def _look(self) -> None:
        """Reads the inbox, then lets deadlines pass: an answer that was accepted in time wins."""
        self._put_items(await self._store.read_inbox(self.lease))
        now = self._clock.now_ms()
        if self._book is not None:
            for interrupt in self._book.interrupts.values():
                if interrupt.deadline is not None and to_ms(interrupt.deadline) <= now:
                    expired = _Arrival(
                        InterruptExpired(interrupt.interrupt_id), Attachment(kinds=(DurableWrite.INTERRUPT_SETTLED,))
                    )
                    self._arrivals.put_nowait(expired)

    def _put_items(self, items: Sequence[InboxItem]) -> None:
        for item in items:
            if item.position > self._seen_position:
                self._seen_position = item.position
                self._arrivals.put_nowait(_arrival_of(item))

    async def _apply(self, arrival: _Arrival) -> None:
        """One step of the loop: reduce, write, then run."""
        if arrival.attachment.message is not None:
            turn_id, message = arrival.attachment.message
            self._messages[turn_id] = message
        if isinstance(arrival.given, (ModelStepSettled, CallSettled)):
            # Its task has nothing left to do; without it the session may be released with this very write.
            self._tasks.pop(arrival.given.step_id, None)
        before = self.state
        after, commands = reduce(before, arrival.given)
        draft = await self._draft(commands, arrival.attachment)
        write = draft.finish(before, after)
        self.state, self._book, self._message_count = after, draft.book, draft.message_count
        if self._may_release():
            write = replace(write, kinds=(*write.kinds, DurableWrite.SESSION_RELEASED), release=True)
        if not _is_empty(write):
            await self._commit(write)
        self._released = write.release
        if arrival.applied is not None and not arrival.applied.done():
            arrival.applied.set_result(bool(commands))
        for command in commands:
            await self._execute(command)
        self._set_deadline_timer()

    def _may_release(self) -> bool:
        """Whether the session can be given up with the write that is being made."""
        resting = self.state.status in (SessionStatus.IDLE, SessionStatus.CLOSED, SessionStatus.BLOCKED)
        return resting and not self.state.checking and not self._tasks and self._arrivals.empty()

    async def _draft(self, commands: Sequence[Command], attachment: Attachment) -> Draft:
        draft = Draft(
            self._facts,
            self._feed,
            self._book,
            self._messages,
            self._message_count,
            attachment,
            self._clock.now_ms(),
        )
        draft.take_progress()
        for command in commands:
            if isinstance(command, EndTurn) and command.status is not TurnStatus.COMPLETED:
                draft.add_messages(await self._closing_messages(draft, command))
            draft.take(command)
        return draft

    async def _closing_messages(self, draft: Draft, ended: EndTurn) -> tuple[NewMessage, ...]:
        book = draft.book
        assert book is not None
        start = book.start
        first, new = start.history_length, draft.new_items
        stored = await self._store.read_history(self.session_id, first, first + book.stored_messages - len(new))
        recorded = await self._store.read_recorded_turn(self.session_id, start.turn_id)
        records = {call.request.call_id: call.record for call in recorded.calls if call.record is not None}
        records.update(book.records)
        calls = [
            ClosedCall(request, records[call_id]) for call_id, request in book.requests.items() if call_id in records
        ]
        return self._flow.runner.closing_messages(
            start, [*stored, *new], calls, ended.status, ended.error, self._clock.now_ms()
        )

    async def _commit(self, write: SessionWrite) -> None:
        await self._store.commit(self.lease, write, self._clock.now_ms())
        if write.events:
            self._feed.stored(write.events[-1].number)

    async def _release(self) -> None:
        """Gives the session up.  A turn that waits is dropped from memory; a replay brings it back."""
        write = SessionWrite(
            kinds=(DurableWrite.SESSION_RELEASED,),
            events=self._feed.take_unstored(),
            release=True,
            wake_at_ms=self._book.next_deadline_ms() if self._book is not None else None,
        )
        await self._commit(write)
        self._released = True

    # ------------------------------------------------------------ commands

    async def _execute(self, command: Command) -> None:
        match command:
            case StopStep(step_id):
                self._stop(step_id)
            case DropTurn():
                await self._drop_turn()
            case HandOut(call_ids):
                assert self._live is not None
                assert self._book is not None
                self._live.hand_out([self._book.records[call_id] for call_id in call_ids])
            case RunModel() | RunCall() | CheckCode() if self._draining:
                pass
            case RunModel(step_id, call_ids):
                self._start(step_id, self._run_model(step_id, call_ids))
            case RunCall():
                self._start(command.step_id, self._run_call(command))
            case CheckCode():
                self._start(_CHECK, self._check_code())
            case _:
                pass

    def _start(self, key: str, body: Coroutine[None, None, None]) -> None:
        task = asyncio.create_task(body, name=f"perdure {self.session_id} {key}")
        self._tasks[key] = task
        task.add_done_callback(lambda done: self._finished(key, done))

    def _finished(self, key: str, task: asyncio.Task[None]) -> None:
        pending = self._tasks.get(key) is task
        if pending:
            del self._tasks[key]
        if not task.cancelled() and (failure := task.exception()) is not None:
            self._failure = failure
        if pending or self._failure is not None:
            self._arrivals.put_nowait(_Signal.WAKE)

    def _stop(self, key: str) -> None:
        task = self._tasks.pop(key, None)
        if task is not None:
            task.cancel()

    async def _run_model(self, step_id: str, call_ids: tuple[str, ...]) -> None:
        try:
            rebuilt = self._live is None
            live = await self._open_live()
            assert self._book is not None
            # A live turn that was just rebuilt has all records from the journal.
            records = [] if rebuilt else [self._book.records[call_id] for call_id in call_ids]
            result = await live.drive(step_id, records)
        except NonDeterminismError as error:
            self._code_differs(error)
        except _ENGINE_FAULTS:
            raise
        except Exception as error:  # noqa: BLE001 - a fault of ours or of the framework; the turn must end all the same
            settled = ModelStepSettled(step_id, ModelFailed(error_info(error)))
            self._arrivals.put_nowait(_Arrival(settled, Attachment(kinds=(DurableWrite.MODEL_STEP_SETTLED,))))
        else:
            self._arrivals.put_nowait(_model_arrival(step_id, result))

    async def _run_call(self, run: RunCall) -> None:
        try:
            live = await self._open_live()
            await live.ready(run.call_id)
        except NonDeterminismError as error:
            self._code_differs(error)
            return
        except _ENGINE_FAULTS:
            raise
        except Exception as error:  # noqa: BLE001 - as above; the call did not run
            self._call_settled(run.step_id, not_run(error))
            return
        if run.single_attempt and not await self._tell(AttemptStarted(run.step_id), DurableWrite.ATTEMPT_STARTED):
            return
        assert self._book is not None

        async def attempt_failed() -> None:
            await self._tell(AttemptFailed(run.step_id), DurableWrite.ATTEMPT_FAILED)

        request, approval = self._book.requests[run.call_id], self._book.approvals.get(run.call_id)
        self._call_settled(run.step_id, await run_tool_step(live, request, run.attempt, approval, attempt_failed))

    def _call_settled(self, step_id: str, result: ToolStepResult) -> None:
        self._arrivals.put_nowait(_Arrival(CallSettled(step_id, result.status), Attachment(tool=result)))

    async def _tell(self, given: Input, kind: DurableWrite) -> bool:
        """Gives an input to the loop and waits until what follows from it is on disk.

        False: the loop had no use for it, because the turn has moved on.
        """
        applied: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        self._arrivals.put_nowait(_Arrival(given, Attachment(kinds=(kind,)), applied))
        return await applied

    async def _check_code(self) -> None:
        try:
            live = await self._open_live()
            await live.replayed()
        except NonDeterminismError as error:
            self._code_differs(error)
        else:
            self._arrivals.put_nowait(_Arrival(CodeFits()))

    def _code_differs(self, error: NonDeterminismError) -> None:
        self._arrivals.put_nowait(_Arrival(CodeDiffers(error_info(error))))

    # ------------------------------------------------------------ the live turn

    async def _open_live(self) -> LiveTurn:
        async with self._opening:
            if self._live is None:
                book = self._book
                assert book is not None
                log = StoreTurnLog(
                    self._store,
                    self._clock,
                    book,
                    self._feed,
                    fresh=book.sequence == 0 and not book.requests and book.stored_messages == 0,
                    flush_soon=self._flush_soon,
                    news=lambda: self._arrivals.put_nowait(_Arrival(TurnHasNews())),
                )
                self._live = await self._flow.runner.open_turn(book.start, log)
            return self._live

    async def _drop_turn(self) -> None:
        live, self._live = self._live, None
        if live is not None:
            await live.close()

    async def _stop_everything(self) -> None:
        for timer in (self._deadline_timer, self._flush_timer):
            if timer is not None:
                timer.cancel()
        tasks = list(self._tasks.values())
        for task in tasks:
            task.cancel()
        await self._drop_turn()
        await asyncio.gather(*tasks, return_exceptions=True)

    # ------------------------------------------------------------ timers

    def _flush_soon(self) -> None:
        if self._flush_timer is None:
            loop = asyncio.get_running_loop()
            self._flush_timer = loop.call_later(FLUSH_DELAY.total_seconds(), self._flush)

    def _flush(self) -> None:
        """Writes what waits for a write, if no write of the loop took it along by now."""
        self._flush_timer = None
        book = self._book
        models = tuple(book.unwritten_models) if book is not None else ()
        events = self._feed.take_unstored()
        if not models and not events:
            return
        if book is not None:
            book.unwritten_models.clear()
        kinds = (DurableWrite.MODEL_RECORDED,) if models else ()
        write = SessionWrite(
            kinds=kinds or (DurableWrite.EVENTS_APPENDED,),
            model_calls=models,
            usage=sum((call.usage for call in models), NO_USAGE) if models else None,
            turn_id=book.turn_id if book is not None else None,
            events=events,
        )
        self._start(f"flush {events[-1].number if events else models[-1].key}", self._commit(write))

    def _set_deadline_timer(self) -> None:
        if self._deadline_timer is not None:
            self._deadline_timer.cancel()
            self._deadline_timer = None
        deadline_ms = self._book.next_deadline_ms() if self._book is not None else None
        if deadline_ms is not None:
            delay = max(0, deadline_ms - self._clock.now_ms() + 1) / 1000
            loop = asyncio.get_running_loop()
            self._deadline_timer = loop.call_later(delay, self._arrivals.put_nowait, _Signal.LOOK)


def error_info(error: BaseException) -> ErrorInfo:
    """An exception as data: perdure's own with their code and facts, others by their type's name."""
    if isinstance(error, PerdureError):
        return ErrorInfo(code=error.code, message=error.message, facts=dict(error.facts))
    return ErrorInfo(code=type(error).__name__, message=str(error) or type(error).__name__)


def not_run(error: Exception) -> ToolStepResult:
    """The result of a call whose live turn could not be brought up."""
    info = error_info(error)
    message = f"{TOOL_CALL_NOT_RUN_ERROR_PREFIX}: {info.message}"
    return ToolStepResult(RecordStatus.FAILED, None, None, info.model_copy(update={"message": message}))


def _arrival_of(item: InboxItem) -> _Arrival:
    match item.kind:
        case InboxKind.MESSAGE:
            assert item.turn_id is not None
            assert item.message is not None
            return _Arrival(MessageArrived(item.turn_id), Attachment(message=(item.turn_id, item.message)))
        case InboxKind.ANSWER:
            assert item.interrupt_id is not None
            return _Arrival(
                InterruptAnswered(item.interrupt_id, item.approved),
                Attachment(
                    kinds=(DurableWrite.INTERRUPT_SETTLED,),
                    consumed=(item.position,),
                    approval=Approval(item.payload) if item.approved else None,
                    rejection=item.rejection,
                    resolved_by=item.resolved_by,
                ),
            )
        case InboxKind.CANCEL:
            return _Arrival(CancelRequested(item.turn_id), Attachment(consumed=(item.position,)))
        case InboxKind.CLOSE:
            return _Arrival(CloseRequested(), Attachment(consumed=(item.position,)))
        case _:
            assert_never(item.kind)


def _model_arrival(step_id: str, result: DriveResult) -> _Arrival:
    kinds = (DurableWrite.MODEL_STEP_SETTLED,)
    match result:
        case DriveBlocked(progress, calls, more):
            requested = tuple(
                RequestedCall(call.call_id, call.group, call.effect, max_attempts_of(call), call.ask) for call in calls
            )
            requests = {call.call_id: call for call in calls}
            settled = ModelStepSettled(step_id, ModelBlocked(requested, more))
            return _Arrival(settled, Attachment(kinds=kinds, progress=progress, requests=requests))
        case DriveFinished(progress):
            return _Arrival(ModelStepSettled(step_id, ModelFinished()), Attachment(kinds=kinds, progress=progress))
        case DriveFailed(progress, error):
            settled = ModelStepSettled(step_id, ModelFailed(error))
            return _Arrival(settled, Attachment(kinds=kinds, progress=progress))
        case _:
            assert_never(result)


def _is_empty(write: SessionWrite) -> bool:
    """Whether there is nothing to store; ``kinds`` alone is nothing."""
    return replace(write, kinds=()) == SessionWrite(kinds=(), turn_id=write.turn_id)
