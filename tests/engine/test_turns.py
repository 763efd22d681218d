"""Turns from beginning to end: the shape of their steps, queues, approvals, failures, cancels."""

from __future__ import annotations

import asyncio
from datetime import timedelta

import pytest
from tests.engine.conftest import Stage, history, shape
from tests.support.play import Play, PlayCall, PlayRunner, Script

from perdure import (
    AgentEventType,
    AgentSessionClient,
    InterruptAlreadyResolved,
    InterruptExpired,
    InterruptKind,
    InterruptWithdrawn,
    SessionAlreadyExists,
    SessionClosed,
    SessionNotFound,
    SessionStatus,
    ToolEffect,
    ToolExecutionError,
    TurnStatus,
    WaitTimeout,
)


async def lookup(call_id: str, attempt: int) -> object:
    return {"found": call_id}


async def read_once(play: Play) -> None:
    await play.model("m1", "let me look")
    await play.tools("m1", {"c1": PlayCall("lookup", lookup)})
    await play.model("m2", "done")
    play.say("done")


READ_ONCE = [
    "AwaitUserMessage succeeded",
    "RunModel succeeded",
    "CallTool succeeded",
    "ResumeTurn succeeded",
    "RunModel succeeded",
    "AwaitUserMessage pending",
]


async def test_a_turn_that_reads_once_has_the_steps_of_the_design(stage: Stage) -> None:
    flow = stage.flow(read_once)
    async with stage.engine(flow) as engine, engine.worker():
        client = AgentSessionClient(engine, flow)
        turn_id = await client.start_session("s", "hello")
        snapshot = await client.wait("s", timeout=10)
        assert snapshot.status is SessionStatus.IDLE
        assert snapshot.turn is not None
        assert (snapshot.turn.turn_id, snapshot.turn.status) == (turn_id, TurnStatus.COMPLETED)
        assert snapshot.usage.model_calls == 2
        assert await shape(client, "s") == READ_ONCE
        call = (await history(client, "s"))[2]
        assert (call.tool_name, call.attempts, call.result, call.effect) == ("lookup", 1, {"found": "c1"}, "read")
        texts = [message.text for message in (await client.list_messages("s")).items]
        assert texts == ["hello", "done"]


async def test_messages_sent_while_a_turn_runs_are_handled_in_order(stage: Stage) -> None:
    gate = asyncio.Event()

    async def script(play: Play) -> None:
        await play.model("m1", "", gate.wait())
        play.say(f"answer to {play.start.message.text}")

    flow = stage.flow(script)
    async with stage.engine(flow) as engine, engine.worker():
        client = AgentSessionClient(engine, flow)
        await client.start_session("s", "one")
        sent = [await client.send_user_message("s", text) for text in ("two", "three", "four")]
        assert (await client.get_agent_snapshot("s")).status is SessionStatus.RUNNING
        gate.set()
        snapshot = await client.wait("s", timeout=10)
        assert snapshot.turn is not None
        assert snapshot.turn.turn_id == sent[-1]
        texts = [message.text for message in (await client.list_messages("s")).items]
        assert texts == [part for text in ("one", "two", "three", "four") for part in (text, f"answer to {text}")]


async def test_a_repeated_request_is_done_once(stage: Stage) -> None:
    flow = stage.flow(read_once)
    async with stage.engine(flow) as engine, engine.worker():
        client = AgentSessionClient(engine, flow)
        first = await client.start_session("s", "hello")
        assert await client.start_session("s", "hello") == first
        with pytest.raises(SessionAlreadyExists):
            await client.start_session("s", "something else")
        sent = await client.send_user_message("s", "again", request_id="r1")
        assert await client.send_user_message("s", "again", request_id="r1") == sent
        snapshot = await client.wait("s", timeout=10)
        assert snapshot.turn is not None
        assert snapshot.turn.number == 2


