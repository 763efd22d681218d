"""Connections that break, a server that goes and comes back, a network that loses all: nothing is lost or doubled."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import psycopg
import pytest
from tests.support.postgres import Server
from tests.support.proxy import Proxy, proxy
from tests.support.stores import PostgresBackend
from tests.unit.store.builders import FLOW, NOW, message, new_session, open_turn, request, text_message, worker
from tests.unit.store.postgres.conftest import OpenStore

from perdure.errors import LeaseLost, StoreError, StoreUnavailable
from perdure.store.base import Change
from perdure.store.postgres import LeaseRules, PostgresStore, notices, schema
from perdure.store.postgres.connection import Raw
from perdure.store.postgres.watch import _shut_down
from perdure.store.postgres.writer import PostgresWriter
from perdure.store.sql.changes import ANYTHING
from perdure.store.sql.transaction import Transaction

# ---------------------------------------------------------------- a transaction whose end is not heard of


async def _texts(store: PostgresStore) -> list[str]:
    return [item.text for item in (await store.list_messages("s", None, 99)).items]


def _cut_once(monkeypatch: pytest.MonkeyPatch, how: Callable[[Raw], None]) -> list[Raw]:
    """Has the connection break right behind the next COMMIT.  Returns the connections that broke."""
    broken: list[Raw] = []
    end = PostgresWriter._end

    def cut(self: PostgresWriter, raw: Raw) -> None:
        end(self, raw)
        if not broken:
            broken.append(raw)
            how(raw)

    monkeypatch.setattr(PostgresWriter, "_end", cut)
    return broken


def _behind_the_commit(raw: Raw) -> None:
    raw.execute("SELECT 1").fetchone()  # so the commit was carried out
    _shut_down(raw)


@pytest.mark.parametrize("how", [_behind_the_commit, _shut_down], ids=["carried out", "never arrived"])
async def test_a_commit_whose_answer_is_lost_happens_once(
    store: PostgresStore, monkeypatch: pytest.MonkeyPatch, how: Callable[[Raw], None]
) -> None:
    owner = await open_turn(store)
    broken = _cut_once(monkeypatch, how)
    await owner.commit(turn_id="t1", messages=(message(0, "once"),))
    await owner.commit(turn_id="t1", messages=(message(1, "more"),))
    assert len(broken) == 1
    assert await _texts(store) == ["once", "more"]
    assert await store.accept_message("s", "t2", text_message(), request("r"), NOW) == "t2"


@pytest.mark.parametrize("how", [_behind_the_commit, _shut_down], ids=["carried out", "never arrived"])
async def test_so_does_a_claim(
    store: PostgresStore, monkeypatch: pytest.MonkeyPatch, how: Callable[[Raw], None]
) -> None:
    await store.register_worker(worker(), NOW)
    await store.create_session(new_session(), ("t1", text_message()), request(), NOW)
    _cut_once(monkeypatch, how)
    (claimed,) = await store.claim("w1", [FLOW], 5, NOW)
    assert claimed.lease.fence == 1
    assert await store.read_inbox(claimed.lease) == claimed.inbox


async def test_a_group_whose_connection_breaks_in_the_middle_is_run_again(store: PostgresStore) -> None:
    owner = await open_turn(store)
    cut: list[Raw] = []

    def cut_here(transaction: Any) -> str:
        transaction.execute("session_key", ("s",)).fetchone()
        if not cut:
            cut.append(transaction.connection.raw)
            _shut_down(cut[0])
        return "done"

    first = asyncio.ensure_future(owner.commit(turn_id="t1", messages=(message(0, "before"),)))
    await asyncio.sleep(0)
    middle = store._submit(cut_here, "s")
    last = asyncio.ensure_future(owner.commit(turn_id="t1", messages=(message(1, "after"),)))
    await asyncio.gather(first, last)
    assert await middle == "done"
    assert await _texts(store) == ["before", "after"]


# ---------------------------------------------------------------- an administrator ends sessions


async def test_ended_sessions_are_made_anew_before_anybody_notices(
    store: PostgresStore, backend: PostgresBackend
) -> None:
    owner = await open_turn(store)
    for number in range(3):
        assert backend.server.cut_off(backend.schema) >= 1
        await owner.commit(turn_id="t1", messages=(message(number, str(number)),))
        assert await _texts(store) == [str(n) for n in range(number + 1)]


async def test_a_write_that_waits_for_a_lock_outlives_its_connection(
    store: PostgresStore, backend: PostgresBackend
) -> None:
    owner = await open_turn(store)
    with backend.server.connect(backend.schema) as foreign, foreign.transaction():
        foreign.execute("SELECT 1 FROM sessions FOR UPDATE")
        writing = asyncio.ensure_future(owner.commit(turn_id="t1", messages=(message(0, "late"),)))
        waiting = "SELECT 1 FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND application_name = %s"
        while not backend.server.run(waiting, (backend.schema,)):  # noqa: ASYNC110 - the server has no event
            await asyncio.sleep(0.01)
        backend.server.cut_off(backend.schema)
    await writing
    assert await _texts(store) == ["late"]


async def test_a_listener_that_was_cut_off_hears_again_and_is_told_to_look(
    open_store: OpenStore, backend: PostgresBackend
) -> None:
    ours, theirs = await open_store(), await open_store()
    heard = asyncio.Queue[Change]()
    ours.listen(heard.put_nowait)
    backend.server.cut_off(backend.schema)
    assert await asyncio.wait_for(heard.get(), 10) == ANYTHING
    await theirs.create_session(new_session(), None, request(), NOW)
    while await asyncio.wait_for(heard.get(), 10) != Change(frozenset({"s"}), work=False):
        pass


async def test_a_worker_that_was_cut_off_takes_its_lock_again_in_time(
    open_store: OpenStore, backend: PostgresBackend
) -> None:
    theirs = await open_store()
    owner = await open_turn(theirs)
    backend.server.cut_off(backend.schema)
    ours = await open_store(leases=LeaseRules(lock_grace=5.0, calm=0.0, own_clock=False))
    while await ours._gone(NOW, expired=False) or ours._freed:  # noqa: ASYNC110 - the server has no event
        await asyncio.sleep(0.01)  # its lock is free, which proves nothing yet
    assert await ours.reap_workers(NOW) == 0
    await owner.commit(turn_id="t1", messages=(message(0),))


async def test_a_worker_can_register_while_its_connection_is_being_made_anew(
    store: PostgresStore, backend: PostgresBackend
) -> None:
    await store.register_worker(worker("w0"), NOW)
    store._notices._break()
    await store.register_worker(worker("w1"), NOW)
    assert store._notices.locks == {"w0", "w1"}
    assert [free for _, _, free, _ in await _seen_from_outside(backend)] == [False, False]


async def _seen_from_outside(backend: PostgresBackend) -> list[tuple[Any, ...]]:
    other = backend.new_store()
    await other.open()
    seen = await other._look(lambda connection: connection.execute("workers_all", (NOW, [])).fetchall())
    await other.close()
    return seen


async def test_a_worker_whose_lock_stays_free_is_dead(open_store: OpenStore, backend: PostgresBackend) -> None:
    theirs = await open_store()
    owner = await open_turn(theirs)
    await backend.die(theirs)
    ours = await open_store(leases=LeaseRules(lock_grace=0.1, calm=0.0, own_clock=False))
    assert await ours.reap_workers(NOW) == 0
    await asyncio.sleep(0.1)
    assert await ours.reap_workers(NOW) == 1
    with pytest.raises(LeaseLost):
        await owner.release()


async def test_who_was_cut_off_itself_judges_nobody(open_store: OpenStore, backend: PostgresBackend) -> None:
    theirs = await open_store()
    await open_turn(theirs)
    ours = await open_store(leases=LeaseRules(lock_grace=0.0, calm=3600.0, own_clock=False))
    assert await ours._gone(NOW + 1_000_000, expired=True) == [], "the server has not been up for an hour"
    ours._leases = LeaseRules(lock_grace=0.0, calm=0.0, own_clock=False)
    assert await ours._gone(NOW + 1_000_000, expired=True) == ["w1"]
    ours._notices._break()
    assert await ours.reap_workers(NOW + 1_000_000) == 0


# ---------------------------------------------------------------- a server that is away, a network that is cut


@pytest.fixture
def line(postgres: Server) -> Iterator[Proxy]:
    with proxy(postgres.folder) as made:
        yield made


@pytest.fixture
async def far(backend: PostgresBackend, line: Proxy, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[PostgresStore]:
    """A store behind the proxy that gives up soon."""
    monkeypatch.setattr(notices, "SAFETY_POLL", 0.1)
    store = PostgresStore(
        backend.server.address(backend.schema, socket_folder=line.folder, connect_timeout="2"), patience=0.5
    )
    await store.open()
    yield store
    await store.close()


async def _refused(store: PostgresStore) -> None:
    with pytest.raises(StoreUnavailable):
        await store.create_session(new_session("later"), None, request(), NOW)
    with pytest.raises(StoreUnavailable):
        await store.read_snapshot("s", NOW)


@pytest.mark.parametrize("break_it", [Proxy.drop, Proxy.swallow], ids=["refused", "swallowed"])
async def test_a_store_that_is_cut_off_says_so_and_comes_back(
    far: PostgresStore, line: Proxy, break_it: Callable[[Proxy], None]
) -> None:
    await far.create_session(new_session(), None, request(), NOW)
    break_it(line)
    await asyncio.wait_for(_refused(far), 30)
    await asyncio.wait_for(_refused(far), 30)
    line.heal()
    for tries in range(100):
        try:
            await far.create_session(new_session("later"), None, request(), NOW)
        except StoreUnavailable:
            assert tries < 99
        else:
            break
    assert (await far.read_snapshot("s", NOW)).session_id == "s"
    assert (await far.read_snapshot("later", NOW)).session_id == "later"


async def test_a_store_that_cannot_be_reached_when_it_opens_can_be_opened_later(
    backend: PostgresBackend, line: Proxy
) -> None:
    store = PostgresStore(backend.server.address(backend.schema, socket_folder=line.folder), patience=0.2)
    line.drop()
    with pytest.raises(StoreError):
        await store.open()
    line.heal()
    await store.open()
    await store.close()


async def test_whether_a_write_was_stored_is_said_when_it_is_not_known(
    far: PostgresStore, line: Proxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    owner = await open_turn(far)

    def lose(raw: Raw) -> None:
        line.drop()
        _shut_down(raw)

    _cut_once(monkeypatch, lose)
    with pytest.raises(StoreUnavailable, match="not known"):
        await owner.commit(turn_id="t1", messages=(message(0),))


async def test_the_server_may_restart_at_any_time(
    postgres: Server, open_store: OpenStore, backend: PostgresBackend
) -> None:
    store = await open_store(patience=30.0, durability="power")
    owner = await open_turn(store)
    stop = asyncio.Event()

    async def write() -> int:
        number = 0
        while not stop.is_set() or number < 20:
            await owner.commit(turn_id="t1", messages=(message(number, str(number)),))
            number += 1
        return number

    writing = asyncio.create_task(write())
    for mode in ("fast", "immediate"):
        await asyncio.to_thread(postgres.restart, mode)
    stop.set()
    count = await writing
    assert await _texts(store) == [str(n) for n in range(count)][:99]


async def test_a_connection_is_not_kept_waiting_by_one_that_stands_still(
    store: PostgresStore, backend: PostgresBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The server ends a session that stopped in the middle of a transaction, so its locks are free again."""
    owner = await open_turn(store)
    stopped: Raw = store._database.connect()
    stopped.execute("SET idle_in_transaction_session_timeout = 200")
    stopped.execute("BEGIN")
    stopped.execute("SELECT 1 FROM sessions FOR UPDATE")
    await owner.commit(turn_id="t1", messages=(message(0),))
    with pytest.raises(psycopg.Error, match="idle-in-transaction"):
        stopped.execute("COMMIT")
    stopped.close()


