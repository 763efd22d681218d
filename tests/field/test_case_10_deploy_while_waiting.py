"""Field case 10: the agent's code changes while a call waits for approval (as far as one agent goes)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any

import pytest
from google.adk.agents import LlmAgent, SequentialAgent
from google.adk.agents.callback_context import CallbackContext
from tests.field.support import ASKED, PATIENCE, READ, SESSION, Field, answer_all, at_rest, durable, say, until

from perdure import (
    AgentSessionFlow,
    InterruptStatus,
    SessionBlocked,
    SessionStatus,
    ToolPolicy,
    TurnStatus,
)
from perdure.testing import call, text

SCRIPT = [call("pay", amount=5), text("Paid.")]


def deploy(
    field: Field, *tools: Callable[..., Any], name: str = "helper", instruction: str = "Help."
) -> AgentSessionFlow:
    """One version of the code: the agent with these tools, each of which is asked for."""
    policies: dict[str, ToolPolicy] = {tool.__name__: ASKED for tool in tools}
    agent = LlmAgent(name=name, model=field.model(SCRIPT), instruction=instruction, tools=list(tools))
    return durable(agent, policies)


def as_it_was(field: Field) -> Callable[..., Any]:
    def pay(amount: int) -> str:
        """Pays."""
        field.note("pay", amount)
        return "paid"

    return pay


def renamed(field: Field) -> Sequence[Callable[..., Any]]:
    def pay_out(amount: int) -> str:
        """Pays."""
        field.note("pay_out", amount)
        return "paid"

    return [pay_out]


def with_one_more_required_argument(field: Field) -> Sequence[Callable[..., Any]]:
    def pay(amount: int, account: str) -> str:
        """Pays."""
        field.note("pay", amount, account)
        return "paid"

    return [pay]


def unchanged(field: Field) -> Sequence[Callable[..., Any]]:
    return [as_it_was(field)]


def with_one_more_optional_argument(field: Field) -> Sequence[Callable[..., Any]]:
    def pay(amount: int, account: str = "main") -> str:
        """Pays, from an account."""
        field.note("pay", amount)
        return "paid"

    return [pay]


def with_another_tool_before(field: Field) -> Sequence[Callable[..., Any]]:
    def look() -> str:
        """Looks."""
        return "seen"

    return [look, as_it_was(field)]


async def park(field: Field) -> str:
    """The first version waits for an approval, and its worker is gone.  Returns the interrupt's id."""
    async with field.working(deploy(field, as_it_was(field))) as client:
        snapshot = await say(client, "pay 5")
        assert snapshot.status is SessionStatus.WAITING
        return snapshot.pending_interrupts[0].interrupt_id


@pytest.mark.parametrize("change", [with_one_more_optional_argument, with_another_tool_before])
async def test_a_harmless_change_of_the_tools_goes_on(
    field: Field, change: Callable[[Field], Sequence[Callable[..., Any]]]
) -> None:
    """Case 10c."""
    interrupt_id = await park(field)
    async with field.working(deploy(field, *change(field))) as client:
        await client.resolve_interrupt(SESSION, interrupt_id, approved=True)
        snapshot = await client.wait(SESSION, timeout=PATIENCE)
        assert snapshot.turn is not None
        assert (snapshot.turn.status, field.world) == (TurnStatus.COMPLETED, ["pay 5"])


async def test_another_instruction_goes_on(field: Field) -> None:
    """Case 10d.  The next model call has the new instruction; the recorded one is not made again."""
    interrupt_id = await park(field)
    async with field.working(deploy(field, as_it_was(field), instruction="Help, but kindly.")) as client:
        await client.resolve_interrupt(SESSION, interrupt_id, approved=True)
        snapshot = await client.wait(SESSION, timeout=PATIENCE)
        assert snapshot.turn is not None
        assert (snapshot.turn.status, field.world) == (TurnStatus.COMPLETED, ["pay 5"])
        first, second = field.requests
        assert "kindly" not in first.system_instruction
        assert "kindly" in second.system_instruction


