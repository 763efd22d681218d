"""What a failed or cancelled turn leaves: a valid history, and a note that lists every call with its outcome."""

from __future__ import annotations

from typing import Any

from google.adk.agents import LlmAgent
from google.adk.models.llm_request import LlmRequest
from google.adk.tools.tool_context import ToolContext
from tests.adk.disk import Crash, Disk
from tests.adk.engine import Engine
from tests.adk.model import Flaky, ScriptedModel, calls, says
from tests.adk.worlds import World

from perdure.errors import ToolExecutionError
from perdure.session.model import (
    OUTCOME_UNKNOWN_TOOL_RESULT,
    ErrorInfo,
    JsonObject,
    MessageRole,
    RecordStatus,
    TurnStatus,
    UserMessage,
)
from perdure.session.policy import ToolEffect
from perdure.session.runner import CallRecord, ClosedCall, DriveBlocked


def pay(amount: int, tool_context: ToolContext) -> dict[str, Any]:
    """Pays."""
    tool_context.state["paid"] = amount
    tool_context.state["temp:x"] = 1
    if amount == 0:
        raise ToolExecutionError("nothing to pay")
    return {"paid": amount}


def world(*replies: Any) -> World:
    model = ScriptedModel(replies=list(replies))
    return World(
        model, LlmAgent(name="payer", model=model, tools=[pay]), options={"default_tool_effect": ToolEffect.READ}
    )


def check_valid(request: LlmRequest) -> None:
    """As strict providers do: each call is followed by its result, and no result comes without its call."""
    waiting: list[str] = []
    for content in request.contents:
        parts = content.parts or []
        answers = [part.function_response.name for part in parts if part.function_response]
        assert sorted(map(str, answers)) == sorted(waiting) if answers or waiting else True
        waiting = [str(part.function_call.name) for part in parts if part.function_call]
    assert not waiting


async def _blocked(one: World, message: str | UserMessage = "go") -> tuple[Engine, DriveBlocked]:
    engine = one.engine()
    engine.begin(message)
    live = await engine.open()
    blocked = await live.drive("step", ())
    assert isinstance(blocked, DriveBlocked)
    engine.disk.store(blocked.progress.messages)
    await live.close()
    return engine, blocked


async def test_each_call_gets_the_result_of_its_record_and_the_note_tells_them_all() -> None:
    wanted = calls(*[("pay", {"amount": n}) for n in range(5)])
    one = world(wanted)
    engine, blocked = await _blocked(one)
    outcome = '{"result":{"paid":1},"state":{"paid":1,"temp:x":1},"actions":{"artifact_delta":{"bill":2}}}'
    failure = '{"error":{"type":"builtins:ValueError","message":"no","args":["no"]},"state":{"tried":true}}'
    records = [
        (RecordStatus.SUCCEEDED, outcome, None),
        (RecordStatus.FAILED, failure, ErrorInfo(code="ValueError", message="no")),
        (RecordStatus.REJECTED, None, ErrorInfo(code="rejected", message="No way.")),
        (RecordStatus.OUTCOME_UNKNOWN, None, None),
        (RecordStatus.FAILED, None, ErrorInfo(code="not_run", message="The tool was not run: the turn ended first.")),
    ]
    closed = [
        ClosedCall(request, CallRecord(request.call_id, number, *record, 1))
        for number, (request, record) in enumerate(zip(blocked.calls, records, strict=True))
    ]
    disk = engine.disk
    assert disk.start is not None
    messages = engine.runner.closing_messages(
        disk.start,
        disk.messages,
        [],
        closed,
        TurnStatus.FAILED,
        ErrorInfo(code="X", message="it broke"),
        1_700_000_500_000,
    )
    assert [message.role for message in messages] == [MessageRole.TOOL, MessageRole.USER]
    assert [message.ordinal for message in messages] == [2, 3]
    engine.disk.store(messages)
    parts = disk.messages[2]["content"]["parts"]
    assert [part["function_response"]["response"] for part in parts] == [
        {"paid": 1},
        {"error": "The tool call failed: no"},
        {"error": "No way."},
        {"error": OUTCOME_UNKNOWN_TOOL_RESULT},
        {"error": "The tool was not run: the turn ended first."},
    ]
    assert disk.state == {"paid": 1, "tried": True}
    assert disk.messages[2]["actions"]["artifact_delta"] == {"bill": 2}
    note = messages[1].text
    assert note.splitlines()[0] == "Note: the work on the request above failed before it was finished (it broke)."
    assert [line.split(": ", 1)[1].split(":")[0].split(";")[0] for line in note.splitlines()[2:]] == [
        "it succeeded",
        "it failed",
        "it was rejected and did not run",
        "its outcome is unknown",
        "it did not run",
    ]
    one.model.replies = [says("unused"), says("hello")]
    await engine.turn("and now?")
    check_valid(one.model.requests[-1])
    assert disk.status is TurnStatus.COMPLETED


async def test_a_turn_that_stored_nothing_keeps_the_user_s_words_and_state() -> None:
    engine = world().engine()
    engine.begin(UserMessage(text="hi", state_delta={"a": 1, "temp:b": 2}))
    disk = engine.disk
    assert disk.start is not None
    messages = engine.runner.closing_messages(disk.start, [], [], [], TurnStatus.CANCELLED, None, 5)
    assert [(message.ordinal, message.author) for message in messages] == [(0, "user"), (1, "user")]
    assert messages[0].state_delta == {"a": 1}
    assert messages[0].text == "hi"
    assert messages[1].text == (
        "Note: the work on the request above was cancelled before it was finished. No tool was called."
    )
    again = engine.runner.closing_messages(disk.start, [], [], [], TurnStatus.CANCELLED, None, 5)
    assert messages == again


async def test_a_call_without_a_record_is_answered_as_not_run() -> None:
    engine, _ = await _blocked(world(calls(("pay", {"amount": 1}))))
    disk = engine.disk
    assert disk.start is not None
    messages = engine.runner.closing_messages(disk.start, disk.messages, [], [], TurnStatus.CANCELLED, None, 5)
    assert '"error":"The tool was not run: the turn ended first."' in messages[0].item


async def test_a_failed_turn_keeps_what_its_tools_did() -> None:
    one = world(calls(("pay", {"amount": 3})), Flaky((ValueError("model broke"),) * 9))
    engine = one.engine()
    await engine.turn("pay")
    assert engine.disk.status is TurnStatus.FAILED
    assert engine.disk.state == {"paid": 3}
    assert "pay(amount=3): it succeeded" in engine.disk.new_messages[-1].text
    one.model.replies = [says("unused"), says("done")]
    await engine.turn("what happened?")
    check_valid(one.model.requests[-1])
    assert engine.disk.new_messages[-1].text == "done"


async def test_a_crash_in_the_middle_of_a_failing_turn_ends_the_same() -> None:
    def build() -> World:
        return world(calls(("pay", {"amount": 3})), Flaky((ValueError("model broke"),) * 9))

    def told(disk: Disk) -> list[JsonObject]:
        return disk.messages

    whole = build().engine()
    await whole.turn("pay")
    for point in range(1, whole.disk.writes + 1):
        disk = Disk(crash_at=point)
        first = build().engine(disk)
        first.begin("pay")
        try:
            await first.go_on()
        except Crash:
            disk.reboot()
            await build().engine(disk).go_on()
        assert told(disk) == told(whole.disk), point
