"""MCP toolsets over real servers: as on plain ADK, and a replay needs no server."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any

import pytest
from google.adk.agents import LlmAgent
from google.adk.agents.readonly_context import ReadonlyContext
from google.adk.tools.base_tool import BaseTool
from google.adk.tools.mcp_tool import McpTool, McpToolset
from google.adk.tools.tool_context import ToolContext
from tests.adk.comparing import assert_as_plain
from tests.adk.disk import Crash, Disk
from tests.adk.model import ScriptedModel, calls, says
from tests.adk.plain import request_form
from tests.adk.worlds import World
from tests.support.mcp_servers import ServerLog, absent_toolset, http_server, http_toolset, stdio_toolset

from perdure.errors import UsageError
from perdure.session.model import InterruptKind, RecordStatus, TurnStatus, UserMessage
from perdure.session.policy import ToolEffect, ToolPolicy
from perdure.session.runner import CallRequest


@pytest.fixture(autouse=True)
def no_client_certificates(monkeypatch: pytest.MonkeyPatch) -> None:
    """ADK would look for credentials of Google's cloud in the network."""
    monkeypatch.setenv("GOOGLE_API_USE_CLIENT_CERTIFICATE", "false")


@pytest.fixture
def server_log(tmp_path: Path) -> ServerLog:
    return ServerLog(tmp_path / "server.log")


@pytest.fixture
async def opened() -> AsyncGenerator[list[McpToolset]]:
    """Toolsets to close at the end."""
    toolsets: list[McpToolset] = []
    yield toolsets
    for toolset in toolsets:
        await toolset.close()


REPLIES = [
    calls(("look", {"item": "nut"}), ("put", {"item": "nut", "count": 2})),
    calls(("look", {"item": "bolt"})),
    says("three left"),
]


def warehouse(toolset: McpToolset, *replies: Any, **options: Any) -> World:
    model = ScriptedModel(replies=list(replies or REPLIES))
    agent = LlmAgent(name="keeper", model=model, instruction="Keep.", tools=[toolset])
    return World(model, agent, options=options)


async def test_a_stdio_server_is_used_as_on_plain_adk(server_log: ServerLog, opened: list[McpToolset]) -> None:
    def build() -> World:
        opened.append(stdio_toolset(server_log))
        world = warehouse(opened[-1])
        world.model.replies *= 2
        world.messages *= 2
        return world

    await assert_as_plain(build)
    processes = {entry.process for entry in server_log.entries()}
    assert len(processes) == 2  # one for plain ADK and one for the durable flow
    calls = server_log.calls()
    turns = [calls[first : first + 3] for first in range(0, len(calls), 3)]
    assert [sorted(turn[:2]) + turn[2:] for turn in turns] == [["look nut", "put nut 2", "look bolt"]] * 4  # 2 at once


async def test_an_http_server_is_used_as_on_plain_adk(server_log: ServerLog, opened: list[McpToolset]) -> None:
    def headers(context: ReadonlyContext) -> dict[str, str]:
        return {"x-tenant": context.session.id}

    async with http_server(server_log) as port:

        def build() -> World:
            opened.append(http_toolset(port, header_provider=headers, tool_name_prefix="shop", tool_filter=["look"]))
            replies = [calls(("shop_look", {"item": "nut"})), calls(("shop_put", {"item": "nut"})), says("done")]
            return warehouse(opened[-1], *replies[:1], replies[2])

        await assert_as_plain(build)
        for toolset in opened:
            await toolset.close()
    assert [entry.tenant for entry in server_log.entries() if entry.what == "look nut"] == ["s1", "s1"]


@pytest.mark.parametrize("point", [2, 4, 6, 8])
async def test_a_replay_needs_no_server(server_log: ServerLog, opened: list[McpToolset], point: int) -> None:
    """The server is gone after the crash.  Only a call that really has to run misses it."""
    opened.append(stdio_toolset(server_log, tool_name_prefix="x"))
    replies = [calls(("x_look", {"item": "nut"})), calls(("x_look", {"item": "bolt"})), says("three left")]
    expected = warehouse(opened[-1], *replies)
    undisturbed = expected.engine()
    await undisturbed.turn("go")
    assert [call.key.rpartition("/")[2] for call in undisturbed.disk.model_calls[:1]] == ["tools 0@1"]
    opened.append(stdio_toolset(server_log, tool_name_prefix="x"))
    disk = Disk(crash_at=point)
    engine = warehouse(opened[-1], *replies).engine(disk)
    engine.begin("go")
    with pytest.raises(Crash):
        await engine.go_on()
    disk.reboot()
    if not disk.model_calls:
        return  # the listing itself was lost
    second = warehouse(absent_toolset(tool_name_prefix="x"), *replies)
    ran = set(disk.records)
    await second.engine(disk).go_on()
    assert disk.status is TurnStatus.COMPLETED
    missed = [call_id for call_id, result in disk.results.items() if "Failed to create MCP session" in str(result)]
    assert not ran & set(missed)
    asked = list(map(request_form, second.model.requests))
    if not missed:
        assert disk.messages == undisturbed.disk.messages
        assert asked == list(map(request_form, expected.model.requests))[3 - len(asked) :]
    for request in asked:
        assert request["tools"] == ["x_fail", "x_look", "x_pay", "x_put", "x_wait"]
        assert request["config"] == request_form(expected.model.requests[0])["config"]


