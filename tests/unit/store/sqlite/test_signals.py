"""Stores that have one file open hear of each other's writes, by datagram or by looking; nothing is lost for good."""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.unit.store.builders import NOW, new_session, request, text_message
from tests.unit.store.sqlite.conftest import OpenStore

from perdure.store.base import Change
from perdure.store.sql.changes import merge
from perdure.store.sqlite import SqliteStore, notices, signals
from perdure.store.sqlite.signals import MAX_DATAGRAM, Signals, decode, default_run_dir, encode


class Ear:
    """Waits for a change that fits."""

    def __init__(self, store: SqliteStore) -> None:
        self.heard: list[Change] = []
        self._news = asyncio.Event()
        store.listen(self._listen)

    def _listen(self, change: Change) -> None:
        self.heard.append(change)
        self._news.set()

    async def until(self, fits: Callable[[Change], bool]) -> Change:
        async with asyncio.timeout(20):
            while True:
                for change in self.heard:
                    if fits(change):
                        return change
                self._news.clear()
                await self._news.wait()


def _about(session_id: str) -> Callable[[Change], bool]:
    return lambda change: change.sessions is not None and session_id in change.sessions


def _drop(_: Change) -> None:
    """Sends nothing."""


@pytest.fixture
def no_poll(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only signals are left."""
    monkeypatch.setattr(notices, "SAFETY_POLL", 1000.0)
    monkeypatch.setattr(notices, "FALLBACK_POLL", 1000.0)


@pytest.mark.usefixtures("no_poll")
async def test_every_other_store_hears_what_changed(open_store: OpenStore) -> None:
    writer, *others = [await open_store() for _ in range(3)]
    ears = [Ear(store) for store in others]
    await writer.create_session(new_session(), None, request(), NOW)
    await writer.accept_message("s", "t1", text_message(), request(), NOW)
    for ear in ears:
        await ear.until(lambda change: change.sessions == frozenset({"s"}) and change.work)


@pytest.mark.usefixtures("no_poll")
async def test_a_store_hears_of_its_own_writes_once(open_store: OpenStore) -> None:
    store, other = await open_store(), await open_store()
    ear, far = Ear(store), Ear(other)
    await store.create_session(new_session("a"), None, request(), NOW)
    await other.create_session(new_session("b"), None, request(), NOW)
    await far.until(lambda change: change.sessions == frozenset({"a"}))
    await ear.until(lambda change: change.sessions == frozenset({"b"}))
    assert [change.sessions for change in ear.heard] == [frozenset({"a"}), frozenset({"b"})]


@pytest.mark.usefixtures("no_poll")
async def test_a_store_that_opens_later_is_found_at_once(open_store: OpenStore) -> None:
    first = await open_store()
    for n in range(5):
        await first.create_session(new_session(f"before{n}"), None, request(), NOW)
        later = await open_store()
        ear = Ear(later)
        await first.create_session(new_session(f"after{n}"), None, request(), NOW)
        await ear.until(_about(f"after{n}"))


@pytest.mark.usefixtures("no_poll")
async def test_the_socket_of_a_dead_process_is_removed(open_store: OpenStore, run_dir: Path) -> None:
    store, alive = await open_store(), await open_store()
    stale = run_dir / "dead.sock"
    dead = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    dead.bind(os.fspath(stale))
    dead.close()
    ear = Ear(alive)
    await store.create_session(new_session(), None, request(), NOW)
    await ear.until(lambda change: change.sessions == frozenset({"s"}))
    while "dead.sock" in os.listdir(run_dir):  # noqa: ASYNC110 - nobody tells us
        await asyncio.sleep(0.001)  # The others are told one after the other.


async def test_closing_leaves_no_socket_and_no_directory(open_store: OpenStore, run_dir: Path) -> None:
    first, second = await open_store(), await open_store()
    assert len(os.listdir(run_dir)) == 2
    await first.close()
    assert len(os.listdir(run_dir)) == 1
    await second.close()
    assert "run" not in os.listdir(run_dir.parent)


async def test_where_sockets_do_not_work_the_store_says_so_and_looks_itself(
    open_store: OpenStore, run_dir: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(notices, "FALLBACK_POLL", 0.01)
    monkeypatch.setattr(notices, "SAFETY_POLL", 1000.0)
    too_long = run_dir / ("x" * 120)
    with caplog.at_level("WARNING"):
        writer, other = await open_store(run_dir=too_long), await open_store(run_dir=too_long)
    assert str(too_long) in caplog.text
    ear = Ear(other)
    assert other._opened()[2].poll_every == 0.01
    await writer.create_session(new_session(), None, request(), NOW)
    assert await ear.until(lambda change: change.sessions is None) == Change(None, work=True)


async def test_a_lost_signal_is_made_good_by_the_safety_poll(
    open_store: OpenStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(notices, "SAFETY_POLL", 0.01)
    writer, other = await open_store(), await open_store()
    monkeypatch.setattr(writer._opened()[2]._signals, "send", _drop)
    ear = Ear(other)
    for n in range(3):
        ear.heard.clear()
        await writer.create_session(new_session(f"s{n}"), None, request(), NOW)
        await ear.until(lambda change: change == Change(None, work=True))


async def test_a_socket_that_a_cleaner_removed_comes_back(
    open_store: OpenStore, run_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(notices, "SAFETY_POLL", 0.01)
    store = await open_store()
    (name,) = os.listdir(run_dir)
    os.unlink(run_dir / name)
    async with asyncio.timeout(20):
        while not os.listdir(run_dir):  # noqa: ASYNC110  # no event tells of a file
            await asyncio.sleep(0)
    monkeypatch.setattr(notices, "SAFETY_POLL", 1000.0)
    ear = Ear(store)
    writer = await open_store()
    await writer.create_session(new_session(), None, request(), NOW)
    await ear.until(lambda change: change.sessions == frozenset({"s"}))


# ---------------------------------------------------------------- the parts


def test_datagrams_that_wait_are_one_change(run_dir: Path) -> None:
    ours, theirs = Signals(run_dir, "a"), Signals(run_dir, "b")
    assert ours.receive() is None
    theirs.send(Change(frozenset({"x"}), work=False))
    theirs.send(Change(frozenset({"y"}), work=True))
    assert ours.receive() == Change(frozenset({"x", "y"}), work=True)
    theirs.send(Change(frozenset({"x"}), work=False))
    theirs.send(Change(None, work=False))
    assert ours.receive() == Change(None, work=False)
    ours.close()
    theirs.close()


def test_a_reader_that_sleeps_does_not_hold_up_the_writer(run_dir: Path) -> None:
    ours, theirs = Signals(run_dir, "a"), Signals(run_dir, "b")
    for n in range(5000):
        theirs.send(Change(frozenset({f"s{n}"}), work=True))
    received = ours.receive()
    assert received is not None
    assert received.sessions is not None
    assert "s0" in received.sessions
    ours.close()
    theirs.close()


def test_a_socket_that_is_made_within_one_tick_of_the_clock_is_found(
    run_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The directory's time stamp does not tell; for a while after a change it is not relied on."""
    monkeypatch.setattr(signals, "PEERS_SETTLE", 1000.0)
    ours = Signals(run_dir, "a")
    ours.send(Change(None, work=False))
    stamp = os.stat(run_dir).st_mtime_ns
    theirs = Signals(run_dir, "b")
    os.utime(run_dir, ns=(stamp, stamp))
    ours.send(Change(frozenset({"x"}), work=False))
    assert theirs.receive() == Change(frozenset({"x"}), work=False)
    ours.close()
    theirs.close()


def test_a_directory_that_goes_away_while_a_socket_is_bound_is_made_again(
    run_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bind, left = signals._bind, [1]

    def bind_late(ours: socket.socket, directory: Path, name: str) -> Path:
        if left:
            left.pop()
            directory.rmdir()
        return bind(ours, directory, name)

    monkeypatch.setattr(signals, "_bind", bind_late)
    Signals(run_dir, "a").close()
    assert not left


def test_two_sockets_of_one_name_do_not_clash(run_dir: Path) -> None:
    both = [Signals(run_dir, "same") for _ in range(2)]
    both[0].send(Change(frozenset({"x"}), work=False))
    assert both[1].receive() == Change(frozenset({"x"}), work=False)
    for one in both:
        one.close()


def test_a_directory_that_others_can_enter_is_not_used(run_dir: Path) -> None:
    run_dir.mkdir()
    run_dir.chmod(0o755)
    with pytest.raises(PermissionError):
        Signals(run_dir, "a")


@pytest.mark.parametrize("ids", [None, frozenset({"a"}), frozenset({"a", "größer 😀"})])
@pytest.mark.parametrize("work", [True, False])
def test_a_change_survives_its_datagram(ids: frozenset[str] | None, work: bool) -> None:
    assert decode(encode(Change(ids, work))) == Change(ids, work)


@pytest.mark.parametrize("ids", [frozenset({"line\nbreak"}), frozenset({"x" * MAX_DATAGRAM})])
def test_ids_that_do_not_fit_become_any_session(ids: frozenset[str]) -> None:
    assert decode(encode(Change(ids, work=False))) == Change(None, work=False)


def test_a_datagram_that_makes_no_sense_means_look_yourself() -> None:
    assert decode(b"w\xff") == Change(None, work=True)
    assert decode(b"") == Change(None, work=True)


def test_changes_add_up() -> None:
    a, b = Change(frozenset({"a"}), work=False), Change(frozenset({"b"}), work=True)
    assert merge(a, b) == Change(frozenset({"a", "b"}), work=True)
    assert merge(a, Change(None, work=False)) == Change(None, work=False)


def test_every_process_finds_the_same_short_directory(tmp_path: Path) -> None:
    link = tmp_path / "link.db"
    link.symlink_to(tmp_path / "real.db")
    assert default_run_dir(link) == default_run_dir(tmp_path / "real.db")
    assert default_run_dir(link) != default_run_dir(tmp_path / "other.db")
    assert len(os.fspath(default_run_dir(link) / "x" / ("0" * 36)).encode()) < 100
