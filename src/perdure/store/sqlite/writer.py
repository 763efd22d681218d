"""SQLite's part of the writer: the write lock, and one transaction for a group of writes."""

from __future__ import annotations

import asyncio
import sqlite3
import time
from collections.abc import Callable, Sequence
from typing import Any

from perdure.store.base import Change
from perdure.store.codec import Unreadable
from perdure.store.sql.transaction import Transaction
from perdure.store.sql.writer import Job, Writer
from perdure.store.sqlite.connection import SqliteConnection
from perdure.store.sqlite.errors import translate
from perdure.store.sqlite.schema import Database

LOCK_PAUSES = (0.0002,) * 20 + (0.001,) * 1000 + (0.005,)
"""Seconds between tries to get the write lock; the last one repeats.  (SQLite's own handler soon sleeps for 100 ms.)"""

CHECKPOINT_PAGES = 4000
"""Size of the write-ahead log, in pages, from which a commit also moves it into the database."""


class SqliteWriter(Writer):
    """Writes one database file."""

    connection: SqliteConnection

    def __init__(
        self,
        database: Database,
        loop: asyncio.AbstractEventLoop,
        on_commit: Callable[[Change], None],
        on_change: Callable[[Change], None],
    ) -> None:
        super().__init__(database.address, loop, on_commit, on_change)
        self.database = database

    def connect(self) -> None:
        raw = self.database.connect()
        raw.execute("PRAGMA busy_timeout = 0")
        raw.execute(f"PRAGMA wal_autocheckpoint = {CHECKPOINT_PAGES}")
        self.connection = SqliteConnection(raw)

    def disconnect(self) -> None:
        self.connection.raw.close()

    def commit(self, jobs: Sequence[Job[Any]]) -> bool:
        raw = self.connection.raw
        alone = len(jobs) == 1
        try:
            self._begin()
        except sqlite3.Error as error:
            for job in jobs:
                job.error = translate(error, self.database.address, waited=self.database.busy_timeout)
            return True
        started = raw.total_changes
        try:
            for job in jobs:
                before = raw.total_changes
                job.transaction, job.error = Transaction(self.connection), None
                try:
                    job.result = job.write(job.transaction)
                except BaseException as error:  # noqa: BLE001  # handed to whoever awaits the job
                    job.error = self._as_ours(error)
                    if not raw.in_transaction or raw.total_changes != before:
                        return alone
            if raw.total_changes != started:
                raw.execute("COMMIT")
                self.commits += 1
        except sqlite3.Error as error:
            if alone:
                jobs[0].error = self._as_ours(error)
            return alone
        finally:
            if raw.in_transaction:
                raw.execute("ROLLBACK")
        return True

    def _begin(self) -> None:
        """Gets the write lock; other processes' writers hold it for about a millisecond at a time."""
        deadline = time.monotonic() + self.database.busy_timeout
        tries = 0
        while True:
            try:
                self.connection.raw.execute("BEGIN IMMEDIATE")
                return
            except sqlite3.OperationalError as error:
                if (error.sqlite_errorcode & 0xFF) != sqlite3.SQLITE_BUSY or time.monotonic() > deadline:
                    raise
            time.sleep(LOCK_PAUSES[min(tries, len(LOCK_PAUSES) - 1)])
            tries += 1

    def _as_ours(self, error: BaseException) -> BaseException:
        if isinstance(error, (sqlite3.Error, Unreadable)):
            ours = translate(error, self.database.address)
            ours.__cause__ = error
            return ours
        return error