@pytest.mark.parametrize("sending", [False, True], ids=["behind an answer", "while it sends"])
async def test_a_process_that_stands_still_in_a_write_holds_nobody_up_for_long(
    open_store: OpenStore, monkeypatch: pytest.MonkeyPatch, sending: bool
) -> None:
    """Behind an answer the server sees that it does nothing.  What sends seems to be at work: others end it."""
    monkeypatch.setattr(schema, "IDLE_TIMEOUT_MS", 300)
    monkeypatch.setattr(notices, "SAFETY_POLL", 0.5 if sending else 3600.0)
    still, other = await open_store(), await open_store()
    owner = await open_turn(other)
    stands, goes_on = threading.Event(), threading.Event()

    def write(transaction: Transaction) -> str:
        (found,) = transaction.execute("session_key", ("s",)).fetchall()
        if sending:
            transaction.execute("session_key", ("s",))
        stands.set()
        goes_on.wait()
        return f"written {len(found)}"

    standing = asyncio.ensure_future(still._submit(write, "s"))
    await asyncio.to_thread(stands.wait)
    await owner.commit(turn_id="t1", messages=(message(0),))
    goes_on.set()
    assert await standing == "written 1"


async def test_a_transaction_of_another_program_is_left_alone(
    open_store: OpenStore, backend: PostgresBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may be of the same user, in the same database, and as slow as it likes."""
    store = await open_store()
    theirs: list[Raw] = [store._database.connect() for _ in range(2)]
    slow, waiting = theirs
    key = "SELECT pg_advisory_xact_lock(4711)"
    with slow.pipeline():
        slow.execute("BEGIN")
        slow.execute(key).fetchone()
        blocked = asyncio.get_running_loop().run_in_executor(None, lambda: waiting.execute(key))
        deadline = time.monotonic() + 4
        while time.monotonic() < deadline:  # longer than anybody of ours may stand still
            await store._notices._ask("still_there")
            await asyncio.sleep(0.2)
        assert not blocked.done()
        slow.execute("COMMIT")
    await blocked
    for connection in theirs:
        connection.close()