def asks(effect: ToolEffect = ToolEffect.NON_IDEMPOTENT_WRITE, runs: list[str] | None = None) -> Script:
    async def refund(call_id: str, attempt: int) -> object:
        if runs is not None:
            runs.append(call_id)
        return "refunded"

    async def script(play: Play) -> None:
        await play.model("m1", "")
        (record,) = await play.tools("m1", {"c1": PlayCall("refund", refund, effect, InterruptKind.APPROVAL)})
        await play.model("m2", "")
        play.say(record.status.value)

    return script


async def test_an_approved_call_runs_once(stage: Stage) -> None:
    runs: list[str] = []
    flow = stage.flow(asks(runs=runs))
    async with stage.engine(flow) as engine, engine.worker():
        client = AgentSessionClient(engine, flow)
        await client.start_session("s", "refund it")
        snapshot = await client.wait("s", timeout=10)
        assert snapshot.status is SessionStatus.WAITING
        (interrupt,) = snapshot.pending_interrupts
        assert (interrupt.tool_name, interrupt.arguments, runs) == ("refund", {"id": "c1"}, [])
        await client.resolve_interrupt("s", interrupt.interrupt_id, approved=True, resolved_by="ann")
        snapshot = await client.wait("s", timeout=10)
        assert (snapshot.status, runs) == (SessionStatus.IDLE, ["c1"])
        assert await shape(client, "s") == [
            "AwaitUserMessage succeeded",
            "RunModel succeeded",
            "AwaitToolApproval succeeded",
            "CallSingleAttemptTool succeeded",
            "ResumeTurn succeeded",
            "RunModel succeeded",
            "AwaitUserMessage pending",
        ]
        await client.resolve_interrupt("s", interrupt.interrupt_id, approved=True, resolved_by="ben")
        with pytest.raises(InterruptAlreadyResolved) as refused:
            await client.resolve_interrupt("s", interrupt.interrupt_id, approved=False)
        assert refused.value.facts["resolved_by"] == "ann"
    assert isinstance(flow.runner, PlayRunner)
    assert flow.runner.opened == 1


async def test_a_rejected_call_has_no_call_step(stage: Stage) -> None:
    runs: list[str] = []
    flow = stage.flow(asks(runs=runs))
    async with stage.engine(flow) as engine, engine.worker():
        client = AgentSessionClient(engine, flow)
        await client.start_session("s", "refund it")
        (interrupt,) = (await client.wait("s", timeout=10)).pending_interrupts
        await client.resolve_interrupt("s", interrupt.interrupt_id, approved=False, message="too much")
        await client.wait("s", timeout=10)
        assert (await shape(client, "s"))[2:4] == ["AwaitToolApproval rejected", "ResumeTurn succeeded"]
        assert runs == []
        assert [message.text for message in (await client.list_messages("s")).items][-1] == "rejected"


async def test_a_waiting_session_leaves_memory_and_is_answered_after_a_restart(stage: Stage) -> None:
    runs: list[str] = []
    first = stage.flow(asks(runs=runs))
    async with stage.engine(first) as engine, engine.worker():
        client = AgentSessionClient(engine, first)
        await client.start_session("s", "refund it")
        (interrupt,) = (await client.wait("s", timeout=10)).pending_interrupts
    async with stage.engine() as engine:  # no flows: it can still answer
        await AgentSessionClient(engine).resolve_interrupt("s", interrupt.interrupt_id, approved=True)
    second = stage.flow(asks(runs=runs))
    async with stage.engine(second) as engine, engine.worker():
        snapshot = await AgentSessionClient(engine, second).wait("s", timeout=10)
        assert (snapshot.status, runs) == (SessionStatus.IDLE, ["c1"])
    assert isinstance(second.runner, PlayRunner)
    assert second.runner.model_calls == ["m2"], "the first model call is answered from its record"


