"""A session in the memory of a worker of Temporal: its actor runs ahead of the workflow, and keeps account of what it
applied, for the workflow.

A step begins as soon as it is commanded and stored, as on the local engine; the activity that the workflow orders for
it joins it.  So what Temporal takes to order a step costs no time, and the order is still there for whoever watches,
counts attempts and finds dead workers.  What ends within ``TAKE_ALONG`` is reported together with the step before it,
and needs no activity at all.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from typing import Any

from perdure.clock import Clock
from perdure.engine.actor import SessionActor
from perdure.engine.arrivals import Arrival, JoinAsked
from perdure.engine.book import TurnBook
from perdure.engine.feed import FeedHub
from perdure.engine.host import Reduction
from perdure.engine.temporal.joining import AttemptOver, HostedStep, HostGone
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
"""How long a session may wait for an activity before it is given up: nobody seems to want it."""

TAKE_ALONG = timedelta(milliseconds=50)
"""How long an activity that has its result waits for what follows at once."""

FETCH_TIME = timedelta(seconds=1)
"""How long a report waits for an activity that is expected, before a signal takes it."""


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
        self.flow_type = claimed.flow_type
        self._push = push
        self._inputs: list[Input] = []
        """Applied, and not reported."""
        self._reported = 0
        self._left_reported = False
        self._told = False
        """An activity that reports was let go on."""
        self._steps: dict[str, HostedStep] = {}
        self._coming: dict[str, int] = {}
        """Steps whose activity was not here yet and will be ordered, and since when the workflow knows of them."""
        self._turned = asyncio.Event()
        """Set when something was applied, or an activity came, or this is over."""
        self._steady = asyncio.Lock()
        """Held while the state is ahead of what was stored and is to be reported."""
        self._pushing = False
        """Somebody takes care of what no activity reports."""
        self._settled: list[HostedStep] = []
        """Have their result, and their activities do not know yet."""
        self._looking: list[asyncio.Future[None]] = []
        """Wait for what the next look brings."""
        self._looked: list[tuple[Arrival, list[asyncio.Future[None]]]] = []
        """Wait until an arrival is applied."""
        self._ended = False
        self.adoptions = 0
        """How often the workflow was told that the session is here."""
        self._adoption: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._looking.append(self._adoption)

    # ------------------------------------------------------------ for activities

    async def still_has_it(self) -> bool:
        """Whether this is alive and has a lease that is good, at a time when its workflow has lost sight of it."""
        if self._ended or self.released or self.closing or self._host.draining:
            return False
        try:
            await self._look_and_see()
        except HostGone:
            return False
        return not self.released

    async def adopted(self) -> tuple[JsonObject, list[JsonObject], Report]:
        """Waits until what was stored is taken up.

        Whatever waited for this before is not wanted any more: the workflow begins anew with what it gets here.

        Returns:
            The state with all that was applied, the steps that are not over, and where reports will go on.

        Raises:
            HostGone
        """
        await asyncio.shield(self._adoption)
        self.adoptions += 1
        for future in self._waiting():
            if not future.done():
                future.set_exception(HostGone())
        await self._quiet(self.adoptions)
        async with self._steady:  # What is being written would be in the state, and be reported once more.
            self._coming.clear()
            for step in self._steps.values():
                step.asked = False
            report = self.report()
            due = [pack(step.command) for step in self._steps.values()]
            return pack(self.state), due, replace(report, first=self._reported, inputs=[])

    async def look(self) -> Report:
        """Takes what is new in the inbox, and lets deadlines pass.

        Raises:
            HostGone
        """
        if self.released and self.owes_report:
            return replace(self.report(), missed=True)
        await self._look_and_see()
        return await self._full_report()

    async def _look_and_see(self) -> None:
        self._ensure_here()
        applied: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._looking.append(applied)
        self.poke()
        await applied

    async def run_step(self, command: StepCommand) -> Report:
        """Runs a step that was commanded, or goes on with it; one that runs already is not begun again.

        Raises:
            HostGone
            AttemptOver: repeat this call after the pause.
        """
        key = command.step_id
        self._coming.pop(key, None)
        self._turned.set()
        if self.released and self.owes_report:
            return self.report()  # It ran ahead, up to the end.
        self._ensure_here()
        step = self._steps.get(key)
        if step is None:
            return await self._full_report()  # It is over, or was stopped, before its activity came.
        if self._host.draining and not step.begun:
            raise HostGone  # It is about to be.
        step.asked = True
        await self._join(step)
        return await self._full_report()

    async def _join(self, step: HostedStep) -> None:
        """Waits until a step is over.  Raises: HostGone, AttemptOver"""
        if step.joined:
            assert step.attempt is not None
            step.attempt.set_exception(HostGone())  # Of an activity that Temporal has given up.
        if step.untold is not None:
            pause, step.untold = step.untold, None
            raise AttemptOver(pause)
        step.attempt = asyncio.get_running_loop().create_future()
        if step.begun:
            step.resumed.set()
        else:
            self._begin(step)
        try:
            pause_now = await step.attempt
        finally:
            step.since_ms = max(step.since_ms, self._clock.now_ms())
        if pause_now is not None:
            raise AttemptOver(pause_now)

    def _ensure_here(self) -> None:
        if self._ended:
            raise HostGone

    # ------------------------------------------------------------ reports

    async def _full_report(self) -> Report:
        """A report that takes along what follows at once."""
        await self._quiet(self.adoptions)
        return self.report()

    async def _quiet(self, adoption: int) -> None:
        """Waits, but not long, for what runs ahead.  Raises: HostGone"""
        await self._let_run_ahead()
        if (self._ended and not self.released) or adoption != self.adoptions:
            raise HostGone

    async def _let_run_ahead(self) -> None:
        try:
            async with asyncio.timeout(TAKE_ALONG.total_seconds()):
                # What is settled is being written, and may be followed by more.
                while not self._ended and (self._settled or any(step.runs_unasked for step in self._steps.values())):
                    self._turned.clear()
                    await self._turned.wait()
        except TimeoutError:
            pass

    async def fetched(self) -> None:
        """Waits, but not long, for what runs ahead, and while an activity is expected that would report all of it."""
        await self._let_run_ahead()
        try:
            async with asyncio.timeout(FETCH_TIME.total_seconds()):
                while self._coming and self.owes_report:
                    self._turned.clear()
                    await self._turned.wait()
        except TimeoutError:
            pass
        self._pushing = False

    def report(self) -> Report:
        """What was applied and is not reported yet.  Each input is reported once."""
        inputs, self._inputs = self._inputs, []
        self._told = False
        now = self._clock.now_ms()
        for key, step in self._steps.items():
            if not step.asked:
                self._coming.setdefault(key, now)
        first, self._reported = self._reported, self._reported + len(inputs)
        self._left_reported = self._left_reported or self.released
        packed = [pack(one) for one in inputs]
        return Report(self.lease.fence, first, packed, self._host.next_deadline_ms(), self.released)

    @property
    def left_unseen(self) -> bool:
        """Whether the session was given up before this host looked at what it was told of."""
        return self.released and self._looks

    @property
    def owes_report(self) -> bool:
        """Whether there is something to report, and no activity that does."""
        return not self._told and (bool(self._inputs) or (self.released and not self._left_reported))

    def waits_in_vain(self, now_ms: int) -> bool:
        """Whether an activity does not come though it is due: the workflow is gone, or very slow."""
        due = [step.since_ms for step in self._steps.values() if not step.joined and not step.runs_unasked]
        due += [since for key, since in self._coming.items() if key not in self._steps]
        return any(since < now_ms - _ms(PATIENCE) for since in due)

    def runs_unheeded(self, now_ms: int) -> bool:
        """Whether a step runs that the workflow should have ordered long ago."""
        return any(step.runs_unasked and step.since_ms < now_ms - _ms(PATIENCE) for step in self._steps.values())

    async def run(self, linger: timedelta) -> None:
        """See ``SessionActor``."""
        try:
            await super().run(linger)
        finally:
            self._ended = True
            self._turned.set()
            for future in self._waiting():
                if not future.done():
                    future.set_exception(HostGone())
            if self.released:
                self._push_what_is_owed()

    def _push_what_is_owed(self) -> None:
        if (self.owes_report or self.left_unseen) and not self._pushing:
            self._pushing = True
            self._push(self)

    def _waiting(self) -> list[asyncio.Future[Any]]:
        """What activities wait for."""
        attempts = [step.attempt for step in self._steps.values() if step.attempt is not None]
        attempts += [step.attempt for step in self._settled if step.attempt is not None]
        return [*attempts, *self._looking, *(future for _, futures in self._looked for future in futures)]

    # ------------------------------------------------------------ where the engines differ

    def _start(self, command: StepCommand, book: TurnBook) -> None:
        step = self._steps[command.step_id] = HostedStep(command, book, self._clock.now_ms())
        if not self._host.draining:
            self._begin(step)

    def _begin(self, step: HostedStep) -> None:
        step.begun = True
        self._running.run(step.command, step.book)

    def _settle(self, step_id: str) -> None:
        super()._settle(step_id)
        step = self._steps.pop(step_id, None)
        if step is not None:
            self._settled.append(step)

    def _is_busy(self) -> bool:
        # What has not begun when the session is to be given up is left to the next owner.
        return bool(self._running) or (bool(self._steps) and not self._host.draining)

    def _put(self, arrivals: list[Arrival]) -> None:
        futures, self._looking = self._looking, []
        if arrivals:
            self._looked.append((arrivals[-1], futures))
        else:
            _resolve(futures)
        super()._put(arrivals)

    async def _apply(self, arrivals: list[Arrival]) -> None:
        async with self._steady:
            await super()._apply(arrivals)

    async def _take_along(self, asked: JoinAsked) -> None:
        async with self._steady:
            await super()._take_along(asked)

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
        if not waits:
            self._push_what_is_owed()
        self._turned.set()

    def _left_by(self, step: Reduction) -> list[str]:
        """Keys of the steps that are over with a step of the loop and have no result."""
        over = [CheckCode.step_id for arrival, _ in step.taken if isinstance(arrival.given, (CodeFits, CodeDiffers))]
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
        step.paused = True
        step.resumed.clear()
        step.since_ms = self._clock.now_ms() + round(pause.total_seconds() * 1000)
        if not step.tell(pause):
            step.untold = pause
            self._turned.set()
        goes_on = await self._running.stays_until(step.resumed.wait())
        step.paused, step.untold = False, None
        return goes_on

    def _watch_deadlines(self) -> None:
        """Nothing: the workflow does."""


def _ms(span: timedelta) -> int:
    return round(span.total_seconds() * 1000)


def _resolve(futures: list[asyncio.Future[None]]) -> bool:
    """Lets those go on that wait.  ``False``: nobody did."""
    waiting = [future for future in futures if not future.done()]
    for future in waiting:
        future.set_result(None)
    return bool(waiting)
