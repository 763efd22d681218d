"""What two stores hold, compared: row by row in order, each table of each session by itself."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import groupby
from operator import itemgetter

from perdure.store.copying.place import Place, Record, Span
from perdure.store.copying.tables import Table


@dataclass(frozen=True, slots=True)
class Compared:
    """A table that was found the same in both stores.

    Attributes:
        sha256: of all its rows, long texts included.
    """

    table: str
    rows: int
    sha256: str


class Differs(Exception):
    """A session's rows in a table are not the same in both places."""

    def __init__(self, table: str, session_key: int) -> None:
        super().__init__(table, session_key)
        self.table = table
        self.session_key = session_key


def digest(rows: Iterable[Record]) -> tuple[int, bytes]:
    """How many rows there are, and the SHA-256 of all of them in their order."""
    count, found = 0, hashlib.sha256()
    for row in rows:
        found.update(json.dumps(row, ensure_ascii=False, separators=(",", ":")).encode())
        found.update(b"\n")
        count += 1
    return count, found.digest()


class Sums:
    """The digests of a table, session by session, as they come to one."""

    def __init__(self, table: Table) -> None:
        self.table = table
        self._rows = 0
        self._found = hashlib.sha256()

    def compare(self, one: Place, other: Place, span: Span) -> None:
        """Compares the rows of some sessions, and adds them.

        Raises:
            Differs
        """
        ours, theirs = (self._by_session(place, span) for place in (one, other))
        for key in sorted(ours.keys() | theirs.keys()):
            if ours.get(key) != theirs.get(key):
                raise Differs(self.table.name, key)
            count, found = ours[key]
            self._rows += count
            self._found.update(found)

    def _by_session(self, place: Place, span: Span) -> dict[int, tuple[int, bytes]]:
        grouped = groupby(place.rows(self.table, span), itemgetter(0))
        return {key: digest(row for _, row in rows) for key, rows in grouped}

    def result(self) -> Compared:
        """All that was added."""
        return Compared(self.table.name, self._rows, self._found.hexdigest())
