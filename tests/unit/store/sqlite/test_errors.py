"""Whatever is wrong with the file, the error says what, where and what to do; and the store goes on where it can."""

from __future__ import annotations

import asyncio
import os
import sqlite3
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
from tests.unit.store.builders import (
    FLOW,
    NOW,
    event,
    message,
    model_call,
    new_session,
    open_turn,
    request,
    text_message,
)
from tests.unit.store.sqlite.conftest import OpenStore

from perdure.errors import (
    StoreBusy,
    StoreCorrupt,
    StoreError,
    StoreFull,
    StoreNotOurs,
    StoreReadOnly,
    StoreTooNew,
    StoreUnavailable,
    UsageError,
)
from perdure.session.model import UserMessage
from perdure.store.base import SessionFilter
from perdure.store.sql.claims import SET_ASIDE_MS
from perdure.store.sqlite import SqliteStore
from perdure.store.sqlite.errors import translate
from perdure.store.sqlite.schema import SCHEMA_VERSION


def _change(path: Path, *statements: str) -> None:
    connection = sqlite3.connect(path)
    for statement in statements:
        connection.execute(statement)
    connection.commit()
    connection.close()


def _put(path: Path, content: bytes | bytearray) -> None:
    path.write_bytes(content)


def _content(path: Path) -> bytes:
    return path.read_bytes()


@pytest.mark.parametrize("content", [b"hello", b"x" * 5000], ids=["short", "long"])
async def test_a_file_that_is_no_database_is_left_alone(open_store: OpenStore, path: Path, content: bytes) -> None:
    _put(path, content)
    with pytest.raises(StoreNotOurs, match="was not made by perdure") as caught:
        await open_store()
    assert caught.value.address == f"sqlite:///{path}"
    assert _content(path) == content


@pytest.mark.parametrize(
    "statements",
    [
        ("CREATE TABLE theirs (x)",),
        ("PRAGMA application_id = 7",),
        ("PRAGMA application_id = 7", "CREATE TABLE meta (name, value)"),
        ("CREATE TABLE meta (name, value)",),
    ],
)
async def test_a_database_of_another_program_is_left_alone(
    open_store: OpenStore, path: Path, statements: tuple[str, ...]
) -> None:
    _change(path, *statements)
    before = _content(path)
    with pytest.raises(StoreNotOurs):
        await open_store()
    assert _content(path) == before


async def test_a_newer_schema_is_refused(open_store: OpenStore, path: Path) -> None:
    await (await open_store()).close()
    _change(path, "PRAGMA user_version = 99")
    with pytest.raises(StoreTooNew) as caught:
        await open_store()
    assert (caught.value.found, caught.value.supported) == (99, SCHEMA_VERSION)


async def test_a_missing_directory_is_named(tmp_path: Path) -> None:
    store = SqliteStore(tmp_path / "missing" / "x.db")
    with pytest.raises(StoreUnavailable, match="missing does not exist; create it"):
        await store.open()


async def test_a_directory_is_no_database(tmp_path: Path) -> None:
    with pytest.raises(StoreUnavailable):
        await SqliteStore(tmp_path).open()


@pytest.mark.parametrize("path", ["", ":memory:"])
def test_a_store_needs_a_file(path: str) -> None:
    with pytest.raises(UsageError, match="needs a file"):
        SqliteStore(path)


def test_durability_has_two_values(path: Path) -> None:
    with pytest.raises(UsageError, match="durability"):
        SqliteStore(path, durability="perhaps")  # type: ignore[arg-type]  # a caller without type checks


async def test_a_store_that_is_not_open_says_so(path: Path) -> None:
    store = SqliteStore(path)
    with pytest.raises(UsageError, match="call open"):
        await store.read_snapshot("s", NOW)
    await store.close()


async def test_a_foreign_lock_is_waited_for_and_then_reported(open_store: OpenStore, path: Path) -> None:
    store = await open_store(busy_timeout=0.05)
    foreign = sqlite3.connect(path)
    foreign.execute("BEGIN IMMEDIATE")
    with pytest.raises(StoreBusy) as caught:
        await store.create_session(new_session(), None, request(), NOW)
    assert caught.value.address == store.address
    assert isinstance(caught.value.waited, float)
    foreign.execute("COMMIT")
    foreign.close()
    await store.create_session(new_session(), None, request(), NOW)


