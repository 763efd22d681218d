"""Field case 7: an interrupt can be answered once; a repeat is the same answer, and another one is refused."""

from __future__ import annotations

import asyncio

import pytest
from tests.field.support import SESSION, Field, messages_of, say
from tests.field.workflows import ask_and_use

from perdure import InterruptAlreadyResolved, InterruptNotFound, SessionStatus


async def test_a_workflow_takes_one_answer_however_often_it_comes(field: Field) -> None:
    """Case 7."""
    async with field.working(ask_and_use(field)) as client:
        snapshot = await say(client, "go")
        (asked,) = snapshot.pending_interrupts
        assert (snapshot.status, asked.hint, asked.path) == (SessionStatus.WAITING, "Which word?", "asking/ask")
        with pytest.raises(InterruptNotFound):
            await client.answer_question(SESSION, "another", {"word": "no"})
        yes = {"word": "yes"}
        done = await asyncio.gather(*[client.answer_question(SESSION, asked.interrupt_id, yes) for _ in range(4)])
        assert all(one == done[0] for one in done)
        await client.wait(SESSION, timeout=30)
        before = [message.framework_item for message in await messages_of(client)]
        with pytest.raises(InterruptAlreadyResolved):
            await client.answer_question(SESSION, asked.interrupt_id, {"word": "TWICE"})
        assert (await client.answer_question(SESSION, asked.interrupt_id, yes)).response == done[0].response
        assert [message.framework_item for message in await messages_of(client)] == before
        assert before[-1]["output"] == "yes"
    assert field.world == ["use yes"]
