"""PostgreSQL's part of the writer: one transaction for a group of writes, over a connection that may break.

A group locks the sessions that it is about in one order, so that groups of different processes never wait for each
other in a circle.  What can be sent together is (pipeline mode): a write of an owner takes two round trips.

When the connection breaks, the writer gets another one and finds out whether the transaction was carried out: each one
writes its number into a row of this writer's own.  If it was not, it is run again.  (PostgreSQL's own transaction ids
do not tell: after a crash they are given out again.)
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import psycopg
from psycopg.generators import fetch_many

from perdure.store.base import Change
from perdure.store.codec import Unreadable
from perdure.store.postgres.connection import PostgresConnection, Raw, in_transaction
from perdure.store.postgres.errors import is_lost, is_repeatable, translate
from perdure.store.postgres.reaching import PAUSES
from perdure.store.postgres.schema import Database
from perdure.store.postgres.watch import Watch
from perdure.store.sql.changes import encode
from perdure.store.sql.transaction import Transaction
from perdure.store.sql.writer import Job, Writer

FORGET_AFTER_MS = 24 * 3_600_000
"""How long a writer that did not end in order is remembered; much longer than any waits for its connection."""

MAX_NOTICE = 7_000
"""Bytes of session ids in a notification; PostgreSQL takes 8,000 in all."""


_NOTIFY = b"SELECT set_config('synchronous_commit', 'off', true), pg_notify($1, $2)"


class _Spoiled(Exception):
    """A write failed half-way; nothing of its transaction may stay."""


@dataclass(slots=True)
class _Attempt:
    """One run of a transaction."""

    number: int
    ended: bool = False
    """Its end was sent, so it may have been carried out."""


class PostgresWriter(Writer):
    """Writes one store.

    Args:
        channel: where others listen.
        name: of this writer, unlike any other's.
        sender: goes with each notification, so that a store does not hear itself.
    """

    def __init__(
        self,
        database: Database,
        watch: Watch,
        channel: str,
        name: str,
        sender: str,
        loop: asyncio.AbstractEventLoop,
        on_change: Callable[[Change], None],
    ) -> None:
        super().__init__(database.address, loop, self._notify, on_change)
        self._database = database
        self._watch = watch
        self._channel = channel
        self._name = name
        self._sender = sender
        self._number = 0
        self._raw: Raw | None = None
        self._answer_due = False
        """A notification was sent, and its answer is not read."""
        self._given_up = False
        """The server was away for too long: until it is back, each group tries once."""

    def connect(self) -> None:
        self._raw = self._database.connect()
        if self._number == 0:
            try:
                self._forget(self._raw)
            except BaseException:
                self._drop()
                raise

    def disconnect(self) -> None:
        if self._raw is not None:
            with contextlib.suppress(psycopg.Error):
                self._forget(self._raw)
        self._drop()

    def _forget(self, raw: Raw) -> None:
        with self._watch.over(raw):
            self._take_answer(raw)
            PostgresConnection(raw).execute("writer_forget", (self._name, FORGET_AFTER_MS))

    def _drop(self) -> None:
        raw, self._raw = self._raw, None
        self._answer_due = False
        if raw is not None:
            raw.close()

    def groups(self, jobs: list[Job[Any]]) -> list[list[Job[Any]]]:
        """What does not say which sessions it is about locks them by itself, and so must hold no others."""
        found: list[list[Job[Any]]] = []
        for job in jobs:
            if found and job.sessions and found[-1][0].sessions:
                found[-1].append(job)
            else:
                found.append([job])
        return found

    # ------------------------------------------------------------ a transaction, until it is known what became of it

    def commit(self, jobs: Sequence[Job[Any]]) -> bool:
        deadline = time.monotonic() + (0.0 if self._given_up else self._database.patience)
        tries = 0
        attempt = self._new_attempt()
        for job in jobs:
            job.error = None
        while True:
            try:
                raw = self._connected()
                if attempt.ended and self._was_carried_out(raw, attempt):
                    self._given_up = False
                    return True
                attempt = self._new_attempt()
                done = self._try(raw, jobs, attempt)
            except (psycopg.Error, OSError) as error:
                lost = is_lost(error, self._raw)
                if lost:
                    self._drop()
                if not (lost or is_repeatable(error)) or time.monotonic() > deadline:
                    self._given_up = lost
                    return self._fail(jobs, error, attempt)
                time.sleep(PAUSES[min(tries, len(PAUSES) - 1)])
                tries += 1
            else:
                self._given_up = False
                return done

    def _connected(self) -> Raw:
        if self._raw is None:
            self.connect()
        assert self._raw is not None
        return self._raw

    def _new_attempt(self) -> _Attempt:
        self._number += 1
        return _Attempt(self._number)

    def _was_carried_out(self, raw: Raw, attempt: _Attempt) -> bool:
        """Whether a transaction whose connection broke while it ended is on disk; waits until it has ended."""
        with self._watch.over(raw):
            self._take_answer(raw)
            row = PostgresConnection(raw).execute("writer_last", (self._name,)).fetchone()
        if row != (attempt.number,):
            return False
        self.commits += 1
        return True

    def _fail(self, jobs: Sequence[Job[Any]], error: psycopg.Error | OSError, attempt: _Attempt) -> bool:
        """The jobs cannot be written; a group that failed for another reason than the connection is taken apart."""
        if len(jobs) > 1 and not self._given_up:
            return False
        ours = translate(error, self._address, waited=self._database.patience)
        if attempt.ended and self._given_up:
            ours.message += "; whether this write was stored is not known"
            ours.args = (ours.message,)
        ours.__cause__ = error
        for job in jobs:
            if job.error is None or attempt.ended:
                job.error = ours
        return True

    # ------------------------------------------------------------ one run

    def _try(self, raw: Raw, jobs: Sequence[Job[Any]], attempt: _Attempt) -> bool:
        try:
            with self._watch.over(raw):
                self._take_answer(raw)
                in_transaction(raw, b"BEGIN", lambda connection: self._transact(connection, jobs, attempt))
        except _Spoiled:
            return len(jobs) == 1
        self.commits += attempt.ended
        return True

    def _transact(self, connection: PostgresConnection, jobs: Sequence[Job[Any]], attempt: _Attempt) -> None:
        raw = connection.raw
        sessions = sorted({session_id for job in jobs for session_id in job.sessions})
        if sessions:
            connection.lock("lock_sessions", (sessions,))
        mark = connection.execute("writer_mark", (self._name, attempt.number))
        unmarked = connection.writes
        for job in jobs:
            self._run_job(connection, job)
        if connection.writes == unmarked:
            return
        mark.fetchone()  # Usually it is here already.  Nobody may ask for the number before it is locked.
        attempt.ended = True
        self._end(raw)

    def _end(self, raw: Raw) -> None:
        raw.execute("COMMIT")

    def _run_job(self, connection: PostgresConnection, job: Job[Any]) -> None:
        before = connection.writes
        job.transaction, job.error = Transaction(connection), None
        try:
            job.result = job.write(job.transaction)
        except psycopg.Error:
            raise
        except Unreadable as error:
            job.error = translate(error, self._address)
            job.error.__cause__ = error
        except BaseException as error:  # noqa: BLE001  # handed to whoever awaits the job
            job.error = error
        if job.error is not None and connection.writes != before:
            raise _Spoiled

    def _notify(self, change: Change) -> None:
        """Behind the commit and not in it: there it would make all commits of the server wait for each other.

        Its answer is taken before the connection is used again: nobody waits for it.  It is a transaction of its own,
        which need not be on the server's disk, either.
        """
        if self._raw is not None:
            told = self._sender + encode(change, MAX_NOTICE)
            with contextlib.suppress(psycopg.Error):
                self._raw.pgconn.send_query_params(_NOTIFY, [self._channel.encode(), told.encode()])
                self._raw.pgconn.flush()
                self._answer_due = True

    def _take_answer(self, raw: Raw) -> None:
        """Takes the answer to the last notification, which is usually here by now."""
        if self._answer_due:
            raw.wait(fetch_many(raw.pgconn))  # not libpq's own waiting, in which no other thread could run
            self._answer_due = False
