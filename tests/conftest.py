"""What tests of several folders share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from tests.support import postgres as postgres_server
from tests.support import temporal_server as temporal
from tests.support.postgres import Server
from tests.support.temporal_server import TemporalServer


@pytest.fixture(scope="session")
def postgres() -> Iterator[Server]:
    """A PostgreSQL server; started when the first test needs it, and used by all."""
    with postgres_server.running_server() as server:
        yield server


@pytest.fixture(scope="session")
def temporal_server() -> Iterator[TemporalServer]:
    """One Temporal server for all tests that ask for one."""
    with temporal.running_server() as server:
        yield server
