"""Opens connections, recognises our stores and brings their schema up to date.

A store is one schema (in PostgreSQL's sense) of a database.  It is ours by the ``format`` in its ``meta`` table, whose
``schema_version`` is the version.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Any, Literal
from urllib.parse import parse_qsl, quote, urlencode

import psycopg
from psycopg.conninfo import conninfo_to_dict, make_conninfo
from psycopg.pq import Conninfo
from psycopg.raw_cursor import RawCursor

from perdure.errors import UsageError
from perdure.store.postgres.connection import PACKAGE, Raw, adapt
from perdure.store.postgres.errors import not_ours, translate, unavailable
from perdure.store.postgres.reaching import reach
from perdure.store.sql.faults import no_version, too_new
from perdure.store.sql.marks import refuse_marked
from perdure.store.sql.schema import Schema, read_schema

Durability = Literal["power", "process"]
"""What a finished write survives: a loss of power, or the end of any process only."""

SCHEMA_VERSION = 1

FORMAT = "perdure"

OLDEST_SERVER = 140000

DEFAULT_SCHEMA = "perdure"

_SCHEMA_NAME = re.compile(r"[a-z_][a-z0-9_]{0,47}")

LOCK_TIMEOUT_MS = 10_000
"""How long a statement waits for another transaction before ``StoreBusy``."""

IDLE_TIMEOUT_MS = 5_000
"""After this long the server ends a session that stopped in the middle of a transaction (its process stands still, or
the network is cut), so that nobody waits longer for what it keeps locked."""

CONNECT_TIMEOUT = 5
"""Seconds that a try to connect may take."""


def released_schema() -> Schema:
    """The schema of this release."""
    return read_schema(PACKAGE, SCHEMA_VERSION)


@dataclass(frozen=True, slots=True)
class Database:
    """One store and how it is used.

    Attributes:
        address: without the password.
        patience: seconds for which whatever was asked waits for a server that is away.
    """

    conninfo: str = field(repr=False)
    schema: str
    address: str
    durability: Durability = "power"
    patience: float = 10.0

    def connect(self, *, read_only: bool = False) -> Raw:
        """A connection in autocommit mode, with our settings.

        Raises:
            psycopg.Error: the server cannot be reached, or does not let us in.
        """
        raw: Raw = psycopg.connect(self.conninfo, autocommit=True, prepare_threshold=0)
        try:
            raw.cursor_factory = RawCursor
            raw.prepared_max = 500
            adapt(raw)
            settings = self._settings(read_only)
            calls = ", ".join(f"set_config(${2 * n + 1}, ${2 * n + 2}, false)" for n in range(len(settings)))
            raw.execute(
                f"SELECT {calls}".encode(), [text for setting in settings.items() for text in setting], prepare=False
            )
            if self.durability == "process":
                raw.execute("SET synchronous_commit = off", prepare=False)
            else:
                _wait_for_the_disk(raw)
        except BaseException:
            raw.close()
            raise
        return raw

    def _settings(self, read_only: bool) -> dict[str, str]:
        return {
            "search_path": self.schema,
            "default_transaction_isolation": "read committed",
            "default_transaction_read_only": "on" if read_only else "off",
            "lock_timeout": str(LOCK_TIMEOUT_MS),
            "idle_in_transaction_session_timeout": str(IDLE_TIMEOUT_MS),
            "tcp_keepalives_idle": "5",
            "tcp_keepalives_interval": "2",
            "tcp_keepalives_count": "3",
            "jit": "off",
            "client_min_messages": "warning",
        }


def _wait_for_the_disk(raw: Raw) -> None:
    """Keeps what the server does by itself, unless that is less than the disk (a replica may be more)."""
    row = raw.execute("SELECT current_setting('synchronous_commit')", prepare=False).fetchone()
    if row == ("off",):
        raw.execute("SET synchronous_commit = on", prepare=False)


def parse_address(address: str, durability: Durability = "power", patience: float = 10.0) -> Database:
    """The store that a ``postgresql://`` address names.

    Raises:
        UsageError: it is no such address.  The message holds nothing of it that may be secret.
    """
    try:
        place, _, query = address.partition("?")
        options = parse_qsl(query, keep_blank_values=True, strict_parsing=bool(query))
        schema = dict(options).get("schema", DEFAULT_SCHEMA)
        rest = urlencode([(name, value) for name, value in options if name != "schema"], quote_via=quote)
        facts: dict[str, Any] = conninfo_to_dict(f"{place}?{rest}")
    except (ValueError, psycopg.Error):
        raise UsageError(
            f"this is no address of a PostgreSQL database{_unknown_option(address)}; use "
            "postgresql://USER:PASSWORD@HOST:PORT/DATABASE, with special characters of user and password "
            "percent-encoded"
        ) from None
    if not _SCHEMA_NAME.fullmatch(schema):
        raise UsageError(
            f"schema={schema!r} cannot be used; take up to 48 lower-case letters, digits and underscores", schema=schema
        )
    ours: dict[str, Any] = {
        "client_encoding": "utf8",
        "connect_timeout": CONNECT_TIMEOUT,
        "application_name": "perdure",
        "keepalives_idle": 5,
        "keepalives_interval": 2,
        "keepalives_count": 3,
        "tcp_user_timeout": 10_000,
    }
    return Database(make_conninfo(**(ours | facts)), schema, _shown(facts, schema), durability, patience)


def _unknown_option(address: str) -> str:
    """What to say of options behind ``?`` that nobody knows.  Never a word of what may be a password."""
    query = address.partition("?")[2]
    if "@" in query:  # So the question mark was part of the password.
        return ""
    known = {"schema", "ssl", *(option.keyword.decode() for option in Conninfo.get_defaults())}
    unknown = [name for name, _ in parse_qsl(query, keep_blank_values=True) if name not in known]
    return f": it has no option {', '.join(map(repr, unknown))} (there are 'schema' and libpq's)" if unknown else ""


def _shown(facts: dict[str, Any], schema: str) -> str:
    """The address without secrets."""
    user = f"{quote(str(facts['user']))}@" if facts.get("user") else ""
    port = f":{facts['port']}" if facts.get("port") else ""
    host = quote(str(facts.get("host") or ""), safe="")
    shown = f"postgresql://{user}{host}{port}/{quote(str(facts.get('dbname') or ''))}"
    return shown if schema == DEFAULT_SCHEMA else f"{shown}?schema={schema}"


def is_made(database: Database) -> bool:
    """Whether the store is there already.  Waits for a server that is away.

    Raises:
        StoreNotOurs, StoreTooNew, StoreCorrupt, StoreAccessDenied, StoreUnavailable
    """

    def look() -> bool:
        with database.connect(read_only=True) as raw:
            return _recognise(raw, database, released_schema()) > 0

    return reach(look, database.address, database.patience)


def prepare(database: Database, schema: Schema, now_ms: int, *, marked: bool = False) -> None:
    """Creates the store, or brings it up to date.  Any number of processes may do this at once.  Waits for a server
    that is away.

    Args:
        marked: also one that was moved, or is an unfinished copy.

    Raises:
        StoreNotOurs, StoreTooNew, StoreCorrupt, StoreBusy, StoreReadOnly, StoreAccessDenied, StoreFull,
        StoreUnavailable, StoreMoved, StoreUnfinished
    """

    def bring_up_to_date() -> None:
        raw = database.connect()
        try:
            _check_server(raw, database)
            if _recognise(raw, database, schema) != schema.version:
                _migrate(raw, database, schema, now_ms)
            if not marked:
                refuse_marked(database.address, dict(raw.execute("SELECT name, value FROM meta").fetchall()))
        finally:
            raw.close()

    reach(bring_up_to_date, database.address, database.patience)


def _check_server(raw: Raw, database: Database) -> None:
    if raw.info.server_version < OLDEST_SERVER:
        raise unavailable(database.address, f"PostgreSQL {OLDEST_SERVER // 10000} or newer is needed")
    if _value(raw, "SELECT current_setting('server_encoding')") != "UTF8":
        raise unavailable(database.address, "the database must have the encoding UTF8")
    if _value(raw, "SELECT pg_is_in_recovery()::int"):
        raise translate(psycopg.errors.ReadOnlySqlTransaction("the server is a standby"), database.address)


def _recognise(raw: Raw, database: Database, schema: Schema) -> int:
    """The version that is there; 0 for an empty or absent schema, which becomes ours.

    Raises:
        StoreNotOurs, StoreTooNew, StoreCorrupt
    """
    tables = raw.execute(
        "SELECT relname FROM pg_class AS c JOIN pg_namespace AS n ON n.oid = c.relnamespace "
        "WHERE n.nspname = $1 AND c.relkind IN ('r', 'p', 'v', 'm', 'f')",
        (database.schema,),
    ).fetchall()
    if not tables:
        return 0
    if ("meta",) not in tables:
        raise not_ours(database.address, f"its schema {database.schema!r} holds tables of another program")
    try:
        meta: dict[str, str] = dict(raw.execute("SELECT name, value FROM meta").fetchall())
    except (psycopg.errors.UndefinedColumn, psycopg.errors.DatatypeMismatch, ValueError):
        meta = {}
    if meta.get("format") != FORMAT or "schema_version" not in meta:
        raise not_ours(database.address, f"the table {database.schema}.meta is of another program")
    version = str(meta["schema_version"])
    if not (version.isascii() and version.isdecimal() and int(version) > 0):
        raise no_version(database.address, version, "schema_version in meta", schema.version)
    found = int(version)
    if found > schema.version:
        raise too_new(database.address, found, schema.version)
    return found


def _migrate(raw: Raw, database: Database, schema: Schema, now_ms: int) -> None:
    """One transaction under a lock: of several processes the first does the work, the others find it done."""
    with raw.transaction():
        raw.execute("SET LOCAL lock_timeout = 0")
        raw.execute("SELECT pg_advisory_xact_lock(hashtextextended($1, 0))", (f"perdure migrates {database.schema}",))
        found = _recognise(raw, database, schema)
        if found == schema.version:
            return
        if found == 0:
            if not _value(raw, "SELECT count(*) FROM pg_namespace WHERE nspname = $1", database.schema):
                raw.execute(f'CREATE SCHEMA "{database.schema}"'.encode())
            raw.execute(schema.create.encode(), prepare=False)
            facts = {"format": FORMAT, "schema_version": str(schema.version), "created_at_ms": str(now_ms)}
            for name, value in facts.items():
                raw.execute("INSERT INTO meta VALUES ($1, $2)", (name, value))
        else:
            for version in range(found + 1, schema.version + 1):
                raw.execute(schema.migrations[version].encode(), prepare=False)
            raw.execute("UPDATE meta SET value = $1 WHERE name = 'schema_version'", (str(schema.version),))


def _value(raw: Raw, query: str, *facts: str) -> Any:
    row = raw.execute(query.encode(), facts).fetchone()
    assert row is not None
    return row[0]
