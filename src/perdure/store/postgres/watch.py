"""Cuts connections whose answer does not come.

A network that swallows packets gives no error, only silence, and a thread that waits for an answer waits on.  What the
server does for us is bounded by its own time-outs, so an answer that is later than those will never come.
"""

from __future__ import annotations

import contextlib
import os
import socket
import threading
import time
from collections.abc import Generator

from perdure.store.postgres.connection import Raw


class Watch:
    """Knows which connections are waiting for an answer, and since when.

    Args:
        longest: seconds after which an answer is given up.
    """

    def __init__(self, longest: float) -> None:
        self._longest = longest
        self._busy: dict[int, tuple[Raw, float]] = {}
        """By thread."""
        self._lock = threading.Lock()

    @contextlib.contextmanager
    def over(self, raw: Raw) -> Generator[None]:
        """This thread uses the connection, for the length of the block."""
        thread = threading.get_ident()
        with self._lock:
            self._busy[thread] = (raw, time.monotonic())
        try:
            yield
        finally:
            with self._lock:
                del self._busy[thread]

    def cut(self) -> None:
        """Ends the connections that wait for too long: whoever waits gets an error at once."""
        now = time.monotonic()
        with self._lock:
            for raw, since in self._busy.values():
                if now - since > self._longest:
                    _shut_down(raw)


def _shut_down(raw: Raw) -> None:
    with contextlib.suppress(OSError), socket.socket(fileno=os.dup(raw.fileno())) as ours:
        ours.shutdown(socket.SHUT_RDWR)
