"""A store whose event loop is gone lets go of its threads, its connections and the locks of its workers."""

from __future__ import annotations

import asyncio
import threading

import pytest
from tests.support.stores import Backend
from tests.unit.store.builders import FLOW, NOW, new_session, open_turn, request, worker

from perdure.errors import UsageError


def _threads() -> list[str]:
    return [thread.name for thread in threading.enumerate() if thread.name.startswith("perdure")]


def test_whoever_comes_next_takes_over_at_once_what_an_abandoned_store_owned(backend: Backend) -> None:
    store = backend.new_store()

    async def work() -> None:
        await store.open()
        await open_turn(store)
        await store.list_messages("s", None, 1)  # a reading thread, too

    async def take_over() -> list[str]:
        other = backend.new_store()
        await other.open()
        try:
            assert await other.reap_workers(NOW) == 1
            await other.register_worker(worker("w2"), NOW)
            return [found.lease.session_id for found in await other.claim("w2", [FLOW], 10, NOW)]
        finally:
            await other.close()

    asyncio.run(work())
    assert _threads()
    store.abandon()
    assert not _threads()
    assert store.commits > 0
    store.abandon()  # twice is no error
    assert asyncio.run(take_over()) == ["s"]


def test_an_abandoned_store_can_be_opened_anew(backend: Backend) -> None:
    store = backend.new_store()

    async def create(session_id: str) -> None:
        await store.open()
        await store.create_session(new_session(session_id), None, request(), NOW)

    for session_id in ("a", "b"):
        asyncio.run(create(session_id))
        store.abandon()
        with pytest.raises(UsageError, match="not open"):
            asyncio.run(store.read_snapshot(session_id, NOW))
    assert backend.run("SELECT count(*) FROM sessions") == [(2,)]
