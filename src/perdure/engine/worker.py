"""What every worker is: one of the workers of its store, with a crew for the sessions that it runs, until it drains.

How sessions come to it is the engine's business: ``claiming.ClaimingWorker`` takes those that are due in the store.
Its loops outlive whatever goes wrong in them: a store that fails is tried again, ever more slowly.
"""

from __future__ import annotations

import asyncio
import logging
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta

from perdure.arguments import expect_count, wrong
from perdure.clock import Clock
from perdure.engine.crew import Crew
from perdure.engine.feed import FeedHub
from perdure.engine.membership import Membership
from perdure.engine.trouble import Trouble, pause_after
from perdure.ids import IdSource
from perdure.session.runner import AgentSessionFlow
from perdure.store.base import Change, SessionStore

logger = logging.getLogger("perdure.worker")


@dataclass(frozen=True, slots=True)
class WorkerOptions:
    """How a worker behaves.

    Attributes:
        max_sessions: sessions it runs at one time; those that only wait do not count.
        lease: after this long without a sign of life its sessions may be taken over; it renews well before.
        linger: how long a session that waits for an answer or a message stays in memory, in case it comes soon.
        max_lingering: how many such sessions stay in memory at the most.
        drain_grace: how long ``stop`` waits for running steps before it leaves them to the next worker.

    Raises:
        UsageError: one of them is of the wrong type or negative; names it.
    """

    max_sessions: int = 200
    lease: timedelta = timedelta(seconds=10)
    linger: timedelta = timedelta(seconds=60)
    max_lingering: int = 50
    drain_grace: timedelta = timedelta(seconds=30)

    def __post_init__(self) -> None:
        expect_count(self.max_sessions, "WorkerOptions.max_sessions", least=1)
        expect_count(self.max_lingering, "WorkerOptions.max_lingering")
        for name in ("lease", "linger", "drain_grace"):
            value = getattr(self, name)
            if not isinstance(value, timedelta) or value < timedelta(0):
                raise wrong(f"WorkerOptions.{name}", value, "a timedelta that is not negative")


LONGEST_PAUSE = timedelta(seconds=1)
"""Between two tries of a loop that fails."""

END_GRACE = timedelta(seconds=2)
"""How long a step that was cut off, or the last write, may take before the worker ends without it."""


