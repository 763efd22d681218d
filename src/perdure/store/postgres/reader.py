"""PostgreSQL's part of reading: a connection per thread, which may break and is then made anew."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Generic, TypeVar

import psycopg

from perdure.store.codec import Unreadable
from perdure.store.postgres.connection import PostgresConnection, Raw, in_transaction
from perdure.store.postgres.errors import is_lost, translate
from perdure.store.postgres.reaching import PAUSES
from perdure.store.postgres.schema import Database
from perdure.store.postgres.watch import Watch
from perdure.store.sql.connection import Connection
from perdure.store.sql.reader import Read

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Look(Generic[T]):
    """A read whose statements need not see the same state; so it needs no transaction, and fewer round trips."""

    read: Read[T]

    def __call__(self, connection: Connection) -> T:
        return self.read(connection)


def _is_look(read: object) -> bool:
    return isinstance(read, Look)


class PostgresReader:
    """A connection that is opened when it is first needed, and cannot write."""

    def __init__(self, database: Database, watch: Watch) -> None:
        self._database = database
        self._watch = watch
        self._raw: Raw | None = None
        self._given_up = False
        """The server was away for too long: until it is back, each read tries once."""

    def run(self, read: Read[T]) -> T:
        """See ``Reader``."""
        deadline = time.monotonic() + (0.0 if self._given_up else self._database.patience)
        tries = 0
        while True:
            try:
                if self._raw is None:
                    self._raw = self._database.connect(read_only=True)
                found = self._run(self._raw, read)
            except Unreadable as error:
                raise translate(error, self._database.address) from error
            except (psycopg.Error, OSError) as error:
                lost = is_lost(error, self._raw)
                if lost:
                    self.close()
                if not lost or time.monotonic() > deadline:
                    self._given_up = lost
                    raise translate(error, self._database.address, waited=self._database.patience) from error
                time.sleep(PAUSES[min(tries, len(PAUSES) - 1)])
                tries += 1
            else:
                self._given_up = False
                return found

    def close(self) -> None:
        """See ``Reader``."""
        if self._raw is not None:
            self._raw.close()
            self._raw = None

    def _run(self, raw: Raw, read: Read[T]) -> T:
        if _is_look(read):
            with self._watch.over(raw):
                return read(PostgresConnection(raw))

        def work(connection: PostgresConnection) -> T:
            found = read(connection)
            raw.execute("COMMIT")
            return found

        with self._watch.over(raw):
            return in_transaction(raw, b"BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY", work)
