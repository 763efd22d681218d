"""The one place where what PostgreSQL and its driver report becomes one of our errors.

Each message says what happened, where (the store's address, which never holds a password) and what to do.
"""

from __future__ import annotations

import re

import psycopg
from psycopg import errors as pg

from perdure.errors import (
    PayloadTooLarge,
    PerdureError,
    StoreAccessDenied,
    StoreBusy,
    StoreError,
    StoreFull,
    StoreNotOurs,
    StoreReadOnly,
    StoreUnavailable,
)
from perdure.store.codec import MAX_NAME_BYTES, Unreadable
from perdure.store.sql.faults import corrupt
from perdure.store.sql.marks import refusal

_LOST = frozenset({"57P01", "57P02", "57P03", "57P05", "25P03"})
"""The server ended the session: a shutdown, an administrator, a session that stood still too long."""

_DENIED = re.compile(
    r"authentication failed|no password supplied|pg_hba\.conf|role .* does not exist|permission denied", re.I
)
_NO_DATABASE = re.compile(r"database .* does not exist", re.I)
_ASKED_FOR_WRONGLY = re.compile(
    # TLS, a client's certificate, an option, a name.  (An "unexpected eof" is a server that goes away meanwhile.)
    r"does not support SSL|SSL error: (?!unexpected eof)|certificate|private key|invalid .* value"
    r"|Name or service not known|No address associated",
    re.I,
)


def is_lost(error: BaseException, raw: psycopg.Connection[tuple[object, ...]] | None) -> bool:
    """Whether the connection is gone, and another one may do better."""
    if raw is not None and raw.closed:
        return True
    if not isinstance(error, psycopg.Error):
        return False
    if error.sqlstate is None:
        return isinstance(error, (psycopg.OperationalError, psycopg.InterfaceError))
    return error.sqlstate in _LOST or error.sqlstate.startswith("08")


def may_pass(error: BaseException) -> bool:
    """Whether a connection could not be had, or broke, for a reason that goes away by itself."""
    if isinstance(error, pg.TooManyConnections):
        return True
    reason = str(error)
    final = any(words.search(reason) for words in (_DENIED, _NO_DATABASE, _ASKED_FOR_WRONGLY))
    return is_lost(error, None) and not final


def is_repeatable(error: BaseException) -> bool:
    """Whether the server gave up a transaction for the sake of another one, so that the same may work now."""
    return isinstance(error, (pg.DeadlockDetected, pg.SerializationFailure))


def translate(error: psycopg.Error | OSError | Unreadable, address: str, *, waited: float = 0.0) -> PerdureError:
    """What ``error`` means for whoever uses the store.  ``waited``: seconds spent on trying again."""
    if isinstance(error, Unreadable):
        return corrupt(address, error.where, error.reason)
    reason = _first_line(error)
    if (marked := refusal(reason, address)) is not None:
        return marked
    match error:
        case pg.InsufficientPrivilege() | pg.InvalidAuthorizationSpecification():
            return denied(address, reason)
        case pg.ReadOnlySqlTransaction():
            return StoreReadOnly(
                f"{address} cannot be written ({reason}); connect to the primary server, and lift "
                "default_transaction_read_only",
                address=address,
            )
        case pg.DiskFull() | pg.OutOfMemory():
            return StoreFull(
                f"{address}: no space is left on the server ({reason}), and nothing of this write was stored; free "
                "space, then try again",
                address=address,
            )
        case pg.LockNotAvailable() | pg.QueryCanceled() | pg.DeadlockDetected() | pg.SerializationFailure():
            return busy(address, waited, reason)
        case pg.DataCorrupted() | pg.IndexCorrupted():
            return corrupt(address, "the database", reason)
        case pg.ProgramLimitExceeded():
            return PayloadTooLarge(
                f"{address}: a name (an id, a key) is longer than PostgreSQL can index, which is about 2,700 bytes "
                f"({reason}); use a shorter one",
                where=address,
                size=None,
                limit=MAX_NAME_BYTES,
            )
        case pg.TooManyConnections() | OSError():
            return _unreachable(address, reason)
        case _ if is_lost(error, None):
            return _unreachable(address, reason)
        case _:
            return StoreError(
                f"{address}: the database refused a statement ({type(error).__name__}: {reason}); this is a fault in "
                "perdure or a changed schema, please report it",
                address=address,
            )


def _first_line(error: BaseException) -> str:
    lines = str(error).strip().splitlines()
    return lines[0] if lines else type(error).__name__


def _unreachable(address: str, reason: str) -> StoreError:
    if _DENIED.search(reason):
        return denied(address, reason)
    if _NO_DATABASE.search(reason):
        return StoreUnavailable(
            f"{address} cannot be used: {reason}; create the database first, or correct the address", address=address
        )
    return unavailable(address, reason)


def unavailable(address: str, reason: str) -> StoreUnavailable:
    return StoreUnavailable(
        f"{address} cannot be reached: {reason}; check that the server is up, the address, and the network between",
        address=address,
    )


def denied(address: str, reason: str) -> StoreAccessDenied:
    return StoreAccessDenied(
        f"{address} does not let this user in, or not do what it must ({reason}); check user and password, and grant "
        "the user CREATE on the database, or all rights on the schema",
        address=address,
    )


def busy(address: str, waited: float, reason: str) -> StoreBusy:
    return StoreBusy(
        f"{address}: another transaction keeps something locked ({reason}); find the session that stays open in "
        "pg_stat_activity and let it finish",
        address=address,
        waited=round(waited, 1),
    )


def not_ours(address: str, reason: str) -> StoreNotOurs:
    return StoreNotOurs(
        f"{address} was not made by perdure: {reason}; choose another database or schema (nothing was changed)",
        address=address,
    )
