"""Toolsets without a server of their own kind: OpenAPI, and those of the application."""

from __future__ import annotations

import asyncio
import gc
import weakref
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest
from google.adk.agents import LlmAgent
from google.adk.agents.readonly_context import ReadonlyContext
from google.adk.models.llm_request import LlmRequest
from google.adk.tools.base_tool import BaseTool
from google.adk.tools.base_toolset import BaseToolset
from google.adk.tools.function_tool import FunctionTool
from google.adk.tools.openapi_tool import OpenAPIToolset
from google.adk.tools.tool_context import ToolContext
from tests.adk.comparing import assert_as_plain, assert_survives_crashes
from tests.adk.disk import Crash, Disk
from tests.adk.model import ScriptedModel, calls, says
from tests.adk.plain import request_form
from tests.adk.worlds import World

from perdure.adk.runner import AdkAgentRunner
from perdure.errors import FrameworkDrift, NonDeterminismError, UsageError
from perdure.session.model import TurnStatus, UserMessage
from perdure.session.policy import ToolEffect, ToolPolicy
from perdure.testing._http import read_request, send_json


class Shelf(BaseToolset):
    """A toolset of the application: its tools depend on the session, and each listing is noted."""

    def __init__(self, log: list[str], *tools: BaseTool, broken: int = 0, **more: Any) -> None:
        super().__init__(**more)
        self._log = log
        self._tools = tools
        self._broken = broken
        self.closed = 0

    async def get_tools(self, readonly_context: ReadonlyContext | None = None) -> list[BaseTool]:
        level = None if readonly_context is None else readonly_context.state.get("level", 0)
        self._log.append(f"list at {level}")
        if self._broken:
            self._broken -= 1
            raise ConnectionError("out")
        tools = [tool for tool in self._tools if self._is_tool_selected(tool, readonly_context)]
        return tools if level is None else tools[: 1 + level]

    async def close(self) -> None:
        self.closed += 1


class Stamping(FunctionTool):
    """A tool that does more to a request than to declare itself."""

    async def process_llm_request(self, *, tool_context: ToolContext, llm_request: LlmRequest) -> None:
        await super().process_llm_request(tool_context=tool_context, llm_request=llm_request)
        llm_request.append_instructions(["Stamped."])


def two_functions(log: list[str]) -> tuple[Callable[..., Any], Callable[..., Any]]:
    def low(n: int, tool_context: ToolContext) -> int:
        """Low."""
        log.append(f"low {n}")
        tool_context.state["level"] = 1
        return n

    def high(n: int) -> int:
        """High."""
        log.append(f"high {n}")
        return -n

    return low, high


REPLIES = [calls(("low", {"n": 1})), says("one"), calls(("high", {"n": 2})), says("two")]
PREFIXED = [calls(("x_low", {"n": 1})), calls(("x_high", {"n": 2})), says("two")]


def shelf(*, kind: type[FunctionTool] = FunctionTool, broken: int = 0) -> World:
    """Two turns; in the second one the session may use more tools."""
    log: list[str] = []
    tools = [kind(function) for function in two_functions(log)]
    model = ScriptedModel(replies=REPLIES)
    agent = LlmAgent(name="clerk", model=model, instruction="Use.", tools=[Shelf(log, *tools, broken=broken)])
    return World(model, agent, log, messages=[UserMessage(text="go"), UserMessage(text="on")])


def stamping() -> World:
    return shelf(kind=Stamping)


def broken_at_first() -> World:
    world = shelf(broken=1)
    world.messages = [UserMessage(text="go"), UserMessage(text="on", state_delta={"level": 1})]
    world.model.replies = [says("no tools"), calls(("low", {"n": 1})), says("one")]
    return world


def prefixed() -> World:
    log: list[str] = []
    tools = [FunctionTool(function) for function in two_functions(log)]
    model = ScriptedModel(replies=PREFIXED)
    toolset = Shelf(log, *tools, tool_name_prefix="x", tool_filter=["low", "high"])
    agent = LlmAgent(name="clerk", model=model, instruction="Use.", tools=[toolset])
    return World(model, agent, log, messages=[UserMessage(text="go", state_delta={"level": 1})])


