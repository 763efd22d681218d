"""Who runs the course."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Entry:
    """One contender, as it is set up.

    Attributes:
        name: what ``--only`` takes.
        label: for the table.
        module: of ``bench.peers``; it has the ``contender``.
        environment: its file in ``requirements``.  ``None``: perdure's own environment.
        postgres: whether it runs on PostgreSQL.
        temporal: whether it runs on Temporal.
    """

    name: str
    label: str
    module: str
    environment: str | None = None
    postgres: bool = False
    temporal: bool = False


RAW = Entry("raw", "raw ADK, sessions in memory", "raw")

ENTRIES = [
    RAW,
    Entry("perdure", "perdure, local engine, SQLite", "ours"),
    Entry("dbos", "dbos-google-adk, SQLite", "dbos_plugin", "dbos"),
    Entry("perdure-postgresql", "perdure, local engine, PostgreSQL", "ours", postgres=True),
    Entry("dbos-postgresql", "dbos-google-adk, PostgreSQL", "dbos_plugin", "dbos", postgres=True),
    Entry("perdure-temporal", "perdure, Temporal, SQLite", "ours", temporal=True),
    Entry("perdure-temporal-postgresql", "perdure, Temporal, PostgreSQL", "ours", postgres=True, temporal=True),
    Entry("temporal", "temporalio-google-adk", "temporal_plugin", "temporal", temporal=True),
]

RIVALS = {
    "perdure": "dbos",
    "perdure-postgresql": "dbos-postgresql",
    "perdure-temporal": "temporal",
    "perdure-temporal-postgresql": "temporal",
}
"""Whom each of ours is held against: the one that needs the same servers."""
