"""One session as a Temporal workflow: it runs the session's loop and has done what the loop commands; nothing else.

A worker holds the session in memory (its *host*), puts what comes in order, and stores it.  The workflow reduces the
same inputs in the same order, as the host reports them, and orders the steps that follow, each as an activity; but not
those that are over by then, since the host does not wait for the order.  When the host is gone it has another worker
adopt the session, and begins anew with what is stored.

Runs in Temporal's sandbox: imports the pure part of ``session`` and the shapes of messages, no framework and no store.
"""

from __future__ import annotations

import asyncio
import builtins
from collections.abc import Coroutine
from dataclasses import replace
from datetime import timedelta

from temporalio import workflow
from temporalio.common import RetryPolicy
from temporalio.exceptions import ActivityError, ApplicationError, TimeoutError, TimeoutType

from perdure.engine.temporal.wire import (
    ADOPT,
    CHECK_CODE,
    FORMAT,
    HISTORY_INCOMPATIBLE,
    LOOK,
    POKE,
    REPORT,
    SESSION_GONE,
    UNHEARD,
    WORKFLOW,
    Adopt,
    Adopted,
    Carry,
    Order,
    Report,
    Start,
    StepCommand,
    pack,
    unpack,
    unpack_command,
    unpack_input,
)
from perdure.session.flow import reduce
from perdure.session.model import JsonObject, SessionStatus, StepName
from perdure.session.policy import step_name_for
from perdure.session.state import (
    CallAsked,
    CallSettled,
    CheckCode,
    CodeDiffers,
    CodeFits,
    Input,
    ModelStepSettled,
    RunCall,
    RunModel,
    SessionState,
    StopStep,
)

START_TIMEOUT = timedelta(seconds=5)
"""How long the worker that has the session may take to fetch a step before it is taken for dead."""

START_AGAIN_TIMEOUT = timedelta(seconds=3)
"""The same, when its heartbeat was lost before."""

HEARTBEAT_TIMEOUT = timedelta(seconds=4)
"""How long a worker may be silent while it does something."""

NO_LIMIT = timedelta(days=3650)
"""A step may take as long as its worker lives."""

QUICK = timedelta(minutes=1)
"""The longest that an adoption or a look may take, once it began."""

LONGEST_PAUSE = timedelta(seconds=10)
"""Between two adoptions that came to nothing."""

REPORT_GRACE = timedelta(seconds=10)
"""How long a report may take to arrive when one that follows it is here."""

CLOCK_GRACE = timedelta(seconds=1)
"""A deadline is looked at no sooner, nor more often: the clocks of Temporal and of the worker may differ."""

_ONCE = RetryPolicy(maximum_attempts=1)
_HEARTBEAT_LOST = "TemporalTimeout:Heartbeat"
"""As Temporal's server calls it.  An attempt of a dead worker is not repeated there: the session moves instead."""


