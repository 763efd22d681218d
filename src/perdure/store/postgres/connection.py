"""Statements by name on a PostgreSQL connection, and how texts and numbers travel.

Statements are sent without waiting for their answers, where the connection is in pipeline mode; whoever asks for an
answer waits for it, and for all before it.

PostgreSQL's texts cannot hold the character NUL.  Every text is escaped on its way in and restored on its way out, so
nobody else has to know.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeAlias, TypeVar

import psycopg
from psycopg.adapt import Buffer, Dumper, Loader
from psycopg.pq import TransactionStatus

from perdure.store.codec import LongText, Packed
from perdure.store.sql.connection import Fact, Rows
from perdure.store.sql.queries import parse_queries, read_text

PACKAGE = "perdure.store.postgres"
"""Where the ``.sql`` files are."""

QUERIES = parse_queries(read_text(PACKAGE, "queries.sql"))

_TEXTS = {name: query.sql.encode() for name, query in QUERIES.items()}
_WRITES = frozenset(name for name, query in QUERIES.items() if not query.sql.startswith(("SELECT", "WITH")))

T = TypeVar("T")

_PLANNED_ANEW = frozenset(name for name in QUERIES if name.startswith("list_"))
"""What is best done one way for one parameter, and another way for another."""

Raw: TypeAlias = "psycopg.Connection[tuple[Any, ...]]"

_ESCAPE = "\x10"
_ESCAPED_NUL = _ESCAPE + "0"
_ESCAPED_ESCAPE = _ESCAPE + "1"


def escape(text: str) -> str:
    """A text without NUL characters that stands for this one."""
    if _ESCAPE in text or "\0" in text:
        return text.replace(_ESCAPE, _ESCAPED_ESCAPE).replace("\0", _ESCAPED_NUL)
    return text


def restore(text: str) -> str:
    """The text that ``escape`` was given."""
    if _ESCAPE in text:
        return text.replace(_ESCAPED_NUL, "\0").replace(_ESCAPED_ESCAPE, _ESCAPE)
    return text


class _TextDumper(Dumper):
    """Sends a text without a type: the server knows best what a parameter is, and prepares one plan for it."""

    oid = 0

    def dump(self, obj: str) -> Buffer:
        return escape(obj).encode()


class _NumberDumper(Dumper):
    """The same for whole numbers, and for ``True`` and ``False`` as 1 and 0."""

    oid = 0

    def dump(self, obj: int) -> Buffer:
        return b"%d" % obj


class _TextLoader(Loader):
    def load(self, data: Buffer) -> str:
        return restore(bytes(data).decode())


def adapt(raw: Raw) -> None:
    """Teaches a connection how our values travel."""
    for kind in (int, bool):
        raw.adapters.register_dumper(kind, _NumberDumper)
    raw.adapters.register_dumper(str, _TextDumper)
    raw.adapters.register_loader("text", _TextLoader)


def in_transaction(raw: Raw, begin: bytes, work: Callable[[PostgresConnection], T]) -> T:
    """Runs ``work`` in a transaction, with statements sent ahead of their answers.  What it does not commit is undone.

    Whatever goes wrong, the connection is outside of any transaction afterwards, unless it is broken.

    Raises:
        psycopg.Error: a statement failed, perhaps one whose answer nobody asked for.
        And all that ``work`` raises.
    """
    failure: BaseException | None = None
    found: list[T] = []
    try:
        with raw.pipeline() as pipeline:
            try:
                raw.execute(begin)
                found.append(work(PostgresConnection(raw, pipeline)))
            except BaseException as error:  # noqa: BLE001  # raised again below, where the pipeline has ended in order
                failure = error
    except psycopg.Error as error:
        failure = failure or error
    if raw.info.transaction_status is not TransactionStatus.IDLE and not raw.closed:
        # Past the driver, which would forget all statements that it has prepared.
        raw.pgconn.exec_(b"ROLLBACK")
    if failure is not None:
        raise failure
    return found[0]


class _Expected:
    """What a statement of a pipeline finds.

    Whoever asks for it has the server take all up to here for said (a sync), so that it knows that it waits for us: a
    process that stands still then is idle in a transaction, which the server ends after a while, and its locks with it.
    """

    __slots__ = ("_cursor", "_pipeline")

    def __init__(self, cursor: psycopg.Cursor[tuple[Any, ...]], pipeline: psycopg.Pipeline) -> None:
        self._cursor = cursor
        self._pipeline = pipeline

    def fetchone(self) -> Any:
        self._get()
        return self._cursor.fetchone()

    def fetchall(self) -> list[Any]:
        self._get()
        return self._cursor.fetchall()

    def _get(self) -> None:
        if self._cursor.pgresult is None:
            self._pipeline.sync()


class PostgresConnection:
    """See ``perdure.store.sql.connection.Connection``.

    Args:
        pipeline: in which statements are sent; ``None``: each is waited for.

    Attributes:
        raw: what it works on.
        writes: how many statements changed something, or tried to.
    """

    __slots__ = ("_pipeline", "raw", "writes")

    deletions = (
        "fence_floor_raise",
        "delete_calls",
        "delete_model_calls",
        "delete_legs",
        "delete_questions",
        "delete_turns",
        "delete_steps",
        "delete_interrupts",
        "delete_messages",
        "delete_inbox",
        "delete_requests",
        "delete_events",
        "delete_session_state",
        "delete_session",
    )

    def __init__(self, raw: Raw, pipeline: psycopg.Pipeline | None = None) -> None:
        self.raw = raw
        self._pipeline = pipeline
        self.writes = 0

    def execute(self, name: str, facts: Sequence[Fact] = ()) -> Rows:
        if name in _WRITES:
            self.writes += 1
        cursor = self.raw.execute(_TEXTS[name], facts, prepare=False if name in _PLANNED_ANEW else None)
        return cursor if self._pipeline is None else _Expected(cursor, self._pipeline)

    def executemany(self, name: str, rows: Sequence[Sequence[Fact]]) -> None:
        for facts in rows:
            self.execute(name, facts)

    def lock(self, name: str, facts: Sequence[Fact]) -> None:
        self.raw.execute(_TEXTS[name], facts)

    def array(self, texts: Iterable[str]) -> list[str]:
        return list(texts)

    def keep(self, session_key: int, text: Packed | None) -> str | None:
        """The text itself: the server keeps long ones apart by itself."""
        return text.text if isinstance(text, LongText) else text

    def share(self, session_key: int, other_key: int) -> None:
        """Nothing: a row has its long texts to itself."""
