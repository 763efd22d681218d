"""Lines from a person or from a pipe, read without holding up the event loop."""

from __future__ import annotations

import asyncio
import importlib
import sys
import threading
from collections.abc import Callable
from contextlib import suppress


class Lines:
    """Standard input, line by line.

    Args:
        interactive: a person sits at a terminal: show prompts, and let lines be edited where there is a line editor.
    """

    def __init__(self, *, interactive: bool) -> None:
        self.interactive = interactive
        if interactive:
            with suppress(ImportError):
                importlib.import_module("readline")  # importing it gives input() its line editor

    async def read(self, prompt: str) -> str | None:
        """The next line without its end; ``None`` when there are no more."""
        loop = asyncio.get_running_loop()
        line: asyncio.Future[str | None] = loop.create_future()

        def settle(take: Callable[[], str | None]) -> None:
            try:
                value = take()
            except Exception as error:  # noqa: BLE001 - whatever it is, it belongs to whoever waits for the line
                loop.call_soon_threadsafe(_settle, line, None, error)
            else:
                loop.call_soon_threadsafe(_settle, line, value, None)

        take = (lambda: _typed(prompt)) if self.interactive else _piped
        # A thread of its own, and a daemon: a read that nobody waits for any more must not keep the program alive.
        threading.Thread(target=settle, args=(take,), name="perdure stdin", daemon=True).start()
        return await line


def _typed(prompt: str) -> str | None:
    try:
        return input(prompt)
    except EOFError:
        return None


def _piped() -> str | None:
    line = sys.stdin.readline()
    return line.rstrip("\r\n") if line else None


def _settle(line: asyncio.Future[str | None], value: str | None, error: Exception | None) -> None:
    if line.done():
        return
    if error is not None:
        line.set_exception(error)
    else:
        line.set_result(value)
