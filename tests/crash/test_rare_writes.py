"""SIGKILL at durable writes that ``test_every_write`` does not make: deltas, what joins a turn, a blocked session."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from pathlib import Path

import pytest
from google.adk.agents import LlmAgent

from perdure import AgentSessionFlow, RetryPolicy, SessionStatus, ToolEffect, ToolPolicy, faults
from perdure.adk import adk_agent_session_flow
from perdure.faults import Action, DurableWrite, FaultPoint, Moment
from perdure.testing import (
    ScriptedModel,
    WorkerChild,
    by_message,
    call,
    read_messages,
    read_request_log,
    running_engine,
    text,
)


def mail(to: str) -> str:
    """Sends a mail."""
    return "sent"


def post(to: str) -> str:
    """What ``mail`` is called after a deploy."""
    return "sent"


WORDS = "rather the blue one"


def told_flow(folder: Path) -> AgentSessionFlow:
    async def look() -> str:
        """Looks, until it is let go on."""
        (folder / "looking").touch()
        while not (folder / "open").exists():  # noqa: ASYNC110 - another process opens it
            await asyncio.sleep(0.01)
        return "seen"

    script = by_message({WORDS: text("Blue.")}, otherwise=[call("look"), text("Any.")])
    model = ScriptedModel(script, log=folder / "requests.jsonl")
    return adk_agent_session_flow(
        LlmAgent(name="told", model=model, tools=[look]),
        flow_type="Told",
        tool_policies={"look": ToolPolicy(ToolEffect.READ, retry=RetryPolicy(first_delay=timedelta(0)))},
    )


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


async def tell(folder: str) -> None:
    """Tells a running turn something; all of it can be done again."""
    faults.arm_from_environment()
    await tell_in(Path(folder))


async def tell_in(folder: Path) -> None:
    async with running_engine(told_flow(folder), folder=folder) as running:
        await running.sessions.start_session("s", "find one")
        while not (folder / "looking").exists():  # noqa: ASYNC110 - it may be another life that looks
            await asyncio.sleep(0.01)
        await running.sessions.steer_user_message("s", WORDS, request_id="told")
        (folder / "open").touch()
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


AROUND_THE_JOIN = [
    (DurableWrite.MESSAGE_ACCEPTED, 1),
    (DurableWrite.STEP_SETTLED, 1),
    (DurableWrite.MESSAGES_JOINED, 1),
    (DurableWrite.MODEL_RECORDED, 2),
    (DurableWrite.TURN_ENDED, 1),
]


@pytest.mark.parametrize("moment", Moment, ids=str)
@pytest.mark.parametrize(("write", "nth"), AROUND_THE_JOIN, ids=str)
async def test_j18_after_a_kill_what_was_told_to_the_turn_is_seen_once_and_where_it_was(
    tmp_path: Path, write: DurableWrite, nth: int, moment: Moment
) -> None:
    fault = FaultPoint(write, moment)
    with WorkerChild.of(tell, str(tmp_path), fault=fault, nth=nth) as child:
        assert await child.wait_exit_async() == -9, f"{fault} was never reached"
    await tell_in(tmp_path)
    await _seen_once(tmp_path)


@pytest.mark.parametrize("moment", Moment, ids=str)
async def test_a_disk_that_fails_as_messages_join_loses_none(tmp_path: Path, moment: Moment) -> None:
    with faults.arm(FaultPoint(DurableWrite.MESSAGES_JOINED, moment), Action.RAISE) as armed:
        await tell_in(tmp_path)
    assert armed.fired
    await _seen_once(tmp_path)


async def _seen_once(folder: Path) -> None:
    async with running_engine(folder=folder) as running:
        messages = await read_messages(running.sessions, "s")
        assert (await running.sessions.get_agent_snapshot("s")).queued_messages == 0
    assert [message.text for message in messages if message.text] == ["find one", WORDS, "Blue."]
    assert len({message.turn_id for message in messages}) == 1
    requests = read_request_log(folder / "requests.jsonl")
    told = [WORDS in str(request.contents) for request in requests]
    assert told == sorted(told), "a request that has it is not followed by one that has not"
    assert len({request.fingerprint for request in requests}) == 2
    assert len(requests) <= 3, "a crash repeats at most the call that was running"


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
