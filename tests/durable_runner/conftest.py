"""Where the tests of ``DurableRunner`` that run over every store find one."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.support.postgres import Server


@pytest.fixture(params=["sqlite", "postgresql"])
def every_store(request: pytest.FixtureRequest, tmp_path: Path) -> None:
    """``address_in`` the test's folder names a store of each kind."""
    if request.param == "postgresql":
        server: Server = request.getfixturevalue("postgres")
        (tmp_path / "address").write_text(server.address(server.empty_schema()))
