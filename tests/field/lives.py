"""Worker processes that die: a flow served by a child, whose tools stop where the test wants to kill it.

A test gives a function ``build(field, hold)`` at the top of its module.  The child builds the flow with a ``Hold`` that
holds; the test's own process, the next life, builds the same flow with one that lets everything through.
"""

from __future__ import annotations

import asyncio
import importlib
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any, cast

from tests.field.support import Field

from perdure import AgentSessionFlow
from perdure.testing import WorkerChild


@dataclass(frozen=True)
class Hold:
    """Where a tool stops in the life that is to be killed."""

    holds: bool

    async def here(self, name: str) -> None:
        """Says ``in <name>`` and never comes back; in a later life does nothing."""
        if self.holds:
            print(f"in {name}", flush=True)
            await asyncio.Event().wait()


GO_ON = Hold(False)
"""For the next life."""

Build = Callable[[Field, Hold], AgentSessionFlow]


def life(build: Build, field: Field, *, lease: float = 10.0, **options: Any) -> WorkerChild:
    """A child that serves the flow until it is killed; it prints ``ready`` when its worker is up.

    Args:
        lease: of the worker, in seconds.
        options: those of ``WorkerChild.of``.
    """
    return WorkerChild.of(serve, f"{build.__module__}:{build.__qualname__}", str(field.folder), lease, **options)


async def serve(build: str, folder: str, lease: float) -> None:
    """What the child runs."""
    module, _, name = build.partition(":")
    field = Field(Path(folder))
    flow = cast(Build, getattr(importlib.import_module(module), name))(field, Hold(True))
    async with field.engine(flow, lease=timedelta(seconds=lease)) as engine:
        await engine.serve(ready=lambda: print("ready", flush=True))
