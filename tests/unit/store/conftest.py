"""A fresh store per test, of each kind, and a way to open more on the same place."""

from __future__ import annotations

import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.support.stores import Backend, PostgresBackend, SqliteBackend

from perdure.store.sql.store import SqlStore

OpenStore = Callable[..., Awaitable[SqlStore]]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "sessions.db"


@pytest.fixture
def run_dir() -> Iterator[Path]:
    """A short path: pytest's own may be too long for a socket."""
    with tempfile.TemporaryDirectory(prefix="perdure-") as directory:
        yield Path(directory) / "run"


@pytest.fixture(params=["sqlite", "postgresql"])
def backend(request: pytest.FixtureRequest, path: Path, run_dir: Path) -> Backend:
    """An empty place for stores of one kind."""
    if request.param == "sqlite":
        return SqliteBackend(path, run_dir)
    server = request.getfixturevalue("postgres")
    return PostgresBackend(server, server.empty_schema())


@pytest.fixture
async def open_store(backend: Backend) -> AsyncIterator[OpenStore]:
    """Opens a store on this test's place; each call is one more, as another process would have it."""
    opened: list[SqlStore] = []

    async def make(**options: Any) -> SqlStore:
        store = backend.new_store(**options)
        await store.open()
        opened.append(store)
        return store

    yield make
    for store in opened:
        await store.close()


@pytest.fixture
async def store(open_store: OpenStore) -> SqlStore:
    return await open_store()
