"""The engine for tests: real, in a folder of its own, and the same again after a restart."""

from __future__ import annotations

from google.adk.agents import LlmAgent

from perdure import SessionStatus, ToolEffect, ToolPolicy
from perdure.adk import adk_agent_session_flow
from perdure.session.runner import AgentSessionFlow
from perdure.testing import (
    ScriptedModel,
    call,
    read_messages,
    read_step_history,
    running_engine,
    step_shape,
    text,
)
from perdure.testing.plugin import EngineFactory


def look(item: str) -> str:
    """Looks something up."""
    return f"{item}: here"


def looking_flow() -> AgentSessionFlow:
    model = ScriptedModel([call("look", item="tea"), text("There is tea.")])
    agent = LlmAgent(name="looker", model=model, tools=[look])
    return adk_agent_session_flow(agent, flow_type="Looker", tool_policies={"look": ToolPolicy(ToolEffect.READ)})


async def test_a_running_engine_works_on_sessions() -> None:
    async with running_engine(looking_flow()) as running:
        await running.sessions.start_session("s", "Is there tea?")
        assert (await running.sessions.wait("s", timeout=30)).status is SessionStatus.IDLE
        assert step_shape(await read_step_history(running.sessions, "s")) == [
            "AwaitUserMessage succeeded",
            "RunModel succeeded",
            "CallTool succeeded",
            "ResumeTurn succeeded",
            "RunModel succeeded",
            "AwaitUserMessage pending",
        ]
        assert (await read_messages(running.sessions, "s"))[-1].text == "There is tea."


async def test_the_fixture_keeps_its_store_over_a_restart(perdure_engine: EngineFactory) -> None:
    async with perdure_engine(worker=False) as running:
        assert (await running.sessions.list_sessions()).items == ()
    async with perdure_engine(looking_flow(), worker=False) as running:
        await running.sessions.start_session("s", "Is there tea?")
    async with perdure_engine(looking_flow()) as running:
        assert (await running.sessions.wait("s", timeout=30)).status is SessionStatus.IDLE