class EngineWorker(ABC):
    """Runs the sessions of some flows."""

    def __init__(
        self,
        store: SessionStore,
        clock: Clock,
        ids: IdSource,
        hub: FeedHub,
        flows: Mapping[str, AgentSessionFlow],
        options: WorkerOptions,
    ) -> None:
        self._store = store
        self._clock = clock
        self._hub = hub
        self._flows = flows
        self._options = options
        self._definitions = {flow_type: flow.runner.definition() for flow_type, flow in flows.items()}
        self._trouble = Trouble(clock)
        self._crew = Crew(
            store,
            clock,
            self._trouble,
            max_sessions=options.max_sessions,
            linger=options.linger,
            max_lingering=options.max_lingering,
            vacancy=self._may_take,
        )
        self._membership = Membership(
            store,
            clock,
            ids,
            self._definitions,
            options.lease,
            lost=self._crew.drop,
            registered=self._may_take,
            freed=self._freed,
        )
        self._taking: list[asyncio.Task[None]] = []
        """What brings sessions."""
        self._living: list[asyncio.Task[None]] = []
        self._unlisten: Callable[[], None] | None = None
        self._hurry = asyncio.Event()
        self._ending: asyncio.Task[None] | None = None

    # ------------------------------------------------------------ how sessions come

    @abstractmethod
    async def _begin(self) -> Sequence[asyncio.Task[None]]:
        """Begins to take sessions.  Returns the loops that do; they are cancelled when the worker is to stop."""

    @abstractmethod
    def _may_take(self) -> None:
        """There may be a session to take: room for one, or one that became free, or a deadline to watch for."""

    @abstractmethod
    def _changed(self, change: Change) -> None:
        """The store changed."""

    def _freed(self) -> None:
        """Sessions became free whose owner died."""
        self._may_take()

    async def _cease(self) -> None:
        """Takes no more sessions.  What was taken last may still come to the crew."""
        return

    async def _give_back(self) -> None:
        """Frees what was taken and is not held, while the crew drains."""
        return

    async def _end(self) -> None:
        """The crew is gone; lets go of what it needed."""
        return

    # ------------------------------------------------------------ life

    async def start(self) -> None:
        """Makes the worker known and begins to take sessions.

        Raises:
            StoreError
        """
        await self._membership.register()
        self._unlisten = self._store.listen(self._changed)
        self._living = [self._keep("renewing the lease", self._membership.renew)]
        looking = self._keep("looking for dead workers", self._membership.look_for_dead)
        self._taking = [looking]
        self._taking += await self._begin()

    async def stop(self) -> None:
        """Drains: takes nothing more, lets running steps finish within the grace, releases all sessions, signs off.

        However often it is called, it is done once, and each call returns when it is done.
        """
        if self._ending is None:
            self._ending = asyncio.create_task(self._stop(), name="perdure worker stop")
        ending = self._ending
        try:
            await asyncio.shield(ending)
        except asyncio.CancelledError:
            # Whoever stops the worker is stopped, too: no more time for steps, but an orderly end.
            self.hurry()
            await asyncio.wait((ending,))
            raise

    def hurry(self) -> None:
        """Makes ``stop`` end at once.  What runs is cut off, as if the process had died, and is recovered like that."""
        self._hurry.set()

    async def _stop(self) -> None:
        if self._unlisten is not None:
            self._unlisten()
        await cancel_all(self._taking)
        await self._cease()
        self._crew.drain()
        giving_back = asyncio.create_task(self._try_to_give_back())
        await self._drained()
        self._crew.drop()
        if not await self._crew.gone(END_GRACE):
            logger.warning("a step does not let itself be stopped: %s", ", ".join(self._crew.held))
        await self._end()
        await cancel_all((*self._living, giving_back))
        await self._sign_off()

    async def _try_to_give_back(self) -> None:
        """What was being taken goes to others now, not only when the worker has drained."""
        try:
            await self._give_back()
        except Exception as error:  # noqa: BLE001 - signing off frees it, too
            self._trouble.met("giving back a claim", error)

    async def _drained(self) -> None:
        """Waits until all sessions are released, but no longer than the grace, and not when there is a hurry."""
        grace = self._options.drain_grace
        gone = asyncio.create_task(self._crew.gone(grace))
        hurry = asyncio.create_task(self._hurry.wait())
        await asyncio.wait((gone, hurry), return_when=asyncio.FIRST_COMPLETED)
        if gone.done() and not gone.result():
            ids, seconds = ", ".join(self._crew.held), grace.total_seconds()
            logger.warning("after %g s steps still run; cut off, for the next worker: sessions %s", seconds, ids)
        await cancel_all((gone, hurry))

    async def _sign_off(self) -> None:
        try:
            async with asyncio.timeout(END_GRACE.total_seconds() if self._hurry.is_set() else None):
                await self._membership.sign_off()
        except Exception as error:  # noqa: BLE001 - the worker ends all the same
            self._trouble.met("signing off", error)

    def _keep(self, doing: str, once: Callable[[], Awaitable[None]]) -> asyncio.Task[None]:
        """Does something again and again, whatever goes wrong."""

        async def go_on() -> None:
            failures = 0
            while True:
                try:
                    await once()
                    failures = 0
                except Exception as error:  # noqa: BLE001 - a worker must not die
                    failures += 1
                    self._trouble.met(doing, error)
                    await asyncio.sleep(pause_after(failures, LONGEST_PAUSE))

        return asyncio.create_task(go_on(), name=f"perdure {doing}")


async def cancel_all(tasks: Sequence[asyncio.Task[object]]) -> None:
    """Cancels tasks and waits until they are over."""
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
