"""What SQLite's writer does beside the writes."""

from __future__ import annotations

import pytest
from tests.unit.store.builders import NOW, new_session, request

from perdure.store.base import Change
from perdure.store.sqlite import SqliteStore


async def test_the_writer_outlives_a_failure_to_tell_others(
    store: SqliteStore, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(_: Change) -> None:
        raise RuntimeError("no way to tell")

    monkeypatch.setattr(store._writer, "_on_commit", fail)
    for n in range(2):
        await store.create_session(new_session(f"s{n}"), None, request(), NOW)
    assert "telling other processes" in caplog.text
