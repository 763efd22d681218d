"""``durable_step``: what it does is done once, wherever it is used and wherever the turn stops."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncGenerator, Callable
from typing import Any

import pytest
from google.adk.agents import BaseAgent, LlmAgent, ParallelAgent
from google.adk.agents.callback_context import CallbackContext
from google.adk.agents.context import Context
from google.adk.agents.invocation_context import InvocationContext
from google.adk.apps.app import App
from google.adk.events.event import Event
from google.adk.plugins.base_plugin import BasePlugin
from google.adk.tools.base_tool import BaseTool
from google.adk.tools.tool_context import ToolContext
from google.adk.workflow import START, Workflow, node
from google.genai import types
from tests.adk.disk import Crash, Disk, Log
from tests.adk.engine import Engine
from tests.adk.model import ScriptedModel, calls, says
from tests.adk.workflow_worlds import QUICK
from tests.adk.worlds import World
from tests.support.nodes import request

from perdure.adk import RecordedError, durable_step
from perdure.errors import UsageError, ValueNotStorable
from perdure.session.policy import RetryPolicy, ToolEffect, ToolPolicy


class StepFailed(Exception):
    """Raised by a step; of a class that can be found again."""


def doing(done: list[str], what: str, value: Any = None) -> Callable[[], Any]:
    """A step that leaves a trace and gives a value."""

    def do() -> Any:
        done.append(what)
        return value

    return do


Builder = Callable[[list[str]], World]


def in_callbacks(done: list[str]) -> World:
    """Steps in a plugin, in callbacks of an agent around parallel ones, in a tool and in a custom agent."""

    async def charge(name: str) -> str:
        done.append(name)
        return f"receipt of {name}"

    class Screen(BasePlugin):
        async def before_run_callback(self, *, invocation_context: InvocationContext) -> types.Content | None:
            await durable_step(invocation_context, "screen", lambda: charge("screen"))
            return None

    async def before_agent(callback_context: CallbackContext) -> None:
        name = callback_context.agent_name
        callback_context.state[name] = await durable_step(callback_context, "charge", lambda: charge(name))

    async def before_tool(tool: BaseTool, args: dict[str, Any], tool_context: ToolContext) -> None:
        await durable_step(tool_context, "audit", lambda: done.append(f"audit {args['n']}"))

    async def look(n: int, tool_context: ToolContext) -> str:
        """Looks."""
        first = await durable_step(tool_context, "count", lambda: charge(f"look {n}"))
        await durable_step(tool_context, "count", lambda: charge(f"look {n} again"))
        return first

    class Custom(BaseAgent):
        async def _run_async_impl(self, ctx: InvocationContext) -> AsyncGenerator[Event, None]:
            value = await durable_step(ctx, "custom", lambda: (len(done), "custom")[1])
            done.append(f"saw {value}")
            yield Event(author=self.name, content=types.Content(role="model", parts=[types.Part(text=value)]))

    model = ScriptedModel(replies=[calls(("look", {"n": 1}), ("look", {"n": 2})), says("looked")])
    agents = [
        LlmAgent(
            name=name,
            model=model.model_copy(),
            tools=[look],
            before_agent_callback=before_agent,
            before_tool_callback=before_tool,
        )
        for name in ("left", "right")
    ]
    root = ParallelAgent(name="both", sub_agents=[*agents, Custom(name="custom")])
    return World(model, App(name="Flow", root_agent=root, plugins=[Screen(name="screen")]))


def in_nodes(done: list[str]) -> World:
    """Steps in a node that fails twice, in one that starts others, and in one that is entered once for each answer."""

    @node(retry_config=QUICK)
    async def flaky(node_input: Any, ctx: Context) -> str:
        await durable_step(ctx, "charge", lambda: done.append("charge"))

        def shaky() -> str:
            done.append(f"shaky {ctx.attempt_count}")
            if ctx.attempt_count == 1:
                raise StepFailed("not yet")
            return "steady"

        first = await durable_step(ctx, "shaky", shaky)
        if ctx.attempt_count < 3:
            raise ConnectionError("once more")
        return first

    @node
    def child(node_input: int) -> int:
        done.append(f"child {node_input}")
        return node_input

    @node(rerun_on_resume=True)
    async def scope(node_input: Any, ctx: Context) -> str:
        number = await durable_step(ctx, "before", doing(done, "before", 1))
        await ctx.run_node(child, number)
        again = await durable_step(ctx, "after", doing(done, "after", 2))
        return str(await ctx.run_node(child, again))

    @node(rerun_on_resume=True)
    async def insist(node_input: Any, ctx: Context) -> Any:
        ticket = await durable_step(ctx, "open ticket", doing(done, "ticket", "T1"))
        answer = ctx.resume_inputs.get("word")
        if answer is None or answer["word"] != "ok":
            return request(interrupt_id="word", message=f"Say ok for {ticket}")
        return f"got it for {ticket}"

    flow = Workflow(name="flow", edges=[(START, flaky, scope, insist)])
    return World(ScriptedModel(), flow)


EXPECTED: dict[Builder, Counter[str]] = {
    in_callbacks: Counter(
        ["screen", "left", "right", "audit 1", "audit 2", "audit 1", "audit 2", "look 1", "look 2", "look 1", "look 2"]
        + ["look 1 again", "look 2 again"] * 2
    ),
    in_nodes: Counter(["charge", "shaky 1", "shaky 2", "before", "child 1", "after", "child 2", "ticket"]),
}


def _engine(build: Builder, done: list[str], disk: Disk) -> Engine:
    world = build(done)
    engine = world.engine(disk)

    def reply(question: Any) -> Any:
        assert disk.start is not None
        return {"word": "ok" if disk.start.leg == 3 else "bad"}

    engine.answer = reply
    return engine


@pytest.mark.parametrize("build", EXPECTED, ids=lambda build: build.__name__)
async def test_a_step_is_done_once_wherever_the_turn_stops(build: Builder) -> None:
    done: list[str] = []
    disk = Disk()
    await _engine(build, done, disk).turn("go")
    assert disk.error is None
    seen = Counter(entry for entry in done if not entry.startswith("saw "))
    assert seen == EXPECTED[build]
    for point in range(1, disk.writes + 1):
        broken, before = Disk(crash_at=point), list[str]()
        engine = _engine(build, before, broken)
        engine.begin("go")
        with pytest.raises(Crash):
            await engine.go_on()
        broken.reboot()
        after: list[str] = []
        await _engine(build, after, broken).go_on()
        assert broken.error is None, point
        assert broken.state == disk.state, point
        twice = Counter(entry for entry in before + after if not entry.startswith("saw ")) - seen
        # What was being done at the crash, and nothing else, may have been done twice.
        assert sum(twice.values()) <= 4, (point, twice)
        recorded = [call.key for call in broken.model_calls if "step" in call.key or call.key.startswith("aside|")]
        assert len(recorded) == len(set(recorded)), point


async def test_what_a_step_raised_is_raised_again_as_the_same_class() -> None:
    done: list[str] = []

    def raise_it() -> None:
        done.append("tried")
        raise StepFailed("no")

    async def before_agent(callback_context: CallbackContext) -> types.Content | None:
        with pytest.raises(StepFailed, match="no"):
            await durable_step(callback_context, "try", raise_it)
        return None

    async def refuse(callback_context: CallbackContext) -> types.Content | None:
        with pytest.raises((ValueNotStorable, RecordedError), match="durable step 'keep'"):
            await durable_step(callback_context, "keep", doing(done, "kept", object()))
        return None

    disk = Disk()
    for _ in range(2):
        model = ScriptedModel(replies=[calls(("look", {})), says("done")])
        agent = LlmAgent(
            name="a", model=model, tools=[look], before_agent_callback=before_agent, before_model_callback=_keep(refuse)
        )
        options = {"tool_policies": {"look": ToolPolicy(ToolEffect.READ, requires_approval=True)}}
        engine = World(model, agent, options=options).engine(disk, decide=lambda request: None)
        if disk.start is None:
            engine.begin("go")
        assert not await engine.go_on()
    assert done == ["tried", "kept"]


def _keep(refuse: Any) -> Any:
    async def before_model(callback_context: CallbackContext, llm_request: Any) -> None:
        if len(llm_request.contents) == 1:
            await refuse(callback_context)

    return before_model


def look() -> str:
    """Looks."""
    return "seen"


async def test_a_retried_attempt_of_a_tool_does_not_repeat_its_steps() -> None:
    done: list[str] = []

    async def send(tool_context: ToolContext) -> str:
        """Sends."""
        await durable_step(tool_context, "reserve", lambda: done.append("reserve"))
        done.append("send")
        if done.count("send") < 3:
            raise ConnectionError("no")
        return "sent"

    model = ScriptedModel(replies=[calls(("send", {})), says("done")])
    retry = RetryPolicy(max_attempts=3)
    options = {"tool_policies": {"send": ToolPolicy(ToolEffect.IDEMPOTENT_WRITE, retry=retry)}}
    engine = World(model, LlmAgent(name="a", model=model, tools=[send]), options=options).engine()
    await engine.turn("go")
    assert done == ["reserve", "send", "send", "send"]


async def test_outside_of_a_durable_turn_and_with_wrong_arguments() -> None:
    with pytest.raises(UsageError, match="inside a durable turn only"):
        await durable_step(None, "x", lambda: 1)  # type: ignore[call-overload]  # that is the test

    async def before_agent(callback_context: CallbackContext) -> None:
        with pytest.raises(UsageError, match=r"context is .*; it must be a context of ADK"):
            await durable_step("x", "x", lambda: 1)  # type: ignore[call-overload]  # that is the test
        with pytest.raises(UsageError, match=r"(name|fn) is .*; it must be a"):
            await durable_step(callback_context, "", lambda: 1)
        callback_context.state["checked"] = True

    model = ScriptedModel(replies=[says("done")])
    engine = World(model, LlmAgent(name="a", model=model, before_agent_callback=before_agent)).engine()
    await engine.turn("go")
    assert engine.disk.state["checked"] is True


async def test_what_comes_while_a_record_is_on_its_way_to_the_disk_is_behind_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As it is in a replay, which goes by when the record was made."""

    async def slowly(self: Log) -> None:
        while not self.disk.records:  # noqa: ASYNC110 - the other branch's tool is under way
            await asyncio.sleep(0)
        for _ in range(200):
            await asyncio.sleep(0)

    class Custom(BaseAgent):
        async def _run_async_impl(self, ctx: InvocationContext) -> AsyncGenerator[Event, None]:
            await looking.wait()
            value = await durable_step(ctx, "custom", lambda: "done first")
            yield Event(author=self.name, content=types.Content(role="model", parts=[types.Part(text=value)]))

    async def look() -> str:
        """Looks."""
        looking.set()
        for _ in range(100):
            await asyncio.sleep(0)
        return "seen"

    looking = asyncio.Event()
    monkeypatch.setattr(Log, "written", slowly)
    model = ScriptedModel(replies=[calls(("look", {})), says("looked")])
    root = ParallelAgent(name="both", sub_agents=[LlmAgent(name="a", model=model, tools=[look]), Custom(name="custom")])
    engine = World(model, root).engine()
    await engine.turn("go")
    said = [str(item["content"]["parts"]) for item in engine.disk.messages]
    assert [
        next(word for word in ("go", "function_call", "done first", "function_response", "looked") if word in one)
        for one in said
    ] == ["go", "function_call", "done first", "function_response", "looked"]
