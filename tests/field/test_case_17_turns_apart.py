"""Field case 17: a workflow's turn is taken up from its own events, not from those of an earlier turn."""

from __future__ import annotations

from tests.field.support import PATIENCE, SESSION, Field, say
from tests.field.workflows import quick_or_ask

from perdure import SessionStatus


async def test_what_an_earlier_turn_did_is_not_taken_for_this_one(field: Field) -> None:
    """Case 17."""
    async with field.working(quick_or_ask(field)) as client:
        assert (await say(client, "quick")).status is SessionStatus.IDLE
        ids: list[str] = []
        for word in ("first", "second"):  # the third turn asks under the id of the second one
            (asked,) = (await say(client, "ask")).pending_interrupts
            ids.append(asked.interrupt_id)
            await client.answer_question(SESSION, asked.interrupt_id, {"word": word})
            assert (await client.wait(SESSION, timeout=PATIENCE)).status is SessionStatus.IDLE
    assert len(set(ids)) == 2
    assert field.world == ["prep quick", "prep ask", "use first", "prep ask", "use second"]