def filtered() -> World:
    """A filter that looks at the session."""
    log: list[str] = []
    tools = [FunctionTool(function) for function in two_functions(log)]

    def allowed(tool: BaseTool, readonly_context: ReadonlyContext | None = None) -> bool:
        return readonly_context is None or tool.name in readonly_context.state.get("allowed", [])

    model = ScriptedModel(replies=[calls(("high", {"n": 2})), says("two")])
    agent = LlmAgent(name="clerk", model=model, instruction="Use.", tools=[Shelf(log, *tools, tool_filter=allowed)])
    return World(model, agent, log, messages=[UserMessage(text="go", state_delta={"allowed": ["high"]})])


WORLDS = [shelf, stamping, broken_at_first, prefixed, filtered]


@pytest.mark.parametrize("build", WORLDS)
async def test_a_toolset_is_used_as_on_plain_adk(build: Any) -> None:
    await assert_as_plain(build)


@pytest.mark.parametrize("build", [shelf, stamping, prefixed, filtered])
async def test_a_crash_at_any_write_changes_nothing(build: Any) -> None:
    await assert_survives_crashes(build)


async def _crashed(build: Callable[[], World], point: int) -> Disk:
    world = build()
    disk = Disk(crash_at=point)
    engine = world.engine(disk)
    engine.begin(world.messages[0])
    with pytest.raises(Crash):
        await engine.go_on()
    disk.reboot()
    return disk


async def test_a_recorded_listing_is_not_made_again() -> None:
    """Not even for the model call that comes after the replay: its request is as it would have been."""
    expected = prefixed()
    await expected.engine().turn(expected.messages[0])
    disk = await _crashed(prefixed, 8)
    recovered = prefixed()
    await recovered.engine(disk).go_on()
    assert disk.status is TurnStatus.COMPLETED
    assert recovered.log == []
    assert [request_form(request) for request in recovered.model.requests] == [
        request_form(expected.model.requests[-1])
    ]


async def test_a_toolset_is_asked_for_the_tool_of_a_call_that_is_due() -> None:
    disk = await _crashed(prefixed, 4)  # listing, model call, its messages: the call is not run
    recovered = prefixed()
    await recovered.engine(disk).go_on()
    assert disk.status is TurnStatus.COMPLETED
    assert [entry for entry in recovered.log if not entry.startswith("list")] == ["low 1", "high 2"]
    assert recovered.log.count("list at 1") == 1


async def test_a_tool_that_is_not_offered_any_more_is_not_run() -> None:
    disk = await _crashed(prefixed, 4)
    recovered = prefixed()
    assert isinstance(recovered.agent, LlmAgent)
    recovered.agent.tools = [Shelf(recovered.log, tool_name_prefix="x")]
    await recovered.engine(disk).go_on()
    results = {record.error.message for record in disk.records.values() if record.error}
    assert any("does not offer 'x_low' any more" in message for message in results)
    assert not any(entry.startswith("low") for entry in recovered.log)


async def test_a_toolset_whose_tools_have_no_recorded_form_is_asked_again() -> None:
    disk = await _crashed(stamping, 5)
    recovered = stamping()
    await recovered.engine(disk).go_on()
    assert recovered.log[0] == "list at 0"
    assert disk.status is TurnStatus.COMPLETED
    gone = stamping()
    disk = await _crashed(stamping, 5)
    assert isinstance(gone.agent, LlmAgent)
    gone.agent.tools = [Shelf(gone.log, broken=9)]
    with pytest.raises(NonDeterminismError, match="low"):
        await gone.engine(disk).go_on()


# ---------------------------------------------------------------- names


async def test_names_of_policies_that_only_some_sessions_may_use() -> None:
    """The listing of one session lacks the tool, but the toolset has it."""
    world = shelf()
    world.options["tool_policies"] = {"high": ToolPolicy(ToolEffect.READ)}
    engine = world.engine()
    for message in world.messages:
        await engine.turn(message)
    assert engine.disk.status is TurnStatus.COMPLETED
    assert "list at None" in world.log


async def test_a_name_that_no_toolset_has_is_refused_at_the_first_listing() -> None:
    world = shelf()
    world.options["tool_policies"] = {"hihg": ToolPolicy(ToolEffect.READ)}
    engine = world.engine()
    engine.begin("go")
    with pytest.raises(UsageError, match=r"tool_policies names 'hihg', but no agent .*they offer: low"):
        await engine.go_on()
    assert world.model.requests == []


