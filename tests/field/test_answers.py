"""Answers to interrupts: what reaches the tool and the model, who gave them, many of them at once."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import pytest
from google.adk.tools.function_tool import FunctionTool
from google.adk.tools.tool_context import ToolContext
from tests.field.support import (
    PATIENCE,
    READ,
    SESSION,
    Field,
    answer_all,
    answers_in,
    at_rest,
    events_until,
    messages_of,
    say,
    steps_of,
    turn_of,
)

from perdure import (
    AgentEventType,
    AgentSessionClient,
    AgentSessionFlow,
    Interrupt,
    InterruptAlreadyResolved,
    InterruptKind,
    InterruptStatus,
    InterruptWithdrawn,
    PerdureError,
    SessionStatus,
    TurnStatus,
)
from perdure.testing import call, reply, text


def asking_flow(field: Field) -> AgentSessionFlow:
    def pay(amount: int, tool_context: ToolContext) -> dict[str, Any]:
        """Pays."""
        field.note("pay", amount)
        confirmation = tool_context.tool_confirmation
        assert confirmation is not None
        return {"confirmed": confirmation.confirmed, "payload": confirmation.payload}

    return field.flow(
        [call("pay", amount=5), text("Done.")], [FunctionTool(pay, require_confirmation=True)], {"pay": READ}
    )


@pytest.mark.parametrize("payload", [None, {"limit": 3, "who": ["ann"]}, "a word", 0, [1, None]])
async def test_the_payload_reaches_the_tool(field: Field, payload: Any) -> None:
    """Design: ``ToolConfirmation.payload`` carries amended arguments or data; as on plain ADK."""
    async with field.working(asking_flow(field)) as client:
        await say(client, "pay")
        await answer_all(client, payload=payload)
        assert answers_in(field.requests[-1]) == {"pay": {"confirmed": True, "payload": payload}}


async def test_the_payload_reaches_the_tool_in_another_worker(field: Field) -> None:
    async with field.working(asking_flow(field)) as client:
        await say(client, "pay")
    async with field.asking() as client:
        (interrupt,) = (await client.get_agent_snapshot(SESSION)).pending_interrupts
        await client.resolve_interrupt(SESSION, interrupt.interrupt_id, approved=True, payload={"limit": 3})
    async with field.working(asking_flow(field)) as client:
        await client.wait(SESSION, timeout=PATIENCE)
        assert answers_in(field.requests[-1]) == {"pay": {"confirmed": True, "payload": {"limit": 3}}}
        assert field.world == ["pay 5"]


async def test_who_answered_when_and_with_what_is_kept(field: Field) -> None:
    async with field.working(asking_flow(field)) as client:
        snapshot = await say(client, "pay")
        (asked,) = snapshot.pending_interrupts
        assert (asked.status, asked.resolved_by, asked.resolved_at, asked.response) == (
            InterruptStatus.PENDING,
            None,
            None,
            None,
        )
        answered = await client.resolve_interrupt(
            SESSION, asked.interrupt_id, approved=False, message="Too much.", payload={"n": 1}, resolved_by="ann"
        )
        await client.wait(SESSION, timeout=PATIENCE)
        kept = await client.resolve_interrupt(
            SESSION, asked.interrupt_id, approved=False, message="Too much.", payload={"n": 1}, resolved_by="ben"
        )
        assert kept == answered, "the identical answer changes nothing, whoever gives it"
        assert (kept.status, kept.resolved_by) == (InterruptStatus.REJECTED, "ann")
        assert kept.resolved_at is not None
        assert kept.resolved_at >= kept.created_at
        assert kept.response == {"approved": False, "payload": {"n": 1}, "message": "Too much."}
        events = await events_until(client, AgentEventType.TURN_COMPLETED)
        (resolved,) = [event for event in events if event.type is AgentEventType.INTERRUPT_RESOLVED]
        assert Interrupt.model_validate(resolved.data) == kept


@asynccontextmanager
async def several_clients(field: Field, count: int) -> AsyncIterator[list[AgentSessionClient]]:
    """Clients of as many engines, the first two of which have a worker."""
    async with AsyncExitStack() as stack:
        clients: list[AgentSessionClient] = []
        for number in range(count):
            if number < 2:
                clients.append(await stack.enter_async_context(field.working(asking_flow(field))))
            else:
                clients.append(await stack.enter_async_context(field.asking()))
        yield clients


async def test_twenty_identical_answers_at_once_resume_once(field: Field) -> None:
    """From four engines with two workers.  J6: an interrupt is answered at most once."""
    async with several_clients(field, 4) as clients:
        snapshot = await say(clients[0], "pay")
        (interrupt,) = snapshot.pending_interrupts
        answers = await asyncio.gather(
            *(
                clients[number % 4].resolve_interrupt(
                    SESSION, interrupt.interrupt_id, approved=True, payload={"n": 1}, resolved_by=f"person {number}"
                )
                for number in range(20)
            )
        )
        assert len({answer.resolved_by for answer in answers}) == 1
        await clients[0].wait(SESSION, timeout=PATIENCE)
        assert field.world == ["pay 5"]
        steps = [step.name.value for step in await steps_of(clients[0]) if "Resume" in step.name.value]
        assert steps == ["ResumeTurn"]
        assert len([m for m in await messages_of(clients[0]) if m.role.value == "tool"]) == 1


async def test_of_different_answers_at_once_exactly_one_wins(field: Field) -> None:
    """All others are told that they are too late, and by whom."""
    async with several_clients(field, 4) as clients:
        snapshot = await say(clients[0], "pay")
        (interrupt,) = snapshot.pending_interrupts

        async def answer(number: int) -> tuple[int, Interrupt | PerdureError]:
            try:
                return number, await clients[number % 4].resolve_interrupt(
                    SESSION,
                    interrupt.interrupt_id,
                    approved=number % 2 == 0,
                    payload={"n": number},
                    resolved_by=f"person {number}",
                )
            except InterruptAlreadyResolved as error:
                return number, error

        outcomes = await asyncio.gather(*map(answer, range(20)))
        (winner,) = [number for number, outcome in outcomes if isinstance(outcome, Interrupt)]
        losers = [outcome for _, outcome in outcomes if isinstance(outcome, InterruptAlreadyResolved)]
        assert len(losers) == 19
        assert {loser.facts["resolved_by"] for loser in losers} == {f"person {winner}"}
        await clients[0].wait(SESSION, timeout=PATIENCE)
        assert field.world == (["pay 5"] if winner % 2 == 0 else [])


async def test_a_later_different_answer_is_refused_for_good(field: Field) -> None:
    """A refusal followed by an approval stays a refusal; before and after it took effect."""
    async with field.asking(asking_flow(field)) as client:
        async with field.working(asking_flow(field)) as worker:
            snapshot = await say(worker, "pay")
        (interrupt,) = snapshot.pending_interrupts
        await client.resolve_interrupt(SESSION, interrupt.interrupt_id, approved=False, resolved_by="ann")
        with pytest.raises(InterruptAlreadyResolved) as refusal:
            await client.resolve_interrupt(SESSION, interrupt.interrupt_id, approved=True)
        assert refusal.value.facts["resolved_by"] == "ann"
        others: list[dict[str, Any]] = [{"message": "No."}, {"payload": 1}]
        for other in others:
            with pytest.raises(InterruptAlreadyResolved):
                await client.resolve_interrupt(SESSION, interrupt.interrupt_id, approved=False, **other)
        async with field.working(asking_flow(field)) as worker:
            await worker.wait(SESSION, timeout=PATIENCE)
            with pytest.raises(InterruptAlreadyResolved):
                await client.resolve_interrupt(SESSION, interrupt.interrupt_id, approved=True)
        assert field.world == []


async def test_equal_calls_have_interrupts_of_their_own(field: Field) -> None:
    """Two calls of one tool with the same arguments: one approved, one rejected; ids stable over a restart."""

    def pay(amount: int) -> str:
        """Pays."""
        field.note("pay", amount)
        return "paid"

    def flow() -> AgentSessionFlow:
        script = [reply(call("pay", amount=5), call("pay", amount=5)), text("Done.")]
        return field.flow(script, [pay])

    async with field.working(flow()) as client:
        snapshot = await say(client, "pay twice")
        first, second = snapshot.pending_interrupts
        assert first.interrupt_id != second.interrupt_id
        assert first.arguments == second.arguments
        assert first.kind is second.kind is InterruptKind.APPROVAL
    async with field.working(flow()) as client:
        pending = (await client.get_agent_snapshot(SESSION)).pending_interrupts
        assert [i.interrupt_id for i in pending] == [first.interrupt_id, second.interrupt_id]
        await client.resolve_interrupt(SESSION, second.interrupt_id, approved=False)
        snapshot = await client.wait(SESSION, timeout=PATIENCE)
        assert snapshot.status is SessionStatus.WAITING
        assert [i.interrupt_id for i in snapshot.pending_interrupts] == [first.interrupt_id]
        await client.resolve_interrupt(SESSION, first.interrupt_id, approved=True)
        await client.wait(SESSION, timeout=PATIENCE)
        assert field.world == ["pay 5"]
        (message,) = [m for m in await messages_of(client) if m.role.value == "tool"]
        answers = [part["function_response"] for part in message.framework_item["content"]["parts"]]
        assert [(answer["id"], answer["response"]) for answer in answers] == [
            (first.tool_call_id, {"result": "paid"}),
            (second.tool_call_id, {"error": "This tool call is rejected."}),
        ]


async def test_a_withdrawn_interrupt_cannot_be_answered(field: Field) -> None:
    async with field.working(asking_flow(field)) as client:
        snapshot = await say(client, "pay")
        (interrupt,) = snapshot.pending_interrupts
        await client.cancel_turn(SESSION, turn_id=interrupt.turn_id)
        snapshot = await at_rest(client, SessionStatus.IDLE)
        assert (turn_of(snapshot).status, snapshot.pending_interrupts) == (TurnStatus.CANCELLED, ())
        with pytest.raises(InterruptWithdrawn):
            await client.resolve_interrupt(SESSION, interrupt.interrupt_id, approved=True)
        assert field.world == []
