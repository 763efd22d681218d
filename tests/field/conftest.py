"""A fresh database for each test of the field folder."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.field.support import Field


@pytest.fixture
def field(tmp_path: Path) -> Field:
    return Field(tmp_path)


@pytest.fixture
def loud() -> None:
    """Lets a test log warnings of perdure, because it does what they warn of."""


@pytest.fixture(autouse=True)
def no_hidden_faults(request: pytest.FixtureRequest, caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    """A session that fails inside and goes on from the store may look well: the worker's log tells."""
    yield
    if "loud" not in request.fixturenames:
        records = caplog.get_records("call")
        faults = [r.getMessage() for r in records if r.name.startswith("perdure") and r.levelno >= logging.WARNING]
        assert faults == []
