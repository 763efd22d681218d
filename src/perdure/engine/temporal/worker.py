"""The worker of the Temporal engine: polls the task queues of its flows and its own, and hosts sessions."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine, Mapping, Sequence
from datetime import timedelta
from typing import Any
from weakref import WeakValueDictionary

from temporalio.worker import Worker
from temporalio.worker.workflow_sandbox import SandboxedWorkflowRunner, SandboxRestrictions
from temporalio.workflow import NondeterminismError

from perdure.clock import Clock
from perdure.engine.feed import FeedHub
from perdure.engine.temporal.activities import BEAT, SessionActivities
from perdure.engine.temporal.host import HostedSession
from perdure.engine.temporal.joining import AttemptStale
from perdure.engine.temporal.link import TemporalLink
from perdure.engine.temporal.places import Places
from perdure.engine.temporal.poller import Poller
from perdure.engine.temporal.sweep import Sweep
from perdure.engine.temporal.workflow import SessionWorkflow
from perdure.engine.trouble import pause_after
from perdure.engine.worker import END_GRACE, LONGEST_PAUSE, EngineWorker, WorkerOptions, cancel_all
from perdure.errors import EngineError, LeaseLost, SessionNotFound
from perdure.ids import IdSource
from perdure.session.runner import AgentSessionFlow
from perdure.store.base import Change, SessionStore

logger = logging.getLogger("perdure.worker")

STICKY_TIMEOUT = timedelta(seconds=2)
"""How long a workflow waits for the worker that has it in its cache before any other goes on with it."""

STEPS_AT_ONCE = 5_000
"""Activities of one worker at one time: most of them wait for a model or a tool.  Sessions are limited elsewhere."""

_KEPT = ("arguments", "client", "clock", "errors", "faults", "ids", "session", "store")
_KEPT_OF_ENGINE = ("base", "open", "worker", "temporal.wire")
SANDBOX = SandboxRestrictions.default.with_passthrough_modules(
    "pydantic",
    "pydantic_core",
    "annotated_types",
    *(f"perdure.{name}" for name in _KEPT),
    *(f"perdure.engine.{name}" for name in _KEPT_OF_ENGINE),
)
"""The workflow itself is loaded anew for each run; what it imports is pure, and shared."""


class TemporalWorker(EngineWorker):
    """Takes sessions as their workflows ask it to."""

    def __init__(
        self,
        store: SessionStore,
        clock: Clock,
        ids: IdSource,
        hub: FeedHub,
        flows: Mapping[str, AgentSessionFlow],
        options: WorkerOptions,
        link: TemporalLink,
    ) -> None:
        super().__init__(store, clock, ids, hub, flows, options)
        self._link = link
        self._queue = link.worker_queue(ids.new_id())
        self._activities = SessionActivities(self, self._queue, link.store_id)
        self._hosts: WeakValueDictionary[str, HostedSession] = WeakValueDictionary()
        self._sweep = Sweep(store, clock, link, tuple(flows), self._hosts, self.abandon, self.unwanted)
        self._places = Places(lambda: self._crew.room)
        self._shared: list[Poller] = []
        self._own: Poller | None = None
        self._errands: set[asyncio.Task[None]] = set()
        """Reports under way, and sessions that are being given up."""

    # ------------------------------------------------------------ for activities

    async def adopt(self, session_id: str, attempt: bytes) -> HostedSession:
        """See ``activities.Hosting``."""
        fence = (await self._store.read_ownership(session_id)).fence
        if not await self._link.waits_for(attempt):
            raise AttemptStale
        before = self._hosts.get(session_id)
        if before is not None and await before.still_has_it():
            return before
        if self._crew.room <= 0:
            raise EngineError("this worker has as many sessions as it takes")
        worker_id = await self._membership.worker_id()
        with self._crew.taking():
            return await self._take(worker_id, session_id, fence)

    async def _take(self, worker_id: str, session_id: str, fence: int) -> HostedSession:
        before = self._hosts.get(session_id)
        try:
            claimed = await self._store.adopt(worker_id, session_id, fence, self._clock.now_ms())
        except LeaseLost:
            self._membership.lose()
            raise
        if claimed is None:
            raise EngineError("the session was taken or given up while this worker decided to take it")
        flow = self._flows.get(claimed.flow_type)
        if flow is None:
            await self._crew.free(claimed.lease)
            raise SessionNotFound(
                f"session {session_id!r} is of flow type {claimed.flow_type!r} now", session_id=session_id
            )
        if before is not None:
            self._crew.cut(before)
        host = HostedSession(
            self._store,
            self._clock,
            self._hub,
            flow,
            self._definitions[claimed.flow_type],
            claimed,
            began_to_linger=self._crew.rests,
            push=self._push,
        )
        self._hosts[session_id] = host
        self._crew.adopt(host)
        return host

    def host(self, session_id: str, epoch: int) -> HostedSession | None:
        """See ``activities.Hosting``."""
        host = self._hosts.get(session_id)
        return host if host is not None and host.lease.fence == epoch else None

    def unwanted(self, host: HostedSession) -> None:
        """See ``activities.Hosting``."""
        self._run_errand(self._give_up_unless_wanted(host))

    async def _give_up_unless_wanted(self, host: HostedSession) -> None:
        try:
            wanted = await self._link.is_running(host.session_id)
        except EngineError as error:
            self._trouble.met(f"asking for the workflow of session {host.session_id}", error)
        else:
            if not wanted:
                self.abandon(host)

    def abandon(self, host: HostedSession) -> None:
        """Gives a session up in the middle: it will be due, and found."""
        self._crew.cut(host)
        self._run_errand(self._free(host))

    async def _free(self, host: HostedSession) -> None:
        try:
            await self._crew.free(host.lease)
        except (LeaseLost, SessionNotFound):
            pass  # It has another owner already, as it should.
        except Exception as error:  # noqa: BLE001 - the end of this worker frees it, too
            self._trouble.met(f"freeing session {host.session_id}", error)

    # ------------------------------------------------------------ reports

    def _push(self, host: HostedSession) -> None:
        self._run_errand(self._report(host))

    async def _report(self, host: HostedSession) -> None:
        await host.fetched()
        report = host.report() if host.owes_report else None  # else an activity took it along
        failures = 0
        while True:
            try:
                known = report is None or await self._link.report(host.session_id, report)
                if host.left_unseen:
                    await self._link.poke(host.session_id, host.flow_type, host.lease.fence)
                elif not (known or host.released):
                    # Somebody ended the workflow.  Another one begins, and finds the session here, with what it runs.
                    await self._link.poke(host.session_id, host.flow_type)
            except EngineError as error:
                failures += 1
                self._trouble.met(f"reporting on session {host.session_id}", error)
                await asyncio.sleep(pause_after(failures, LONGEST_PAUSE))
            else:
                return

    def _run_errand(self, errand: Coroutine[object, object, None]) -> None:
        task = asyncio.create_task(errand, name="perdure errand")
        self._errands.add(task)
        task.add_done_callback(self._errands.discard)

    # ------------------------------------------------------------ life

    async def _begin(self) -> Sequence[asyncio.Task[None]]:
        own = self._activities.own
        self._own = self._poll(self._queue, activities=own, max_concurrent_activities=STEPS_AT_ONCE)
        self._shared = [
            self._poll(
                self._link.queue(flow_type),
                workflows=[SessionWorkflow],
                activities=self._activities.shared,
                tuner=self._places.tuner(),
                workflow_runner=SandboxedWorkflowRunner(restrictions=SANDBOX),
                workflow_failure_exception_types=[NondeterminismError],
                sticky_queue_schedule_to_start_timeout=STICKY_TIMEOUT,
            )
            for flow_type in self._flows
        ]
        return [self._keep("looking for forgotten sessions", self._sweep.once)]

    def _poll(self, queue: str, **options: Any) -> Poller:
        def make() -> Worker:
            return Worker(self._link.client, task_queue=queue, max_heartbeat_throttle_interval=BEAT, **options)

        return Poller(make, lambda error: self._trouble.met(f"polling {queue}", error))

    def _may_take(self) -> None:
        self._places.vacated()

    def _freed(self) -> None:
        self._sweep.hurry()

    def _changed(self, change: Change) -> None:
        if change.work:
            self._crew.poke(change.sessions)

    async def _cease(self) -> None:
        for host in list(self._hosts.values()):
            host.poke()  # What was accepted by now is seen before the end.
        self._crew.drain()  # Polling takes its time to end; nothing new is started meanwhile.
        await asyncio.gather(*(poller.stop() for poller in self._shared))

    async def _end(self) -> None:
        if self._own is not None:
            await self._own.stop()
        if self._errands:
            await asyncio.wait(tuple(self._errands), timeout=END_GRACE.total_seconds())
        await cancel_all(tuple(self._errands))