async def test_an_unanswered_interrupt_expires(stage: Stage) -> None:
    flow = stage.flow(asks(), deadline=timedelta(milliseconds=50))
    async with stage.engine(flow) as engine, engine.worker():
        client = AgentSessionClient(engine, flow)
        await client.start_session("s", "refund it")
        (interrupt,) = (await client.wait("s", timeout=10)).pending_interrupts
        async for event in client.stream_events("s"):
            if event.type is AgentEventType.TURN_COMPLETED:
                break
        assert (await shape(client, "s"))[2] == "AwaitToolApproval expired"
        with pytest.raises(InterruptExpired):
            await client.resolve_interrupt("s", interrupt.interrupt_id, approved=True)


async def test_a_read_is_tried_three_times(stage: Stage) -> None:
    attempts: list[int] = []

    async def flaky(call_id: str, attempt: int) -> object:
        attempts.append(attempt)
        if attempt < 3:
            raise ConnectionError("try again")
        return "ok"

    async def script(play: Play) -> None:
        (record,) = await play.tools("g", {"c1": PlayCall("flaky", flaky)})
        play.say(record.status.value)

    flow = stage.flow(script)
    async with stage.engine(flow) as engine, engine.worker():
        client = AgentSessionClient(engine, flow)
        await client.start_session("s", "go")
        await client.wait("s", timeout=10)
        assert attempts == [1, 2, 3]
        assert [step.attempts for step in await history(client, "s") if step.tool_name] == [3]


@pytest.mark.parametrize(
    ("effect", "tries", "status"),
    [
        (ToolEffect.READ, 3, "failed"),
        (ToolEffect.IDEMPOTENT_WRITE, 3, "outcome_unknown"),
        (ToolEffect.NON_IDEMPOTENT_WRITE, 1, "outcome_unknown"),
        (ToolEffect.UNCLASSIFIED, 1, "outcome_unknown"),
    ],
)
async def test_what_a_failing_tool_leaves_follows_from_its_effect(
    stage: Stage, effect: ToolEffect, tries: int, status: str
) -> None:
    attempts: list[int] = []

    async def broken(call_id: str, attempt: int) -> object:
        attempts.append(attempt)
        raise RuntimeError("no")

    async def script(play: Play) -> None:
        (record,) = await play.tools("g", {"c1": PlayCall("broken", broken, effect)})
        play.say(record.status.value)

    flow = stage.flow(script)
    async with stage.engine(flow) as engine, engine.worker():
        client = AgentSessionClient(engine, flow)
        await client.start_session("s", "go")
        await client.wait("s", timeout=10)
        assert len(attempts) == tries
        assert (await client.list_messages("s")).items[-1].text == status


async def test_a_tool_that_says_it_failed_is_not_tried_again_and_harms_no_sibling(stage: Stage) -> None:
    async def bad(call_id: str, attempt: int) -> object:
        raise ToolExecutionError("no such order")

    async def script(play: Play) -> None:
        records = await play.tools("g", {"bad": PlayCall("bad", bad), "good": PlayCall("good", lookup)})
        play.say(" ".join(record.status.value for record in records))

    flow = stage.flow(script)
    async with stage.engine(flow) as engine, engine.worker():
        client = AgentSessionClient(engine, flow)
        await client.start_session("s", "go")
        await client.wait("s", timeout=10)
        assert (await client.list_messages("s")).items[-1].text == "failed succeeded"


async def test_a_slow_attempt_times_out(stage: Stage) -> None:
    async def slow(call_id: str, attempt: int) -> object:
        if attempt == 1:
            await asyncio.Event().wait()
        return "ok"

    async def script(play: Play) -> None:
        (record,) = await play.tools("g", {"c1": PlayCall("slow", slow, timeout=timedelta(milliseconds=20))})
        play.say(record.status.value)

    flow = stage.flow(script)
    async with stage.engine(flow) as engine, engine.worker():
        client = AgentSessionClient(engine, flow)
        await client.start_session("s", "go")
        await client.wait("s", timeout=10)
        assert [step.attempts for step in await history(client, "s") if step.tool_name] == [2]


