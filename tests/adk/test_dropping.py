"""Dropping a live turn: no task is left, no callback of the application runs, nothing is said to the event loop."""

from __future__ import annotations

import asyncio
import gc
import threading
from collections.abc import AsyncGenerator, AsyncIterator
from typing import Any

import pytest
from google.adk.agents import LlmAgent
from google.adk.apps.app import App
from google.adk.models.base_llm import BaseLlm
from google.adk.models.llm_request import LlmRequest
from google.adk.models.llm_response import LlmResponse
from google.adk.plugins.base_plugin import BasePlugin
from google.adk.tools.base_tool import BaseTool
from google.adk.tools.tool_context import ToolContext
from pydantic import PrivateAttr
from tests.adk.engine import Engine
from tests.adk.model import ScriptedModel, calls, says
from tests.adk.worlds import World

from perdure.errors import UsageError
from perdure.session.runner import DriveBlocked, LiveTurn


class EndingsPlugin(BasePlugin):
    """Notes everything that ADK would call for an end, an error or a cancellation."""

    def __init__(self, log: list[str]) -> None:
        super().__init__(name="endings")
        self._log = log

    async def after_run_callback(self, **_: Any) -> None:
        self._log.append("plugin after_run")

    async def after_agent_callback(self, **_: Any) -> None:
        self._log.append("plugin after_agent")

    async def on_tool_error_callback(self, **_: Any) -> None:
        self._log.append("plugin on_tool_error")

    async def on_model_error_callback(self, **_: Any) -> None:
        self._log.append("plugin on_model_error")

    async def on_run_error_callback(self, **_: Any) -> None:
        self._log.append("plugin on_run_error")

    async def on_agent_error_callback(self, **_: Any) -> None:
        self._log.append("plugin on_agent_error")


class StuckModel(BaseLlm):
    """Never answers."""

    model: str = "stuck"
    _asked: asyncio.Event = PrivateAttr(default_factory=asyncio.Event)

    @property
    def asked(self) -> asyncio.Event:
        return self._asked

    async def generate_content_async(
        self, llm_request: LlmRequest, stream: bool = False
    ) -> AsyncGenerator[LlmResponse, None]:
        self._asked.set()
        await asyncio.Event().wait()
        yield says("never")


@pytest.fixture
async def quiet_loop() -> AsyncIterator[list[dict[str, Any]]]:
    """What the event loop was told of exceptions that nobody took."""
    told: list[dict[str, Any]] = []
    loop = asyncio.get_running_loop()
    loop.set_exception_handler(lambda _, context: told.append(context))
    yield told
    gc.collect()
    await asyncio.sleep(0)
    loop.set_exception_handler(None)
    assert told == []


def _world(log: list[str], model: BaseLlm, tools: list[Any], **agent: Any) -> World:
    def note(entry: str) -> Any:
        def callback(**_: Any) -> None:
            log.append(entry)

        return callback

    root = LlmAgent(
        name="worker",
        model=model,
        tools=tools,
        on_tool_error_callback=note("on_tool_error"),
        after_tool_callback=note("after_tool"),
        after_agent_callback=note("after_agent"),
        on_model_error_callback=note("on_model_error"),
        **agent,
    )
    return World(ScriptedModel(), App(name="Flow", root_agent=root, plugins=[EndingsPlugin(log)]), log)


async def _open(world: World) -> tuple[Engine, LiveTurn]:
    engine = world.engine()
    engine.begin("go")
    return engine, await engine.open()


def _tasks() -> set[asyncio.Task[Any]]:
    return {task for task in asyncio.all_tasks() if task is not asyncio.current_task()}


async def test_while_it_waits_for_tools(quiet_loop: list[Any]) -> None:
    log: list[str] = []

    async def work(n: int) -> int:
        """Works."""
        return n

    model = ScriptedModel(replies=[calls(("work", {"n": 1}), ("work", {"n": 2}))])
    before = _tasks()
    _, live = await _open(_world(log, model, [work]))
    assert isinstance(await live.drive("step", ()), DriveBlocked)
    await live.close()
    await live.close()  # once more is no error
    assert _tasks() == before
    assert log == []


async def test_while_a_tool_runs(quiet_loop: list[Any]) -> None:
    log: list[str] = []
    began, cancelled = asyncio.Event(), asyncio.Event()

    async def work() -> None:
        """Works."""
        began.set()
        try:
            await asyncio.Event().wait()
        finally:
            cancelled.set()

    before = _tasks()
    _, live = await _open(_world(log, ScriptedModel(replies=[calls(("work", {}))]), [work]))
    blocked = await live.drive("step", ())
    assert isinstance(blocked, DriveBlocked)
    attempt = asyncio.ensure_future(live.call_tool(blocked.calls[0].call_id, 1, None))
    await began.wait()
    await live.close()
    assert cancelled.is_set()
    with pytest.raises(asyncio.CancelledError):
        await attempt
    assert _tasks() == before
    assert log == []


