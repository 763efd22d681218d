"""ADK's own tools, planners and request settings: as on plain ADK, live and after a crash."""

from __future__ import annotations

from typing import Any

import pytest
from google.adk.agents import LlmAgent
from google.adk.agents.context_cache_config import ContextCacheConfig
from google.adk.apps.app import App
from google.adk.code_executors import BuiltInCodeExecutor
from google.adk.examples.example import Example
from google.adk.memory import InMemoryMemoryService
from google.adk.models.cache_metadata import CacheMetadata
from google.adk.planners import BuiltInPlanner, PlanReActPlanner
from google.adk.tools.example_tool import ExampleTool
from google.adk.tools.exit_loop_tool import exit_loop
from google.adk.tools.google_search_tool import google_search
from google.adk.tools.load_artifacts_tool import load_artifacts_tool as load_artifacts
from google.adk.tools.load_memory_tool import load_memory_tool as load_memory
from google.adk.tools.preload_memory_tool import preload_memory_tool as preload_memory
from google.adk.tools.tool_context import ToolContext
from google.adk.tools.url_context_tool import url_context
from google.genai import types
from tests.adk.comparing import assert_as_plain, assert_survives_crashes
from tests.adk.model import ScriptedModel, calls, says
from tests.adk.worlds import Answer, World, artifacts, usage

from perdure.session.model import UserMessage
from perdure.session.policy import ToolEffect

TWO = [UserMessage(text="What is in order seven?"), UserMessage(text="And in order eight?")]


def agent_world(*replies: Any, messages: list[UserMessage] | None = None, **options: Any) -> World:
    log: list[str] = []

    def look(order: str, tool_context: ToolContext) -> str:
        """Looks."""
        log.append(f"look {order}")
        tool_context.state["seen"] = order
        return f"order {order} has nuts"

    model = ScriptedModel(model="gemini-2.5-flash", replies=list(replies))
    tools = options.pop("tools", [])
    agent = LlmAgent(
        name="helper", model=model, instruction="Help.", tools=[look if tool == "look" else tool for tool in tools],
        **options,
    )  # fmt: skip
    return World(model, agent, log, messages=messages or [UserMessage(text="go")])


def searching() -> World:
    """Tools that only change the request: the model runs them itself."""
    found = types.GroundingMetadata(web_search_queries=["nuts"])
    return agent_world(says("found", grounding_metadata=found), tools=[google_search])


def reading_pages() -> World:
    return agent_world(calls(("look", {"order": "7"})), says("read"), tools=[url_context, "look"])


def with_examples() -> World:
    example = Example(
        input=types.Content(role="user", parts=[types.Part(text="What is in order one?")]),
        output=[types.Content(role="model", parts=[types.Part(text="Bolts.")])],
    )
    return agent_world(calls(("look", {"order": "7"})), says("Nuts."), tools=[ExampleTool([example]), "look"])


def remembering() -> World:
    """The first turn goes to memory by a callback; the second one finds it there, by itself and by asking."""
    world = agent_world(
        says("Order seven has nuts."),
        calls(("load_memory", {"query": "seven"})),
        says("As I said."),
        messages=TWO,
        tools=[preload_memory, load_memory],
    )
    assert isinstance(world.agent, LlmAgent)

    async def keep(callback_context: Any) -> None:
        await callback_context.add_session_to_memory()

    world.agent.after_agent_callback = keep
    world.services = {"memory_service": InMemoryMemoryService()}
    return world


def loading_artifacts() -> World:
    world = artifacts()
    assert isinstance(world.agent, LlmAgent)
    world.agent.tools = [world.agent.tools[0], load_artifacts]
    world.model.replies = [
        calls(("save", {"name": "a.txt"})),
        calls(("load_artifacts", {"artifact_names": ["a.txt"]})),
        says("loaded"),
    ]
    return world


def leaving() -> World:
    """Outside of a loop ``exit_loop`` ends the agent."""
    return agent_world(calls(("exit_loop", {}), ("look", {"order": "7"})), says("unused"), tools=[exit_loop, "look"])


def thinking() -> World:
    config = types.ThinkingConfig(include_thoughts=True, thinking_budget=64)
    thought = [
        types.Part(text="I should look.", thought=True),
        types.Part(function_call=types.FunctionCall(name="look", args={"order": "7"}), thought_signature=b"sig"),
    ]
    reply = says("").model_copy(update={"content": types.Content(role="model", parts=thought)})
    return agent_world(reply, says("Nuts."), planner=BuiltInPlanner(thinking_config=config), tools=["look"])