async def test_a_failed_turn_leaves_a_note_and_a_usable_session(stage: Stage) -> None:
    async def script(play: Play) -> None:
        await play.tools("g", {"c1": PlayCall("lookup", lookup)})
        if play.start.number == 1:
            raise RuntimeError("the model is gone")
        play.say("fine")

    flow = stage.flow(script)
    async with stage.engine(flow) as engine, engine.worker():
        client = AgentSessionClient(engine, flow)
        await client.start_session("s", "go")
        snapshot = await client.wait("s", timeout=10)
        assert snapshot.turn is not None
        assert snapshot.turn.error is not None
        assert (snapshot.status, snapshot.turn.status) == (SessionStatus.IDLE, TurnStatus.FAILED)
        assert "the model is gone" in snapshot.turn.error.message
        assert '"c1": "succeeded"' in (await client.list_messages("s")).items[-1].text
        await client.send_user_message("s", "again")
        snapshot = await client.wait("s", timeout=10)
        assert snapshot.turn is not None
        assert snapshot.turn.status is TurnStatus.COMPLETED


async def test_cancel_stops_reads_and_leaves_running_writes_unknown(stage: Stage) -> None:
    running = asyncio.Event()
    stopped: list[str] = []

    async def endless(call_id: str, attempt: int) -> object:
        try:
            running.set()
            return await asyncio.Event().wait()
        except asyncio.CancelledError:
            stopped.append(call_id)
            raise

    async def script(play: Play) -> None:
        await play.tools(
            "g",
            {
                "read": PlayCall("read", endless),
                "write": PlayCall("write", endless, ToolEffect.NON_IDEMPOTENT_WRITE),
                "asked": PlayCall("asked", endless, ToolEffect.READ, InterruptKind.APPROVAL),
            },
        )

    flow = stage.flow(script)
    async with stage.engine(flow) as engine, engine.worker():
        client = AgentSessionClient(engine, flow)
        await client.start_session("s", "go")
        await running.wait()
        async for event in client.stream_events("s"):
            if event.type is AgentEventType.TOOL_CALL_STARTED and event.data["tool_name"] == "write":
                break
        (interrupt,) = (await client.get_agent_snapshot("s")).pending_interrupts
        await client.cancel_turn("s")
        snapshot = await client.wait("s", timeout=10)
        assert snapshot.turn is not None
        assert (snapshot.status, snapshot.turn.status) == (SessionStatus.IDLE, TurnStatus.CANCELLED)
        statuses = {step.tool_name: step.status.value for step in await history(client, "s") if step.tool_name}
        assert statuses["read"] == "failed"
        assert statuses["write"] == "outcome_unknown"
        with pytest.raises(InterruptWithdrawn):
            await client.resolve_interrupt("s", interrupt.interrupt_id, approved=True)
        assert sorted(stopped) == ["read", "write"]


async def test_a_closed_session_refuses_messages_and_can_be_read(stage: Stage) -> None:
    flow = stage.flow(asks())
    async with stage.engine(flow) as engine, engine.worker():
        client = AgentSessionClient(engine, flow)
        await client.start_session("s", "go")
        await client.wait("s", timeout=10)
        await client.close_session("s")
        snapshot = await client.wait("s", timeout=10)
        assert snapshot.status is SessionStatus.CLOSED
        with pytest.raises(SessionClosed):
            await client.send_user_message("s", "more")
        assert (await client.list_messages("s")).items
        await client.delete_session("s")
        with pytest.raises(SessionNotFound):
            await client.get_agent_snapshot("s")


async def test_a_session_that_nobody_serves_says_so(stage: Stage) -> None:
    async with stage.engine() as engine:
        client = AgentSessionClient(engine, "Nobody")
        await client.start_session("s", "hello")
        snapshot = await client.get_agent_snapshot("s")
        assert (snapshot.served, snapshot.queued_messages) == (False, 1)
        with pytest.raises(WaitTimeout, match="no live worker serves the flow type 'Nobody'"):
            await client.wait("s", timeout=0.05)
