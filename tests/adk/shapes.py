"""Worlds of more than one agent: every shape that ADK has, as root and inside each other."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable
from typing import Any

from google.adk.agents import BaseAgent, LlmAgent, LoopAgent, ParallelAgent, SequentialAgent
from google.adk.agents.callback_context import CallbackContext
from google.adk.agents.invocation_context import InvocationContext
from google.adk.events.event import Event
from google.adk.events.event_actions import EventActions
from google.adk.examples.base_example_provider import BaseExampleProvider
from google.adk.examples.example import Example
from google.adk.planners.plan_re_act_planner import PlanReActPlanner
from google.adk.tools.agent_tool import AgentTool
from google.adk.tools.example_tool import ExampleTool
from google.adk.tools.exit_loop_tool import exit_loop
from google.adk.tools.tool_context import ToolContext
from google.genai import types
from pydantic import BaseModel
from tests.adk.model import Flaky, Reply, ScriptedModel, calls, says
from tests.adk.worlds import World

from perdure.session.model import UserMessage


class Cast:
    """Makes the agents of a world: each has a model of its own, and all of them the tool ``note``."""

    def __init__(self) -> None:
        self.log: list[str] = []
        self.models: list[ScriptedModel] = []

    def llm(self, name: str, *replies: Reply, tools: tuple[Any, ...] = (), **more: Any) -> LlmAgent:
        model = ScriptedModel(model=f"model-of-{name}", replies=list(replies))
        self.models.append(model)
        more.setdefault("instruction", f"Be {name}.")
        return LlmAgent(name=name, model=model, tools=[self.note, *tools], **more)

    async def note(self, words: str, tool_context: ToolContext) -> dict[str, Any]:
        """Notes something down."""
        self.log.append(f"note {words}")
        tool_context.state[f"note:{words}"] = tool_context.agent_name
        tool_context.state["notes"] = [*tool_context.state.get("notes", []), words]
        return {"noted": words}

    def world(self, agent: BaseAgent, **more: Any) -> World:
        return World(self.models[0], agent, self.log, others=tuple(self.models[1:]), **more)


def noting(*words: str) -> Any:
    return calls(*[("note", {"words": each}) for each in words])


def sequence() -> World:
    """Three agents, one after the other; the last reads what the first wrote."""
    cast = Cast()
    root = SequentialAgent(
        name="line",
        sub_agents=[
            cast.llm("first", noting("a"), says("first is done"), says("first again"), output_key="first"),
            cast.llm(
                "second", noting("b", "c"), [says("se", partial=True), says("second is done")], noting("d"), says("2")
            ),
            cast.llm("third", says("third is done"), says("third again"), instruction="Third after {first}."),
        ],
    )
    return cast.world(root, messages=[UserMessage(text="go"), UserMessage(text="again")])


def loop() -> World:
    """A loop that its second agent ends in the third round."""
    cast = Cast()
    writer = cast.llm("writer", noting("w1"), says("draft 1"), says("draft 2"), noting("w3"), says("draft 3"))
    critic = cast.llm("critic", says("no"), says("no"), calls(("exit_loop", {})), tools=(exit_loop,))
    return cast.world(LoopAgent(name="rounds", sub_agents=[writer, critic], max_iterations=5))


def loop_in_loop() -> World:
    """The inner loop's exit ends the outer loop, too: ADK's rule."""
    cast = Cast()
    inner = LoopAgent(
        name="inner",
        sub_agents=[cast.llm("digger", noting("d"), calls(("exit_loop", {})), tools=(exit_loop,))],
        max_iterations=3,
    )
    outer = LoopAgent(name="outer", sub_agents=[inner, cast.llm("never", says("never"))], max_iterations=3)
    after = cast.llm("after", says("after"))
    return cast.world(SequentialAgent(name="all", sub_agents=[outer, after]))


def loop_to_its_end() -> World:
    """A loop that ends by its count."""
    cast = Cast()
    return cast.world(
        LoopAgent(name="rounds", sub_agents=[cast.llm("one", says("1"), noting("two"), says("2"))], max_iterations=2)
    )


def branches() -> World:
    """Two agents side by side, each with two rounds of tools."""
    cast = Cast()
    left = cast.llm("left", noting("l1"), noting("l2", "l3"), [says("le", partial=True), says("left is done")])
    right = cast.llm("right", noting("r1"), says("right is done"), output_key="right")
    return cast.world(ParallelAgent(name="both", sub_agents=[left, right]), branched=True)


def many_branches() -> World:
    """Six branches that stream, note and count in one key."""
    cast = Cast()
    agents = [
        cast.llm(f"b{n}", noting(f"{n}"), [says("s", partial=True), says("t", partial=True), says(f"done {n}")])
        for n in range(6)
    ]
    return cast.world(ParallelAgent(name="fan", sub_agents=agents), branched=True)


def branches_then_tool_agent() -> World:
    """Sequential(Parallel(A, B), C), and C calls an agent as a tool."""
    cast = Cast()
    a = cast.llm("a", noting("a"), says("a is done"), output_key="a")
    b = cast.llm("b", noting("b1"), noting("b2"), says("b is done"), output_key="b")
    helper = cast.llm("helper", noting("h"), says("help"), description="Helps.")
    c = cast.llm(
        "c",
        calls(("helper", {"request": "help c"})),
        says("c is done"),
        tools=(AgentTool(helper),),
        instruction="After {a} and {b}.",
    )
    both = ParallelAgent(name="both", sub_agents=[a, b])
    return cast.world(SequentialAgent(name="line", sub_agents=[both, c]), branched=True)


def sequences_in_branches() -> World:
    """Sequences side by side: between two of its agents a branch is on its way while the other waits."""
    cast = Cast()
    long = SequentialAgent(
        name="long",
        sub_agents=[cast.llm(f"long{n}", noting(f"long{n}"), says(f"long {n}")) for n in range(3)],
    )
    short = SequentialAgent(
        name="short", sub_agents=[cast.llm("short1", noting("s1", "s2"), says("s")), cast.llm("short2", says("s2"))]
    )
    return cast.world(ParallelAgent(name="both", sub_agents=[long, short]), branched=True)


def escalation() -> World:
    """A branch that escalates stops the other, whose call is given up."""
    cast = Cast()

    async def stop(tool_context: ToolContext) -> dict[str, Any]:
        """Stops everything."""
        cast.log.append("stop")
        tool_context.actions.escalate = True
        return {"stopped": True}

    async def slow() -> dict[str, Any]:
        """Takes for ever."""
        cast.log.append("slow")
        await asyncio.Event().wait()
        return {}

    quick = cast.llm("quick", noting("q"), calls(("stop", {})), says("never"), tools=(stop,))
    patient = cast.llm("patient", calls(("slow", {})), says("never"), tools=(slow,))
    both = ParallelAgent(name="both", sub_agents=[quick, patient])
    after = cast.llm("after", noting("after"), says("after"))
    return cast.world(SequentialAgent(name="line", sub_agents=[both, after]), branched=True)


def transfer_down_up_and_across() -> World:
    """The root transfers to a child, which transfers to its sibling, which transfers to the root."""
    cast = Cast()

    def to(name: str) -> Any:
        return calls(("transfer_to_agent", {"agent_name": name}))

    billing = cast.llm("billing", noting("billing"), to("support"), says("never"), description="Bills.")
    support = cast.llm("support", noting("support"), to("desk"), says("never"), description="Supports.")
    desk = cast.llm("desk", to("billing"), says("the desk is done"), sub_agents=[billing, support])
    world = cast.world(desk)
    world.messages = [UserMessage(text="go")]
    return world


def transfer_stays() -> World:
    """A child that was transferred to answers the next message, too."""
    cast = Cast()
    expert = cast.llm("expert", noting("e"), says("expert 1"), says("expert 2"), description="Knows.")
    desk = cast.llm("desk", calls(("transfer_to_agent", {"agent_name": "expert"})), sub_agents=[expert])
    return cast.world(desk, messages=[UserMessage(text="go"), UserMessage(text="more")])


def transfer_in_a_sequence() -> World:
    """An agent of a sequence that transfers to a child of its own."""
    cast = Cast()
    child = cast.llm("child", noting("child"), says("the child is done"), description="A child.")
    parent = cast.llm("parent", calls(("transfer_to_agent", {"agent_name": "child"})), sub_agents=[child])
    return cast.world(SequentialAgent(name="line", sub_agents=[parent, cast.llm("last", says("last"))]))


def transfer_to_nobody() -> World:
    """A transfer to an agent that is not there."""
    cast = Cast()
    child = cast.llm("child", says("never"), description="A child.")
    root = cast.llm("root", calls(("transfer_to_agent", {"agent_name": "ghost"})), says("sorry"), sub_agents=[child])
    return cast.world(root, fails=True)


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
    return cast.world(root)


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
    return cast.world(root)


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
    return cast.world(root)


def single_turn() -> World:
    """A sub-agent in single-turn mode: ADK makes a tool for it."""
    cast = Cast()
    helper = cast.llm("helper", noting("h"), says("helped"), description="Helps.", mode="single_turn")
    boss = cast.llm(
        "boss", calls(("helper", {"request": "x"}), ("note", {"words": "r"})), says("ok"), sub_agents=[helper]
    )
    return cast.world(boss)


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
    agents = [
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
    agents = [cast.llm("begun", says("begun"), says("never")), cast.llm("ended", noting("e"), says("ended"))]
    return cast.world(Impatient(name="impatient", sub_agents=agents))


class Fan(BaseAgent):
    """Runs its agents at once, in tasks of its own, on branches of its own."""

    async def _run_async_impl(self, ctx: InvocationContext) -> AsyncGenerator[Event, None]:
        queue: asyncio.Queue[Event | None] = asyncio.Queue()

        async def run(agent: BaseAgent) -> None:
            branch = ctx.model_copy(update={"branch": f"{ctx.branch or self.name}.{agent.name}"})
            async for event in agent.run_async(branch):
                await queue.put(event)
            await queue.put(None)

        tasks = [asyncio.create_task(run(agent)) for agent in self.sub_agents]
        open_ = len(tasks)
        while open_:
            event = await queue.get()
            if event is None:
                open_ -= 1
            else:
                yield event


def custom_fan() -> World:
    """An agent with code of its own that runs others side by side."""
    cast = Cast()
    agents = [cast.llm("p", noting("p"), says("p is done")), cast.llm("q", noting("q1"), noting("q2"), says("q"))]
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
        sequence,
        loop,
        loop_in_loop,
        loop_to_its_end,
        branches,
        many_branches,
        branches_then_tool_agent,
        sequences_in_branches,
        escalation,
        transfer_down_up_and_across,
        transfer_stays,
        transfer_in_a_sequence,
        transfer_to_nobody,
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
