"""A live turn that is rebuilt for one branch while another branch gets what it waited for."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from google.adk.agents import LlmAgent, ParallelAgent
from google.adk.tools.long_running_tool import LongRunningFunctionTool

from perdure import AgentSessionClient, AgentSessionFlow, SessionStatus, ToolEffect, ToolPolicy, TurnStatus, open_engine
from perdure.adk import adk_agent_session_flow
from perdure.session.runner import LiveTurn, TurnLog, TurnStart
from perdure.testing import ScriptedModel, call, text

ASKED = ToolPolicy(ToolEffect.READ, requires_approval=True)


def flow() -> AgentSessionFlow:
    """One branch waits for an approval, the other for a result from outside."""

    def pay() -> str:
        """Pays."""
        return "paid"

    def render() -> None:
        """Renders; the result comes later."""

    payer = LlmAgent(name="payer", model=ScriptedModel([call("pay"), text("Paid.")]), tools=[pay])
    artist = LlmAgent(
        name="artist", model=ScriptedModel([call("render"), text("Rendered.")]), tools=[LongRunningFunctionTool(render)]
    )
    policies = {"pay": ASKED, "render": ToolPolicy(ToolEffect.READ)}
    return adk_agent_session_flow(
        ParallelAgent(name="both", sub_agents=[payer, artist]), flow_type="Both", tool_policies=policies
    )


async def test_an_answer_that_comes_while_a_turn_is_rebuilt_for_a_call_reaches_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    address = f"sqlite:///{tmp_path / 'both.db'}"
    first = flow()
    async with open_engine(address, flows=[first]) as engine, engine.worker():
        client = AgentSessionClient(engine, first)
        await client.start_session("s", "go")
        while len((snapshot := await client.wait("s")).pending_interrupts) < 2:
            pass
    approval, question = sorted(snapshot.pending_interrupts, key=lambda each: each.tool_name)
    second, rebuilding, rebuilt = flow(), asyncio.Event(), asyncio.Event()
    open_turn = second.runner.open_turn

    async def slowly(start: TurnStart, log: TurnLog) -> LiveTurn:
        live = await open_turn(start, log)
        rebuilding.set()
        await rebuilt.wait()
        return live

    monkeypatch.setattr(second.runner, "open_turn", slowly)
    async with open_engine(address, flows=[second]) as engine, engine.worker():
        client = AgentSessionClient(engine, second)
        await client.resolve_interrupt("s", approval.interrupt_id, approved=True)
        await rebuilding.wait()  # for the approved call, with what was recorded by now
        await client.answer_question("s", question.interrupt_id, {"url": "x"})
        while not await _drives(client):
            pass
        rebuilt.set()
        snapshot = await client.wait("s")
        assert snapshot.turn is not None
        assert (snapshot.status, snapshot.turn.status) == (SessionStatus.IDLE, TurnStatus.COMPLETED)


async def _drives(client: AgentSessionClient) -> bool:
    """Whether the answer was taken, and the turn is to be driven on with it."""
    steps = (await client.read_step_history("s")).items
    answered = any(step.name.value == "AwaitAnswer" and step.status.settled for step in steps)
    return answered and steps[-1].name.value == "RunModel"
