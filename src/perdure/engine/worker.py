"""A worker: claims sessions that are due, has its crew run them, and drains when it is told to stop.

Its loops outlive whatever goes wrong in them: a store that fails is tried again, ever more slowly.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta

from perdure.arguments import expect_count, wrong
from perdure.clock import Clock
from perdure.engine.actor import SessionActor
from perdure.engine.crew import Crew
from perdure.engine.feed import FeedHub
from perdure.engine.membership import Membership, set_within
from perdure.engine.trouble import Trouble, pause_after
from perdure.errors import LeaseLost
from perdure.ids import IdSource
from perdure.session.runner import AgentSessionFlow
from perdure.store.base import Change, ClaimedSession, SessionStore

logger = logging.getLogger("perdure.worker")


@dataclass(frozen=True, slots=True)
class WorkerOptions:
    """How a worker behaves.

    Attributes:
        max_sessions: sessions it runs at one time; those that only wait for someone do not count.
        lease: after this long without a sign of life its sessions may be taken over; it renews well before.
        linger: how long a turn that waits for someone stays in memory, in case the answer comes soon.
        max_lingering: how many such turns stay in memory at the most.
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


CLAIM_BATCH = 4
"""Sessions taken in one go.  Small, so that a busy worker leaves the rest to an idle one."""

LONGEST_PAUSE = timedelta(seconds=1)
"""Between two tries of a loop that fails."""

END_GRACE = timedelta(seconds=2)
"""How long a step that was cut off, or the last write, may take before the worker ends without it."""


class EngineWorker:
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
        self._work = asyncio.Event()
        """There may be something to claim, or another deadline to wait for."""
        self._crew = Crew(
            store,
            clock,
            self._trouble,
            max_sessions=options.max_sessions,
            linger=options.linger,
            max_lingering=options.max_lingering,
            vacancy=self._work.set,
        )
        self._membership = Membership(
            store,
            clock,
            ids,
            self._definitions,
            options.lease,
            lost=self._crew.drop,
            registered=self._work.set,
            freed=self._work.set,
        )
        self._unsure: str | None = None
        """Worker id of a claim that failed, and may be on disk all the same: then nobody runs what it took."""
        self._claiming: list[asyncio.Task[None]] = []
        self._living: list[asyncio.Task[None]] = []
        self._unlisten: Callable[[], None] | None = None
        self._hurry = asyncio.Event()
        self._ending: asyncio.Task[None] | None = None

    # ------------------------------------------------------------ life

    async def start(self) -> None:
        """Makes the worker known and begins to claim.

        Raises:
            StoreError
        """
        await self._membership.register()
        self._unlisten = self._store.listen(self._changed)
        self._claiming = [
            self._keep("claiming sessions", self._claim_due),
            self._keep("looking for dead workers", self._membership.look_for_dead),
        ]
        self._living = [self._keep("renewing the lease", self._membership.renew)]

    async def stop(self) -> None:
        """Drains: claims nothing more, lets running steps finish within the grace, releases all sessions, signs off.

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
        await _cancel(self._claiming)
        self._crew.drain()
        giving_back = asyncio.create_task(self._give_back())
        await self._drained()
        self._crew.drop()
        if not await self._crew.gone(END_GRACE):
            logger.warning("a step does not let itself be stopped: %s", ", ".join(self._crew.held))
        await _cancel((*self._living, giving_back))
        await self._sign_off()

    async def _give_back(self) -> None:
        """What a claim took that was under way goes to others now, not only when the worker has drained."""
        try:
            await self._free_unheld()
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
        await _cancel((gone, hurry))

    async def _sign_off(self) -> None:
        try:
            async with asyncio.timeout(END_GRACE.total_seconds() if self._hurry.is_set() else None):
                await self._membership.sign_off()
        except Exception as error:  # noqa: BLE001 - the worker ends all the same
            self._trouble.met("signing off", error)

    # ------------------------------------------------------------ claims

    async def _claim_due(self) -> None:
        """Waits until there may be something to claim, and claims whatever is due."""
        await self._wait_for_work()
        worker_id = await self._membership.worker_id()
        self._work.clear()
        try:
            await self._free_unheld()
            while await self._claim_some(worker_id):
                pass
        except LeaseLost:
            self._membership.lose()
        except BaseException:
            self._work.set()
            raise

    async def _claim_some(self, worker_id: str) -> bool:
        """Claims a few sessions.  ``True``: there may be more, and there is room for them."""
        limit = min(CLAIM_BATCH, self._crew.room)
        if limit <= 0:
            return False
        self._unsure = worker_id
        claimed = await self._store.claim(worker_id, tuple(self._flows), limit, self._clock.now_ms())
        for session in claimed:
            self._adopt(session)
        self._unsure = None
        # Let the sessions make a step first: under load this leaves the rest to less busy workers.
        await asyncio.sleep(0)
        return len(claimed) == limit

    async def _free_unheld(self) -> None:
        """Frees what a claim may have taken whose answer did not come."""
        if self._unsure is not None:
            await self._store.free_unheld(self._unsure, self._crew.held, self._clock.now_ms())
            self._unsure = None

    async def _wait_for_work(self) -> None:
        """Waits for a change of the store, or for the next deadline of a session that nobody owns."""
        if self._work.is_set():
            return
        wake_at_ms = await self._store.next_wake_ms(tuple(self._flows))
        delay = None if wake_at_ms is None else max(0, wake_at_ms - self._clock.now_ms() + 1) / 1000
        await set_within(self._work, delay)

    def _changed(self, change: Change) -> None:
        if not change.work:
            return
        self._crew.poke(change.sessions)
        # Also when all of them are ours: an actor may be releasing its session right now.
        self._work.set()

    def _adopt(self, claimed: ClaimedSession) -> None:
        flow, definition = self._flows[claimed.flow_type], self._definitions[claimed.flow_type]
        self._crew.adopt(
            SessionActor(
                self._store, self._clock, self._hub, flow, definition, claimed, began_to_linger=self._crew.rests
            )
        )

    # ------------------------------------------------------------ small hands

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


async def _cancel(tasks: Sequence[asyncio.Task[object]]) -> None:
    """Cancels tasks and waits until they are over."""
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
