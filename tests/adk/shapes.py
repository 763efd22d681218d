"""Worlds of more than one agent: every shape that ADK has, as root and inside each other."""

from __future__ import annotations

import asyncio
from typing import Any

from google.adk.agents import BaseAgent, LlmAgent, LoopAgent, ParallelAgent, SequentialAgent
from google.adk.tools.agent_tool import AgentTool
from google.adk.tools.exit_loop_tool import exit_loop
from google.adk.tools.tool_context import ToolContext
from google.adk.workflow import Workflow
from tests.adk.model import Reply, ScriptedModel, calls, says
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
        mine = f"notes of {tool_context.agent_name}"
        tool_context.state[mine] = [*tool_context.state.get(mine, []), words]
        return {"noted": words}

    def world(self, agent: BaseAgent | Workflow, **more: Any) -> World:
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
    agents: list[BaseAgent] = [
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
