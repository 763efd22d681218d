"""Field case 3: two parallel branches wait for an approval each; both answers count, in any order."""

from __future__ import annotations

import asyncio

import pytest
from google.adk.agents import ParallelAgent
from google.adk.tools.function_tool import FunctionTool
from tests.field.lives import GO_ON, Hold, life
from tests.field.support import PATIENCE, SESSION, Field, answers_in, at_rest, durable, messages_of, say

from perdure import AgentSessionClient, AgentSessionFlow, InterruptKind, SessionStatus, ToolEffect
from perdure.testing import call, text


def pay_and_ship(field: Field, hold: Hold) -> AgentSessionFlow:
    def pay(amount: int) -> str:
        """Pays."""
        field.note("pay", amount)
        return "paid"

    def ship(order: str) -> str:
        """Ships."""
        field.note("ship", order)
        return "shipped"

    payer = field.agent(
        [call("pay", amount=5), text("All paid.")], [FunctionTool(pay, require_confirmation=True)], name="payer"
    )
    shipper = field.agent(
        [call("ship", order="7"), text("All shipped.")], [FunctionTool(ship, require_confirmation=True)], name="shipper"
    )
    both = ParallelAgent(name="both", sub_agents=[payer, shipper])
    return durable(both, default_tool_effect=ToolEffect.READ)


@pytest.mark.parametrize("first", ["pay", "ship"])
@pytest.mark.parametrize("restart", [False, True])
async def test_both_answers_count_in_either_order(field: Field, first: str, restart: bool) -> None:
    """Case 3.  Plain ADK uses the answer that is named first, and drops the other without a word."""
    async with field.working(pay_and_ship(field, GO_ON)) as client:
        snapshot = await say(client, "go")
        assert {(i.tool_name, i.agent_name, i.path, i.kind) for i in snapshot.pending_interrupts} == {
            ("pay", "payer", "both/payer", InterruptKind.CONFIRMATION),
            ("ship", "shipper", "both/shipper", InterruptKind.CONFIRMATION),
        }
        if not restart:
            await _answer_both(field, client, first)
            return
    async with field.working(pay_and_ship(field, GO_ON)) as client:
        await _answer_both(field, client, first)


async def _answer_both(field: Field, client: AgentSessionClient, first: str) -> None:
    snapshot = await at_rest(client, SessionStatus.WAITING)
    ids = {interrupt.tool_name: interrupt.interrupt_id for interrupt in snapshot.pending_interrupts}
    second = "ship" if first == "pay" else "pay"
    await asyncio.gather(*(client.resolve_interrupt(SESSION, ids[name], approved=True) for name in (first, second)))
    snapshot = await at_rest(client, SessionStatus.IDLE)
    assert (snapshot.error, snapshot.pending_interrupts) == (None, ())
    assert sorted(field.world) == ["pay 5", "ship 7"]
    said = {(message.author, message.text) for message in await messages_of(client) if message.text}
    assert said == {("user", "go"), ("payer", "All paid."), ("shipper", "All shipped.")}
    assert snapshot.usage.model_calls == len(field.requests) == 4


async def test_one_branch_waits_while_the_other_finishes(field: Field) -> None:
    """A branch goes on as soon as its own call is answered, though the other one waits for a week."""
    async with field.asking() as client:
        await client.start_session(SESSION, "go")
        with life(pay_and_ship, field) as child:
            snapshot = await at_rest(client, SessionStatus.WAITING)
            (pay,) = [i for i in snapshot.pending_interrupts if i.tool_name == "pay"]
            await client.resolve_interrupt(SESSION, pay.interrupt_id, approved=True)

            async def payer_is_done() -> bool:
                return any(message.text == "All paid." for message in await messages_of(client))

            async with asyncio.timeout(PATIENCE):
                while not await payer_is_done():
                    await client.wait(SESSION, timeout=PATIENCE)
            child.kill()
        assert field.world == ["pay 5"]
    async with field.working(pay_and_ship(field, GO_ON)) as client:
        snapshot = await at_rest(client, SessionStatus.WAITING)
        (ship,) = snapshot.pending_interrupts
        await client.resolve_interrupt(SESSION, ship.interrupt_id, approved=False, message="not today")
        snapshot = await at_rest(client, SessionStatus.IDLE)
        assert field.world == ["pay 5"]
        assert answers_in(field.requests[-1]) == {"ship": {"error": "not today"}}
        assert len(field.requests) == 4
