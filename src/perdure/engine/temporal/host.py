"""A session in the memory of a worker of Temporal: its actor runs a step when the activity for it comes, and keeps
account of what it applied, for the workflow.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from datetime import timedelta
from typing import Any

from perdure.clock import Clock
from perdure.engine.actor import SessionActor
from perdure.engine.arrivals import Arrival
from perdure.engine.book import TurnBook
from perdure.engine.feed import FeedHub
from perdure.engine.host import Reduction
from perdure.engine.running import CHECK
from perdure.engine.temporal.wire import Report, StepCommand, pack
from perdure.session.model import JsonObject
from perdure.session.runner import AgentSessionFlow
from perdure.session.state import (
    AttemptFailed,
    AttemptStarted,
    CheckCode,
    CodeDiffers,
    CodeFits,
    DropTurn,
    Input,
    StopStep,
)
from perdure.store.base import ClaimedSession, SessionStore

PATIENCE = timedelta(seconds=30)
"""How long a step that is due may wait for its activity before the session is given up: nobody seems to want it."""


class HostGone(Exception):
    """This worker does not have the session any more."""


class AttemptOver(Exception):
    """An attempt of a call failed, and after a pause there is to be another one."""

    def __init__(self, pause: timedelta) -> None:
        super().__init__(f"the next attempt follows in {pause.total_seconds():g} s")
        self.pause = pause


class _Step:
    """A step that was commanded and is not over.

    Attributes:
        since_ms: when it was commanded, or its activity was lost, or when the next one is due.
        attempt: what the activity that runs it waits for: ``None`` when the step is over, or a pause.
        resumed: set when the activity for the next attempt is there.
    """

    def __init__(self, command: StepCommand, book: TurnBook, since_ms: int) -> None:
        self.command = command
        self.book = book
        self.since_ms = since_ms
        self.begun = False
        self.attempt: asyncio.Future[timedelta | None] | None = None
        self.resumed = asyncio.Event()

    def tell(self, pause: timedelta | None) -> bool:
        """Lets the activity return.  ``False``: there is none."""
        attempt, self.attempt = self.attempt, None
        if attempt is None or attempt.done():
            return False
        attempt.set_result(pause)
        return True


class HostedSession(SessionActor):
    """Owns one session from its adoption to its release.

    Args:
        push: takes a report that no activity will return.
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
        push: Callable[[HostedSession], None],
    ) -> None:
        super().__init__(store, clock, hub, flow, definition, claimed, began_to_linger=began_to_linger)
        self._push = push
        self._inputs: list[Input] = []
        """Applied, and not reported."""
        self._reported = 0
        self._left_reported = False
        self._told = False
        """An activity that reports was let go on."""
        self._steps: dict[str, _Step] = {}
        self._settled: list[_Step] = []
        """Have their result, and their activities do not know yet."""
        self._looking: list[asyncio.Future[None]] = []
        """Wait for what the next look brings."""
        self._looked: list[tuple[Arrival, list[asyncio.Future[None]]]] = []
        """Wait until an arrival is applied."""
        self._restored: JsonObject = {}
        self._ended = False
        self._adoption: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._looking.append(self._adoption)

    # ------------------------------------------------------------ for activities

    async def adopted(self) -> tuple[JsonObject, Report]:
        """Waits until what was stored is taken up.  Returns the state as it was stored, and what was applied to it.

        Raises:
            HostGone
        """
        await self._adoption
        return self._restored, self.report()

    async def look(self) -> Report:
        """Takes what is new in the inbox, and lets deadlines pass.

        Raises:
            HostGone
        """
        self._ensure_here()
        applied: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._looking.append(applied)
        self.poke()
        await applied
        return self.report()

    async def run_step(self, command: StepCommand) -> Report:
        """Runs a step that was commanded, or goes on with it; one that runs already is not begun again.

        Raises:
            HostGone
            AttemptOver: repeat this call after the pause.
        """
        self._ensure_here()
        key = _key(command)
        step = self._steps.get(key)
        if step is None:
            return self.report()  # It was stopped before its activity came.
        if self._host.draining and not step.begun:
            raise HostGone  # It is about to be.
        if step.attempt is not None and not step.attempt.done():
            step.attempt.set_exception(HostGone())  # Of an activity that Temporal has given up.
        step.attempt = asyncio.get_running_loop().create_future()
        if step.begun:
            step.resumed.set()
        else:
            step.begun = True
            self._running.run(step.command, step.book)
        try:
            pause = await step.attempt
        finally:
            step.since_ms = max(step.since_ms, self._clock.now_ms())
        if pause is not None:
            raise AttemptOver(pause)
        return self.report()

    def _ensure_here(self) -> None:
        if self._ended:
            raise HostGone

    # ------------------------------------------------------------ reports

    def report(self) -> Report:
        """What was applied and is not reported yet.  Each input is reported once."""
        inputs, self._inputs = self._inputs, []
        self._told = False
        first, self._reported = self._reported, self._reported + len(inputs)
        self._left_reported = self._left_reported or self.released
        packed = [pack(one) for one in inputs]
        return Report(self.lease.fence, first, packed, self._host.next_deadline_ms(), self.released)

    @property
    def owes_report(self) -> bool:
        """Whether there is something to report, and no activity that does."""
        return not self._told and (bool(self._inputs) or (self.released and not self._left_reported))

    def waits_in_vain(self, now_ms: int) -> bool:
        """Whether a step has not been asked for though it is due: its workflow is gone, or very slow."""
        limit = now_ms - round(PATIENCE.total_seconds() * 1000)
        steps = (step for step in self._steps.values() if step.attempt is None or step.attempt.done())
        return any(step.since_ms < limit for step in steps)

    async def run(self, linger: timedelta) -> None:
        """See ``SessionActor``."""
        try:
            await super().run(linger)
        finally:
            self._ended = True
            for future in self._waiting():
                if not future.done():
                    future.set_exception(HostGone())
            if self.released and self.owes_report:
                self._push(self)

    def _waiting(self) -> list[asyncio.Future[Any]]:
        """What activities wait for."""
        attempts = [step.attempt for step in self._steps.values() if step.attempt is not None]
        attempts += [step.attempt for step in self._settled if step.attempt is not None]
        return [*attempts, *self._looking, *(future for _, futures in self._looked for future in futures)]

    # ------------------------------------------------------------ where the engines differ

    def _start(self, command: StepCommand, book: TurnBook) -> None:
        self._steps[_key(command)] = _Step(command, book, self._clock.now_ms())

    def _settle(self, step_id: str) -> None:
        super()._settle(step_id)
        step = self._steps.pop(step_id, None)
        if step is not None:
            self._settled.append(step)

    def _is_busy(self) -> bool:
        # What has not begun when the session is to be given up is left to the next owner.
        return bool(self._running) or (bool(self._steps) and not self._host.draining)

    async def _restore(self) -> None:
        await super()._restore()
        self._restored = pack(self.state)

    def _put(self, arrivals: list[Arrival]) -> None:
        futures, self._looking = self._looking, []
        if arrivals:
            self._looked.append((arrivals[-1], futures))
        else:
            _resolve(futures)
        super()._put(arrivals)

    def _applied(self, step: Reduction) -> None:
        self._inputs += step.inputs
        over, self._settled = self._settled, []
        over += [self._steps.pop(key) for key in self._left_by(step) if key in self._steps]
        told = [one.tell(None) for one in over]
        arrivals = [arrival for arrival, _ in step.taken]
        for entry in [entry for entry in self._looked if any(entry[0] is arrival for arrival in arrivals)]:
            self._looked.remove(entry)
            told.append(_resolve(entry[1]))
        self._told = self._told or any(told)
        # What a look brings is reported when all of it is applied; what a call began, when it ends.
        waits = self._looked or all(isinstance(given, (AttemptStarted, AttemptFailed)) for given in step.inputs)
        if self.owes_report and not waits:
            self._push(self)

    def _left_by(self, step: Reduction) -> list[str]:
        """Keys of the steps that are over with a step of the loop and have no result."""
        over = [CHECK for arrival, _ in step.taken if isinstance(arrival.given, (CodeFits, CodeDiffers))]
        over += [command.step_id for command in step.commands if isinstance(command, StopStep)]
        if any(isinstance(command, DropTurn) for command in step.commands):
            over += [key for key, one in self._steps.items() if one.book is not self._host.book]
        return list(dict.fromkeys(over))

    def _step_left(self, key: str) -> None:
        step = self._steps.pop(key, None)
        if step is not None and step.tell(None):
            self._told = True

    async def _pause(self, step_id: str, pause: timedelta) -> bool:
        step = self._steps.get(step_id)
        if step is None:
            return False
        step.resumed.clear()
        step.since_ms = self._clock.now_ms() + round(pause.total_seconds() * 1000)
        step.tell(pause)
        return await self._running.stays_until(step.resumed.wait())

    def _watch_deadlines(self) -> None:
        """Nothing: the workflow does."""


def _key(command: StepCommand) -> str:
    return CHECK if isinstance(command, CheckCode) else command.step_id


def _resolve(futures: list[asyncio.Future[None]]) -> bool:
    """Lets those go on that wait.  ``False``: nobody did."""
    waiting = [future for future in futures if not future.done()]
    for future in waiting:
        future.set_result(None)
    return bool(waiting)
