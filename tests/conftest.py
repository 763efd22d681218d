"""What tests of several folders share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from tests.support.temporal_server import TemporalServer, running_server


@pytest.fixture(scope="session")
def temporal_server() -> Iterator[TemporalServer]:
    """One Temporal server for all tests that ask for one."""
    with running_server() as server:
        yield server
