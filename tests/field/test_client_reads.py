"""Reading a session: looking does not disturb, however often."""

from __future__ import annotations

import asyncio

import pytest
from tests.field.support import PATIENCE, SESSION, Field

from perdure.testing import text


@pytest.mark.parametrize("method", ["wait", "get_agent_snapshot"])
async def test_looking_again_and_again_lets_everything_else_run(field: Field, method: str) -> None:
    """A loop around ``wait`` while the session waits for somebody must not starve the worker in the same process."""
    ran = asyncio.Event()

    async def something_else() -> None:
        ran.set()

    async with field.asking() as client:
        await client.start_session(SESSION)
        other = asyncio.create_task(something_else())
        for _ in range(100):
            await getattr(client, method)(SESSION)
        assert ran.is_set()
        await other


async def test_pages_hold_everything_once(field: Field) -> None:
    async with field.working(field.flow(text("Yes."))) as client:
        await client.start_session(SESSION)
        for number in range(7):
            await client.send_user_message(SESSION, f"m{number}")
        await client.wait(SESSION, timeout=PATIENCE)
        for read in (client.list_messages, client.read_step_history):
            whole = (await read(SESSION, limit=1000)).items
            paged: list[object] = []
            cursor = None
            while True:
                page = await read(SESSION, after=cursor, limit=3)
                paged += page.items
                cursor = page.next_cursor
                if cursor is None:
                    break
            assert paged == list(whole)