async def test_while_a_sync_tool_blocks_its_thread(quiet_loop: list[Any]) -> None:
    log: list[str] = []
    loop, began, go_on = asyncio.get_running_loop(), asyncio.Event(), threading.Event()

    def work() -> None:
        """Works."""
        loop.call_soon_threadsafe(began.set)
        assert go_on.wait(60)

    before = _tasks()
    _, live = await _open(_world(log, ScriptedModel(replies=[calls(("work", {}))]), [work]))
    blocked = await live.drive("step", ())
    assert isinstance(blocked, DriveBlocked)
    attempt = asyncio.ensure_future(live.call_tool(blocked.calls[0].call_id, 1, None))
    await began.wait()
    await live.close()  # a thread cannot be stopped, and is not waited for
    go_on.set()
    with pytest.raises(asyncio.CancelledError):
        await attempt
    assert _tasks() == before
    assert log == []


async def test_while_a_model_answers(quiet_loop: list[Any]) -> None:
    log: list[str] = []
    model = StuckModel()
    before = _tasks()
    _, live = await _open(_world(log, model, []))
    drive = asyncio.ensure_future(live.drive("step", ()))
    await model.asked.wait()
    drive.cancel()
    with pytest.raises(asyncio.CancelledError):
        await drive
    await live.close()
    assert _tasks() == before
    assert log == []


async def test_who_waits_for_a_dropped_turn_is_told(quiet_loop: list[Any]) -> None:
    log: list[str] = []
    model = StuckModel()
    _, live = await _open(_world(log, model, []))
    drive = asyncio.ensure_future(live.drive("step", ()))
    ready = asyncio.ensure_future(live.ready("call"))
    await model.asked.wait()
    await live.close()
    for waiting in (drive, ready, live.call_tool("call", 1, None), live.replayed()):
        with pytest.raises(UsageError, match="dropped"):
            await waiting
    assert log == []


async def test_before_anything_was_driven(quiet_loop: list[Any]) -> None:
    log: list[str] = []
    before = _tasks()
    _, live = await _open(_world(log, ScriptedModel(replies=[says("a")]), []))
    await live.close()
    assert _tasks() == before
    assert log == []


@pytest.mark.parametrize("where", ["before_agent_callback", "before_model_callback", "before_tool_callback"])
async def test_while_a_callback_of_the_application_waits(where: str, quiet_loop: list[Any]) -> None:
    log: list[str] = []
    began = asyncio.Event()

    async def wait(**_: Any) -> None:
        began.set()
        await asyncio.Event().wait()

    def work() -> None:
        """Works."""

    before = _tasks()
    _, live = await _open(_world(log, ScriptedModel(replies=[calls(("work", {}))]), [work], **{where: wait}))
    drive = asyncio.ensure_future(live.drive("step", ()))
    await began.wait()
    drive.cancel()
    await asyncio.wait([drive])
    await live.close()
    assert _tasks() == before
    assert log == []


async def test_while_a_callback_swallows_the_cancellation(quiet_loop: list[Any]) -> None:
    log: list[str] = []
    began = asyncio.Event()

    async def stubborn(tool: BaseTool, args: dict[str, Any], tool_context: ToolContext) -> None:
        began.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            log.append("swallowed")

    def work() -> None:
        """Works."""
        log.append("work")

    before = _tasks()
    model = ScriptedModel(replies=[calls(("work", {}))])
    engine, live = await _open(_world(log, model, [work], before_tool_callback=stubborn))
    drive = asyncio.ensure_future(live.drive("step", ()))
    await began.wait()
    drive.cancel()
    await asyncio.wait([drive])
    await live.close()
    assert _tasks() == before
    assert log == ["swallowed"]
    assert engine.disk.requests == {}


async def test_a_turn_that_ended_closes_without_a_trace(quiet_loop: list[Any]) -> None:
    log: list[str] = []
    before = _tasks()
    engine = _world(log, ScriptedModel(replies=[says("a")]), []).engine()
    await engine.turn("go")
    assert _tasks() == before
    assert log == ["plugin after_agent", "after_agent", "plugin after_run"]


async def test_adk_s_own_cancellation_still_runs_the_error_callbacks(quiet_loop: list[Any]) -> None:
    """When one call fails the whole run, plain ADK tells the callbacks of its siblings; so do we."""
    log: list[str] = []

    async def work(n: int) -> int:
        """Works."""
        return n

    def guard(tool: BaseTool, args: dict[str, Any], tool_context: ToolContext) -> None:
        if args["n"] == 2:
            raise LookupError("guard broke")

    model = ScriptedModel(replies=[calls(("work", {"n": 1}), ("work", {"n": 2}))])
    engine = _world(log, model, [work], before_tool_callback=guard).engine()
    await engine.turn("go")
    assert engine.disk.error is not None
    assert engine.disk.error.code == "LookupError"
    assert log.count("on_tool_error") == 1
    assert "plugin on_run_error" in log