@pytest.mark.parametrize(
    ("change", "agent_name", "names"),
    [
        pytest.param(renamed, "helper", "'pay'", id="a tool renamed"),
        pytest.param(with_one_more_required_argument, "helper", "'account'", id="a new required argument"),
        pytest.param(unchanged, "assistant", "helper@1||helper|1", id="another agent"),
    ],
)
async def test_a_change_that_does_not_fit_blocks_the_session_until_the_old_code_is_back(
    field: Field, change: Callable[[Field], Sequence[Callable[..., Any]]], agent_name: str, names: str
) -> None:
    """Case 10a, b.  Plain ADK raises "not registered" when the approval comes; nothing shows before."""
    interrupt_id = await park(field)
    async with field.working(deploy(field, *change(field), name=agent_name)) as client:
        snapshot = await at_rest(client, SessionStatus.BLOCKED)
        assert snapshot.error is not None
        assert snapshot.error.code == "non_determinism"
        assert names in snapshot.error.message, "the error names what does not fit"
        assert {"step", "expected", "found"} <= snapshot.error.facts.keys()
        (row,) = (await client.list_sessions()).items
        assert (row.status, row.pending_interrupts) == (SessionStatus.BLOCKED, 1)
        assert [row.session_id for row in (await client.list_sessions(status=SessionStatus.BLOCKED)).items] == [SESSION]
        with pytest.raises(SessionBlocked) as refusal:
            await client.resolve_interrupt(SESSION, interrupt_id, approved=True)
        assert refusal.value.facts["step"] == snapshot.error.facts["step"]
        snapshot = await client.get_agent_snapshot(SESSION)
        assert [(i.interrupt_id, i.status) for i in snapshot.pending_interrupts] == [
            (interrupt_id, InterruptStatus.PENDING)
        ]
        assert field.world == []
    async with field.working(deploy(field, as_it_was(field))) as client:
        snapshot = await at_rest(client, SessionStatus.WAITING)
        assert snapshot.error is None
        await client.resolve_interrupt(SESSION, interrupt_id, approved=True)
        snapshot = await client.wait(SESSION, timeout=PATIENCE)
        assert snapshot.turn is not None
        assert (snapshot.turn.status, field.world) == (TurnStatus.COMPLETED, ["pay 5"])
        assert len(field.requests) == 2


async def test_a_blocked_session_can_be_cancelled_and_used_again(field: Field) -> None:
    """The other way out: nothing of the old turn is needed any more."""
    await park(field)
    async with field.working(deploy(field, *renamed(field))) as client:
        await at_rest(client, SessionStatus.BLOCKED)
        await client.cancel_turn(SESSION)
        snapshot = await at_rest(client, SessionStatus.IDLE)
        assert snapshot.turn is not None
        assert (snapshot.turn.status, snapshot.error) == (TurnStatus.CANCELLED, None)
        assert field.world == []


async def test_a_message_to_a_blocked_session_waits_behind_its_turn(field: Field) -> None:
    interrupt_id = await park(field)
    async with field.working(deploy(field, *renamed(field))) as client:
        await at_rest(client, SessionStatus.BLOCKED)
        await client.send_user_message(SESSION, "and now?")
        snapshot = await client.get_agent_snapshot(SESSION)
        assert (snapshot.status, snapshot.queued_messages) == (SessionStatus.BLOCKED, 1)
    async with field.working(deploy(field, as_it_was(field))) as client:
        await at_rest(client, SessionStatus.WAITING)
        await client.resolve_interrupt(SESSION, interrupt_id, approved=True)
        snapshot = await at_rest(client, SessionStatus.WAITING)
        assert snapshot.turn is not None
        assert (snapshot.turn.number, field.world) == (2, ["pay 5"])


async def test_a_cancel_does_not_wait_for_a_check_of_the_code(field: Field) -> None:
    """While new code is tried on the old turn, the turn is cancelled: the worker gives the session up all the same."""
    await park(field)
    trying = asyncio.Event()

    async def hang(callback_context: CallbackContext) -> None:
        trying.set()
        await asyncio.Event().wait()

    tools = with_another_tool_before(field)
    agent = field.agent(SCRIPT, tools, before_agent_callback=hang)
    flow = durable(agent, {tool.__name__: ASKED for tool in tools})
    async with field.working(flow, linger=timedelta(0)) as client:
        await trying.wait()
        await client.cancel_turn(SESSION)
        snapshot = await at_rest(client, SessionStatus.IDLE)
        assert snapshot.turn is not None
        assert snapshot.turn.status is TurnStatus.CANCELLED
        await until(field.nobody_owns_a_session)


