"""Plays in several processes: a script that the message spells out, and tools that write what they do into a file.

A message is a list of words, one step each: ``model``, ``read``, ``idem`` and ``write`` are what they say, ``ask`` is
a write that must be approved, ``half`` and ``mild`` (an idempotent one) ask in the middle, ``par`` is three calls at
once, ``moody`` is a read whose first attempt fails, ``sleepy`` one that then pauses for an hour; ``quest`` asks a
question, ``late`` one that the turn does not wait for, ``leg`` one whose answer begins the next leg of the turn;
``fail`` ends the turn. ``read:door`` is held at a door until the test opens it, ``read:~`` just takes its time. All
that steps do to the world is a line in ``world.txt``, over all processes.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Coroutine, Generator
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from time import monotonic
from unittest.mock import patch

from tests.support.play import FAST_RETRY, Play, PlayCall, PlayRunner, asks
from tests.support.postgres import Server
from tests.support.temporal_server import TemporalServer

from perdure import (
    AgentSessionClient,
    AgentSessionFlow,
    AgentSnapshot,
    Engine,
    Interrupt,
    InterruptKind,
    RetryPolicy,
    SessionStatus,
    ToolEffect,
    WorkerOptions,
    open_engine,
)
from perdure.engine.crew import Crew
from perdure.engine.feed import FeedHub
from perdure.engine.hosting import HostingEngine
from perdure.engine.temporal.options import TemporalOptions
from perdure.store.postgres import PostgresStore, notices
from perdure.testing import WorkerChild

ADDRESS_VARIABLE = "PERDURE_TEST_ADDRESS"
HURRY_VARIABLE = "PERDURE_TEST_HURRY"

A_WHILE = "~"
ADDRESS = "address"
"""Holds the address of the store, if that is no file in the folder."""

TEMPORAL = "temporal.txt"
"""Holds the address of Temporal's server, and the prefix to use there."""

LOOK_EVERY = 0.005
PATIENCE = 60.0

EFFECTS = {
    "read": ToolEffect.READ,
    "sleepy": ToolEffect.READ,
    "moody": ToolEffect.READ,
    "idem": ToolEffect.IDEMPOTENT_WRITE,
    "write": ToolEffect.NON_IDEMPOTENT_WRITE,
    "ask": ToolEffect.NON_IDEMPOTENT_WRITE,
    "half": ToolEffect.NON_IDEMPOTENT_WRITE,
    "mild": ToolEffect.IDEMPOTENT_WRITE,
}
NEVER_YET = RetryPolicy(first_delay=timedelta(hours=1), max_delay=timedelta(hours=1))


