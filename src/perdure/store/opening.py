"""Which store an address names.  The PostgreSQL store is imported only where it is wanted: it needs an extra."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Literal

from perdure.arguments import expect
from perdure.clock import Clock
from perdure.errors import UsageError
from perdure.ids import IdSource
from perdure.store.sql.store import SqlStore
from perdure.store.sqlite import SqliteStore

Durability = Literal["power", "process"]
"""What a finished write survives: a power failure of the machine, or only the death of the process."""

SQLITE_PREFIX = "sqlite:///"
POSTGRES_PREFIXES = ("postgresql://", "postgres://")


def new_store(
    address: str, *, durability: Durability = "power", clock: Clock | None = None, ids: IdSource | None = None
) -> SqlStore:
    """The store at an address, not open yet.

    Args:
        address: ``sqlite:///FILE``, or ``postgresql://USER:PASSWORD@HOST:PORT/DATABASE``.

    Raises:
        UsageError: the address is of no known kind, or psycopg is not installed.
    """
    expect(address, str, "address", "a str, such as 'sqlite:///support.db'")
    if address.startswith(POSTGRES_PREFIXES):
        _ensure_psycopg()
        from perdure.store.postgres import PostgresStore

        return PostgresStore(address, durability=durability, clock=clock, ids=ids)
    return SqliteStore(sqlite_path(address), durability=durability, clock=clock, ids=ids)


def is_made(address: str) -> bool:
    """Whether there is a store at an address already.  Blocks; changes nothing.

    Raises:
        UsageError: as ``new_store``.
        StoreError: the server cannot be reached, or what is there is no store of perdure.
    """
    if not address.startswith(POSTGRES_PREFIXES):
        return Path(sqlite_path(address)).exists()
    _ensure_psycopg()
    from perdure.store.postgres.schema import is_made, parse_address

    return is_made(parse_address(address))


def _ensure_psycopg() -> None:
    try:
        importlib.import_module("psycopg")  # It may be there, and find no libpq.
    except ImportError as error:
        raise UsageError(
            f"a PostgreSQL store needs psycopg ({error}); install it with: pip install 'perdure[postgres]'"
        ) from error


def sqlite_path(address: str) -> str:
    """The file that a ``sqlite:///`` address names.

    Raises:
        UsageError: the address is of another kind, or names no file.
    """
    path = address.removeprefix(SQLITE_PREFIX)
    if path == address or not Path(path).name or path == ":memory:":
        raise UsageError(
            f"{without_password(address)!r} is no address of an engine's store; use sqlite:///FILE, for example "
            "sqlite:///support.db, or postgresql://USER:PASSWORD@HOST/DATABASE",
            address=without_password(address),
        )
    return path


def without_password(address: str) -> str:
    """An address of any kind for people to see: what stands between a user's name and ``@`` is left out."""
    scheme, mark, rest = address.partition("://")
    place, at, tail = rest.rpartition("@")
    user, colon, _ = place.partition(":")
    return f"{scheme}{mark}{user}{at}{tail}" if colon and at else address
