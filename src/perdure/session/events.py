"""Cursors of the live stream: an opaque, ordered string made of a fence and a number.

Each owner of a session numbers its events from 1 under its own fence.  A later owner has a higher fence, so its events
sort behind all that an earlier one may have shown, even those that were never stored.
"""

from __future__ import annotations

import re

from perdure.arguments import shown
from perdure.errors import UsageError

_FORM = re.compile(r"[0-9a-f]{10}-[0-9a-f]{10}")


def cursor_for(fence: int, number: int) -> str:
    """The cursor of the event ``number`` under ``fence``.  Cursors compare as their (fence, number) do."""
    return f"{fence:010x}-{number:010x}"


def parse_cursor(cursor: str) -> tuple[int, int]:
    """The (fence, number) of a cursor.

    Raises:
        UsageError: the text is no cursor.
    """
    if not _FORM.fullmatch(cursor):
        raise UsageError(
            f"after: {shown(cursor)} is no event cursor; pass one that an AgentEvent carried, or None", cursor=cursor
        )
    fence, number = cursor.split("-")
    return int(fence, 16), int(number, 16)