async def test_a_call_that_is_due_after_a_crash_opens_a_connection(
    server_log: ServerLog, opened: list[McpToolset]
) -> None:
    opened.extend(stdio_toolset(server_log) for _ in range(2))
    disk = Disk(crash_at=4)  # listing, model call, its messages; then the first record
    engine = warehouse(opened[0]).engine(disk)
    engine.begin("go")
    with pytest.raises(Crash):
        await engine.go_on()
    disk.reboot()
    second = warehouse(opened[1])
    seen: list[type[BaseTool]] = []

    def before(tool: BaseTool, args: dict[str, Any], tool_context: ToolContext) -> None:
        seen.append(type(tool))

    assert isinstance(second.agent, LlmAgent)
    second.agent.before_tool_callback = before
    await second.engine(disk).go_on()
    assert disk.status is TurnStatus.COMPLETED
    assert sum("tools" in call.key for call in disk.model_calls) == 1
    assert seen
    assert all(issubclass(kind, McpTool) for kind in seen)
    assert {record.status for record in disk.records.values()} == {RecordStatus.SUCCEEDED}


async def test_effects_come_from_the_servers_annotations(server_log: ServerLog, opened: list[McpToolset]) -> None:
    opened.append(stdio_toolset(server_log))
    everything = calls(
        ("look", {"item": "nut"}), ("put", {"item": "nut", "count": 1}), ("pay", {"amount": 1}), ("fail", {"item": "x"})
    )
    policies = {"fail": ToolPolicy(ToolEffect.NON_IDEMPOTENT_WRITE, requires_approval=False)}
    world = warehouse(
        opened[-1], everything, says("ok"), tool_policies=policies, default_tool_effect=ToolEffect.UNCLASSIFIED
    )
    engine = world.engine()
    await engine.turn("go")
    effects = {request.tool_name: (request.effect, request.ask) for request in engine.disk.requests.values()}
    assert effects == {
        "look": (ToolEffect.READ, None),
        "put": (ToolEffect.IDEMPOTENT_WRITE, None),
        "pay": (ToolEffect.UNCLASSIFIED, InterruptKind.APPROVAL),
        "fail": (ToolEffect.NON_IDEMPOTENT_WRITE, None),
    }


async def test_a_confirmation_that_the_toolset_wants(server_log: ServerLog, opened: list[McpToolset]) -> None:
    opened.append(stdio_toolset(server_log, require_confirmation=True))
    world = warehouse(opened[-1], calls(("look", {"item": "nut"})), says("ok"))
    asked: list[InterruptKind | None] = []

    def decide(request: CallRequest) -> str:
        asked.append(request.ask)
        return "no"

    engine = world.engine(decide=decide)
    await engine.turn("go")
    assert asked == [InterruptKind.CONFIRMATION]
    assert server_log.calls() == []
    assert [record.status for record in engine.disk.records.values()] == [RecordStatus.REJECTED]


async def test_a_policy_for_a_tool_that_the_server_does_not_have(
    server_log: ServerLog, opened: list[McpToolset]
) -> None:
    opened.append(stdio_toolset(server_log))
    policies = {"look": ToolPolicy(ToolEffect.READ), "lok": ToolPolicy(ToolEffect.READ)}
    engine = warehouse(opened[-1], tool_policies=policies).engine()
    engine.begin("go")
    with pytest.raises(UsageError, match=r"tool_policies names 'lok', .*they offer: fail, look, pay, put, wait"):
        await engine.go_on()


def test_a_policy_for_a_tool_that_a_filter_leaves_out(server_log: ServerLog) -> None:
    toolset = stdio_toolset(server_log, tool_filter=["look"], tool_name_prefix="x")
    with pytest.raises(UsageError, match="tool_policies names 'x_put', but the agent has no such tool"):
        warehouse(toolset, tool_policies={"x_put": ToolPolicy(ToolEffect.READ)}).engine()
    warehouse(toolset, tool_policies={"x_look": ToolPolicy(ToolEffect.READ)}).engine()


async def test_a_server_that_is_out_leaves_the_agent_without_its_tools() -> None:
    """As on plain ADK, which asks again before the next model call."""

    def build() -> World:
        def here() -> str:
            """Here."""
            return "yes"

        world = warehouse(absent_toolset(), calls(("here", {})), says("no tools"))
        assert isinstance(world.agent, LlmAgent)
        world.agent.tools.append(here)
        return world

    await assert_as_plain(build)
    engine = build().engine()
    await engine.turn("go")
    assert [call.key.rpartition("/")[2] for call in engine.disk.model_calls if "tools" in call.key] == [
        "tools 0@1",
        "tools 0@2",
    ]


async def test_the_runner_closes_what_its_toolsets_opened(server_log: ServerLog, opened: list[McpToolset]) -> None:
    import psutil

    opened.append(stdio_toolset(server_log))
    engine = warehouse(opened[-1]).engine()
    other = warehouse(opened[-1]).engine()
    before = psutil.Process().children()
    await engine.turn(UserMessage(text="go"))
    await other.turn(UserMessage(text="go"))
    (server,) = set(psutil.Process().children()) - set(before)
    await engine.runner.close()
    assert server.is_running()  # the other flow uses it, too
    await other.runner.close()
    assert not server.is_running()
    await engine.turn(UserMessage(text="go"))  # it is opened again when it is needed
    await engine.runner.close()
