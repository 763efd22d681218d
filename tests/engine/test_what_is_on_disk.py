"""What is on disk at the moment something runs or is shown, read through a connection of the test's own."""

from __future__ import annotations

import sqlite3

from tests.engine.conftest import Stage
from tests.support.play import Play, PlayCall, PlayRunner

from perdure import AgentEventType, AgentSessionClient, InterruptKind, SessionStatus, ToolEffect
from perdure.session.events import parse_cursor
from perdure.session.model import PASSING_EVENTS


def ask(stage: Stage, query: str, *values: object) -> list[tuple[object, ...]]:
    connection = sqlite3.connect(f"file:{stage.path}?mode=ro", uri=True)
    try:
        return connection.execute(query, values).fetchall()
    finally:
        connection.close()


async def test_j8_a_single_attempt_call_runs_only_when_its_start_mark_is_on_disk(stage: Stage) -> None:
    seen: list[tuple[object, ...]] = []

    async def refund(call_id: str, attempt: int) -> object:
        seen.extend(ask(stage, "SELECT status, attempts FROM steps WHERE name = 'CallSingleAttemptTool'"))
        return "refunded"

    async def script(play: Play) -> None:
        await play.model("m1", "")
        await play.tools("m1", {"c1": PlayCall("refund", refund, ToolEffect.NON_IDEMPOTENT_WRITE)})

    flow = stage.flow(script)
    async with stage.engine(flow) as engine, engine.worker():
        client = AgentSessionClient(engine, flow)
        await client.start_session("s", "go")
        await client.wait("s", timeout=10)
    assert seen == [("running", 1)]


async def test_j8_a_model_gets_a_result_only_when_the_record_is_on_disk(stage: Stage) -> None:
    seen: list[tuple[object, ...]] = []

    async def look(call_id: str, attempt: int) -> object:
        return "found"

    async def script(play: Play) -> None:
        await play.model("m1", "")
        await play.tools("m1", {"c1": PlayCall("look", look)})
        seen.extend(ask(stage, "SELECT name, status FROM steps WHERE call_id = 'c1'"))
        await play.model("m2", "")

    flow = stage.flow(script)
    async with stage.engine(flow) as engine, engine.worker():
        client = AgentSessionClient(engine, flow)
        await client.start_session("s", "go")
        await client.wait("s", timeout=10)
    assert seen == [("CallTool", "succeeded")]


async def test_j11_every_event_but_a_delta_is_stored_before_it_is_shown(stage: Stage) -> None:
    async def look(call_id: str, attempt: int) -> object:
        return "found"

    async def script(play: Play) -> None:
        await play.model("m1", "let me look")
        await play.tools("m1", {"c1": PlayCall("look", look)})
        play.say("done")

    flow = stage.flow(script)
    shown: list[AgentEventType] = []
    async with stage.engine(flow) as engine, engine.worker():
        client = AgentSessionClient(engine, flow)
        await client.start_session("s", "go")
        async for event in client.stream_events("s"):
            shown.append(event.type)
            stored = ask(stage, "SELECT 1 FROM events WHERE fence = ? AND number = ?", *parse_cursor(event.cursor))
            assert stored or event.type in PASSING_EVENTS, f"{event.type} was shown and is not stored"
            if event.type is AgentEventType.TURN_COMPLETED:
                break
    assert AgentEventType.TEXT_DELTA in shown
    assert shown.index(AgentEventType.TOOL_CALL_STARTED) < shown.index(AgentEventType.TOOL_CALL_FINISHED)


async def test_j10_a_model_call_that_has_a_record_is_never_made_again(stage: Stage) -> None:
    async def refund(call_id: str, attempt: int) -> object:
        return "refunded"

    async def script(play: Play) -> None:
        await play.model("m1", "")
        await play.model("m2", "")
        await play.tools("m2", {"c1": PlayCall("refund", refund, ToolEffect.READ, InterruptKind.APPROVAL)})
        await play.model("m3", "")

    made: list[str] = []
    status = None
    for life in range(3):
        flow = stage.flow(script)
        async with stage.engine(flow) as engine, engine.worker():
            client = AgentSessionClient(engine, flow)
            await client.start_session("s", "go")
            snapshot = await client.wait("s", timeout=10)
            if life == 1:
                await client.resolve_interrupt("s", snapshot.pending_interrupts[0].interrupt_id, approved=True)
                snapshot = await client.wait("s", timeout=10)
            status = snapshot.status
        assert isinstance(flow.runner, PlayRunner)
        made += flow.runner.model_calls
    assert status is SessionStatus.IDLE
    assert made == ["m1", "m2", "m3"]
