"""Stores on SQLite only."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from tests.support.stores import SqliteBackend

from perdure.store.sqlite import SqliteStore

OpenStore = Callable[..., Awaitable[SqliteStore]]


@pytest.fixture
def backend(path: Path, run_dir: Path) -> SqliteBackend:
    return SqliteBackend(path, run_dir)


@pytest.fixture
async def open_store(backend: SqliteBackend) -> AsyncIterator[OpenStore]:
    """Opens a store on this test's file; each call is one more, as another process would have it."""
    opened: list[SqliteStore] = []

    async def make(**options: Any) -> SqliteStore:
        store = backend.new_store(**options)
        await store.open()
        opened.append(store)
        return store

    yield make
    for store in opened:
        await store.close()


@pytest.fixture
async def store(open_store: OpenStore) -> SqliteStore:
    return await open_store()