def planning() -> World:
    plan = "/*PLANNING*/ 1. Look. /*ACTION*/"
    parts = [
        types.Part(text=plan),
        types.Part(function_call=types.FunctionCall(name="look", args={"order": "7"})),
        types.Part(text="/*REASONING*/ what comes after a call is dropped"),
    ]
    reply = says("").model_copy(update={"content": types.Content(role="model", parts=parts)})
    last = says("/*REASONING*/ It is there. /*FINAL_ANSWER*/ Nuts.")
    return agent_world(reply, last, planner=PlanReActPlanner(), tools=["look"])


def without_history() -> World:
    replies = [calls(("look", {"order": "7"})), says("Nuts.")]
    return agent_world(*replies, messages=TWO, include_contents="none", tools=["look"])


def tuned() -> World:
    """Settings of the request, a static instruction and one that reads the state."""
    config = types.GenerateContentConfig(temperature=0.5, stop_sequences=["."], labels={"team": "a"})
    return agent_world(
        calls(("look", {"order": "7"})),
        says("Nuts"),
        calls(("look", {"order": "8"})),
        says("Bolts"),
        messages=TWO,
        generate_content_config=config,
        static_instruction="You are a clerk.",
        output_key="answer",
        tools=["look"],
    )


def shaped() -> World:
    """An output schema beside tools, for a model that cannot have both: ADK adds a tool for the answer."""
    world = agent_world(
        calls(("look", {"order": "7"})),
        calls(("set_model_response", {"order": "7", "days": 3})),
        output_schema=Answer,
        output_key="answer",
        tools=["look"],
    )
    world.model.model = "scripted"
    return world


def cached() -> World:
    """Context cache: what the model says of its cache goes into the next request."""
    metadata = CacheMetadata(
        cache_name="c1",
        expire_time=4_000_000_000.0,
        fingerprint="f",
        invocations_used=1,
        contents_count=1,
        created_at=1_000_000_000.0,
    )
    world = agent_world(
        says("one", cache_metadata=metadata, usage_metadata=usage(500, 5)),
        says("two"),
        messages=TWO,
    )
    assert isinstance(world.agent, LlmAgent)
    world.agent = App(
        name="Flow",
        root_agent=world.agent,
        context_cache_config=ContextCacheConfig(min_tokens=10, ttl_seconds=60, cache_intervals=5),
    )
    return world


def built_in_code() -> World:
    """The model runs the code; ADK keeps an image that comes of it as an artifact."""
    parts = [
        types.Part(executable_code=types.ExecutableCode(code="draw()", language=types.Language.PYTHON)),
        types.Part(code_execution_result=types.CodeExecutionResult(outcome=types.Outcome.OUTCOME_OK, output="drawn")),
        types.Part(inline_data=types.Blob(data=b"\x89PNG", mime_type="image/png", display_name="plot.png")),
    ]
    reply = says("").model_copy(update={"content": types.Content(role="model", parts=parts)})
    world = agent_world(reply, says("done"), code_executor=BuiltInCodeExecutor())
    world.services = artifacts().services
    return world


WORLDS = [
    searching,
    reading_pages,
    with_examples,
    remembering,
    loading_artifacts,
    leaving,
    thinking,
    planning,
    without_history,
    tuned,
    shaped,
    cached,
    built_in_code,
]


@pytest.mark.parametrize("build", WORLDS)
async def test_it_is_as_on_plain_adk(build: Any) -> None:
    await assert_as_plain(build)


BESIDE_STEPS = {built_in_code: 2, loading_artifacts: 3}
"""The write that tells of an artifact which is saved by then."""


@pytest.mark.parametrize("build", WORLDS)
async def test_a_crash_at_any_write_changes_nothing(build: Any) -> None:
    await assert_survives_crashes(build, between=BESIDE_STEPS.get(build))


async def test_tools_of_adk_that_only_read_are_reads() -> None:
    for build in (remembering, loading_artifacts):
        world = build()
        world.options["default_tool_effect"] = ToolEffect.UNCLASSIFIED
        engine = world.engine()
        for message in world.messages:
            await engine.turn(message)
        effects = {request.tool_name: request.effect for request in engine.disk.requests.values()}
        assert effects["load_memory" if build is remembering else "load_artifacts"] is ToolEffect.READ
