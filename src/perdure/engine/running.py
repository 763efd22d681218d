"""What runs of one session at this moment: its live turn, and a task for each step under way.

Tasks never touch the session's state or its store rows: whatever they find out goes back to the actor as an arrival.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from datetime import timedelta
from typing import assert_never

from perdure.engine.arrivals import Arrival, error_info, model_arrival, not_run
from perdure.engine.attachments import Attachment
from perdure.engine.book import TurnBook
from perdure.engine.limits import (
    ensure_storable_calls,
    ensure_storable_messages,
    ensure_storable_questions,
    storable_asked,
    storable_result,
)
from perdure.engine.steps import ToolStepResult, run_tool_step
from perdure.errors import EngineError, LeaseLost, NonDeterminismError, StoreError
from perdure.faults import DurableWrite, InjectedFault
from perdure.session.runner import (
    AgentFrameworkRunner,
    DriveBlocked,
    DriveFailed,
    DriveFinished,
    DriveResult,
    LiveTurn,
    QuestionWait,
    Settled,
    ToolAsked,
    TurnLog,
)
from perdure.session.state import (
    AttemptFailed,
    AttemptStarted,
    CallAsked,
    CallSettled,
    CheckCode,
    CodeDiffers,
    CodeFits,
    HandOut,
    Input,
    ModelFailed,
    ModelStepSettled,
    RunCall,
    RunModel,
)

ENGINE_FAULTS = (LeaseLost, StoreError, InjectedFault)
"""Failures of the engine's own ground: they end the actor, not the turn."""


