"""How long the disk takes for one commit: most of what a turn at ``durability="power"`` waits for."""

from __future__ import annotations

import sqlite3
import statistics
import time
from contextlib import closing
from pathlib import Path

COMMITS = 100


def commit_ms(folder: Path) -> float:
    """The median of a hundred small commits to a file in this folder, at full safety, in milliseconds."""
    taken: list[float] = []
    with closing(sqlite3.connect(folder / "disk.db", isolation_level=None)) as connection:
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("PRAGMA synchronous = FULL")
        connection.execute("CREATE TABLE item (text TEXT)")
        for _ in range(COMMITS):
            begun = time.perf_counter()
            connection.execute("INSERT INTO item VALUES (?)", ("x" * 500,))
            taken.append(time.perf_counter() - begun)
    return statistics.median(taken) * 1000
