"""Long-running calls through a durable runner, asked and answered as on plain ADK."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from google.adk.agents import LlmAgent
from google.adk.apps.app import App
from google.adk.tools.long_running_tool import LongRunningFunctionTool
from google.adk.workflow import START, Workflow
from google.genai import types
from tests.durable_runner.support import (
    SESSION,
    USER,
    Talk,
    comparable,
    durable,
    plain,
    requests_in,
    responds,
    text_of,
)
from tests.support.nodes import graph

from perdure import InterruptAlreadyResolved, SessionStatus, UsageError
from perdure.testing import ScriptedModel, call, reply, text

runs: list[str] = []


def render(scene: str) -> dict[str, str] | None:
    """Renders; the picture comes later."""
    runs.append(scene)
    return None


def order(what: str) -> dict[str, str]:
    """Orders; what is known at once is that it is under way."""
    runs.append(what)
    return {"status": "pending", "ticket": "T-1"}


def waiting() -> LlmAgent:
    """Two calls whose results come from outside."""
    script = [reply(call("render", scene="one"), call("render", scene="two")), text("Both are rendered.")]
    tools: list[Any] = [LongRunningFunctionTool(render)]
    return LlmAgent(name="painter", model=ScriptedModel(script), instruction="Paint.", tools=tools)


def ordering() -> LlmAgent:
    """A call that has a first result."""
    script = [call("order", what="tea"), text("It is on its way."), text("It has arrived.")]
    tools: list[Any] = [LongRunningFunctionTool(order)]
    return LlmAgent(name="buyer", model=ScriptedModel(script), instruction="Buy.", tools=tools)


async def _ordered(talk: Talk) -> types.FunctionCall:
    await talk.start()
    (asked,) = requests_in(await talk.say("go"), "order")
    return asked


async def test_case_12_each_call_is_answered_once_and_runs_once(tmp_path: Path) -> None:
    """A restart between the answers; the first answer is not asked for again."""
    runs.clear()
    async with durable(waiting(), tmp_path) as runner:
        talk = Talk(runner)
        await talk.start()
        events = await talk.say("go")
        first, second = requests_in(events, "render")
        asking = next(event for event in events if event.get_function_calls())
        assert asking.long_running_tool_ids == {first.id, second.id}
        assert await talk.say(responds((first, {"image": 1}))) == []
        assert talk.failures == [None, None]
    async with durable(waiting(), tmp_path) as runner:
        again = Talk(runner)
        events = await again.say(responds((second, {"image": 2})))
        assert again.failures == [None]
        assert text_of(events) == ["Both are rendered."]
        stored, _ = await again.session()
        responses = [r for event in stored for r in event.get_function_responses()]
        assert [(r.id, r.response) for r in responses] == [(first.id, {"image": 1}), (second.id, {"image": 2})]
    assert sorted(runs) == ["one", "two"]


async def test_both_may_be_answered_at_once(tmp_path: Path) -> None:
    async with durable(waiting(), tmp_path) as runner:
        talk = Talk(runner)
        await talk.start()
        first, second = requests_in(await talk.say("go"), "render")
        events = await talk.say(responds((second, {"image": 2}), (first, {"image": 1})))
        assert text_of(events) == ["Both are rendered."]


async def test_whoever_joins_is_asked_by_the_calls_themselves(tmp_path: Path) -> None:
    async with durable(waiting(), tmp_path) as runner:
        talk = Talk(runner)
        await talk.start()
        events = await talk.say("go")
        joined = [
            event
            async for event in runner.run_async(user_id=USER, session_id=SESSION, invocation_id=events[0].invocation_id)
        ]
        assert requests_in(joined, "render") == requests_in(events, "render")
        assert joined[-1].long_running_tool_ids == {call.id for call in requests_in(events, "render")}


async def test_a_later_result_starts_a_turn_as_on_plain_adk(tmp_path: Path) -> None:
    expected = Talk(plain(ordering()))
    asked = await _ordered(expected)
    await expected.say(responds((asked, {"status": "arrived"})))
    async with durable(ordering(), tmp_path) as runner:
        talk = Talk(runner)
        asked = await _ordered(talk)
        snapshot = await (await runner.sessions()).get_agent_snapshot(SESSION)
        assert snapshot.status is SessionStatus.IDLE
        assert [one.tool_name for one in snapshot.pending_interrupts] == ["order"]
        await talk.say(responds((asked, {"status": "arrived"})))
        assert talk.failures == expected.failures == [None, None]
        for ours, theirs in zip(talk.yielded, expected.yielded, strict=True):
            assert comparable(ours) == comparable(theirs)
        events, _ = await talk.session()
    assert comparable(events) == comparable((await expected.session())[0])


async def test_a_later_result_counts_once(tmp_path: Path) -> None:
    async with durable(ordering(), tmp_path) as runner:
        talk = Talk(runner)
        asked = await _ordered(talk)
        arrived = responds((asked, {"status": "arrived"}))
        await talk.say(arrived)
        events, _ = await talk.session()
        assert await talk.say(arrived) == []
        assert await talk.say(responds((asked, {"status": "lost"}))) == []
        assert talk.failures[:3] == [None, None, None]
        assert isinstance(talk.failures[3], InterruptAlreadyResolved)
        assert (await talk.session())[0] == events


async def test_nothing_is_no_answer(tmp_path: Path) -> None:
    async with durable(waiting(), tmp_path) as runner:
        talk = Talk(runner)
        await talk.start()
        first, _ = requests_in(await talk.say("go"), "render")
        empty = types.FunctionResponse(id=first.id, name="render")
        await talk.say(types.Content(parts=[types.Part(function_response=empty)]))
        assert isinstance(talk.failures[-1], UsageError)


def ordering_workflow() -> Workflow:
    """The same agent in a workflow, and one that goes on when the order has arrived."""
    after = LlmAgent(name="after", model=ScriptedModel([text("Served.")]), instruction="Serve.")
    return graph("shop", [(START, ordering(), after)])


async def test_a_later_result_lets_a_workflow_go_on_as_on_plain_adk(tmp_path: Path) -> None:
    expected = Talk(plain(App(name="app", root_agent=ordering_workflow())))
    asked = await _ordered(expected)
    await expected.say(responds((asked, {"status": "arrived"})))
    async with durable(App(name="app", root_agent=ordering_workflow()), tmp_path) as runner:
        talk = Talk(runner)
        asked = await _ordered(talk)
        await talk.say(responds((asked, {"status": "arrived"})))
        assert talk.failures == expected.failures == [None, None]
        assert text_of(talk.yielded[1]) == text_of(expected.yielded[1])
        assert text_of(talk.yielded[1])[-1] == "Served."