class RunningSteps:
    """The live turn of one session and the tasks of its steps.

    Args:
        post: takes an arrival to the actor.
        ended: called with the key of a task that ended and that nobody stopped; with its failure if it failed.
        open_log: makes the log for a live turn.
        pause: waits before the next attempt of a step; ``False``: there is to be none here.
    """

    def __init__(
        self,
        runner: AgentFrameworkRunner,
        name: str,
        *,
        post: Callable[[Arrival], None],
        ended: Callable[[str, BaseException | None], None],
        open_log: Callable[[TurnBook], TurnLog],
        pause: Callable[[str, timedelta], Awaitable[bool]],
    ) -> None:
        self._runner = runner
        self._name = name
        self._post = post
        self._ended = ended
        self._open_log = open_log
        self._pause = pause
        self._live: LiveTurn | None = None
        self._late: list[Settled] = []
        """Handed out while the live turn was being rebuilt."""
        self._opening = asyncio.Lock()
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._stopped: set[asyncio.Task[None]] = set()
        """Not wanted any more, and not over yet."""
        self._unbegun: set[str] = set()
        """Ids of tool steps of which no attempt began yet."""
        self._leaving = asyncio.Event()
        self._closing = False

    def __bool__(self) -> bool:
        """Whether anything runs."""
        return bool(self._tasks)

    # ------------------------------------------------------------ commands

    def run(self, command: RunModel | RunCall | CheckCode, book: TurnBook) -> None:
        """Starts a step."""
        match command:
            case RunModel(step_id):
                self.start(step_id, self._run_model(book, command))
            case RunCall(step_id):
                self._unbegun.add(step_id)
                self.start(step_id, self._run_call(book, command))
            case CheckCode():
                self.start(CheckCode.step_id, self._check_code(book, command))
            case _:
                assert_never(command)

    def hand_out(self, command: HandOut, book: TurnBook) -> None:
        """Gives records to the live turn, which is being driven (or being rebuilt)."""
        records = book.settled(command)
        if self._live is None:
            self._late.extend(records)
        else:
            self._live.hand_out(records)

    def start(self, key: str, body: Coroutine[None, None, None]) -> None:
        """Runs a coroutine as a task of this session."""
        task = asyncio.create_task(body, name=f"perdure {self._name} {key}")
        self._tasks[key] = task
        task.add_done_callback(lambda done: self._finished(key, done))

    def forget(self, key: str) -> None:
        """The task's arrival is here; it has nothing left to do."""
        self._tasks.pop(key, None)

    def stop(self, key: str) -> None:
        """Cancels a step's task; what it still posts is ignored by the reducer."""
        task = self._tasks.pop(key, None)
        if task is not None:
            task.cancel()
            self._stopped.add(task)

    def leave(self) -> None:
        """Ends pauses between attempts: the next attempt will not be made here."""
        self._leaving.set()

    async def stays_until(self, over: Coroutine[None, None, object]) -> bool:
        """Waits for the end of a pause.  ``False``: it was cut short, because the session is about to be given up."""
        ends = (asyncio.ensure_future(over), asyncio.ensure_future(self._leaving.wait()))
        try:
            await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
            return not self._leaving.is_set()
        finally:
            for end in ends:
                end.cancel()

    def turn_stored(self) -> None:
        """The live turn is completed, and what it came to is on disk."""
        if self._live is not None:
            self._live.stored()

    async def drop_turn(self) -> None:
        """Forgets the live turn.  A check of it would never end."""
        self.stop(CheckCode.step_id)
        self._late.clear()
        live, self._live = self._live, None
        if live is not None:
            await live.close()

    async def close(self) -> None:
        """Stops everything and waits until it has stopped."""
        self._closing = True
        for task in self._tasks.values():
            task.cancel()
        # Those that were stopped before are cleaning up: a second cancellation would cut that off.
        tasks = (*self._tasks.values(), *self._stopped)
        try:
            await self.drop_turn()
        finally:
            if tasks:
                await asyncio.wait(tasks)

    def _finished(self, key: str, task: asyncio.Task[None]) -> None:
        self._stopped.discard(task)
        self._unbegun.discard(key)
        pending = self._tasks.get(key) is task
        if pending:
            del self._tasks[key]
        failure: BaseException | None
        if not task.cancelled():
            failure = task.exception()
        elif pending and not self._closing:
            failure = EngineError(f"step {key} of session {self._name} was cancelled by something that it uses")
        else:
            failure = None
        if pending or failure is not None:
            self._ended(key, failure)

    # ------------------------------------------------------------ bodies

    async def _open(self, book: TurnBook) -> tuple[LiveTurn, bool]:
        """The live turn, and whether it was rebuilt here: then it has all that was recorded when it was asked for."""
        async with self._opening:
            if self._live is not None:
                return self._live, False
            self._live = await self._runner.open_turn(book.start, self._open_log(book))
            late, self._late = self._late, []
            self._live.hand_out(late)
            return self._live, True

    async def _run_model(self, book: TurnBook, run: RunModel) -> None:
        step_id = run.step_id
        try:
            live, rebuilt = await self._open(book)
            # A step of another branch may have begun to rebuild it before what this one brings was recorded.
            records = [] if rebuilt else book.settled(run)
            result = await live.drive(step_id, records, run.attempt)
            _check(result)
        except NonDeterminismError as error:
            self._code_differs(book, error)
        except ENGINE_FAULTS:
            raise
        except asyncio.CancelledError as error:
            if _stopped_by_us():
                raise
            self._model_failed(step_id, error)
        except Exception as error:  # noqa: BLE001 - ours or the framework's fault; the turn must end all the same
            self._model_failed(step_id, error)
        else:
            self._post(model_arrival(step_id, result))

    async def _run_call(self, book: TurnBook, run: RunCall) -> None:
        try:
            live, _ = await self._open(book)
            await live.ready(run.call_id)
        except NonDeterminismError as error:
            self._code_differs(book, error)
            return
        except ENGINE_FAULTS:
            raise
        except Exception as error:  # noqa: BLE001 - as above; the call did not run
            self._call_settled(run.step_id, not_run(error))
            return
        if run.single_attempt and not await self._tell(AttemptStarted(run.step_id), DurableWrite.ATTEMPT_STARTED):
            return
        self._unbegun.discard(run.step_id)

        async def try_again(pause: timedelta) -> bool:
            # Counted when it begins: a worker that dies or leaves in the pause costs no attempt.
            return await self._pause(run.step_id, pause) and await self._tell(
                AttemptFailed(run.step_id), DurableWrite.ATTEMPT_FAILED
            )

        request, approval = book.requests[run.call_id], book.approvals.get(run.call_id)
        result = await run_tool_step(live, request, run.attempt, approval, try_again, asks=run.asks)
        if isinstance(result, ToolAsked):
            result = storable_asked(result, request.tool_name)
        if isinstance(result, ToolAsked):
            attachment = Attachment(kinds=(DurableWrite.STEP_ASKED,), asked=result)
            self._post(Arrival(CallAsked(run.step_id, result.kind), attachment))
        elif result is not None:
            self._call_settled(run.step_id, storable_result(result, request.tool_name))

    async def _check_code(self, book: TurnBook, command: CheckCode) -> None:
        try:
            live, _ = await self._open(book)
            await live.replayed(at_rest=command.at_rest)
        except NonDeterminismError as error:
            self._code_differs(book, error)
        else:
            self._post(Arrival(CodeFits(book.turn_id)))

    async def _tell(self, given: Input, kind: DurableWrite) -> bool:
        """Gives an input to the loop and waits until what follows from it is on disk.

        False: the loop had no use for it, because the turn has moved on or the worker is about to leave.
        """
        applied: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        self._post(Arrival(given, Attachment(kinds=(kind,)), applied))
        return await applied

    def _model_failed(self, step_id: str, error: BaseException) -> None:
        settled = ModelStepSettled(step_id, ModelFailed(error_info(error)))
        self._post(Arrival(settled, Attachment(kinds=(DurableWrite.MODEL_STEP_SETTLED,))))

    def _call_settled(self, step_id: str, result: ToolStepResult) -> None:
        self._post(Arrival(CallSettled(step_id, result.status), Attachment(tool=result)))

    def _code_differs(self, book: TurnBook, error: NonDeterminismError) -> None:
        unstarted = tuple(sorted(self._unbegun))
        self._post(Arrival(CodeDiffers(error_info(error), book.turn_id, unstarted)))


def _check(result: DriveResult) -> None:
    """Refuses what cannot be stored, or makes no sense.

    Raises:
        PayloadTooLarge, ValueNotStorable
        EngineError: a question waits for something that there is not.
    """
    ensure_storable_messages(result.progress.messages)
    if isinstance(result, DriveFailed):
        return
    ensure_storable_calls(result.calls if isinstance(result, DriveBlocked) else ())
    ensure_storable_questions(result.questions, result.carry if isinstance(result, DriveFinished) else None)
    for question in result.questions if isinstance(result, DriveFinished) else ():
        if question.wait is QuestionWait.LIVE:
            raise EngineError(f"question {question.question_id!r} has no live invocation to wait in")


def _stopped_by_us() -> bool:
    """Whether a cancellation was asked of this very task, rather than leaking out of something that it uses."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0
