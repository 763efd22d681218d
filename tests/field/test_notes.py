"""What a failed or cancelled turn leaves for the next turn's model, and that its session stays usable (J7)."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from tests.field.support import (
    ASKED,
    IDEMPOTENT,
    ONCE,
    PATIENCE,
    READ,
    SESSION,
    Field,
    at_rest,
    call_steps,
    conversation,
    events_until,
    prompt,
    say,
    step_settled,
    steps_of,
    turn_of,
)

from perdure import (
    OUTCOME_UNKNOWN_TOOL_RESULT,
    TOOL_CALL_NOT_RUN_ERROR_PREFIX,
    AgentEventType,
    AgentSessionClient,
    InterruptStatus,
    SessionStatus,
    ToolExecutionError,
    TurnNotFound,
    TurnStatus,
)
from perdure.testing import Gate, by_message, call, failing, reply, text


def doing(field: Field) -> dict[str, Any]:
    """Four tools: one that works, one that fails, one that hangs, one that is asked for."""
    hanging = asyncio.Event()

    def pay(amount: int) -> str:
        """Pays."""
        field.note("pay", amount)
        return "paid"

    def look() -> str:
        """Fails."""
        raise ToolExecutionError("no such order")

    async def mail(to: str) -> str:
        """Never comes back."""
        field.note("mail", to)
        hanging.set()
        await asyncio.Event().wait()
        return "sent"

    def delete() -> str:
        """Deletes."""
        field.note("delete")
        return "deleted"

    return {"tools": [pay, look, mail, delete], "hanging": hanging}


POLICIES = {"pay": IDEMPOTENT, "look": READ, "mail": ONCE, "delete": ASKED}
HI = {"hello": text("Hi.")}


async def test_the_failure_note_lists_every_call_and_its_outcome(field: Field) -> None:
    """Design: the note is a user event at the end of the failed turn; plain ADK leaves nothing."""
    script = by_message({"go": [reply(call("pay", amount=5), call("look")), failing(400)], **HI})
    async with field.working(field.flow(script, doing(field)["tools"], POLICIES)) as client:
        snapshot = await say(client, "go")
        error = turn_of(snapshot).error
        assert error is not None
        assert turn_of(snapshot).status is TurnStatus.FAILED
        await say(client, "hello")
        seen = prompt(field.requests[-1])
        assert seen[0] == "user says go"
        assert seen[-1] == "user says hello"
        assert seen[-2].splitlines() == [
            f"user says Note: the work on the request above failed before it was finished ({error.message}).",
            "These tools were called:",
            "- pay(amount=5): it succeeded; do not repeat it",
            "- look(): it failed: no such order",
        ]


async def test_a_turn_that_fails_at_once_keeps_its_message_and_says_that_no_tool_was_called(field: Field) -> None:
    script = by_message({"go": failing(400), **HI})
    async with field.working(field.flow(script)) as client:
        snapshot = await say(client, "go")
        error = turn_of(snapshot).error
        assert error is not None
        await say(client, "hello")
        assert prompt(field.requests[-1]) == [
            "user says go",
            f"user says Note: the work on the request above failed before it was finished ({error.message}). "
            "No tool was called.",
            "user says hello",
        ]


async def cancel_in_the_middle(field: Field, client: AgentSessionClient, hanging: asyncio.Event) -> None:
    await client.start_session(SESSION, "go")
    await hanging.wait()
    await step_settled(client, "pay")
    await client.cancel_turn(SESSION)
    await at_rest(client, SessionStatus.IDLE)


async def test_the_cancel_note_lists_every_call_and_its_outcome(field: Field) -> None:
    """Running writes become unknown, interrupts are withdrawn, what never ran says so; the session is usable."""
    script = by_message({"go": [reply(call("pay", amount=5), call("mail", to="ann"), call("delete")), text("?")], **HI})
    given = doing(field)
    async with field.working(field.flow(script, given["tools"], POLICIES)) as client:
        await cancel_in_the_middle(field, client, given["hanging"])
        snapshot = await client.get_agent_snapshot(SESSION)
        assert turn_of(snapshot).status is TurnStatus.CANCELLED
        assert (snapshot.pending_interrupts, snapshot.error) == ((), None)
        steps = await call_steps(client)
        assert (steps["pay"].status.value, steps["mail"].status.value) == ("succeeded", "outcome_unknown")
        assert "delete" not in steps
        events = await events_until(client, AgentEventType.TURN_CANCELLED)
        (resolved,) = [event for event in events if event.type is AgentEventType.INTERRUPT_RESOLVED]
        assert resolved.data["status"] == InterruptStatus.WITHDRAWN.value
        await say(client, "hello")
        seen = prompt(field.requests[-1])
        assert seen[1:7] == [
            "model calls pay",
            "model calls mail",
            "model calls delete",
            'user answers pay {"result": "paid"}',
            f'user answers mail {{"error": "{OUTCOME_UNKNOWN_TOOL_RESULT}"}}',
            f'user answers delete {{"error": "{TOOL_CALL_NOT_RUN_ERROR_PREFIX}: the turn ended first"}}',
        ]
        assert seen[7].splitlines() == [
            "user says Note: the work on the request above was cancelled before it was finished.",
            "These tools were called:",
            "- pay(amount=5): it succeeded; do not repeat it",
            '- mail(to="ann"): its outcome is unknown: it may have happened; do not repeat it without checking',
            "- delete(): it did not run",
        ]
        assert sorted(field.world) == ["mail ann", "pay 5"]


async def test_a_running_read_stops_with_its_turn(field: Field) -> None:
    stopped = asyncio.Event()
    running = asyncio.Event()

    async def look() -> str:
        """Looks for ever."""
        try:
            running.set()
            await asyncio.Event().wait()
        finally:
            stopped.set()
        return ""

    async with field.working(field.flow(by_message({"go": call("look"), **HI}), [look], {"look": READ})) as client:
        await client.start_session(SESSION, "go")
        await running.wait()
        await client.cancel_turn(SESSION)
        await at_rest(client, SessionStatus.IDLE)
        await stopped.wait()
        assert (await call_steps(client))["look"].status.value == "failed"
        assert turn_of(await say(client, "hello")).status is TurnStatus.COMPLETED


async def test_a_running_model_call_stops_with_its_turn(field: Field) -> None:
    gate = Gate()
    script = by_message({"go": text("Once upon a time", chunks=4).held(gate, after_chunks=2), **HI})
    async with field.working(field.flow(script)) as client:
        await client.start_session(SESSION, "go")
        await gate.wait_arrived()
        await client.cancel_turn(SESSION)
        snapshot = await at_rest(client, SessionStatus.IDLE)
        assert turn_of(snapshot).status is TurnStatus.CANCELLED
        assert [f"{step.name.value} {step.status.value}" for step in await steps_of(client)] == [
            "AwaitUserMessage succeeded",
            "RunModel cancelled",
            "AwaitUserMessage pending",
        ]
        await say(client, "hello")
        assert [line.partition(".")[0] for line in prompt(field.requests[-1])] == [
            "user says go",
            "user says Note: the work on the request above was cancelled before it was finished",
            "user says hello",
        ]


async def test_cancel_from_another_process_names_the_turn(field: Field) -> None:
    """``cancel_turn`` of an ended turn is refused; of a queued one it drops the message; without one it is no error."""
    gate = Gate()
    script = by_message({"go": text("Yes.").held(gate), "second": text("Second."), "third": text("Third.")})
    async with field.asking() as other, field.working(field.flow(script)) as client:
        first = await client.start_session(SESSION, "go")
        second = await client.send_user_message(SESSION, "second")
        third = await client.send_user_message(SESSION, "third")
        await gate.wait_arrived()
        await other.cancel_turn(SESSION, turn_id=second)
        gate.open()
        snapshot = await client.wait(SESSION, timeout=PATIENCE)
        assert turn_of(snapshot).turn_id == third
        assert await conversation(client) == ["user: go", "assistant: Yes.", "user: third", "assistant: Third."]
        assert first is not None
        for ended in (first, second, "e-never"):
            with pytest.raises(TurnNotFound):
                await other.cancel_turn(SESSION, turn_id=ended)
        await other.cancel_turn(SESSION)
        assert (await client.get_agent_snapshot(SESSION)).status is SessionStatus.IDLE


async def test_a_message_cancelled_before_any_worker_came_never_begins(field: Field) -> None:
    script = by_message({"go": text("Yes."), **HI})
    async with field.asking() as client:
        turn_id = await client.start_session(SESSION, "go")
        await client.cancel_turn(SESSION, turn_id=turn_id)
        await client.send_user_message(SESSION, "hello")
    async with field.working(field.flow(script)) as client:
        snapshot = await client.wait(SESSION, timeout=PATIENCE)
        assert turn_of(snapshot).status is TurnStatus.COMPLETED
        lines = await conversation(client)
        assert lines[-2:] == ["user: hello", "assistant: Hi."]
        assert "assistant: Yes." not in lines