async def test_a_toolset_that_does_not_answer_refuses_no_name() -> None:
    world = broken_at_first()
    world.options["tool_policies"] = {"low": ToolPolicy(ToolEffect.READ)}
    engine = world.engine()
    for message in world.messages:
        await engine.turn(message)
    assert engine.disk.status is TurnStatus.COMPLETED


async def test_toolsets_are_closed_by_the_runner_if_they_were_used() -> None:
    world = shelf()
    assert isinstance(world.agent, LlmAgent)
    (toolset,) = world.agent.tools
    assert isinstance(toolset, Shelf)
    idle = world.engine()
    await idle.runner.close()
    assert toolset.closed == 0
    engine = world.engine()
    await engine.turn("go")
    await engine.runner.close()
    await engine.runner.close()
    assert toolset.closed == 1


async def test_a_flow_that_is_gone_keeps_no_toolset_open() -> None:
    world = shelf()
    assert isinstance(world.agent, LlmAgent)
    (toolset,) = world.agent.tools
    assert isinstance(toolset, Shelf)
    forgotten = world.engine()
    await forgotten.turn("go")
    assert isinstance(forgotten.runner, AdkAgentRunner)
    declared = weakref.ref(forgotten.runner._settings.toolsets)
    del forgotten
    while declared() is not None:
        await asyncio.sleep(0)  # What the turn left to the event loop holds it, too.
        gc.collect()
    engine = world.engine()
    await engine.turn("go")
    await engine.runner.close()
    assert toolset.closed == 1


async def test_a_toolset_that_adk_has_changed_is_noticed_when_the_flow_is_built() -> None:
    toolset = Shelf([])
    del toolset._use_invocation_cache
    agent = LlmAgent(name="clerk", model=ScriptedModel(), tools=[toolset])
    with pytest.raises(FrameworkDrift, match=r"Shelf\._use_invocation_cache"):
        World(ScriptedModel(), agent).engine()


# ---------------------------------------------------------------- OpenAPI


def specification(port: int) -> dict[str, Any]:
    item = [{"name": "item", "in": "path", "required": True, "schema": {"type": "string"}}]
    answer = {"200": {"description": "ok", "content": {"application/json": {"schema": {"type": "object"}}}}}
    get = {"operationId": "getStock", "summary": "Looks an item up.", "parameters": item, "responses": answer}
    return {
        "openapi": "3.1.0",
        "info": {"title": "warehouse", "version": "1"},
        "servers": [{"url": f"http://127.0.0.1:{port}"}],
        "paths": {"/stock/{item}": {"get": get}},
    }


@asynccontextmanager
async def warehouse(log: list[str]) -> AsyncGenerator[int]:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while (request := await read_request(reader)) is not None:
                log.append(f"{request.method} {request.target}")
                await send_json(writer, 200, {"left": 3})
        finally:
            writer.close()

    async with await asyncio.start_server(serve, "127.0.0.1", 0) as server:
        yield server.sockets[0].getsockname()[1]


def over_openapi(port: int, **options: Any) -> World:
    toolset = OpenAPIToolset(spec_dict=specification(port), tool_name_prefix="shop", allow_private_network_access=True)
    model = ScriptedModel(replies=[calls(("shop_get_stock", {"item": "nut"})), says("three")])
    agent = LlmAgent(name="keeper", model=model, instruction="Keep.", tools=[toolset])
    return World(model, agent, options=options)


@pytest.mark.filterwarnings("ignore:Setting per-request cookies:DeprecationWarning")  # ADK does
async def test_an_openapi_toolset_is_used_as_on_plain_adk() -> None:
    log: list[str] = []
    async with warehouse(log) as port:
        await assert_as_plain(lambda: over_openapi(port))
        assert log == ["GET /stock/nut"] * 2
        await assert_survives_crashes(lambda: over_openapi(port))
        engine = over_openapi(port).engine()
        await engine.turn("go")
    assert list(engine.disk.results.values()) == [{"left": 3}]
    assert len(engine.disk.model_calls) == 2  # no listing is recorded: the specification is part of the code


def test_the_names_of_an_openapi_toolset_are_known_when_the_flow_is_built() -> None:
    over_openapi(1, tool_policies={"shop_get_stock": ToolPolicy(ToolEffect.READ)}).engine()
    with pytest.raises(UsageError, match=r"tool_policies names 'get_stock', .*known: shop_get_stock"):
        over_openapi(1, tool_policies={"get_stock": ToolPolicy(ToolEffect.READ)}).engine()
