"""The sessions that one worker runs: an actor and a task for each, from the claim to the release.

Whatever goes wrong in an actor ends here.  Its session is freed after a pause that grows with each failure in a row,
and whoever claims it goes on from what is stored.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Generator
from contextlib import contextmanager
from datetime import timedelta

from perdure.clock import Clock
from perdure.engine.actor import SessionActor
from perdure.engine.trouble import LONGEST_PAUSE, Trouble, pause_after
from perdure.errors import Conflict, LeaseLost, SessionNotFound, StoreError
from perdure.faults import DurableWrite, InjectedFault
from perdure.session.model import SessionStatus
from perdure.store.base import Lease, SessionStore, SessionWrite

logger = logging.getLogger("perdure.worker")

LONGEST_PAUSE_FOR_STORE = timedelta(seconds=1)

MAX_REMEMBERED = 1000
"""Sessions whose failures in a row are remembered."""


class Crew:
    """Runs actors.

    Args:
        max_sessions: how many sessions it runs, those that only wait left out.
        linger: how long an actor keeps a session in memory that waits for an answer or a message.
        max_lingering: how many actors may do that at one time; the first to go is the one that waits longest.
        vacancy: called when there is room for another session, or perhaps a new deadline to watch for.
    """

    def __init__(
        self,
        store: SessionStore,
        clock: Clock,
        trouble: Trouble,
        *,
        max_sessions: int,
        linger: timedelta,
        max_lingering: int,
        vacancy: Callable[[], None],
    ) -> None:
        self._store = store
        self._clock = clock
        self._trouble = trouble
        self._max_sessions = max_sessions
        self._linger = linger
        self._max_lingering = max_lingering
        self._vacancy = vacancy
        self._actors: dict[str, SessionActor] = {}
        """By session; in the order in which they came."""
        self._tasks: dict[asyncio.Task[None], SessionActor] = {}
        """Also of actors that were followed by another one of the same session while they were clearing up."""
        self._failures: dict[str, int] = {}
        """Failures in a row, by session; the latest last."""
        self._leaving = asyncio.Event()
        self._meanwhile: list[list[frozenset[str] | None]] = []
        """What was told of sessions while some were being taken, by taking."""

    @property
    def room(self) -> int:
        """For how many more sessions there is room."""
        return self._max_sessions - sum(actor.lingers_until is None for actor in self._actors.values())

    @property
    def held(self) -> tuple[str, ...]:
        """Ids of the sessions that are run, or will be freed by their actor's end."""
        return tuple(session_id for session_id, actor in self._actors.items() if not actor.released)

    def adopt(self, actor: SessionActor) -> None:
        """Runs an actor.  While the crew is leaving, it only releases its session."""
        before = self._actors.get(actor.session_id)
        if before is not None and before.lingers_until is not None:
            self.cut(before)  # A client took the session from it.
        self._actors[actor.session_id] = actor
        task = asyncio.create_task(self._run(actor), name=f"perdure session {actor.session_id}")
        self._tasks[task] = actor
        task.add_done_callback(self._gone)
        if self._leaving.is_set():
            actor.drain()

    @contextmanager
    def taking(self) -> Generator[None]:
        """Around a claim, up to ``adopt``.  What is told meanwhile of a session that it takes is told to its actor."""
        told: list[frozenset[str] | None] = []
        self._meanwhile.append(told)
        try:
            yield
        finally:
            self._meanwhile = [other for other in self._meanwhile if other is not told]
            for sessions in told:
                self.poke(sessions)

    def poke(self, sessions: frozenset[str] | None) -> None:
        """Something may be in the inboxes of these sessions; ``None``: of any."""
        for told in self._meanwhile:
            told.append(sessions)
        if sessions is None:
            for actor in self._actors.values():
                actor.poke()
            return
        for session_id in sessions:
            owned = self._actors.get(session_id)
            if owned is not None:
                owned.poke()

    def sees(self, sessions: frozenset[str]) -> bool:
        """Whether all these sessions have an actor here that looks at what it is told of now."""
        return all((actor := self._actors.get(session_id)) is not None and actor.stays for session_id in sessions)

    def rests(self) -> None:
        """An actor began to linger."""
        lingering = sorted(
            (actor.lingers_until, session_id)
            for session_id, actor in self._actors.items()
            if actor.lingers_until is not None
        )
        for _, session_id in lingering[: max(0, len(lingering) - self._max_lingering)]:
            self._actors[session_id].drain()
        if self.room == 1:
            self._vacancy()

    # ------------------------------------------------------------ leaving

    def drain(self) -> None:
        """Nothing new is started; what runs goes on, then the sessions are released."""
        self._leaving.set()
        for actor in self._tasks.values():
            actor.drain()

    def drop(self) -> None:
        """Cuts everything off: the sessions are somebody else's by now, or will be recovered like those of the dead."""
        for task, actor in tuple(self._tasks.items()):
            if not actor.closing:
                task.cancel()

    def cut(self, actor: SessionActor) -> None:
        """Cuts one actor off: its session is somebody else's, or about to be."""
        for task, other in tuple(self._tasks.items()):
            if other is actor and not actor.closing:
                task.cancel()

    async def gone(self, timeout: timedelta) -> bool:
        """Waits until no actor is left.  ``False``: some still are after ``timeout``."""
        if not self._tasks:
            return True
        _, left = await asyncio.wait(tuple(self._tasks), timeout=timeout.total_seconds())
        return not left

    def _gone(self, task: asyncio.Task[None]) -> None:
        actor = self._tasks.pop(task)
        was_full = self.room <= 0
        if self._actors.get(actor.session_id) is actor:
            del self._actors[actor.session_id]
        if not task.cancelled() and (error := task.exception()) is not None:
            logger.error("session %s was left behind", actor.session_id, exc_info=error)
        # Work that the session leaves is told of by its release; room for another one is not, nor is a deadline.
        if was_full or not actor.released or actor.state.status is SessionStatus.WAITING:
            self._vacancy()

    # ------------------------------------------------------------ one session

    async def _run(self, actor: SessionActor) -> None:
        try:
            await actor.run(self._linger)
            self._failures.pop(actor.session_id, None)
        except (LeaseLost, SessionNotFound):
            self._failures.pop(actor.session_id, None)
            logger.info("session %s has another owner now, or was deleted", actor.session_id)
        except Exception as error:  # noqa: BLE001 - whatever it is, the session and the worker must go on
            await self._give_back(actor, error)

    async def _give_back(self, actor: SessionActor, error: Exception) -> None:
        """Frees a session whose actor failed."""
        failures = self._count_failure(actor.session_id)
        self._report(actor.session_id, error, failures)
        # What is wrong with the store is not wrong with the session: it should go on soon after the store does.
        longest = LONGEST_PAUSE_FOR_STORE if isinstance(error, StoreError) else LONGEST_PAUSE
        while True:
            await self._pause(pause_after(failures, longest))
            try:
                await self.free(actor.lease)
            except LeaseLost:
                return
            except Exception as again:  # noqa: BLE001 - whatever it is, nobody else can free the session
                self._trouble.met(f"freeing session {actor.session_id}", again)
                failures += 1
            else:
                return
            if self._leaving.is_set():
                return  # The worker frees all that it still owns when it signs off.

    def _count_failure(self, session_id: str) -> int:
        failures = self._failures[session_id] = self._failures.pop(session_id, 0) + 1
        if len(self._failures) > MAX_REMEMBERED:
            del self._failures[next(iter(self._failures))]
        return failures

    def _report(self, session_id: str, error: Exception, failures: int) -> None:
        if isinstance(error, (StoreError, InjectedFault, Conflict)):
            self._trouble.met(f"session {session_id}", error)
        elif failures & (failures - 1) == 0:  # the first, second, fourth ... time in a row
            logger.error(
                "session %s stopped (time %d in a row); it goes on from what is stored in %.2f s",
                session_id,
                failures,
                pause_after(failures),
                exc_info=error,
            )

    async def _pause(self, seconds: float) -> None:
        try:
            async with asyncio.timeout(seconds):
                await self._leaving.wait()
        except TimeoutError:
            pass

    async def free(self, lease: Lease) -> None:
        """Gives a session up in the middle of something.

        Raises:
            LeaseLost, StoreError
        """
        write = SessionWrite(kinds=(DurableWrite.SESSION_RELEASED,), release=True, unfinished=True)
        await self._store.commit(lease, write, self._clock.now_ms())
