"""Where the durable side keeps its sessions: a SQLite file per measure, or a schema per measure in PostgreSQL."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

from bench.servers import postgres_server

VARIABLE = "PERDURE_BENCH_STORE"
"""Children read it: the address of a PostgreSQL database, or nothing for SQLite."""

OWN_SERVER = "postgresql"


def address_for(path: Path) -> str:
    """The address of the store of a measure that would have its SQLite file at ``path``."""
    database = os.environ.get(VARIABLE)
    if not database:
        return f"sqlite:///{path}"
    schema = "bench_" + hashlib.sha256(os.fsencode(path)).hexdigest()[:16]
    return f"{database}{'&' if '?' in database else '?'}schema={schema}"


@contextmanager
def chosen(store: str, folder: Path | None) -> Generator[None]:
    """Has ``address_for`` give addresses in this store.

    Args:
        store: ``sqlite``, the address of a PostgreSQL database, or ``postgresql`` for a server that is started here.
        folder: where such a server keeps its data.
    """
    if store == OWN_SERVER:
        with (
            TemporaryDirectory(prefix="bench-pg-", dir=folder) as data,
            postgres_server(Path(data)) as address,
            chosen(address, folder),
        ):
            yield
        return
    os.environ[VARIABLE] = "" if store == "sqlite" else store
    try:
        yield
    finally:
        del os.environ[VARIABLE]
