"""The outside world of the demo: a ledger in a SQLite file of its own, which perdure knows nothing of."""

from __future__ import annotations

import sqlite3
from collections import Counter
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

_SCHEMA = """
CREATE TABLE orders (order_id TEXT PRIMARY KEY, item TEXT NOT NULL, amount TEXT NOT NULL);
CREATE TABLE refunds (
    refund_id INTEGER PRIMARY KEY, key TEXT NOT NULL UNIQUE, order_id TEXT NOT NULL, amount TEXT NOT NULL
);
CREATE TABLE tool_runs (tool TEXT NOT NULL, process INTEGER NOT NULL);
INSERT INTO orders VALUES ('1042', 'kettle', '49.90');
"""


@dataclass(frozen=True, slots=True)
class Ledger:
    """Orders and refunds; and, as evidence for the demo, which process ran which tool."""

    path: Path

    def create(self) -> None:
        """Makes the file, with one order in it."""
        with closing(sqlite3.connect(self.path)) as database:
            database.executescript(_SCHEMA)

    def order(self, order_id: str) -> dict[str, str]:
        """What was ordered; empty when there is no such order."""
        with closing(sqlite3.connect(self.path)) as database:
            row = database.execute("SELECT item, amount FROM orders WHERE order_id = ?", (order_id,)).fetchone()
        return {} if row is None else {"order_id": order_id, "item": row[0], "amount": row[1]}

    def pay_refund(self, key: str, order_id: str, amount: str) -> int:
        """Pays once for each key, as payment services do; returns the number of the refund, be it new or not."""
        with closing(sqlite3.connect(self.path)) as database, database:
            database.execute(
                "INSERT INTO refunds (key, order_id, amount) VALUES (?, ?, ?) ON CONFLICT (key) DO NOTHING",
                (key, order_id, amount),
            )
            row = database.execute("SELECT refund_id FROM refunds WHERE key = ?", (key,)).fetchone()
        return int(row[0])

    def count_refunds(self) -> int:
        """How often money left the house."""
        with closing(sqlite3.connect(self.path)) as database:
            return int(database.execute("SELECT count(*) FROM refunds").fetchone()[0])

    def note_run(self, tool: str, process: int) -> None:
        """A tool's body begins."""
        with closing(sqlite3.connect(self.path)) as database, database:
            database.execute("INSERT INTO tool_runs VALUES (?, ?)", (tool, process))

    def tool_runs(self) -> Counter[tuple[str, int]]:
        """How often each tool's body began, by process."""
        with closing(sqlite3.connect(self.path)) as database:
            return Counter(database.execute("SELECT tool, process FROM tool_runs").fetchall())
