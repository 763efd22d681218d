"""The one place where what SQLite and the operating system report becomes one of our errors.

Each message says what happened, where (the store's address) and what to do.
"""

from __future__ import annotations

import sqlite3
from pathlib import Path

from perdure.errors import (
    StoreBusy,
    StoreError,
    StoreFull,
    StoreNotOurs,
    StoreReadOnly,
    StoreUnavailable,
)
from perdure.store.codec import Unreadable
from perdure.store.sql.faults import corrupt
from perdure.store.sql.marks import refusal


def address_of(path: Path) -> str:
    """The address of a database file."""
    return f"sqlite:///{path}"


def translate(error: sqlite3.Error | OSError | Unreadable, address: str, *, waited: float = 0.0) -> StoreError:
    """What ``error`` means for whoever uses the store.  ``waited``: seconds spent on waiting for a lock."""
    if isinstance(error, Unreadable):
        return corrupt(address, error.where, error.reason)
    if isinstance(error, OSError):
        return unavailable(address, f"{error.strerror or error}")
    if (marked := refusal(str(error), address)) is not None:
        return marked
    match getattr(error, "sqlite_errorcode", 0) & 0xFF:
        case sqlite3.SQLITE_BUSY | sqlite3.SQLITE_LOCKED:
            return busy(address, waited)
        case sqlite3.SQLITE_READONLY:
            return read_only(address, str(error))
        case sqlite3.SQLITE_FULL:
            return StoreFull(
                f"{address}: no space is left ({error}), and nothing of this write was stored; free disk space or "
                "raise the quota, then try again",
                address=address,
            )
        case sqlite3.SQLITE_NOTADB:
            return not_ours(address, "it is not a SQLite database")
        case sqlite3.SQLITE_CORRUPT:
            return corrupt(address, "the database file", str(error))
        case sqlite3.SQLITE_CANTOPEN | sqlite3.SQLITE_IOERR | sqlite3.SQLITE_PERM | sqlite3.SQLITE_AUTH:
            return unavailable(address, str(error))
        case _:
            return StoreError(
                f"{address}: the database refused a statement ({type(error).__name__}: {error}); this is a fault in "
                "perdure or a changed schema, please report it",
                address=address,
            )


def busy(address: str, waited: float) -> StoreBusy:
    return StoreBusy(
        f"{address} stayed locked for {waited:.1f} s; find the program that keeps a write transaction open (a database "
        "shell, a backup, a stopped process) and let it finish",
        address=address,
        waited=round(waited, 1),
    )


def read_only(address: str, reason: str) -> StoreReadOnly:
    return StoreReadOnly(
        f"{address} cannot be written ({reason}); make the file and its directory writable for this user",
        address=address,
    )


def unavailable(address: str, reason: str) -> StoreUnavailable:
    return StoreUnavailable(
        f"{address} cannot be used: {reason}; check the path, its permissions and the disk", address=address
    )


def no_directory(address: str, directory: Path) -> StoreUnavailable:
    return StoreUnavailable(
        f"{address} cannot be opened: the directory {directory} does not exist; create it, or correct the address",
        address=address,
    )


def not_ours(address: str, reason: str) -> StoreNotOurs:
    return StoreNotOurs(
        f"{address} was not made by perdure: {reason}; choose another path (nothing was changed)", address=address
    )
