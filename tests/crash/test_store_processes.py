"""Real processes on one store, of each kind: many writers, a killed and a stopped worker, a crash around a write."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from pathlib import Path

import pytest
from tests.support.postgres import Server
from tests.support.stores import Backend, PostgresBackend, SqliteBackend
from tests.unit.store.builders import FLOW, LEASE_MS, NOW, Owner, message, new_session, request, text_message, worker

from perdure.errors import LeaseLost
from perdure.faults import ENVIRONMENT_VARIABLE, Action, DurableWrite, FaultPoint, Moment
from perdure.store.base import Change, SessionFilter
from perdure.store.postgres import notices as postgres_notices
from perdure.store.sql.store import SqlStore
from perdure.store.sqlite import notices as sqlite_notices

ROOT = Path(__file__).parents[2]


class Process:
    """A child that runs ``store_child``."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process

    async def line(self) -> str:
        assert self._process.stdout is not None
        async with asyncio.timeout(60):
            return (await self._process.stdout.readline()).decode().strip()

    def tell(self, command: str) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(f"{command}\n".encode())

    async def ask(self, command: str) -> str:
        self.tell(command)
        return await self.line()

    def send_signal(self, number: signal.Signals) -> None:
        self._process.send_signal(number)

    async def kill(self) -> None:
        if self._process.returncode is None:
            self._process.kill()
        await self._process.wait()

    async def ended(self) -> int:
        async with asyncio.timeout(60):
            return await self._process.wait()

    async def finish(self) -> int:
        assert self._process.stdin is not None
        self._process.stdin.close()
        return await self.ended()


StartProcess = Callable[..., Awaitable[Process]]


@pytest.fixture
def run_dir() -> Iterator[Path]:
    """A short path: pytest's own may be too long for a socket."""
    with tempfile.TemporaryDirectory(prefix="perdure-") as directory:
        yield Path(directory) / "run"


@pytest.fixture(params=["sqlite", "postgresql"])
def backend(request: pytest.FixtureRequest, tmp_path: Path, run_dir: Path) -> Backend:
    """An empty place for stores of one kind."""
    if request.param == "sqlite":
        return SqliteBackend(tmp_path / "x.db", run_dir)
    server: Server = request.getfixturevalue("postgres")
    return PostgresBackend(server, server.empty_schema())


@pytest.fixture
async def start(backend: Backend) -> AsyncIterator[StartProcess]:
    """Starts children; whatever is left of them is killed at the end."""
    started: list[Process] = []

    async def make(**environment: str) -> Process:
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            "tests.crash.store_child",
            *backend.arguments,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            cwd=ROOT,
            env={**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT / "src"), str(ROOT)]), **environment},
        )
        child = Process(process)
        started.append(child)
        assert await child.line() == "open"
        return child

    yield make
    for child in started:
        await child.kill()


