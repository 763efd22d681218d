"""Waits for a server that is away for a moment: it starts, restarts, or another one takes over from it.

Blocks.  What will not pass by itself (a password, a database that is not there, TLS) is said at once.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

import psycopg

from perdure.store.postgres.errors import may_pass, translate

T = TypeVar("T")

PAUSES = (0.0, 0.02, 0.05, 0.1, 0.2, 0.5)
"""Seconds between tries to get a connection; the last one repeats."""


def reach(work: Callable[[], T], address: str, patience: float) -> T:
    """Does what begins with a connection, again while the server is away.

    Args:
        work: leaves nothing half done when its connection breaks.
        patience: seconds; a try that began before they are over is finished.

    Raises:
        StoreError: as ``translate`` has it.
        And all that ``work`` raises besides errors of the driver.
    """
    give_up = time.monotonic() + patience
    tries = 0
    while True:
        try:
            return work()
        except psycopg.Error as error:
            pause = PAUSES[min(tries, len(PAUSES) - 1)]
            if not may_pass(error) or time.monotonic() + pause > give_up:
                raise translate(error, address, waited=patience) from error
            time.sleep(pause)
            tries += 1
