"""The engine's side of a live turn: what ``drive`` returns, before and after a rebuild."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from google.adk.agents import LlmAgent
from google.adk.apps.app import App
from google.adk.plugins.base_plugin import BasePlugin
from google.adk.tools.exit_loop_tool import exit_loop
from google.genai import types
from tests.adk.disk import Disk, Log
from tests.adk.model import ScriptedModel, calls, says
from tests.adk.worlds import World, two_responses

from perdure.errors import NonDeterminismError, UsageError
from perdure.session.model import ImageInput, RecordStatus, UserMessage
from perdure.session.policy import ToolEffect
from perdure.session.runner import (
    CallRecord,
    CallRequest,
    DriveBlocked,
    DriveFinished,
    LiveTurn,
    ToolSucceeded,
)


def look(order: str) -> str:
    """Looks."""
    return f"found {order}"


def world(*replies: Any, **agent: Any) -> World:
    model = ScriptedModel(replies=list(replies))
    root = LlmAgent(name="looker", model=model, tools=[look, exit_loop], **agent)
    return World(model, root, options={"default_tool_effect": ToolEffect.READ})


def two_calls() -> World:
    return world(calls(("look", {"order": "1"}), ("look", {"order": "2"})), says("done"))


async def _settled(live: LiveTurn, request: CallRequest, sequence: int) -> CallRecord:
    outcome = await live.call_tool(request.call_id, 1, None)
    assert isinstance(outcome, ToolSucceeded)
    return CallRecord(request.call_id, sequence, RecordStatus.SUCCEEDED, outcome.outcome, None, sequence)


async def test_a_drive_ends_blocked_with_the_calls_and_then_finished() -> None:
    engine = two_calls().engine()
    engine.begin("go")
    live = await engine.open()
    blocked = await live.drive("step-1", ())
    assert isinstance(blocked, DriveBlocked)
    assert [request.arguments["order"] for request in blocked.calls] == ["1", "2"]
    assert {request.group for request in blocked.calls} == {"looker@1||looker|1"}
    assert blocked.progress.model_keys == ("looker@1||looker|1",)
    assert [message.ordinal for message in blocked.progress.messages] == [0, 1]
    assert not blocked.more
    again = await live.drive("step-1", ())
    assert again == DriveBlocked(type(again.progress)(), (), False)
    records = [await _settled(live, request, number + 2) for number, request in enumerate(blocked.calls)]
    half = await live.drive("step-2", records[:1])
    assert isinstance(half, DriveBlocked)  # the group is not complete: nothing is handed out
    assert half.progress.messages == ()
    finished = await live.drive("step-2", records[1:])
    assert isinstance(finished, DriveFinished)
    assert finished.progress.model_keys == ("looker@1||looker|2",)
    assert [message.ordinal for message in finished.progress.messages] == [2, 3]
    await live.close()


async def test_records_of_a_rebuilt_turn_may_be_given_twice_and_belong_to_their_own_step() -> None:
    disk = Disk()
    first = two_calls().engine(disk, decide=lambda request: None)
    first.begin("go")
    live = await first.open()
    blocked = await live.drive("step-1", ())
    assert isinstance(blocked, DriveBlocked)
    disk.requests.update({request.call_id: request for request in blocked.calls})
    disk.new_messages.extend(blocked.progress.messages)
    one, two = blocked.calls
    disk.records[one.call_id] = await _settled(live, one, 2)
    await live.close()
    # Another worker: one call has its record, the other runs here.
    second = two_calls().engine(disk)
    live = await second.open()
    await live.ready(two.call_id)
    disk.records[two.call_id] = await _settled(live, two, 3)
    finished = await live.drive("step-2", list(disk.records.values()))
    assert isinstance(finished, DriveFinished)
    assert finished.progress.model_keys == ("looker@1||looker|2",)
    assert [message.ordinal for message in finished.progress.messages] == [2, 3]
    await live.close()
    # A third one, whose journal has the whole group, and which is given it once more.
    disk.model_calls[1:] = []
    third = two_calls().engine(disk)
    live = await third.open()
    finished = await live.drive("step-2", list(disk.records.values()))
    assert isinstance(finished, DriveFinished)
    assert finished.progress.model_keys == ("looker@1||looker|2",)
    await live.close()


async def test_records_are_handed_out_in_the_order_in_which_they_settled() -> None:
    order: list[str] = []

    def after(tool: Any, args: dict[str, Any], tool_context: Any, tool_response: Any) -> None:
        order.append(args["order"])

    engine = world(calls(*[("look", {"order": n}) for n in "1234"]), says("done"), after_tool_callback=after).engine()
    engine.begin("go")
    live = await engine.open()
    blocked = await live.drive("step-1", ())
    assert isinstance(blocked, DriveBlocked)
    places = [4, 2, 5, 3]
    records = [await _settled(live, request, place) for request, place in zip(blocked.calls, places, strict=True)]
    await live.drive("step-2", records)
    assert order == ["2", "4", "1", "3"]
    await live.close()


async def test_a_model_call_that_falls_due_while_nobody_drives_is_announced() -> None:
    engine = two_calls().engine()
    engine.begin("go")
    live = await engine.open()
    log = engine.log
    assert log is not None
    blocked = await live.drive("step-1", ())
    assert isinstance(blocked, DriveBlocked)
    assert log.nudges == 0
    records = [await _settled(live, request, number + 2) for number, request in enumerate(blocked.calls)]
    live.hand_out(records)
    await log.nudged.wait()
    assert log.nudges == 1
    assert isinstance(await live.drive("step-2", ()), DriveFinished)
    await live.close()


async def test_each_response_of_a_model_call_is_a_group_of_its_own() -> None:
    engine = two_responses().engine()
    await engine.turn("go")
    assert [(request.arguments["n"], request.group) for request in engine.disk.requests.values()] == [
        (1, "stepper@1||stepper|1"),
        (2, "stepper@1||stepper|1/2"),
        (3, "stepper@1||stepper|1/2"),
    ]
    assert engine.disk.new_messages[-1].text == "ok"


async def test_control_calls_are_told_once() -> None:
    def build() -> World:
        return world(calls(("look", {"order": "1"}), ("exit_loop", {})))

    disk = Disk()
    first = build().engine(disk)
    first.begin("go")
    live = await first.open()
    blocked = await live.drive("step-1", ())
    assert isinstance(blocked, DriveBlocked)
    assert [call.tool_name for call in blocked.progress.control_calls] == ["exit_loop"]
    disk.requests.update({request.call_id: request for request in blocked.calls})
    disk.new_messages.extend(blocked.progress.messages)
    await live.close()
    live = await build().engine(disk).open()
    again = await live.drive("step-1", ())
    assert isinstance(again, DriveBlocked)
    assert again.progress.control_calls == ()
    assert again.calls == ()
    await live.close()


async def test_one_drive_at_a_time() -> None:
    engine = two_calls().engine()
    engine.begin("go")
    live = await engine.open()
    drive = asyncio.ensure_future(live.drive("step-1", ()))
    await asyncio.sleep(0)
    with pytest.raises(UsageError, match="hand_out"):
        await live.drive("step-1", ())
    await drive
    await live.close()


async def test_a_call_that_nobody_asked_for() -> None:
    engine = two_calls().engine()
    engine.begin("go")
    live = await engine.open()
    await live.drive("step-1", ())
    with pytest.raises(NonDeterminismError, match="no-such-call"):
        await live.call_tool("no-such-call", 1, None)
    with pytest.raises(NonDeterminismError, match="no-such-call"):
        await live.ready("no-such-call")
    await live.replayed()
    await live.close()


class _Screen(BasePlugin):
    def __init__(self) -> None:
        super().__init__(name="screen")

    async def before_run_callback(self, **_: Any) -> types.Content:
        return types.Content(role="model", parts=[types.Part(text="not today")])


async def test_a_plugin_that_ends_the_run_early_spares_the_model() -> None:
    one = two_calls()
    assert isinstance(one.agent, LlmAgent)
    one.agent = App(name="Flow", root_agent=one.agent, plugins=[_Screen()])
    engine = one.engine()
    await engine.turn("go")
    assert one.model.requests == []
    assert [message.text for message in engine.disk.new_messages] == ["go", "not today"]


async def test_a_callback_that_makes_up_a_call_gets_it_run() -> None:
    made: list[int] = []

    def make_up(callback_context: Any, llm_request: Any) -> Any:
        made.append(1)
        return calls(("look", {"order": "9"})) if len(made) == 1 else None

    one = world(says("unused"), says("done"), before_model_callback=make_up)
    engine = one.engine()
    await engine.turn("go")
    assert [request.arguments for request in engine.disk.requests.values()] == [{"order": "9"}]
    assert engine.disk.new_messages[-1].text == "done"


async def test_a_user_s_pictures_reach_the_model_and_the_store() -> None:
    one = world(says("seen"), says("seen again"))
    engine = one.engine()
    picture = ImageInput(data=b"\xff\x00\xfe", mime_type="image/png")
    await engine.turn(UserMessage(text="look", images=(picture,)))
    assert engine.disk.new_messages[0].images == ("image/png",)
    cold = World(one.model, one.agent).engine(engine.disk)
    await cold.turn("again")
    parts = one.model.requests[-1].contents[0].parts or []
    assert [part.inline_data.data for part in parts if part.inline_data] == [b"\xff\x00\xfe"]


async def test_the_log_is_asked_for_history_only_when_the_session_is_not_in_memory() -> None:
    one = world(*[says(str(n)) for n in range(9)])
    engine = one.engine()

    async def loads() -> int:
        await engine.turn("go")
        assert isinstance(engine.log, Log)
        return engine.log.history_loads

    assert [await loads(), await loads(), await loads()] == [0, 0, 0]
    engine.disk.messages.append(engine.disk.messages[-1])  # somebody else wrote: memory is out of date
    assert [await loads(), await loads()] == [1, 0]
    engine.begin("go")
    live = await engine.open()
    await live.close()  # a turn that is dropped takes the session out of memory
    await engine.go_on()
    assert engine.log.history_loads == 1  # type: ignore[union-attr]  # set by the turn