async def test_a_lock_that_is_released_in_time_costs_only_the_wait(open_store: OpenStore, path: Path) -> None:
    store = await open_store()
    foreign = sqlite3.connect(path)
    foreign.execute("BEGIN IMMEDIATE")
    pending = asyncio.ensure_future(store.create_session(new_session(), None, request(), NOW))
    await store.list_sessions(SessionFilter(), None, 1)  # readers do not wait for the lock
    assert not pending.done()
    foreign.execute("COMMIT")
    foreign.close()
    await pending


async def test_opening_waits_for_a_lock_too(open_store: OpenStore, path: Path) -> None:
    await (await open_store()).close()
    foreign = sqlite3.connect(path)
    foreign.execute("BEGIN IMMEDIATE")
    with pytest.raises(StoreBusy):
        await open_store(busy_timeout=0.05)
    foreign.close()


async def test_a_full_disk_refuses_one_write_and_harms_no_other(open_store: OpenStore) -> None:
    store = await open_store()
    await store.create_session(new_session(), None, request(), NOW)
    pages = store._writer.connection.raw.execute("PRAGMA page_count").fetchone()[0]
    store._writer.connection.raw.execute(f"PRAGMA max_page_count = {pages + 8}")
    with pytest.raises(StoreFull, match="free disk space"):
        await store.accept_message("s", "t1", UserMessage(text="x" * 200_000), request(), NOW)
    await store.accept_message("s", "t2", text_message(), request(), NOW)
    assert (await store.read_snapshot("s", NOW)).queued_messages == 1
    store._writer.connection.raw.execute(f"PRAGMA max_page_count = {pages + 800}")
    await store.accept_message("s", "t3", UserMessage(text="x" * 200_000), request(), NOW)


_OPEN_AS_NOBODY = """
import asyncio, os, sys
from perdure.errors import PerdureError
from perdure.store.sqlite import SqliteStore

async def open_and_close(path):
    store = SqliteStore(path, run_dir=path + "-run")
    await store.open()
    await store.close()

asyncio.run(open_and_close(sys.argv[1]))  # everything is imported before the user changes
os.chmod(sys.argv[1], 0o444)
os.chmod(os.path.dirname(sys.argv[1]), int(sys.argv[2], 8))
if os.getuid() == 0:
    os.setuid(65534)
try:
    asyncio.run(open_and_close(sys.argv[1]))
except PerdureError as error:
    print(error.code)
"""


@pytest.mark.parametrize("mode", ["777", "555"], ids=["file", "file-and-directory"])
def test_a_file_that_may_not_be_written_is_reported(mode: str) -> None:
    with tempfile.TemporaryDirectory() as directory:
        done = subprocess.run(
            [sys.executable, "-c", _OPEN_AS_NOBODY, f"{directory}/x.db", mode],
            capture_output=True,
            text=True,
            check=False,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        )
        os.chmod(directory, 0o755)
    assert done.stdout.strip() == StoreReadOnly.code, done.stderr


def test_a_write_to_a_read_only_database_is_read_only(tmp_path: Path) -> None:
    path = tmp_path / "x.db"
    _change(path, "CREATE TABLE t (x)")
    connection = sqlite3.connect(f"file:{path}?mode=ro", uri=True)
    with pytest.raises(sqlite3.OperationalError) as caught:
        connection.execute("INSERT INTO t VALUES (1)")
    connection.close()
    assert isinstance(translate(caught.value, "sqlite:///x.db"), StoreReadOnly)


