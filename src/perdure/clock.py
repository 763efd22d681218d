"""Time, as a parameter.  Nothing else in perdure asks the operating system what time it is; imports nothing of ours."""

from __future__ import annotations

import time
from datetime import UTC, datetime
from typing import Protocol, runtime_checkable


@runtime_checkable
class Clock(Protocol):
    """Where the time comes from."""

    def now_ms(self) -> int:
        """Wall-clock time in milliseconds since the epoch (UTC)."""
        ...


class SystemClock:
    """The machine's clock."""

    def now_ms(self) -> int:
        return time.time_ns() // 1_000_000


def to_datetime(ms: int) -> datetime:
    """Milliseconds since the epoch as an aware UTC ``datetime``."""
    return datetime.fromtimestamp(ms / 1000, UTC)


def to_ms(moment: datetime) -> int:
    """An aware ``datetime`` as whole milliseconds since the epoch.

    Raises:
        ValueError: ``moment`` has no time zone.
    """
    if moment.tzinfo is None:
        raise ValueError(f"{moment!r} has no time zone; pass an aware datetime, such as datetime.now(UTC)")
    return round(moment.timestamp() * 1000)
