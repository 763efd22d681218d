"""A schema of a PostgreSQL database as one end of a copy."""

from __future__ import annotations

from collections.abc import Generator, Iterable, Sequence
from contextlib import contextmanager
from typing import cast

import psycopg

from perdure.store.copying.place import BAR, Owned, Place, Record, Value
from perdure.store.copying.tables import OF_SESSION, Table
from perdure.store.postgres.connection import PostgresConnection, Raw
from perdure.store.postgres.errors import translate
from perdure.store.postgres.reaching import reach
from perdure.store.postgres.schema import parse_address, prepare, released_schema


class PostgresPlace(Place):
    """One schema."""

    def __init__(self, address: str) -> None:
        self._database = parse_address(address)
        super().__init__(self._database.address)
        self._raw: Raw | None = None

    @property
    def raw(self) -> Raw:
        """The open connection."""
        assert self._raw is not None
        return self._raw

    def prepare(self, now_ms: int) -> None:
        prepare(self._database, released_schema(), now_ms, marked=True)

    def open(self) -> None:
        with self.reporting():
            self._raw = reach(self._database.connect, self.address, self._database.patience)
            self._raw.execute("SET idle_in_transaction_session_timeout = 0")  # It may have to wait for the other end.

    def close(self) -> None:
        if self._raw is not None:
            self._raw.close()
            self._raw = None

    @contextmanager
    def transaction(self) -> Generator[None]:
        with self.raw.transaction():
            self.raw.execute("LOCK TABLE meta IN EXCLUSIVE MODE")
            yield

    @contextmanager
    def snapshot(self) -> Generator[None]:
        with self.raw.transaction():
            self.raw.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ READ ONLY")
            yield

    @contextmanager
    def reporting(self) -> Generator[None]:
        try:
            yield
        except psycopg.Error as error:
            raise translate(error, self.address) from error

    def run(self, text: str, facts: Sequence[Value] = ()) -> Iterable[Record]:
        cursor = self.raw.execute(text.encode(), facts)
        return map(_plain, cursor.fetchall()) if cursor.description else ()

    def stream(self, text: str, facts: Sequence[Value] = ()) -> Iterable[Record]:
        return map(_plain, self.raw.cursor().stream(text.encode(), facts))

    def connection(self) -> PostgresConnection:
        return PostgresConnection(self.raw)

    def find_columns(self, table: str) -> tuple[str, ...]:
        found = self.run(
            "SELECT column_name::text FROM information_schema.columns "
            "WHERE table_schema = current_schema AND table_name = $1",
            (table,),
        )
        return tuple(str(name) for (name,) in found)

    def insert(self, table: Table, rows: Iterable[Owned]) -> None:
        text = f"COPY {table.name} ({', '.join(self.columns(table))}) FROM STDIN"
        with self.raw.cursor().copy(text.encode()) as copy:
            for _, row in rows:
                copy.write_row(row)

    def set_bar(self, table: str, events: Sequence[str], words: str) -> None:
        quoted = words.replace("'", "''")
        self.lift_bar(table, events)
        self.raw.execute(
            f"CREATE TRIGGER {BAR} BEFORE {' OR '.join(events)} ON {table} "
            f"FOR EACH STATEMENT EXECUTE FUNCTION refuse_change('{quoted}')".encode()
        )

    def lift_bar(self, table: str, events: Sequence[str]) -> None:
        self.raw.execute(f"DROP TRIGGER IF EXISTS {BAR} ON {table}".encode())

    def take_note(self) -> None:
        for table in OF_SESSION:
            if table.counted:
                name, key = table.name, table.order[0]
                sequence, following = f"pg_get_serial_sequence('{name}', '{key}')", f"coalesce(max({key}), 0) + 1"
                self.run(f"SELECT setval({sequence}, {following}, false) FROM {name}")
            self.run(f"ANALYZE {table.name}")  # So many rows at once: the planner should not find out by itself.


def _plain(row: tuple[object, ...]) -> Record:
    """A row with truth values as numbers."""
    return cast(Record, tuple(int(value) if isinstance(value, bool) else value for value in row))
