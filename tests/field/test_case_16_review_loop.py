"""Field case 16: a review loop in a workflow, with a restart before each answer."""

from __future__ import annotations

import pytest
from tests.field.support import PATIENCE, SESSION, Field, messages_of
from tests.field.workflows import review_loop

from perdure import SessionStatus, TurnStatus


@pytest.mark.parametrize("schema", [False, True], ids=["text", "schema"])
async def test_no_no_no_yes_gives_four_drafts_and_four_reviews(field: Field, schema: bool) -> None:
    """Case 16; with an output schema, too."""
    asked: list[str] = []
    for good in (None, False, False, False, True):
        async with field.working(review_loop(field, schema=schema)) as client:  # another process each time
            if good is None:
                await client.start_session(SESSION, "go")
            else:
                (interrupt,) = (await client.get_agent_snapshot(SESSION)).pending_interrupts
                asked.append(interrupt.interrupt_id)
                await client.answer_question(SESSION, interrupt.interrupt_id, {"good": good})
            snapshot = await client.wait(SESSION, timeout=PATIENCE)
            assert snapshot.status is (SessionStatus.IDLE if good else SessionStatus.WAITING)
            if good:
                assert snapshot.turn is not None
                assert snapshot.turn.status is TurnStatus.COMPLETED
                assert (await messages_of(client))[-1].framework_item["output"] == "published"
    assert len(set(asked)) == 4
    assert len(field.requests) == 4
    assert [line.split()[0] for line in field.world] == ["review"] * 4 + ["published"]