async def test_an_answer_given_before_the_wrong_code_came_is_kept(field: Field) -> None:
    """The answer lies in the inbox while the session is blocked, and counts once the old code is back."""
    interrupt_id = await park(field)
    async with field.asking() as client:
        await client.resolve_interrupt(SESSION, interrupt_id, approved=True, resolved_by="ann")
    async with field.working(deploy(field, *renamed(field))) as client:
        snapshot = await at_rest(client, SessionStatus.BLOCKED)
        assert (snapshot.pending_interrupts, field.world) == ((), [])
    async with field.working(deploy(field, as_it_was(field))) as client:
        snapshot = await at_rest(client, SessionStatus.IDLE)
        assert snapshot.turn is not None
        assert (snapshot.turn.status, field.world) == (TurnStatus.COMPLETED, ["pay 5"])


async def test_a_blocked_session_can_be_closed(field: Field) -> None:
    await park(field)
    async with field.working(deploy(field, *renamed(field))) as client:
        await at_rest(client, SessionStatus.BLOCKED)
        await client.close_session(SESSION)
        snapshot = await at_rest(client, SessionStatus.CLOSED)
        assert snapshot.turn is not None
        assert (snapshot.turn.status, snapshot.pending_interrupts) == (TurnStatus.CANCELLED, ())


async def test_a_tool_that_ran_before_and_is_gone_blocks_the_session(field: Field) -> None:
    """The replay would have to show the model an answer of a tool that the code no longer has."""

    def look() -> str:
        """Looks."""
        field.note("look")
        return "seen"

    def flow(*tools: Callable[..., Any]) -> AgentSessionFlow:
        policies = {tool.__name__: READ if tool is look else ASKED for tool in tools}
        return field.flow([call("look"), call("pay", amount=5), text("Paid.")], tools, policies)

    async with field.working(flow(look, as_it_was(field))) as client:
        assert (await say(client, "pay 5")).status is SessionStatus.WAITING
    async with field.working(flow(as_it_was(field))) as client:
        snapshot = await at_rest(client, SessionStatus.BLOCKED)
        assert snapshot.error is not None
        assert "'look'" in snapshot.error.message
    async with field.working(flow(look, as_it_was(field))) as client:
        await at_rest(client, SessionStatus.WAITING)
        snapshot = await answer_all(client)
        assert (snapshot.status, field.world) == (SessionStatus.IDLE, ["look", "pay 5"])


async def test_an_agent_inserted_before_the_one_that_waits_blocks_the_session_before_the_answer(
    field: Field, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its model call has no record, and is made while recorded steps have not come back.  No patience is needed."""
    monkeypatch.setattr("perdure.adk.live.patience.SECONDS", 3600.0)

    def flow(*before: LlmAgent) -> AgentSessionFlow:
        waiting = LlmAgent(name="helper", model=field.model(SCRIPT), tools=[as_it_was(field)])
        return durable(SequentialAgent(name="root", sub_agents=[*before, waiting]), {"pay": ASKED})

    async with field.working(flow()) as client:
        (interrupt,) = (await say(client, "pay 5")).pending_interrupts
    inserted = LlmAgent(name="planner", model=field.model([text("A plan.")]))
    async with field.working(flow(inserted)) as client:
        snapshot = await at_rest(client, SessionStatus.BLOCKED)
        assert snapshot.error is not None
        assert "|planner|1" in snapshot.error.facts["found"]
        with pytest.raises(SessionBlocked):
            await client.resolve_interrupt(SESSION, interrupt.interrupt_id, approved=True)
        snapshot = await client.get_agent_snapshot(SESSION)
        assert [one.interrupt_id for one in snapshot.pending_interrupts] == [interrupt.interrupt_id]
        assert len(field.requests) == 1, "the inserted agent's model was not asked"
    async with field.working(flow()) as client:
        await at_rest(client, SessionStatus.WAITING)
        snapshot = await answer_all(client)
        assert (snapshot.status, field.world) == (SessionStatus.IDLE, ["pay 5"])
