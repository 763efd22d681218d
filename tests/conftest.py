"""What tests of several folders share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from tests.support.postgres import Server, running_server


@pytest.fixture(scope="session")
def postgres() -> Iterator[Server]:
    """A PostgreSQL server; started when the first test needs it, and used by all."""
    with running_server() as server:
        yield server
