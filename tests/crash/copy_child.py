"""A process that copies a store and is killed at a point of the way."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from typing import Any

from perdure.store.copying import Stage, copy_store
from perdure.store.copying.run import Copying


def _die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def _dying(step: Callable[..., Any], *, before: bool) -> Callable[..., Any]:
    def run(*arguments: Any) -> Any:
        if not before:
            step(*arguments)
        _die()

    return run


async def copy_and_die(source: str, destination: str, point: str) -> None:
    """Copies session by session, and dies.

    Args:
        point: ``before`` or ``after`` and the name of a step of the copy, or ``at`` and a number of sessions, of which
            the last one is not committed yet.
    """
    when, name = point.split()

    def told(stage: Stage, done: int, of: int) -> None:
        if when == "at" and stage is Stage.COPYING and done == int(name):
            _die()

    if when != "at":
        setattr(Copying, name, _dying(getattr(Copying, name), before=when == "before"))
    await copy_store(source, destination, group=1, told=told)
