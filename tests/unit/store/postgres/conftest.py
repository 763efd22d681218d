"""Stores on PostgreSQL only."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from typing import Any

import pytest
from tests.support.postgres import Server
from tests.support.stores import PostgresBackend

from perdure.store.postgres import PostgresStore

OpenStore = Callable[..., Awaitable[PostgresStore]]


@pytest.fixture
def backend(postgres: Server) -> PostgresBackend:
    return PostgresBackend(postgres, postgres.empty_schema())


@pytest.fixture
def new_backend(postgres: Server) -> Iterator[PostgresBackend]:
    """A schema that nobody has made yet."""
    schema = postgres.new_schema()
    yield PostgresBackend(postgres, schema)
    postgres.drop(schema)


@pytest.fixture
async def open_store(backend: PostgresBackend) -> AsyncIterator[OpenStore]:
    """Opens a store on the shared schema; each call is one more, as another process would have it."""
    opened: list[PostgresStore] = []

    async def make(**options: Any) -> PostgresStore:
        store = backend.new_store(**options)
        await store.open()
        opened.append(store)
        return store

    yield make
    for store in opened:
        await store.close()


@pytest.fixture
async def store(open_store: OpenStore) -> PostgresStore:
    return await open_store()
