"""SIGKILL at the two durable writes that ``test_every_write`` does not make: deltas, and a blocked session."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

import pytest
from google.adk.agents import LlmAgent

from perdure import AgentSessionFlow, SessionStatus, ToolEffect, ToolPolicy, faults
from perdure.adk import adk_agent_session_flow
from perdure.faults import DurableWrite, FaultPoint, Moment
from perdure.testing import ScriptedModel, WorkerChild, call, read_messages, running_engine, text


def mail(to: str) -> str:
    """Sends a mail."""
    return "sent"


def post(to: str) -> str:
    """What ``mail`` is called after a deploy."""
    return "sent"


def slow_flow() -> AgentSessionFlow:
    slowly = text("One two three four.", chunks=4).delayed(timedelta(milliseconds=150), after_chunks=2)
    return adk_agent_session_flow(LlmAgent(name="slow", model=ScriptedModel([slowly])), flow_type="Slow")


def mail_flow(*, deployed: bool = False) -> AgentSessionFlow:
    agent = LlmAgent(
        name="mailer", model=ScriptedModel([call("mail", to="ann"), text("done")]), tools=[post if deployed else mail]
    )
    name = "post" if deployed else "mail"
    return adk_agent_session_flow(
        agent, flow_type="Mail", tool_policies={name: ToolPolicy(ToolEffect.NON_IDEMPOTENT_WRITE)}
    )


async def stream(folder: str) -> None:
    faults.arm_from_environment()
    async with running_engine(slow_flow(), folder=folder) as running:
        await running.sessions.start_session("s", "count")
        await running.sessions.wait("s", timeout=30)


async def deploy(folder: str) -> None:
    faults.arm_from_environment()
    async with running_engine(mail_flow(deployed=True), folder=folder) as running:
        async for event in running.sessions.stream_events("s"):
            if event.type.value == "session_blocked":
                return


@pytest.mark.parametrize("moment", Moment, ids=str)
async def test_a_kill_at_a_write_of_deltas_loses_no_message(tmp_path: Path, moment: Moment) -> None:
    fault = FaultPoint(DurableWrite.EVENTS_APPENDED, moment)
    with WorkerChild.of(stream, str(tmp_path), fault=fault) as child:
        assert await child.wait_exit_async() == -9, f"{fault} was never reached"
    async with running_engine(slow_flow(), folder=tmp_path) as running:
        await running.sessions.wait("s", timeout=30)
        texts = [message.text for message in await read_messages(running.sessions, "s")]
    assert texts == ["count", "One two three four."]


@pytest.mark.parametrize("moment", Moment, ids=str)
async def test_a_kill_as_a_session_is_blocked_leaves_it_to_the_next_worker(tmp_path: Path, moment: Moment) -> None:
    async with running_engine(mail_flow(), folder=tmp_path) as running:
        await running.sessions.start_session("s", "mail ann")
        assert (await running.sessions.wait("s", timeout=30)).status is SessionStatus.WAITING
    fault = FaultPoint(DurableWrite.SESSION_BLOCKED, moment)
    with WorkerChild.of(deploy, str(tmp_path), fault=fault) as child:
        assert await child.wait_exit_async() == -9, f"{fault} was never reached"
    await deploy(str(tmp_path))
    async with running_engine(folder=tmp_path) as running:
        assert (await running.sessions.get_agent_snapshot("s")).status is SessionStatus.BLOCKED
    async with running_engine(mail_flow(), folder=tmp_path) as running:
        async for event in running.sessions.stream_events("s"):
            if event.type.value == "session_blocked":
                break
        while (snapshot := await running.sessions.wait("s", timeout=30)).status is SessionStatus.BLOCKED:
            pass  # the code that fits is being checked
        (interrupt,) = snapshot.pending_interrupts
        await running.sessions.resolve_interrupt("s", interrupt.interrupt_id, approved=True)
        assert (await running.sessions.wait("s", timeout=30)).status is SessionStatus.IDLE
