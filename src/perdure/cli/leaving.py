"""Leaving the program at once, even while a tool or a read of stdin still holds a thread.

What is cut off is recovered by the next worker as after a crash; that is what durable sessions are for.
"""

from __future__ import annotations

import os
import sys
import termios
import threading
from contextlib import suppress
from datetime import timedelta
from typing import NoReturn


class TerminalKeeper:
    """Remembers how the terminal was set, because a line editor that is cut off leaves it without echo."""

    def __init__(self) -> None:
        self._settings = termios.tcgetattr(sys.stdin) if sys.stdin.isatty() else None

    def restore(self) -> None:
        """Sets the terminal as it was."""
        if self._settings is not None:
            termios.tcsetattr(sys.stdin, termios.TCSANOW, self._settings)


def leave_now(code: int) -> NoReturn:
    """Ends the process without waiting for any thread."""
    for stream in (sys.stdout, sys.stderr):
        # Whoever read it may be gone; and a signal may have come in the middle of a write to it.
        with suppress(OSError, RuntimeError):
            stream.flush()
    os._exit(code)


def leave_within(delay: timedelta, code: int) -> None:
    """Lets the process end by itself, but no longer than ``delay`` from now."""
    watchdog = threading.Timer(delay.total_seconds(), leave_now, (code,))
    watchdog.daemon = True
    watchdog.start()
