"""Field case 18: a child that a node started asks; the node runs again, its finished children do not."""

from __future__ import annotations

from tests.field.support import PATIENCE, SESSION, Field, messages_of, say
from tests.field.workflows import supervisor

from perdure import SessionStatus


async def test_a_child_asks_and_its_siblings_run_once(field: Field) -> None:
    """Case 18."""
    async with field.working(supervisor(field)) as client:
        snapshot = await say(client, "go")
        assert snapshot.status is SessionStatus.WAITING
    async with field.working(supervisor(field)) as client:
        (asked,) = (await client.get_agent_snapshot(SESSION)).pending_interrupts
        assert asked.path == "supervising/supervise/child"
        await client.answer_question(SESSION, asked.interrupt_id, {"word": "yes"})
        assert (await client.wait(SESSION, timeout=PATIENCE)).status is SessionStatus.IDLE
        assert (await messages_of(client))[-1].framework_item["output"] == ["alpha", "beta:yes", "gamma"]
    assert field.world == ["child alpha", "child beta", "child gamma", "child delta"]