@workflow.defn(name=WORKFLOW)
class SessionWorkflow:
    """One session, from something to do until it rests."""

    @workflow.init
    def __init__(self, start: Start) -> None:
        self._start = start
        self._state = SessionState(start.session_id)
        self._queue: str | None = None
        """Where the worker is that has the session; ``None``: nobody has it."""
        self._epoch = 0
        """The fence of that worker's lease."""
        self._expected = 0
        """The number of the next input of this epoch."""
        self._early: dict[tuple[int, int], Report] = {}
        """Reports that came before those that they follow, or before their worker was known to have the session."""
        self._due: list[StepCommand] = []
        """Steps to order."""
        self._ordered: dict[asyncio.Task[None], None] = {}
        """What the worker was asked to do and has not done yet, in order."""
        self._news = True
        """Something may be in the inbox."""
        self._looking = False
        """The worker was asked to look, and has not answered."""
        self._deadline_ms: int | None = None
        self._failures = 0
        """Adoptions in a row that came to nothing."""
        self._gone = False
        """There is no such session."""
        self._woken = False
        if start.carry is not None:
            self._resume(start.carry)

    @workflow.run
    async def run(self, start: Start) -> None:
        if start.format != FORMAT:
            raise ApplicationError(
                f"session {start.session_id!r} was given to Temporal in format {start.format}, and this worker has "
                f"format {FORMAT}: run workers and clients of one release. Nothing is lost: the session goes on from "
                "its store",
                type=HISTORY_INCOMPATIBLE,
                non_retryable=True,
            )
        while not self._gone:
            self._woken = False
            if self._queue is None and self._must_move():
                await self._adopt()
            elif not self._ordered and workflow.info().get_current_history_length() > start.max_events:
                workflow.continue_as_new(replace(start, carry=self._carry()))
            elif self._queue is None and not self._ordered and self._may_end():
                return
            else:
                self._order_what_is_due()
                await self._wait()

    async def _wait(self) -> None:
        """Waits until something comes; with nothing under way, no longer than until the next deadline."""
        timeout: timedelta | None = None
        if self._lacks_report():
            timeout = REPORT_GRACE
        elif self._deadline_ms is not None and not self._ordered:
            timeout = max(timedelta(milliseconds=self._deadline_ms - _now_ms()), CLOCK_GRACE)
        try:
            await workflow.wait_condition(lambda: self._woken, timeout=timeout)
        except builtins.TimeoutError:
            if self._lacks_report():
                self._lose()
            self._news = True  # A look lets deadlines pass, too.

    # ------------------------------------------------------------ what comes

    @workflow.signal(name=POKE)
    def poke(self, fence: int | None = None) -> None:
        """Something may be in the inbox.  ``fence``: leases up to this one are worth nothing any more."""
        if fence is not None and self._epoch <= fence:
            self._leave()
        self._news = self._woken = True

    @workflow.signal(name=REPORT)
    def report(self, report: Report) -> None:
        """The host applied something that no activity will tell of."""
        self._take(report)
        self._woken = True

    def _take(self, report: Report) -> None:
        """Reduces what the host applied, as soon as all before it is here."""
        if report.epoch < self._epoch or (report.epoch == self._epoch and self._queue is None):
            return  # Its worker does not have the session any more.
        if report.epoch == self._epoch and report.first < self._expected:
            return  # A signal that seemed to have got lost was sent twice.
        if report.inputs or report.left:
            self._early[report.epoch, report.first] = report
        elif report.first == self._expected:
            self._deadline_ms = report.deadline_ms
        while self._queue is not None and (found := self._early.pop((self._epoch, self._expected), None)):
            self._expected += len(found.inputs)
            self._failures = 0
            self._deadline_ms = found.deadline_ms
            for packed in found.inputs:
                self._reduce(packed)
            if found.left:
                self._leave()

    def _lacks_report(self) -> bool:
        """Whether a report is here that follows one that is not."""
        return self._queue is not None and any(epoch == self._epoch for epoch, _ in self._early)

    def _reduce(self, packed: JsonObject) -> None:
        given = unpack_input(packed)
        self._state, commands = reduce(self._state, given)
        over = {_ended_by(given), *(command.step_id for command in commands if isinstance(command, StopStep))}
        self._due = [command for command in self._due if command.step_id not in over]
        self._due += [command for command in commands if isinstance(command, (RunModel, RunCall, CheckCode))]

    # ------------------------------------------------------------ who has the session

    def _leave(self) -> None:
        """Nobody has the session any more.  Whatever its worker was asked to do is not worth waiting for."""
        self._queue = None
        self._news = self._news or self._looking
        self._looking = False
        self._early = {key: report for key, report in self._early.items() if key[0] > self._epoch}
        self._due.clear()
        for task in self._ordered:
            task.cancel()
        self._ordered.clear()

    def _lose(self) -> None:
        """The worker that had the session is gone: another one goes on from what is stored."""
        self._leave()
        self._news = self._woken = True

    def _must_move(self) -> bool:
        """Whether somebody has to take the session."""
        if self._news or self._state.checking or self._state.status is SessionStatus.RUNNING:
            return True
        blocked = self._state.status is SessionStatus.BLOCKED
        return not blocked and self._deadline_ms is not None and self._deadline_ms <= _now_ms()

    def _may_end(self) -> bool:
        """Whether nothing is left to wait for.  The next message begins a new run."""
        if self._state.status in (SessionStatus.BLOCKED, SessionStatus.CLOSED):
            return True
        return self._state.status is SessionStatus.IDLE and self._deadline_ms is None

    async def _adopt(self) -> None:
        """Has a worker of the flow take the session."""
        if self._failures:
            await workflow.sleep(min(timedelta(seconds=0.1 * 2 ** min(self._failures, 10)), LONGEST_PAUSE))
        self._news = False
        self._failures += 1
        try:
            adopted = await workflow.execute_activity(
                ADOPT,
                Adopt(self._start.session_id, self._start.store_id),
                task_queue=self._start.queue,
                result_type=Adopted,
                start_to_close_timeout=QUICK,
                heartbeat_timeout=HEARTBEAT_TIMEOUT,
                retry_policy=RetryPolicy(initial_interval=timedelta(seconds=0.2), maximum_interval=LONGEST_PAUSE),
            )
        except ActivityError as error:
            self._gone = _type_of(error) == SESSION_GONE
            self._news = True
            return
        report = adopted.report
        self._state = unpack(SessionState, adopted.state)
        self._due = [unpack_command(command) for command in adopted.due]
        self._queue, self._epoch, self._expected = adopted.queue, report.epoch, report.first
        self._early = {key: early for key, early in self._early.items() if key >= (report.epoch, report.first)}
        self._take(report)

    # ------------------------------------------------------------ what its worker is asked to do

    def _order_what_is_due(self) -> None:
        if self._queue is None:
            return
        due, self._due = self._due, []
        for command in due:
            self._order(self._run_step(command))
        if self._news and not self._looking:
            self._news, self._looking = False, True
            self._order(self._look())
        if not self._ordered and self._state.draining:
            self._leave()  # It has ended what it ran, and begins nothing more.
            self._woken = True

    def _order(self, body: Coroutine[object, object, None]) -> None:
        self._ordered[asyncio.create_task(body)] = None

    async def _run_step(self, command: StepCommand) -> None:
        attempts, name = _ONCE, CHECK_CODE
        if isinstance(command, RunModel):
            name = StepName.RUN_MODEL.value
        elif isinstance(command, RunCall):
            assert self._state.turn is not None
            call = self._state.turn.calls[command.call_id]
            name = step_name_for(call.effect).value
            left = call.max_attempts - (command.attempt - 1 - command.asks)
            if not command.single_attempt and left > 1:
                attempts = RetryPolicy(maximum_attempts=left, non_retryable_error_types=[_HEARTBEAT_LOST])
        report = await self._ask(name, pack(command), attempts)
        if report is not None:
            self._take(report)

    async def _look(self) -> None:
        report = await self._ask(LOOK, None, _ONCE)
        if report is not None:
            self._looking = False
            self._news = self._news or report.missed
            self._take(report)

    async def _ask(self, name: str, command: JsonObject | None, attempts: RetryPolicy) -> Report | None:
        """Asks the worker that has the session.  ``None``: it does not have it any more.

        One whose heartbeat got lost is asked once more: perhaps it lives, and only this server did not.  It does not
        begin anything again by that.
        """
        epoch, queue = self._epoch, self._queue
        for again in (False, True):
            try:
                report: Report = await workflow.execute_activity(
                    name,
                    Order(self._start.session_id, epoch, command),
                    task_queue=queue,
                    result_type=Report,
                    schedule_to_start_timeout=START_AGAIN_TIMEOUT if again else START_TIMEOUT,
                    start_to_close_timeout=NO_LIMIT if command is not None else QUICK,
                    heartbeat_timeout=HEARTBEAT_TIMEOUT,
                    retry_policy=attempts,
                )
            except ActivityError as error:
                if _heartbeat_lost(error) and not again and self._has(epoch):
                    continue
                self._done()
                if self._has(epoch):
                    self._lose()
                return None
            self._done()
            self._failures = 0
            return report if self._has(epoch) else None
        return None

    def _has(self, epoch: int) -> bool:
        """Whether the worker that had the session under this epoch still does, as far as is known."""
        return self._queue is not None and self._epoch == epoch

    def _done(self) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._ordered.pop(task, None)
        self._woken = True

    # ------------------------------------------------------------ from run to run

    def _carry(self) -> Carry | None:
        if self._early:
            return None  # The next run has somebody take the session.
        due = [pack(command) for command in self._due]
        return Carry(self._queue, self._epoch, self._expected, pack(self._state), self._deadline_ms, self._news, due)

    def _resume(self, carry: Carry) -> None:
        self._queue, self._epoch, self._expected = carry.queue, carry.epoch, carry.expected
        self._state = unpack(SessionState, carry.state)
        self._deadline_ms, self._news = carry.deadline_ms, carry.news
        self._due = [unpack_command(command) for command in carry.due]


def _now_ms() -> int:
    return round(workflow.now().timestamp() * 1000)


def _ended_by(given: Input) -> str | None:
    """The key of the step that an input ends, as far as it goes at this time."""
    if isinstance(given, (ModelStepSettled, CallAsked, CallSettled)):
        return given.step_id
    return CheckCode.step_id if isinstance(given, (CodeFits, CodeDiffers)) else None


def _heartbeat_lost(error: ActivityError) -> bool:
    if isinstance(error.cause, TimeoutError):
        return error.cause.type is TimeoutType.HEARTBEAT
    return _type_of(error) == UNHEARD


def _type_of(error: ActivityError) -> str | None:
    return error.cause.type if isinstance(error.cause, ApplicationError) else None
