"""Apps with ADK's own features beside a durable turn: resumability, compaction, plugins, several sessions at once."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from google.adk.agents import LlmAgent
from google.adk.apps.app import App, EventsCompactionConfig, ResumabilityConfig
from google.adk.apps.llm_event_summarizer import LlmEventSummarizer
from google.adk.models.llm_response import LlmResponse
from google.adk.tools.function_tool import FunctionTool
from google.adk.tools.tool_context import ToolContext
from google.genai import types
from tests.adk.disk import Crash, Disk
from tests.adk.engine import Engine
from tests.adk.model import ScriptedModel, calls, says
from tests.adk.plain import comparable, request_form, run_plain
from tests.adk.worlds import World, two_tools

from perdure.session.model import JsonObject, UserMessage


def _resumable() -> World:
    world = two_tools()
    assert isinstance(world.agent, LlmAgent)
    config = ResumabilityConfig(is_resumable=True)
    world.agent = App(name="Flow", root_agent=world.agent, resumability_config=config)
    return world


def _without_markers(events: list[JsonObject]) -> list[JsonObject]:
    return [event for event in events if "content" in event]


async def test_a_resumable_app_is_as_on_plain_adk_without_its_markers() -> None:
    plain, durable = _resumable(), _resumable()
    events, state, _ = await run_plain(plain.agent, plain.messages)
    engine = durable.engine()
    await engine.turn("go")
    assert len(_without_markers(events)) < len(events)
    assert comparable(engine.disk.messages) == comparable(_without_markers(events))
    assert engine.disk.state == state
    assert list(map(request_form, durable.model.requests)) == list(map(request_form, plain.model.requests))
    durable.model.replies += [says("again")]
    await engine.turn("more")
    assert engine.log is not None
    assert engine.log.history_loads == 0
    assert engine.disk.error is None


async def test_a_resumable_app_survives_a_crash_at_any_write() -> None:
    engine = _resumable().engine()
    await engine.turn("go")
    for point in range(1, engine.disk.writes + 1):
        disk = Disk(crash_at=point)
        first = _resumable().engine(disk)
        first.begin("go")
        with pytest.raises(Crash):
            await first.go_on()
        disk.reboot()
        await _resumable().engine(disk).go_on()
        assert disk.messages == engine.disk.messages


def _compacting() -> tuple[World, ScriptedModel]:
    model = ScriptedModel(replies=[says(f"answer {n}") for n in range(20)])
    summaries = ScriptedModel(replies=[says("what was said")] * 20)
    config = EventsCompactionConfig(summarizer=LlmEventSummarizer(llm=summaries), compaction_interval=2, overlap_size=0)
    agent = LlmAgent(name="talker", model=model)
    return World(model, App(name="Flow", root_agent=agent, events_compaction_config=config)), summaries


@pytest.mark.filterwarnings(r"ignore:\[EXPERIMENTAL\]:UserWarning")
async def test_adk_s_own_compaction_goes_into_the_history() -> None:
    warm, summaries = _compacting()
    cold, _ = _compacting()
    plain, _ = _compacting()
    engine, other = warm.engine(), cold.engine()
    texts = [f"question {n}" for n in range(5)]
    for text in texts:
        await engine.turn(text)
        await other.turn(text)
        other = cold.engine(other.disk)
    events, _, _ = await run_plain(plain.agent, [UserMessage(text=text) for text in texts])
    assert len(summaries.requests) == 2
    assert engine.disk.messages == other.disk.messages
    asked = list(map(request_form, warm.model.requests))
    assert asked == list(map(request_form, cold.model.requests))
    assert asked == list(map(request_form, plain.model.requests))
    assert _compactions(engine.disk.messages) == _compactions(events)
    assert len(_compactions(events)) == 2


def _compactions(events: list[JsonObject]) -> list[JsonObject]:
    compactions = [event["actions"].get("compaction") for event in events]
    return [compaction["compacted_content"] for compaction in compactions if compaction]


async def test_sessions_run_beside_each_other_without_mixing() -> None:
    started: list[str] = []
    both = asyncio.Event()

    async def meet(tool_context: ToolContext) -> str:
        """Waits until both sessions are here."""
        started.append(tool_context.session.id)
        if len(started) == 2:
            both.set()
        await both.wait()
        tool_context.state["me"] = tool_context.session.id
        return tool_context.session.id

    model = ScriptedModel(replies=[calls(("meet", {})), says("met")])
    one = World(model, LlmAgent(name="meeter", model=model, tools=[meet]))
    first = one.engine(Disk(session_id="s1"))
    second = Engine(first.runner, Disk(session_id="s2"))
    await asyncio.gather(first.turn("go"), second.turn("go"))
    assert sorted(started) == ["s1", "s2"]
    for engine in (first, second):
        assert engine.disk.state == {"me": engine.disk.session_id}
        answer = engine.disk.messages[2]["content"]["parts"][0]["function_response"]["response"]
        assert answer == {"result": engine.disk.session_id}


def look() -> str:
    """Looks."""
    return "seen"


async def test_a_tool_that_a_callback_adds_is_durable_too() -> None:
    def add(callback_context: Any, llm_request: Any) -> None:
        llm_request.append_tools([FunctionTool(look)])

    model = ScriptedModel(replies=[calls(("look", {})), says("done")])
    engine = World(model, LlmAgent(name="a", model=model, before_model_callback=add)).engine()
    await engine.turn("go")
    assert [request.tool_name for request in engine.disk.requests.values()] == ["look"]
    assert engine.disk.error is None


async def test_two_calls_that_a_callback_made_up_with_one_id() -> None:
    def make_up(callback_context: Any, llm_request: Any) -> LlmResponse | None:
        if len(llm_request.contents) > 1:
            return None
        call = types.FunctionCall(name="look", args={}, id="same")
        parts = [types.Part(function_call=call), types.Part(function_call=call)]
        return LlmResponse(content=types.Content(role="model", parts=parts))

    model = ScriptedModel(replies=[says("unused"), says("done")])
    agent = LlmAgent(name="a", model=model, tools=[look], before_model_callback=make_up)
    engine = World(model, agent).engine()
    await engine.turn("go")
    parts = engine.disk.messages[2]["content"]["parts"]
    assert parts[0]["function_response"]["response"] == {"result": "seen"}
    assert "same id" in parts[1]["function_response"]["response"]["error"]
