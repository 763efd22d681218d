"""The lock files of workers."""

from __future__ import annotations

from pathlib import Path

from tests.unit.store.builders import LEASE_MS, NOW, worker
from tests.unit.store.sqlite.conftest import OpenStore


async def test_a_lock_file_that_is_gone_leaves_the_decision_to_the_lease(open_store: OpenStore, path: Path) -> None:
    ours, theirs = await open_store(), await open_store()
    await theirs.register_worker(worker(), NOW)
    (Path(f"{path}-locks") / "w1.lock").unlink()
    assert await ours.reap_workers(NOW) == 0
    assert await ours.reap_workers(NOW + LEASE_MS) == 1
