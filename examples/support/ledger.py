"""The shop's books: a small SQLite file that has nothing to do with perdure's own store.

A refund carries an idempotency key, and the key is unique in the table.  So however often one and the same call runs,
also at the same time in two processes, the money moves once.
"""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Generator
from contextlib import closing, contextmanager
from typing import Any

_SCHEMA = """
BEGIN IMMEDIATE;
CREATE TABLE IF NOT EXISTS orders (
    order_id TEXT PRIMARY KEY, customer_id TEXT NOT NULL, sku TEXT NOT NULL, amount_cents INTEGER NOT NULL,
    ordered_on TEXT NOT NULL, shipping TEXT NOT NULL
) STRICT;
CREATE TABLE IF NOT EXISTS stock (sku TEXT PRIMARY KEY, pieces INTEGER NOT NULL) STRICT;
CREATE TABLE IF NOT EXISTS refunds (
    refund_id INTEGER PRIMARY KEY, idempotency_key TEXT NOT NULL UNIQUE, order_id TEXT NOT NULL UNIQUE,
    amount_cents INTEGER NOT NULL
) STRICT;
INSERT OR IGNORE INTO orders VALUES
    ('1001', '9', 'desk-lamp', 4990, '2026-03-02', 'delivered'),
    ('1002', '9', 'bookend', 1850, '2026-04-17', 'on its way'),
    ('1003', '7', 'desk-lamp', 4990, '2026-04-20', 'being packed');
INSERT OR IGNORE INTO stock VALUES ('desk-lamp', 12), ('bookend', 0);
COMMIT;
"""


class RefundRefused(Exception):
    """The order cannot be refunded; the message says why."""


@contextmanager
def open_ledger() -> Generator[sqlite3.Connection]:
    """The file at ``SUPPORT_LEDGER`` (or ``./ledger.db``), which begins with a few orders.  Commits with the block."""
    path = os.environ.get("SUPPORT_LEDGER", "ledger.db")
    with closing(sqlite3.connect(path, timeout=30)) as ledger, ledger:
        ledger.row_factory = sqlite3.Row
        if ledger.execute("SELECT 1 FROM sqlite_master WHERE name = 'stock'").fetchone() is None:
            ledger.executescript(_SCHEMA)
        yield ledger


def refund(order_id: str, idempotency_key: str) -> dict[str, Any]:
    """Refunds an order once; the same key again returns the refund that was made.

    Raises:
        RefundRefused: there is no such order, or it was refunded under another key.
    """
    with open_ledger() as ledger:
        ledger.execute(
            "INSERT OR IGNORE INTO refunds (idempotency_key, order_id, amount_cents)"
            " SELECT ?, order_id, amount_cents FROM orders WHERE order_id = ?",
            (idempotency_key, order_id),
        )
        row = ledger.execute(
            "SELECT refund_id, order_id, amount_cents FROM refunds WHERE idempotency_key = ?", (idempotency_key,)
        ).fetchone()
        if row is not None:
            return dict(row)
        known = ledger.execute("SELECT 1 FROM orders WHERE order_id = ?", (order_id,)).fetchone()
    raise RefundRefused(f"order {order_id} was refunded already" if known else f"there is no order {order_id}")
