"""A second store like one that is there: at the same place, with what the first one was told."""

from __future__ import annotations

from tests.support.stores import Backend
from tests.unit.store.builders import NOW, new_session


async def test_another_store_is_at_the_same_place_and_is_used_by_itself(backend: Backend) -> None:
    first = backend.new_store()
    second = first.another()
    assert second.address == first.address
    await second.open()
    try:
        await second.create_session(new_session(), None, None, NOW)
    finally:
        await second.close()
    await first.open()
    try:
        assert (await first.read_snapshot("s", NOW)).session_id == "s"
        assert await first.store_id() == await _id_by(backend)
    finally:
        await first.close()


async def _id_by(backend: Backend) -> str:
    store = backend.new_store()
    await store.open()
    try:
        return await store.store_id()
    finally:
        await store.close()
