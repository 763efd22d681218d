"""A fresh SQLite store per test, and a way to open more on the same file."""

from __future__ import annotations

import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from perdure.store.sqlite import SqliteStore

OpenStore = Callable[..., Awaitable[SqliteStore]]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "sessions.db"


@pytest.fixture
def run_dir() -> Iterator[Path]:
    """A short path: pytest's own may be too long for a socket."""
    with tempfile.TemporaryDirectory(prefix="perdure-") as directory:
        yield Path(directory) / "run"


@pytest.fixture
async def open_store(path: Path, run_dir: Path) -> AsyncIterator[OpenStore]:
    """Opens a store on this test's file; each call is one more, as another process would have it."""
    opened: list[SqliteStore] = []

    async def make(**options: Any) -> SqliteStore:
        defaults: dict[str, Any] = {"durability": "process", "run_dir": run_dir}
        store = SqliteStore(path, **(defaults | options))
        await store.open()
        opened.append(store)
        return store

    yield make
    for store in opened:
        await store.close()


@pytest.fixture
async def store(open_store: OpenStore) -> SqliteStore:
    return await open_store()
