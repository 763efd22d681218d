"""Statements by name on a SQLite connection, and long texts that are kept apart."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterable, Sequence

from perdure.store.codec import LongText, Packed
from perdure.store.sql.connection import Fact
from perdure.store.sql.queries import parse_queries, read_text

PACKAGE = "perdure.store.sqlite"
"""Where the ``.sql`` files are."""

QUERIES = parse_queries(read_text(PACKAGE, "queries.sql"))

_TEXTS = {name: query.sql for name, query in QUERIES.items()}


class SqliteConnection:
    """See ``perdure.store.sql.connection.Connection``.  ``raw`` is what it works on."""

    __slots__ = ("raw",)

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
        "delete_payloads",
        "delete_payload_refs",
        "delete_session",
    )

    def __init__(self, raw: sqlite3.Connection) -> None:
        self.raw = raw

    def execute(self, name: str, facts: Sequence[Fact] = ()) -> sqlite3.Cursor:
        return self.raw.execute(_TEXTS[name], facts)

    def executemany(self, name: str, rows: Sequence[Sequence[Fact]]) -> None:
        self.raw.executemany(_TEXTS[name], rows)

    def lock(self, name: str, facts: Sequence[Fact]) -> None:
        """Nothing: the transaction under way is the only one that writes."""

    def array(self, texts: Iterable[str]) -> str:
        return json.dumps(list(texts))

    def keep(self, session_key: int, text: Packed | None) -> str | bytes | None:
        if not isinstance(text, LongText):
            return text
        self.execute("payload_insert", (text.digest, text.text))
        self.execute("payload_ref_insert", (session_key, text.digest))
        return text.digest

    def share(self, session_key: int, other_key: int) -> None:
        self.execute("payload_refs_share", (session_key, other_key))
