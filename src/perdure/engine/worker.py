"""A worker: claims sessions that are due, runs an actor for each, keeps its lease, and takes over from the dead."""

from __future__ import annotations

import asyncio
import logging
from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import timedelta

from perdure.clock import Clock
from perdure.engine.actor import SessionActor
from perdure.engine.feed import FeedHub
from perdure.errors import LeaseLost, StoreError
from perdure.faults import DurableWrite, InjectedFault
from perdure.ids import IdSource
from perdure.session.model import SessionStatus
from perdure.session.runner import AgentSessionFlow
from perdure.store.base import Change, ClaimedSession, Lease, SessionStore, SessionWrite, Worker

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
    """

    max_sessions: int = 200
    lease: timedelta = timedelta(seconds=10)
    linger: timedelta = timedelta(seconds=60)
    max_lingering: int = 50
    drain_grace: timedelta = timedelta(seconds=30)


REAP_INTERVAL = timedelta(milliseconds=150)
"""How often a worker looks whether another one died."""

CLAIM_BATCH = 4
"""Sessions taken in one go.  Small, so that a busy worker leaves the rest to an idle one."""

FIRST_RETRY_DELAY = timedelta(milliseconds=50)
MAX_RETRY_DELAY = timedelta(seconds=10)


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
        self._ids = ids
        self._hub = hub
        self._flows = flows
        self._options = options
        self._worker_id = ""
        self._actors: OrderedDict[str, SessionActor] = OrderedDict()
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._failures: dict[str, int] = {}
        """Consecutive failures by session id."""
        self._work = asyncio.Event()
        self._stopping = False
        self._loops: list[asyncio.Task[None]] = []
        self._unlisten: Callable[[], None] | None = None

    @property
    def active(self) -> int:
        """Sessions that this worker runs, those that only wait for someone left out."""
        return sum(not actor.lingers for actor in self._actors.values())

    async def start(self) -> None:
        """Makes the worker known and begins to claim.

        Raises:
            StoreError
        """
        await self._register()
        self._unlisten = self._store.listen(self._changed)
        self._loops = [
            asyncio.create_task(self._claim_loop(), name="perdure claim"),
            asyncio.create_task(self._lease_loop(), name="perdure lease"),
            asyncio.create_task(self._reap_loop(), name="perdure reap"),
        ]
        self._work.set()

    async def stop(self) -> None:
        """Stops claiming, lets running steps finish within the grace, releases all sessions, and signs off."""
        self._stopping = True
        for actor in self._actors.values():
            actor.drain()
        if self._tasks:
            grace = self._options.drain_grace.total_seconds()
            await asyncio.wait(self._tasks.values(), timeout=grace)
            if self._tasks:
                ids = ", ".join(self._tasks)
                logger.warning("after %g s steps still run; cut off, for the next worker: sessions %s", grace, ids)
        await self.abort()

    async def abort(self) -> None:
        """Stops at once.  What runs is cut off, as if the process had died, and is recovered like that."""
        self._stopping = True
        if self._unlisten is not None:
            self._unlisten()
            self._unlisten = None
        for task in (*self._loops, *self._tasks.values()):
            task.cancel()
        await asyncio.gather(*self._loops, *self._tasks.values(), return_exceptions=True)
        if self._worker_id:
            worker_id, self._worker_id = self._worker_id, ""
            await self._store.unregister_worker(worker_id)

    # ------------------------------------------------------------ loops

    async def _register(self) -> None:
        self._worker_id = self._ids.new_id()
        definitions = {flow_type: flow.runner.definition() for flow_type, flow in self._flows.items()}
        lease_ms = round(self._options.lease.total_seconds() * 1000)
        await self._store.register_worker(Worker(self._worker_id, definitions, lease_ms), self._clock.now_ms())

    def _changed(self, change: Change) -> None:
        if not change.work:
            return
        if change.sessions is None:
            for actor in self._actors.values():
                actor.poke()
            self._work.set()
            return
        for session_id in change.sessions:
            owned = self._actors.get(session_id)
            if owned is not None:
                owned.poke()
        # Also when all of them are ours: an actor may be releasing its session right now.
        self._work.set()

    async def _claim_loop(self) -> None:
        """Claims whatever is due, whenever there may be something."""
        while True:
            await self._wait_for_work()
            self._work.clear()
            try:
                while not self._stopping and self.active < self._options.max_sessions:
                    limit = min(CLAIM_BATCH, self._options.max_sessions - self.active)
                    claimed = await self._store.claim(self._worker_id, tuple(self._flows), limit, self._clock.now_ms())
                    for session in claimed:
                        self._adopt(session)
                    if len(claimed) < limit:
                        break
                    # Let the sessions make a step first: under load this leaves the rest to less busy workers.
                    await asyncio.sleep(0)
            except (StoreError, InjectedFault) as error:
                logger.warning("claiming failed, trying again: %s", error)
                await self._give_back_unheld()
                self._work.set()

    async def _give_back_unheld(self) -> None:
        """After a failed claim: it may be on disk all the same, and then nobody would run what it took."""
        while True:
            await asyncio.sleep(FIRST_RETRY_DELAY.total_seconds())
            try:
                await self._store.free_unheld(self._worker_id, tuple(self._actors), self._clock.now_ms())
            except (StoreError, InjectedFault) as error:
                logger.warning("freeing sessions after a failed claim failed, trying again: %s", error)
            else:
                return

    async def _wait_for_work(self) -> None:
        """Waits for a change of the store, or for the next deadline of a session that nobody owns."""
        try:
            wake_at_ms = await self._store.next_wake_ms(tuple(self._flows))
        except StoreError:
            wake_at_ms = self._clock.now_ms() + 1000
        if wake_at_ms is None:
            await self._work.wait()
            return
        delay = max(0, wake_at_ms - self._clock.now_ms() + 1) / 1000
        try:
            async with asyncio.timeout(delay):
                await self._work.wait()
        except TimeoutError:
            pass

    async def _lease_loop(self) -> None:
        """Renews the lease; when it was lost, starts anew under another id."""
        pause = self._options.lease.total_seconds() / 4
        while True:
            await asyncio.sleep(pause)
            try:
                await self._store.renew_worker(self._worker_id, self._clock.now_ms())
            except LeaseLost:
                logger.warning("worker %s was given up for dead; its sessions are dropped", self._worker_id)
                for task in tuple(self._tasks.values()):
                    task.cancel()
                await self._register()
                self._work.set()
            except StoreError as error:
                logger.warning("renewing the lease failed, trying again: %s", error)

    async def _reap_loop(self) -> None:
        while True:
            await asyncio.sleep(REAP_INTERVAL.total_seconds())
            try:
                if await self._store.reap_workers(self._clock.now_ms()):
                    self._work.set()
            except StoreError as error:
                logger.warning("looking for dead workers failed, trying again: %s", error)

    # ------------------------------------------------------------ sessions

    def _adopt(self, claimed: ClaimedSession) -> None:
        session_id = claimed.lease.session_id
        actor = SessionActor(self._store, self._clock, self._hub, self._flows[claimed.flow_type], claimed)
        self._actors[session_id] = actor
        self._tasks[session_id] = asyncio.create_task(self._run(actor), name=f"perdure session {session_id}")
        lingering = [other for other in self._actors.values() if other.lingers]
        for other in lingering[: max(0, len(lingering) - self._options.max_lingering)]:
            other.drain()

    async def _run(self, actor: SessionActor) -> None:
        try:
            await actor.run(self._options.linger)
            self._failures.pop(actor.session_id, None)
        except LeaseLost:
            logger.info("session %s has another owner now", actor.session_id)
        except Exception as error:  # noqa: BLE001 - whatever it is, the session and the worker must go on
            await self._give_back(actor, error)
        finally:
            was_full = self.active >= self._options.max_sessions
            if self._actors.get(actor.session_id) is actor:
                del self._actors[actor.session_id]
                del self._tasks[actor.session_id]
            # Work that the session leaves is told of by its release; a deadline, or room for another session, is not.
            if was_full or actor.state.status is SessionStatus.WAITING:
                self._work.set()

    async def _give_back(self, actor: SessionActor, error: Exception) -> None:
        """Frees a session whose actor failed, after a pause that grows with each failure in a row."""
        failures = self._failures[actor.session_id] = self._failures.get(actor.session_id, 0) + 1
        delay = min(FIRST_RETRY_DELAY * 2 ** min(failures - 1, 20), MAX_RETRY_DELAY)
        known = isinstance(error, (StoreError, InjectedFault))
        logger.warning(
            "session %s stopped (%s); it goes on from what is stored in %.2f s",
            actor.session_id,
            error,
            delay.total_seconds(),
            exc_info=None if known else error,
        )
        while True:
            await asyncio.sleep(delay.total_seconds())
            try:
                await self._free(actor.lease)
            except LeaseLost:
                return
            except (StoreError, InjectedFault) as again:
                logger.warning("freeing session %s failed, trying again: %s", actor.session_id, again)
            else:
                return

    async def _free(self, lease: Lease) -> None:
        write = SessionWrite(kinds=(DurableWrite.SESSION_RELEASED,), release=True)
        await self._store.commit(lease, write, self._clock.now_ms())
