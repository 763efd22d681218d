"""What the tests of the ADK binding share."""

from __future__ import annotations

import pytest

from perdure.adk.live import patience


@pytest.fixture(autouse=True)
def hasty(monkeypatch: pytest.MonkeyPatch) -> None:
    """A turn waits for what it cannot see only as long as it must, so that tests of such waits take no time."""
    monkeypatch.setattr(patience, "SECONDS", 0.2)
