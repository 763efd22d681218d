"""The stores that the same tests run over, each with what a test needs besides the contract."""

from __future__ import annotations

import asyncio
import os
import sqlite3
from abc import ABC, abstractmethod
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import psycopg
from tests.support.postgres import Server

from perdure.store.postgres import LeaseRules, PostgresStore
from perdure.store.sql.store import SqlStore
from perdure.store.sqlite import SqliteStore

AT_ONCE = LeaseRules(lock_grace=0.0, calm=0.0, own_clock=False)
"""A dead worker is noticed at the first look, and the test says what time it is."""


class Backend(ABC):
    """One empty place for a store."""

    @abstractmethod
    def new_store(self, **options: Any) -> SqlStore:
        """A store on this place, not open yet; each is one more, as another process would have it."""

    @property
    @abstractmethod
    def address(self) -> str:
        """The place, for ``open_engine`` and the command line."""

    @property
    @abstractmethod
    def arguments(self) -> tuple[str, ...]:
        """The place, for ``tests.crash.store_child``."""

    @abstractmethod
    async def die(self, store: SqlStore) -> None:
        """What the system does when the store's process dies: it lets go of the locks of its workers."""

    @abstractmethod
    def run(self, query: str) -> list[tuple[Any, ...]]:
        """Carries out a statement beside all stores."""

    @property
    @abstractmethod
    def refusal(self) -> type[Exception]:
        """What the database raises for a change that is never allowed."""

    @abstractmethod
    def tables(self) -> dict[str, list[str]]:
        """The tables and their columns."""


class SqliteBackend(Backend):
    def __init__(self, path: Path, run_dir: Path) -> None:
        self.path = path
        self.run_dir = run_dir

    def new_store(self, **options: Any) -> SqliteStore:
        defaults: dict[str, Any] = {"durability": "process", "run_dir": self.run_dir}
        return SqliteStore(self.path, **(defaults | options))

    @property
    def address(self) -> str:
        return f"sqlite:///{self.path}"

    @property
    def arguments(self) -> tuple[str, ...]:
        return "sqlite", os.fspath(self.path), os.fspath(self.run_dir)

    async def die(self, store: SqlStore) -> None:
        assert isinstance(store, SqliteStore)
        store._locks.close()

    def run(self, query: str) -> list[tuple[Any, ...]]:
        connection = sqlite3.connect(self.path, isolation_level=None)
        try:
            return connection.execute(query).fetchall()
        finally:
            connection.close()

    @property
    def refusal(self) -> type[Exception]:
        return sqlite3.IntegrityError

    def tables(self) -> dict[str, list[str]]:
        names = self.run("SELECT name FROM sqlite_master WHERE type = 'table'")
        return {name: [row[1] for row in self.run(f"PRAGMA table_info({name})")] for (name,) in names}


class PostgresBackend(Backend):
    def __init__(self, server: Server, schema: str) -> None:
        self.server = server
        self.schema = schema

    def new_store(self, **options: Any) -> PostgresStore:
        defaults: dict[str, Any] = {"durability": "process", "leases": AT_ONCE}
        return PostgresStore(self.address, **(defaults | options))

    @property
    def address(self) -> str:
        return self.server.address(self.schema)

    @property
    def arguments(self) -> tuple[str, ...]:
        return "postgresql", self.address

    async def die(self, store: SqlStore) -> None:
        assert isinstance(store, PostgresStore)
        assert store._notices._raw is not None
        session = store._notices._raw.info.backend_pid
        await store._notices.stop()
        while self.server.run("SELECT 1 FROM pg_stat_activity WHERE pid = %s", (session,)):  # noqa: ASYNC110 - see below
            await asyncio.sleep(0)  # the server notices, and lets go of the locks

    def run(self, query: str) -> list[tuple[Any, ...]]:
        return self.server.run(query, schema=self.schema)

    @property
    def refusal(self) -> type[Exception]:
        return psycopg.IntegrityError

    def tables(self) -> dict[str, list[str]]:
        found: dict[str, list[str]] = {}
        columns: Sequence[tuple[Any, ...]] = self.server.run(
            "SELECT table_name, column_name FROM information_schema.columns WHERE table_schema = %s "
            "ORDER BY table_name, ordinal_position",
            (self.schema,),
        )
        for table, column in columns:
            found.setdefault(table, []).append(column)
        return found
