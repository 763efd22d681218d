"""Worlds of agents that run others as tools, as tasks and by code of their own; and all shapes by name."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable
from typing import Any

from google.adk.agents import BaseAgent, ParallelAgent, SequentialAgent
from google.adk.agents.callback_context import CallbackContext
from google.adk.agents.invocation_context import InvocationContext
from google.adk.events.event import Event
from google.adk.events.event_actions import EventActions
from google.adk.examples.base_example_provider import BaseExampleProvider
from google.adk.examples.example import Example
from google.adk.planners.plan_re_act_planner import PlanReActPlanner
from google.adk.tools.agent_tool import AgentTool
from google.adk.tools.example_tool import ExampleTool
from google.genai import types
from pydantic import BaseModel
from tests.adk import shapes
from tests.adk.model import Flaky, calls, says
from tests.adk.shapes import Cast, noting
from tests.adk.worlds import World


class Wish(BaseModel):
    order: str


class Promise(BaseModel):
    days: int


def agent_tools() -> World:
    """Two agents called as tools at once beside a plain call, each with tools, schemas and state of its own."""
    cast = Cast()
    fast = cast.llm("fast", noting("fast"), says("fast is done"), description="Fast.", output_key="fast")
    exact = cast.llm(
        "exact", says('{"days": 3}'), description="Exact.", input_schema=Wish, output_schema=Promise, output_key="exact"
    )
    exact.tools = []
    root = cast.llm(
        "root",
        calls(("fast", {"request": "hurry"}), ("note", {"words": "beside"}), ("exact", {"order": "7"})),
        noting("then"),
        says("the root is done"),
        tools=(AgentTool(fast), AgentTool(exact)),
        instruction="Root {fast?} {exact?}.",
    )
    return cast.world(root, beside=True)


def agent_tool_twice() -> World:
    """The same agent called twice at once, and once more."""
    cast = Cast()
    helper = cast.llm("helper", lambda request: noting(_asked(request)), says("helped"), description="Helps.")
    root = cast.llm(
        "root",
        calls(("helper", {"request": "one"}), ("helper", {"request": "two"})),
        calls(("helper", {"request": "three"})),
        says("the root is done"),
        tools=(AgentTool(helper),),
    )
    return cast.world(root, beside=True)


def _asked(request: Any) -> str:
    return str(request.contents[0].parts[0].text)


def agent_tool_in_agent_tool() -> World:
    """An agent tool whose agent, a sequence, has an agent tool without plugins."""
    cast = Cast()
    deep = cast.llm("deep", noting("deep1", "deep2"), says("deep is done"), description="Deep.")
    middle = cast.llm(
        "middle", calls(("deep", {"request": "dig"})), says("middle"), tools=(AgentTool(deep, include_plugins=False),)
    )
    side = cast.llm("side", noting("side"), says("side is done"))
    line = SequentialAgent(name="line", sub_agents=[middle, side], description="A line.")
    root = cast.llm(
        "root",
        calls(("line", {"request": "go on"})),
        says("the root is done"),
        tools=(AgentTool(line, skip_summarization=False),),
    )
    return cast.world(root)


def agent_tool_without_summary() -> World:
    """An agent tool whose answer ends the turn."""
    cast = Cast()
    helper = cast.llm("helper", noting("h"), says("helped"), description="Helps.")
    root = cast.llm("root", calls(("helper", {"request": "x"})), tools=(AgentTool(helper, skip_summarization=True),))
    return cast.world(root)


def agent_tools_with_branches() -> World:
    """A parallel agent called as a tool."""
    cast = Cast()
    both = ParallelAgent(
        name="both",
        description="Both.",
        sub_agents=[cast.llm("x", noting("x"), says("x")), cast.llm("y", noting("y1"), noting("y2"), says("y"))],
    )
    root = cast.llm("root", calls(("both", {"request": "go"})), says("done"), tools=(AgentTool(both),))
    return cast.world(root, beside=True)


def single_turn() -> World:
    """A sub-agent in single-turn mode: ADK makes a tool for it."""
    cast = Cast()
    helper = cast.llm("helper", noting("h"), says("helped"), description="Helps.", mode="single_turn")
    boss = cast.llm(
        "boss", calls(("helper", {"request": "x"}), ("note", {"words": "r"})), says("ok"), sub_agents=[helper]
    )
    return cast.world(boss, beside=True)


def task() -> World:
    """A sub-agent in task mode: the coordinator delegates, the task ends by ``finish_task``."""
    cast = Cast()
    worker = cast.llm(
        "worker", noting("w"), calls(("finish_task", {"result": "worked"})), description="Works.", mode="task"
    )
    boss = cast.llm(
        "boss", calls(("worker", {"request": "work"})), noting("after"), says("all done"), sub_agents=[worker]
    )
    return cast.world(boss)


def two_tasks() -> World:
    """Two task-mode sub-agents, one after the other."""
    cast = Cast()
    one = cast.llm("one", noting("1"), calls(("finish_task", {"result": "one"})), description="One.", mode="task")
    two = cast.llm("two", calls(("finish_task", {"result": "two"})), description="Two.", mode="task")
    boss = cast.llm(
        "boss",
        calls(("one", {"request": "x"})),
        calls(("two", {"request": "y"})),
        says("all done"),
        sub_agents=[one, two],
    )
    return cast.world(boss)


class Chooser(BaseAgent):
    """Runs its first agent, looks at what it said, and runs the second or the third."""

    async def _run_async_impl(self, ctx: InvocationContext) -> AsyncGenerator[Event, None]:
        first, second, third = self.sub_agents
        said = ""
        async for event in first.run_async(ctx):
            said = event.content.parts[0].text or "" if event.content and event.content.parts else said
            yield event
        yield Event(
            invocation_id=ctx.invocation_id,
            author=self.name,
            branch=ctx.branch,
            actions=EventActions(state_delta={"chosen": said}),
        )
        chosen = second if said == "left" else third
        async for event in chosen.run_async(ctx):
            yield event


def custom() -> World:
    """An agent with code of its own."""
    cast = Cast()
    agents: list[BaseAgent] = [
        cast.llm("asker", noting("ask"), says("left")),
        cast.llm("lefty", noting("l"), says("went left")),
        cast.llm("righty", says("never")),
    ]
    return cast.world(Chooser(name="chooser", sub_agents=agents))


class Impatient(BaseAgent):
    """Leaves its agent after the first event, and runs it again from the beginning."""

    async def _run_async_impl(self, ctx: InvocationContext) -> AsyncGenerator[Event, None]:
        async for event in self.sub_agents[0].run_async(ctx):
            yield event
            break
        async for event in self.sub_agents[1].run_async(ctx):
            yield event


def early_close() -> World:
    """An agent that is left in the middle."""
    cast = Cast()
    agents: list[BaseAgent] = [
        cast.llm("begun", says("begun"), says("never")),
        cast.llm("ended", noting("e"), says("ended")),
    ]
    return cast.world(Impatient(name="impatient", sub_agents=agents))


class Fan(BaseAgent):
    """Runs its agents at once, in tasks of its own, on branches of its own."""

    async def _run_async_impl(self, ctx: InvocationContext) -> AsyncGenerator[Event, None]:
        queue: asyncio.Queue[tuple[Event, asyncio.Event] | None] = asyncio.Queue()

        async def run(agent: BaseAgent) -> None:
            branch = ctx.model_copy(update={"branch": f"{ctx.branch or self.name}.{agent.name}"})
            async for event in agent.run_async(branch):
                seen = asyncio.Event()
                await queue.put((event, seen))
                await seen.wait()
            await queue.put(None)

        tasks = [asyncio.create_task(run(agent)) for agent in self.sub_agents]
        open_ = len(tasks)
        while open_:
            item = await queue.get()
            if item is None:
                open_ -= 1
            else:
                yield item[0]
                item[1].set()


def custom_fan() -> World:
    """An agent with code of its own that runs others side by side."""
    cast = Cast()
    agents: list[BaseAgent] = [
        cast.llm("p", noting("p"), says("p is done")),
        cast.llm("q", noting("q1"), noting("q2"), says("q")),
    ]
    return cast.world(Fan(name="fan", sub_agents=agents), branched=True)


def callbacks_in_branches() -> World:
    """Agent callbacks at every level, which write state and answer for their agents."""
    cast = Cast()

    def before(callback_context: CallbackContext) -> types.Content | None:
        name = callback_context.agent_name
        cast.log.append(f"before {name}")
        callback_context.state[f"began:{name}"] = True
        return says("not today").content if name == "lazy" else None

    def after(callback_context: CallbackContext) -> None:
        cast.log.append(f"after {callback_context.agent_name}")
        callback_context.state[f"ended:{callback_context.agent_name}"] = True

    around: dict[str, Any] = {"before_agent_callback": before, "after_agent_callback": after}
    keen = cast.llm("keen", noting("k"), says("keen is done"), **around)
    lazy = cast.llm("lazy", says("never"), **around)
    both = ParallelAgent(name="both", sub_agents=[keen, lazy], **around)
    return cast.world(SequentialAgent(name="line", sub_agents=[both], **around), branched=True)


def broken_in_a_branch() -> World:
    """A model that fails for good in a branch fails the turn."""
    cast = Cast()
    bad = cast.llm("bad", noting("b"), Flaky((ValueError("broken"),) * 9))
    good = cast.llm("good", noting("g"), says("good is done"))
    return cast.world(
        SequentialAgent(name="line", sub_agents=[good, bad, cast.llm("never", says("never"))]), fails=True
    )


def unknown_tool() -> World:
    """A nested agent whose model makes up a tool."""
    cast = Cast()
    inner = cast.llm("inner", calls(("ghost", {"x": 1}), ("note", {"words": "i"})), says("inner"), description="Inner.")
    root = cast.llm("root", calls(("inner", {"request": "x"})), says("root"), tools=(AgentTool(inner),))
    return cast.world(SequentialAgent(name="line", sub_agents=[root]))


def sights() -> World:
    """What agents see: global instruction, include_contents, a planner, examples."""
    cast = Cast()

    class Examples(BaseExampleProvider):
        def get_examples(self, query: str) -> list[Example]:
            asked = types.Content(role="user", parts=[types.Part(text=f"like {query}")])
            return [Example(input=asked, output=[types.Content(role="model", parts=[types.Part(text="so")])])]

    blind = cast.llm("blind", noting("blind"), says("blind is done"), include_contents="none")
    planner = cast.llm(
        "planner",
        noting("plan"),
        says("/*FINAL_ANSWER*/ planned"),
        planner=PlanReActPlanner(),
        tools=(ExampleTool(Examples()),),
    )
    root = cast.llm("root", says("/*root*/"), sub_agents=[], global_instruction="Always be {mood?}.")
    return cast.world(SequentialAgent(name="line", sub_agents=[root, blind, planner]))


SHAPES: dict[str, Callable[[], World]] = {
    build.__name__: build
    for build in (
        shapes.sequence,
        shapes.loop,
        shapes.loop_in_loop,
        shapes.loop_to_its_end,
        shapes.branches,
        shapes.many_branches,
        shapes.branches_then_tool_agent,
        shapes.sequences_in_branches,
        shapes.escalation,
        shapes.transfer_down_up_and_across,
        shapes.transfer_stays,
        shapes.transfer_in_a_sequence,
        shapes.transfer_to_nobody,
        agent_tools,
        agent_tool_twice,
        agent_tool_in_agent_tool,
        agent_tool_without_summary,
        agent_tools_with_branches,
        single_turn,
        task,
        two_tasks,
        custom,
        early_close,
        custom_fan,
        callbacks_in_branches,
        broken_in_a_branch,
        unknown_tool,
        sights,
    )
}
