"""Field case 22: each answer runs the node from its top again; what it did as a durable step is done once.

The rule: a node with ``rerun_on_resume`` is entered once for each frontier, as on plain ADK, and sees all answers
so far.
"""

from __future__ import annotations

from tests.field.support import PATIENCE, SESSION, Field, messages_of
from tests.field.workflows import until_ok

from perdure import SessionStatus


async def test_bad_bad_ok_enters_the_node_four_times_and_opens_one_ticket(field: Field) -> None:
    """Case 22, with a restart before each answer."""
    ids: list[str] = []
    for word in (None, "bad", "bad", "ok"):
        async with field.working(until_ok(field)) as client:
            if word is None:
                await client.start_session(SESSION, "go")
            else:
                (asked,) = (await client.get_agent_snapshot(SESSION)).pending_interrupts
                assert asked.hint == "Say ok for T1"
                ids.append(asked.interrupt_id)
                await client.answer_question(SESSION, asked.interrupt_id, {"word": word})
            snapshot = await client.wait(SESSION, timeout=PATIENCE)
    assert snapshot.status is SessionStatus.IDLE
    assert snapshot.state["entries"] == 4
    assert len(set(ids)) == 3
    async with field.asking() as client:
        assert (await messages_of(client))[-1].framework_item["output"] == "ok for T1"
    assert field.world == ["ticket"]
