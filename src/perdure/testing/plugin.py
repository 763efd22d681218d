"""A pytest plugin with an engine fixture.  Turn it on with ``pytest_plugins = ["perdure.testing.plugin"]``."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from functools import partial
from pathlib import Path

import pytest

from perdure.testing.engine import RunningEngine, running_engine

EngineFactory = Callable[..., AbstractAsyncContextManager[RunningEngine]]


@pytest.fixture
def perdure_engine(tmp_path: Path) -> EngineFactory:
    """``running_engine`` in the folder of the test: entered twice, it is the same store after a restart."""
    return partial(running_engine, folder=tmp_path)
