"""Worker processes of a case, which may be stopped and killed."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import cast

from perdure.engine.worker import WorkerOptions
from perdure.errors import UsageError
from perdure.session.model import JsonObject
from perdure.session.runner import AgentSessionFlow
from perdure.testing.conformance.target import Target
from perdure.testing.conformance.world import World

Builder = Callable[[World], AgentSessionFlow]
"""Builds a case's flow; a function at the top of a module, since worker processes import it."""

READY = "the worker is ready"


def worker_options(lease: float) -> WorkerOptions:
    """How the workers of a case behave."""
    return WorkerOptions(lease=timedelta(seconds=lease), drain_grace=timedelta(seconds=5))


def builder_name(build: Builder) -> str:
    """How a child process finds the builder.

    Raises:
        UsageError: it cannot.
    """
    if "." in build.__qualname__ or build.__module__ == "__main__":
        raise UsageError(f"worker processes cannot import {build.__qualname__}; build flows at the top of a module")
    return f"{build.__module__}:{build.__qualname__}"


async def serve(target: JsonObject, builder: str, folder: str, flow_type: str, variant: str, lease: float) -> None:
    """What a worker process runs; it prints ``READY`` when the worker is up."""
    module, _, name = builder.partition(":")
    flow = cast(Builder, getattr(importlib.import_module(module), name))(World(Path(folder), flow_type, variant))
    async with Target(**target).open([flow], worker_options(lease)) as engine:
        await engine.serve(ready=lambda: print(READY, flush=True))
