"""The SQLite store: one file, any number of processes of one machine, only the standard library."""

from perdure.store.sqlite.store import SqliteStore

__all__ = ["SqliteStore"]