@dataclass(frozen=True)
class World:
    """The folder that all processes of a test share: the database, the doors, and what happened."""

    folder: Path

    @property
    def database(self) -> Path:
        return self.folder / "play.db"

    @property
    def address(self) -> str:
        """Of the store: a SQLite file in the folder, unless the test has said otherwise."""
        said = self.folder / ADDRESS
        here = os.environ.get(ADDRESS_VARIABLE)
        return here or (said.read_text() if said.exists() else f"sqlite:///{self.database}")

    def note(self, line: str) -> None:
        """Adds a line; whole, whoever else writes."""
        file = os.open(self.folder / "world.txt", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        try:
            os.write(file, f"{line} {os.getpid()}\n".encode())
        finally:
            os.close(file)

    def lines(self, start: str = "") -> list[str]:
        """What happened so far, without the process ids."""
        return [line.rpartition(" ")[0] for line in self._raw() if line.startswith(start)]

    def doers(self, start: str = "") -> list[int]:
        """The ids of the processes that did it."""
        return [int(line.rpartition(" ")[2]) for line in self._raw() if line.startswith(start)]

    def _raw(self) -> list[str]:
        path = self.folder / "world.txt"
        return path.read_text().splitlines() if path.exists() else []

    def open(self, door: str) -> None:
        (self.folder / f"door-{door}").touch()

    async def pass_door(self, door: str) -> None:
        if door in ("", A_WHILE):
            await asyncio.sleep(len(door) * 0.02)
            return
        self.note(f"at {door}")
        await until(lambda: (self.folder / f"door-{door}").exists(), f"the door {door} to open")

    async def reached(self, line: str, count: int = 1) -> None:
        """Waits until a line was written ``count`` times."""
        await until(lambda: self.lines().count(line) >= count, f"{line!r} ({count})")

    # ------------------------------------------------------------ the play

    async def script(self, play: Play) -> None:
        """Does what the message says."""
        words = play.start.message.text.split()
        legs = [0, *(number + 1 for number, word in enumerate(words) if word == "leg")]
        first = legs[play.start.leg - 1]
        for number, word in enumerate(words[first:], first):
            kind, _, door = word.partition(":")
            if kind == "leg":
                play.ask_next(f"q{play.start.number}.{number}")
                return
            await self._step(play, f"{play.start.number}.{number}", kind, door)
        play.say(f"done {play.start.number}")

    async def _step(self, play: Play, number: str, kind: str, door: str) -> None:
        if kind == "model":
            await self._model(play, f"m{number}", door)
        elif kind == "fail":
            raise RuntimeError("the play fails")
        elif kind == "par":
            calls = {f"c{number}.{part}": self._call(play, part, door) for part in ("read", "idem", "write")}
            await play.tools(f"g{number}", calls)
        elif kind == "quest":
            await play.ask(f"q{number}", group=f"g{number}")
        elif kind == "late":
            play.ask_later(f"q{number}")
        elif kind in EFFECTS:
            await play.tools(f"g{number}", {f"c{number}": self._call(play, kind, door)})

    async def _model(self, play: Play, key: str, door: str) -> None:
        async def answer() -> None:
            self.note(f"model {play.start.session_id} {key}")
            await self.pass_door(door)

        for told in await play.join(key):
            play.say(told)
        await play.model(key, f"words of {key}", _When(answer))

    def _call(self, play: Play, kind: str, door: str) -> PlayCall:
        session = play.start.session_id

        async def body(call_id: str, attempt: int) -> object:
            self.note(f"begin {session} {call_id} {kind} {attempt}")
            if kind in ("sleepy", "moody") and attempt == 1:
                raise ConnectionError("not yet")
            if kind in ("half", "mild") and play.approvals[call_id] is None:
                self.note(f"asked {session} {call_id}")
                return asks()
            await self.pass_door(door)
            self.note(f"end {session} {call_id} {kind} {attempt}")
            return {"call": call_id}

        ask = InterruptKind.APPROVAL if kind == "ask" else None
        return PlayCall(kind, body, EFFECTS[kind], ask, retry=NEVER_YET if kind == "sleepy" else FAST_RETRY)

    # ------------------------------------------------------------ who plays it

    def flow(self, deadline: timedelta | None = None) -> AgentSessionFlow:
        return AgentSessionFlow("Play", PlayRunner(self.script), "Play", interrupt_deadline=deadline)

    def engine(self, *flows: AgentSessionFlow, options: WorkerOptions | None = None) -> Engine:
        temporal = self.folder / TEMPORAL
        if not temporal.exists():
            return open_engine(self.address, flows=flows, durability="process", options=options)
        server, prefix = temporal.read_text().split()
        at, store = TemporalOptions(prefix=prefix), self.address
        return open_engine(server, store=store, flows=flows, durability="process", options=options, temporal=at)

    def move_to_postgres(self, server: Server) -> World:
        """Has all engines of this world from now on keep their sessions on a server."""
        (self.folder / ADDRESS).write_text(server.address(server.empty_schema()))
        return self

    def move_to_temporal(self, server: TemporalServer) -> World:
        """Has all engines of this world from now on on a server."""
        (self.folder / TEMPORAL).write_text(f"{server.address} {server.new_prefix()}")
        return self

    def worker(
        self,
        *,
        lease: float = 10,
        grace: float = 30,
        linger: float = 60,
        max_sessions: int = 200,
        address: str | None = None,
    ) -> WorkerChild:
        """A worker process, to be entered; it prints ``ready``, ``told`` (to leave), and ``left``.

        Args:
            address: how it reaches the store, if not as all others do; it then soon gives up waiting for an answer.
        """
        environment = {} if address is None else {ADDRESS_VARIABLE: address, HURRY_VARIABLE: "1"}
        return WorkerChild.of(serve, str(self.folder), lease, grace, linger, max_sessions, environment=environment)


@dataclass(frozen=True)
class _When:
    """Does something when it is awaited; nothing when it never is, as in a replay."""

    action: Callable[[], Coroutine[None, None, None]]

    def __await__(self) -> Generator[None, None, None]:
        return self.action().__await__()


async def serve(folder: str, lease: float, grace: float, linger: float, max_sessions: int) -> None:
    """The main function of a worker process."""
    world = World(Path(folder))
    options = WorkerOptions(
        max_sessions=max_sessions,
        lease=timedelta(seconds=lease),
        linger=timedelta(seconds=linger),
        drain_grace=timedelta(seconds=grace),
    )

    if HURRY_VARIABLE in os.environ:
        notices.SAFETY_POLL = 0.1
        defaults = PostgresStore.__init__.__kwdefaults__
        assert defaults is not None
        defaults["patience"] = 1.0

    drain = Crew.drain

    def drain_and_say_so(crew: Crew) -> None:
        drain(crew)
        print("told", flush=True)

    with patch.object(Crew, "drain", drain_and_say_so):
        async with world.engine(world.flow(), options=options) as engine:
            await engine.serve(ready=lambda: print("ready", flush=True))
    print("left", flush=True)


def crews_of(engine: Engine) -> list[Crew]:
    """What the workers of an engine run."""
    assert isinstance(engine, HostingEngine)
    return [worker._crew for worker in engine._workers]


def hub_of(engine: Engine) -> FeedHub:
    assert isinstance(engine, HostingEngine)
    return engine._hub


async def until(condition: Callable[[], bool], what: str) -> None:
    """Waits until another process has brought something about."""
    give_up = monotonic() + PATIENCE
    while not condition():
        if monotonic() > give_up:
            raise AssertionError(f"waited {PATIENCE:g} s for {what}")
        await asyncio.sleep(LOOK_EVERY)


async def answer(client: AgentSessionClient, interrupt: Interrupt, session_id: str, *, approved: bool = True) -> None:
    """Answers an interrupt of any kind."""
    if interrupt.kind.takes_value:
        await client.answer_question(session_id, interrupt.interrupt_id, {"yes": approved})
    else:
        await client.resolve_interrupt(session_id, interrupt.interrupt_id, approved=approved)


async def until_status(client: AgentSessionClient, session_id: str, status: SessionStatus) -> AgentSnapshot:
    """Waits until a session has a status that ``wait`` may pass by."""
    for _ in range(round(PATIENCE / LOOK_EVERY)):
        snapshot = await client.get_agent_snapshot(session_id)
        if snapshot.status is status:
            return snapshot
        await asyncio.sleep(LOOK_EVERY)
    raise AssertionError(f"waited {PATIENCE:g} s for {session_id} to be {status.value}")