@pytest.mark.parametrize(
    ("change", "where"),
    [
        ("UPDATE turns SET message = '{\"text\": 5'", "open turn"),
        ("UPDATE calls SET request = '{}'", "call 'c1'"),
        ("UPDATE inbox SET content = 'nonsense'", "inbox item"),
    ],
)
async def test_rows_that_make_no_sense_keep_a_claim_from_their_session_only_and_name_the_place(
    store: SqliteStore, path: Path, caplog: pytest.LogCaptureFixture, change: str, where: str
) -> None:
    owner = await open_turn(store)
    await owner.ask()
    await store.accept_message("s", "t2", text_message(), request(), NOW)
    await owner.release()
    _change(path, change)
    await store.create_session(new_session("other"), ("t1", text_message()), request(), NOW + 1)
    before = await store.read_ownership("s")
    (claimed,) = await store.claim("w1", [FLOW], 1, NOW + 1)
    assert claimed.lease.session_id == "other"
    (line,) = [record.getMessage() for record in caplog.records]
    assert "'s'" in line
    assert where in line
    after = await store.read_ownership("s")
    assert (after.owner, after.fence) == (None, before.fence + 1), "and whoever owned it before owns it no more"
    with pytest.raises(StoreCorrupt) as caught:
        await store.adopt("w1", "s", after.fence, NOW)
    assert where in str(caught.value.where)
    assert "'s'" in str(caught.value.where)
    assert caught.value.address == store.address


async def test_a_session_that_could_not_be_read_is_tried_again_after_a_while(store: SqliteStore, path: Path) -> None:
    owner = await open_turn(store)
    await owner.ask()
    await store.accept_message("s", "t2", text_message(), request(), NOW)
    await owner.release()
    connection = sqlite3.connect(path)
    ((whole,),) = connection.execute("SELECT request FROM calls").fetchall()
    connection.close()
    _change(path, "UPDATE calls SET request = '{}'")
    assert await store.claim("w1", [FLOW], 1, NOW) == ()
    _change(path, f"UPDATE calls SET request = '{whole}'")
    later = NOW + SET_ASIDE_MS
    assert await store.next_wake_ms([FLOW]) == later
    assert await store.claim("w1", [FLOW], 1, later - 1) == ()
    (claimed,) = await store.claim("w1", [FLOW], 1, later)
    assert (claimed.lease.session_id, claimed.lost, len(claimed.calls)) == ("s", 0, 1)


async def test_rows_that_make_no_sense_stop_a_read_and_name_the_place(store: SqliteStore, path: Path) -> None:
    owner = await open_turn(store)
    await owner.commit(
        turn_id="t1",
        messages=(message(0), message(1, "x" * 40_000, item="x" * 40_000)),
        model_calls=(model_call(response="r" * 40_000),),
        events=(event(1),),
    )
    _change(
        path,
        "UPDATE messages SET role = 'emperor' WHERE position = 0",
        "UPDATE events SET data = '{}'",
        "DELETE FROM payloads",
    )
    for read, where in (
        (store.list_messages("s", None, 1), "message 0"),
        (store.list_messages("s", 0, 1), "message 1"),
        (store.read_history("s", 1, 2), "message 1"),
        (store.read_recorded_turn("s", "t1"), "model call 'm1'"),
        (store.read_events("s", None, 1), "event"),
    ):
        with pytest.raises(StoreCorrupt) as caught:
            await read
        assert where in str(caught.value.where)


async def test_a_damaged_file_is_corrupt(open_store: OpenStore, path: Path) -> None:
    first = await open_store()
    await asyncio.gather(*(first.create_session(new_session(f"s{n}"), None, request(), NOW) for n in range(2000)))
    await first.close()
    data = bytearray(_content(path))
    spoiled = len(data) * 2 // 3  # behind the schema, within the tables
    data[spoiled:] = b"\x5a" * (len(data) - spoiled)
    _put(path, data)
    second = await open_store()
    with pytest.raises(StoreCorrupt):
        await second.list_sessions(SessionFilter(), None, 100)


def test_what_is_not_foreseen_is_still_a_store_error() -> None:
    error = translate(sqlite3.IntegrityError("UNIQUE constraint failed"), "sqlite:///x.db")
    assert type(error) is StoreError
    assert "please report it" in str(error)


async def test_closing_twice_is_no_error_and_keeps_the_count(open_store: OpenStore) -> None:
    store = await open_store()
    await store.create_session(new_session(), None, request(), NOW)
    await store.close()
    await store.close()
    assert store.commits == 1
