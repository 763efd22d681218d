"""What goes wrong inside nested agents: limits, failing models and tools, and the callbacks that answer for them."""

from __future__ import annotations

from typing import Any

import pytest
from google.adk.agents import RunConfig, SequentialAgent
from google.adk.agents.callback_context import CallbackContext
from google.adk.agents.run_config import StreamingMode  # type: ignore[attr-defined]  # ADK's documented import
from google.adk.models.llm_request import LlmRequest
from google.adk.models.llm_response import LlmResponse
from google.adk.tools.agent_tool import AgentTool
from google.adk.tools.base_tool import BaseTool
from google.adk.tools.tool_context import ToolContext
from tests.adk.disk import Crash, Disk
from tests.adk.model import Flaky, calls, says
from tests.adk.plain import comparable, request_form, run_plain
from tests.adk.shapes import Cast, noting
from tests.adk.worlds import World

from perdure.session.model import JsonObject, TurnStatus
from perdure.session.policy import RetryPolicy, ToolEffect, ToolPolicy

TRIED_ONCE = {"bad": ToolPolicy(ToolEffect.READ, retry=RetryPolicy(1))}
"""As on plain ADK."""


def limited(calls_allowed: int) -> RunConfig:
    return RunConfig(streaming_mode=StreamingMode.SSE, max_llm_calls=calls_allowed)


def three_agents(limit: int) -> World:
    cast = Cast()
    agents = [cast.llm(f"a{n}", noting(f"a{n}"), says(f"a{n} is done")) for n in range(3)]
    return cast.world(SequentialAgent(name="line", sub_agents=list(agents)), options={"run_config": limited(limit)})


def an_agent_as_a_tool(limit: int) -> World:
    """Each run of an agent tool has a count of its own, as on plain ADK; running out of it ends the turn."""
    cast = Cast()
    helper = cast.llm("helper", noting("h1"), noting("h2"), says("help"), description="Helps.")
    root = cast.llm("root", calls(("helper", {"request": "x"})), says("done"), tools=(AgentTool(helper),))
    return cast.world(root, options={"run_config": limited(limit)})


@pytest.mark.parametrize("build", [three_agents, an_agent_as_a_tool])
@pytest.mark.parametrize("limit", [2, 3, 6])
async def test_the_limit_of_model_calls_is_that_of_plain_adk(build: Any, limit: int) -> None:
    plain, durable = build(limit), build(limit)
    events, _, failure = await run_plain(plain.agent, plain.messages, run_config=limited(limit))
    engine = durable.engine()
    await engine.turn("go")
    assert (failure is None) == (engine.disk.error is None)
    if failure is not None:
        assert engine.disk.error is not None
        assert (engine.disk.error.code, engine.disk.error.message) == (type(failure).__name__, str(failure))
    assert comparable(engine.disk.messages)[: len(events)] == comparable(events)
    assert _asked(durable) == _asked(plain)


@pytest.mark.parametrize("build", [three_agents, an_agent_as_a_tool])
async def test_calls_of_the_journal_count_towards_the_limit(build: Any) -> None:
    engine = build(2).engine()
    await engine.turn("go")
    expected = engine.disk
    assert expected.status is TurnStatus.FAILED
    for point in range(1, expected.writes + 1):
        disk = Disk(crash_at=point)
        first = build(2).engine(disk)
        first.begin("go")
        with pytest.raises(Crash):
            await first.go_on()
        disk.reboot()
        await build(2).engine(disk).go_on()
        assert (disk.error, len(disk.model_calls)) == (expected.error, len(expected.model_calls)), point


def answered_failures(*, include_plugins: bool = True) -> World:
    """A nested agent whose model and tool fail, with callbacks that answer for them."""
    cast = Cast()

    def on_model_error(callback_context: CallbackContext, llm_request: LlmRequest, error: Exception) -> LlmResponse:
        cast.log.append(f"model error {error}")
        return says("the model is out")

    def on_tool_error(tool: BaseTool, args: dict[str, Any], tool_context: ToolContext, error: Exception) -> Any:
        cast.log.append(f"tool error {error}")
        return {"handled": str(error)}

    async def bad() -> None:
        """Fails."""
        raise ValueError("bad")

    inner = cast.llm(
        "inner",
        calls(("bad", {}), ("note", {"words": "i"})),
        Flaky((ValueError("broken"),) * 9),
        tools=(bad,),
        description="Inner.",
        on_model_error_callback=on_model_error,
        on_tool_error_callback=on_tool_error,
    )
    tool = AgentTool(inner, include_plugins=include_plugins)
    root = cast.llm("root", calls(("inner", {"request": "x"})), says("root"), tools=(tool,))
    return cast.world(SequentialAgent(name="line", sub_agents=[root]), options={"tool_policies": TRIED_ONCE})


@pytest.mark.parametrize("include_plugins", [True, False])
async def test_error_callbacks_of_nested_agents_answer_as_on_plain_adk(include_plugins: bool) -> None:
    plain, durable = (answered_failures(include_plugins=include_plugins) for _ in range(2))
    events, _, failure = await run_plain(plain.agent, plain.messages)
    assert failure is None
    engine = durable.engine()
    await engine.turn("go")
    assert comparable(engine.disk.messages) == comparable(events)
    assert sorted(durable.log) == sorted(plain.log)  # calls beside each other
    assert _asked(durable) == _asked(plain)


@pytest.mark.parametrize("include_plugins", [True, False])
async def test_failures_without_callbacks_are_answered_at_every_level(include_plugins: bool) -> None:
    """A failing tool is seen by the nested model; a failing nested model by the model that called its agent."""
    cast = Cast()

    async def bad() -> None:
        """Fails."""
        raise ValueError("bad")

    broken = cast.llm("broken", Flaky((ValueError("broken"),) * 9), description="Broken.")
    inner = cast.llm(
        "inner",
        calls(("bad", {}), ("broken", {"request": "y"}), ("note", {"words": "beside"})),
        says("inner copes"),
        tools=(bad, AgentTool(broken, include_plugins=include_plugins)),
        description="Inner.",
    )
    tool = AgentTool(inner, include_plugins=include_plugins)
    world = cast.world(
        cast.llm("root", calls(("inner", {"request": "x"})), says("root"), tools=(tool,)),
        options={"tool_policies": TRIED_ONCE},
    )
    engine = world.engine()
    await engine.turn("go")
    assert engine.disk.error is None
    asked = next(model for model in world.models if model.model == "model-of-inner").requests[-1]
    answers = {
        part["function_response"]["name"]: part["function_response"]["response"]
        for content in request_form(asked)["contents"]
        for part in content["parts"]
        if "function_response" in part
    }
    assert answers == {
        "bad": {"error": "The tool call failed: bad"},
        "broken": {"error": "The tool call failed: broken"},
        "note": {"noted": "beside"},
    }
    assert engine.disk.messages[-1]["content"]["parts"] == [{"text": "root"}]


def _asked(world: World) -> dict[str, list[JsonObject]]:
    return {model.model: list(map(request_form, model.requests)) for model in world.models}
