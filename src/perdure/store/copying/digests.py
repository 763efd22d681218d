"""What two stores hold, compared: row by row in order, each table of each session by itself."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from dataclasses import dataclass

from perdure.store.copying.place import Place, Record
from perdure.store.copying.tables import Table


@dataclass(frozen=True, slots=True)
class Digest:
    """What rows in their order come to."""

    rows: int
    sha256: bytes


@dataclass(frozen=True, slots=True)
class Compared:
    """A table that was found the same in both stores.

    Attributes:
        sha256: of all its rows, long texts included.
    """

    table: str
    rows: int
    sha256: str


def digest(rows: Iterable[Record]) -> Digest:
    """The digest of some rows."""
    count, found = 0, hashlib.sha256()
    for row in rows:
        found.update(json.dumps(row, ensure_ascii=False, separators=(",", ":")).encode())
        found.update(b"\n")
        count += 1
    return Digest(count, found.digest())


class Sums:
    """The digests of a table, session by session, as they come to one."""

    def __init__(self, table: Table) -> None:
        self.table = table
        self.rows = 0
        self._found = hashlib.sha256()

    def agree(self, one: Place, other: Place, session_key: int) -> bool:
        """Whether a session's rows are the same in both places; if they are, they are added."""
        ours, theirs = (digest(place.rows(self.table, session_key)) for place in (one, other))
        if ours != theirs:
            return False
        self.rows += ours.rows
        self._found.update(ours.sha256)
        return True

    def result(self) -> Compared:
        """All that was added."""
        return Compared(self.table.name, self.rows, self._found.hexdigest())