@pytest.fixture
async def store(backend: Backend, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[SqlStore]:
    """A store of this process; it hears of others by signals only."""
    for notices in (sqlite_notices, postgres_notices):
        monkeypatch.setattr(notices, "SAFETY_POLL", 1000.0)
    opened = backend.new_store()
    await opened.open()
    yield opened
    await opened.close()


async def test_many_processes_write_one_file_and_nothing_is_lost(start: StartProcess, store: SqlStore) -> None:
    children = [await start() for _ in range(4)]
    for n, child in enumerate(children):
        assert await child.ask(f"create s{n}") == "ok"
    await store.create_session(new_session("shared"), None, request(), NOW)
    for n, child in enumerate(children):
        child.tell(f"flood s{n} 100")
        for k in range(25):
            child.tell(f"send shared p{n}-{k}")
    acknowledged = [[await child.line() for _ in range(126)] for child in children]
    assert [lines[100:] for lines in acknowledged] == [["ok"] * 26] * 4
    await store.register_worker(worker(), NOW)
    claimed = {found.lease.session_id: found for found in await store.claim("w1", [FLOW], 10, NOW)}
    for n in range(4):
        assert [item.turn_id for item in claimed[f"s{n}"].inbox] == [f"s{n}-{k}" for k in range(100)]
        of_one = [item.turn_id for item in claimed["shared"].inbox if str(item.turn_id).startswith(f"p{n}-")]
        assert of_one == [f"p{n}-{k}" for k in range(25)]
    assert [await child.finish() for child in children] == [0] * 4


async def test_many_processes_may_make_one_store_at_once(start: StartProcess, backend: Backend) -> None:
    if isinstance(backend, PostgresBackend):
        backend.server.drop(backend.schema)
    children = await asyncio.gather(*(start() for _ in range(4)))
    for n, child in enumerate(children):
        assert await child.ask(f"create s{n}") == "ok"
    assert backend.run("SELECT count(*) FROM sessions") == [(4,)]
    if isinstance(backend, SqliteBackend):
        assert backend.run("PRAGMA integrity_check") == [("ok",)]


async def _session_with_owner_elsewhere(start: StartProcess, store: SqlStore) -> Process:
    child = await start()
    await store.create_session(new_session(), ("t1", text_message()), request(), NOW)
    await store.register_worker(worker("here"), NOW)
    assert await child.ask("register there") == "ok"
    assert await child.ask("claim there") == "1"
    assert await child.ask("begin t1") == "ok"
    assert await child.ask("log from-there") == "ok"
    return child


async def test_a_killed_worker_is_noticed_at_once_and_its_work_goes_on(start: StartProcess, store: SqlStore) -> None:
    child = await _session_with_owner_elsewhere(start, store)
    assert await store.reap_workers(NOW) == 0
    await child.kill()
    async with asyncio.timeout(20):
        while await store.reap_workers(NOW) == 0:  # noqa: ASYNC110 - the system has no event for it
            await asyncio.sleep(0.001)
    (claimed,) = await store.claim("here", [FLOW], 1, NOW)
    assert claimed.lease.fence > 1
    assert claimed.turn is not None
    assert claimed.turn.stored_messages == 1
    await Owner(store, claimed).commit(turn_id="t1", messages=(message(1, "from-here"),))
    assert [item.text for item in (await store.list_messages("s", None, 9)).items] == ["from-there", "from-here"]


async def test_a_stopped_worker_cannot_write_when_it_wakes_up(start: StartProcess, store: SqlStore) -> None:
    """J9"""
    child = await _session_with_owner_elsewhere(start, store)
    child.send_signal(signal.SIGSTOP)
    assert await store.reap_workers(NOW + LEASE_MS - 1) == 0
    assert await store.reap_workers(NOW + LEASE_MS) == 1
    (claimed,) = await store.claim("here", [FLOW], 1, NOW)
    await Owner(store, claimed).commit(turn_id="t1", messages=(message(1, "from-here"),))
    child.send_signal(signal.SIGCONT)
    assert await child.ask("log too-late") == LeaseLost.code
    assert [item.text for item in (await store.list_messages("s", None, 9)).items] == ["from-there", "from-here"]
    assert await child.ask("register there") == "ok"
    assert await store.reap_workers(NOW) == 0


async def test_a_child_that_inherits_nothing_does_not_keep_its_parents_lock(
    start: StartProcess, store: SqlStore, backend: Backend
) -> None:
    """Lock files and connections are closed in programs that a worker starts: they must not outlive it."""
    await store.register_worker(worker("here"), NOW)
    child = await start()
    await backend.die(store)
    assert await child.ask("register there") == "ok"
    assert await store.reap_workers(NOW) == 1


async def test_a_write_is_heard_in_another_process(start: StartProcess, store: SqlStore) -> None:
    heard: asyncio.Queue[Change] = asyncio.Queue()
    child = await start()
    store.listen(heard.put_nowait)
    assert await child.ask("create s") == "ok"
    async with asyncio.timeout(20):
        assert await heard.get() == Change(frozenset({"s"}), work=False)
    assert await child.ask("hear") == "listening"
    await store.accept_message("s", "t1", text_message(), request(), NOW)
    assert await child.line() == "s"


async def test_every_acknowledged_write_survives_a_kill(start: StartProcess, store: SqlStore, backend: Backend) -> None:
    child = await start()
    assert await child.ask("create s") == "ok"
    child.tell("flood s 100000")
    acknowledged = [await child.line() for _ in range(200)]
    await child.kill()
    stored = [turn_id for (turn_id,) in backend.run("SELECT turn_id FROM inbox ORDER BY position")]
    if isinstance(backend, SqliteBackend):
        assert backend.run("PRAGMA integrity_check") == [("ok",)]
    assert acknowledged == [f"s-{n}" for n in range(200)]
    assert stored[:200] == acknowledged
    assert stored == [f"s-{n}" for n in range(len(stored))]
    await store.accept_message("s", "next", text_message(), request(), NOW)


@pytest.mark.parametrize("moment", list(Moment), ids=lambda moment: moment.value)
@pytest.mark.parametrize(
    ("kind", "commands"),
    [
        (DurableWrite.SESSION_CREATED, ["create s"]),
        (DurableWrite.MESSAGE_ACCEPTED, ["create s", "send s t1"]),
        (DurableWrite.SESSION_CLAIMED, ["create s", "send s t1", "register w", "claim w"]),
        (DurableWrite.STEP_SETTLED, ["create s", "send s t1", "register w", "claim w", "begin t1", "settle"]),
    ],
    ids=lambda value: value.value if isinstance(value, DurableWrite) else "",
)
async def test_a_kill_around_a_write_leaves_all_of_it_or_nothing(
    start: StartProcess, store: SqlStore, kind: DurableWrite, commands: list[str], moment: Moment
) -> None:
    fault = f"{FaultPoint(kind, moment)}:{Action.KILL.value}"
    child = await start(**{ENVIRONMENT_VARIABLE: fault})
    for command in commands[:-1]:
        assert await child.ask(command) in ("ok", "1")
    assert await child.ask(commands[-1]) == ""
    assert await child.ended() == -signal.SIGKILL
    assert await _was_written(store, kind) == (moment is Moment.AFTER)


async def _was_written(store: SqlStore, kind: DurableWrite) -> bool:
    match kind:
        case DurableWrite.SESSION_CREATED:
            return bool((await store.list_sessions(SessionFilter(), None, 1)).items)
        case DurableWrite.MESSAGE_ACCEPTED:
            return (await store.read_snapshot("s", NOW)).queued_messages == 1
        case DurableWrite.SESSION_CLAIMED:
            await store.register_worker(worker("here"), NOW)
            return await store.claim("here", [FLOW], 1, NOW) == ()
        case _:
            return bool((await store.list_messages("s", None, 1)).items)
