"""Agents of every shape: each as one turn, and with a worker that is killed in the middle of it."""

# ADK would rather see a Workflow; perdure runs these shapes as long as ADK has them.
# pyright: reportDeprecated=false

from __future__ import annotations

from collections.abc import AsyncGenerator
from typing import Any

from google.adk.agents import BaseAgent, LlmAgent, LoopAgent, ParallelAgent, SequentialAgent
from google.adk.agents.callback_context import CallbackContext
from google.adk.agents.invocation_context import InvocationContext
from google.adk.events.event import Event
from google.adk.models.llm_request import LlmRequest
from google.adk.models.llm_response import LlmResponse
from google.adk.tools.agent_tool import AgentTool
from google.adk.tools.base_tool import BaseTool
from google.adk.tools.exit_loop_tool import exit_loop
from google.adk.tools.tool_context import ToolContext

from perdure.session.model import SessionStatus
from perdure.session.runner import AgentSessionFlow
from perdure.testing.conformance.areas.stories import deed, story
from perdure.testing.conformance.case import case
from perdure.testing.conformance.checks import same
from perdure.testing.conformance.stage import Stage
from perdure.testing.conformance.world import ASKED, READ, World
from perdure.testing.replies import Reply, call, reply, text
from perdure.testing.script import Script


def noting(*words: str) -> Reply:
    """A response that notes something down, with one call for each word."""
    return reply(*(call("note", words=each) for each in words))


class Troupe:
    """Makes the agents of a world; each has the tool ``note``, which stops in the middle of the story."""

    def __init__(self, world: World, middle: str) -> None:
        self._world = world
        self._middle = middle

    def llm(self, name: str, *script: Script, tools: tuple[Any, ...] = (), **options: Any) -> LlmAgent:
        """An agent with a script of its own."""
        return self._world.agent(list(script), [self.note, *tools], name=name, **options)

    async def note(self, words: str, tool_context: ToolContext) -> str:
        """Notes something down."""
        mine = f"notes of {tool_context.agent_name}"
        done = await deed(self._world, words, self._middle)
        tool_context.state[mine] = [*tool_context.state.get(mine, []), words]
        return done

    def flow(self, agent: Any) -> AgentSessionFlow:
        """The flow of the story."""
        return self._world.flow(agent, {"note": READ})


def sequence(world: World) -> AgentSessionFlow:
    """Three agents, one after the other; the last reads what the first wrote."""
    troupe = Troupe(world, "b")
    first = troupe.llm("first", noting("a"), text("First."), output_key="said")
    second = troupe.llm("second", noting("b"), noting("c"), text("Second."))
    third = troupe.llm("third", text("Third."), instruction="After {said}")
    return troupe.flow(SequentialAgent(name="line", sub_agents=[first, second, third]))


SEQUENCE = story(
    "shapes/sequence", "A sequence runs each of its agents once and in order", sequence,
    ["a", "b", "c"], "Third.", middle="b",
)  # fmt: skip


def loop(world: World) -> AgentSessionFlow:
    """A writer and a critic, who is content in the third round."""
    troupe = Troupe(world, "draft 2")
    drafts = [part for n in (1, 2, 3) for part in (noting(f"draft {n}"), text(f"Draft {n}."))]
    writer = troupe.llm("writer", *drafts)
    critic = troupe.llm("critic", text("No."), text("No!"), call("exit_loop"), tools=(exit_loop,))
    return troupe.flow(LoopAgent(name="rounds", sub_agents=[writer, critic], max_iterations=5))


LOOP = story(
    "shapes/loop", "A loop keeps its round and ends where its agent says so", loop,
    ["draft 1", "draft 2", "draft 3"], "Draft 3.", middle="draft 2",
)  # fmt: skip


def branches(world: World) -> AgentSessionFlow:
    """Two agents side by side, and one behind them."""
    troupe = Troupe(world, "l1")
    left = troupe.llm("left", noting("l1"), text("Left."), output_key="left")
    right = troupe.llm("right", noting("r1"), noting("r2", "r3"), text("Right."), output_key="right")
    both = ParallelAgent(name="both", sub_agents=[left, right])
    after = troupe.llm("after", text("After both."), instruction="After {left} and {right}")
    return troupe.flow(SequentialAgent(name="all", sub_agents=[both, after]))


BRANCHES = story(
    "shapes/branches", "Branches go on by themselves, and what is behind them waits for all", branches,
    ["l1", "r1", "r2", "r3"], "After both.", middle="l1", ordered=False, before=3,
)  # fmt: skip


def transfer(world: World) -> AgentSessionFlow:
    """The root transfers to a child, which transfers to its sibling."""
    troupe = Troupe(world, "b")
    billing = troupe.llm("billing", noting("a"), call("transfer_to_agent", agent_name="support"), description="Bills.")
    support = troupe.llm("support", noting("b"), text("Supported."), description="Supports.")
    desk = troupe.llm("desk", call("transfer_to_agent", agent_name="billing"), sub_agents=[billing, support])
    return troupe.flow(desk)


TRANSFER = story(
    "shapes/transfer", "Transfers steer the turn and are no steps", transfer,
    ["a", "b"], "Supported.", middle="b",
)  # fmt: skip


def agent_tool(world: World) -> AgentSessionFlow:
    """An agent that calls another as a tool."""
    troupe = Troupe(world, "helped")
    helper = troupe.llm("helper", noting("helped"), text("Help."), description="Helps.")
    boss = troupe.llm("boss", call("helper", request="help"), noting("own"), text("Done."), tools=(AgentTool(helper),))
    return troupe.flow(boss)


AGENT_TOOL = story(
    "shapes/agent-tool", "An agent called as a tool is a scope: its calls are steps of their own", agent_tool,
    ["helped", "own"], "Done.", middle="helped",
)  # fmt: skip


def tree(world: World) -> AgentSessionFlow:
    """Branches, then an agent that calls an agent."""
    troupe = Troupe(world, "h")
    a = troupe.llm("a", noting("a"), text("A."), output_key="a")
    b = troupe.llm("b", noting("b1"), noting("b2"), text("B."), output_key="b")
    helper = troupe.llm("helper", noting("h"), text("Help."), description="Helps.")
    c = troupe.llm(
        "c", call("helper", request="help"), text("C."), tools=(AgentTool(helper),), instruction="After {a} and {b}"
    )
    both = ParallelAgent(name="both", sub_agents=[a, b])
    return troupe.flow(SequentialAgent(name="line", sub_agents=[both, c]))


TREE = story(
    "shapes/tree", "Shapes work inside each other", tree,
    ["a", "b1", "b2", "h"], "C.", middle="h", ordered=False, before=3,
)  # fmt: skip


def task(world: World) -> AgentSessionFlow:
    """A coordinator delegates to an agent in task mode."""
    troupe = Troupe(world, "booked")
    finish = call("finish_task", result="LH1 is booked")
    child = troupe.llm("child", noting("booked"), finish, description="Books.", mode="task")
    return troupe.flow(troupe.llm("boss", call("child", request="book LH1"), text("All booked."), sub_agents=[child]))


TASK = story(
    "shapes/task", "A task is handed to a child, whose result comes back once", task,
    ["booked"], "All booked.", middle="booked",
)  # fmt: skip


class Chooser(BaseAgent):
    """An agent with code of its own: which child runs next depends on what the one before wrote."""

    async def _run_async_impl(self, ctx: InvocationContext) -> AsyncGenerator[Event, None]:
        first, second = self.sub_agents
        async for event in first.run_async(ctx):
            yield event
        if ctx.session.state.get("choice") == "Go on.":
            async for event in second.run_async(ctx):
                yield event


def custom(world: World) -> AgentSessionFlow:
    """An agent with code of its own."""
    troupe = Troupe(world, "b")
    first = troupe.llm("first", noting("a"), text("Go on."), output_key="choice")
    second = troupe.llm("second", noting("b"), text("I went on."))
    return troupe.flow(Chooser(name="chooser", sub_agents=[first, second]))


CUSTOM = story(
    "shapes/custom", "Agents with code of their own are replayed like any other", custom,
    ["a", "b"], "I went on.", middle="b",
)  # fmt: skip


def one_waits(world: World) -> AgentSessionFlow:
    """One branch waits for a person while the other works to its end."""
    troupe = Troupe(world, "")

    def pay() -> str:
        """Pays."""
        world.note("pay")
        return "paid"

    payer = troupe.llm("payer", call("pay"), noting("after payment"), text("Paid."), tools=(pay,))
    worker = troupe.llm("worker", noting("w1"), noting("w2"), text("Worked."))
    both = ParallelAgent(name="both", sub_agents=[payer, worker])
    return world.flow(both, {"note": READ, "pay": ASKED})


async def _one_waits(stage: Stage) -> None:
    """The waiting branch holds nobody up; it goes on when it is answered."""
    (asked,) = await stage.asked()
    same("who asks, and where", (asked.agent_name, asked.path), ("payer", "both/payer"))
    same("the other branch is through", sorted(stage.world.ledger), ["w1", "w2"])
    same("and has said so", [text for text in await stage.texts() if text == "Worked."], ["Worked."])
    await stage.decide(asked, True)


@case("shapes/one-branch-waits", "A branch that waits for a person holds no other up.", one_waits, ordered=False)
async def one_branch_waits(stage: Stage) -> None:
    await stage.start()
    await _one_waits(stage)
    await stage.completed()
    same("the ledger", sorted(stage.world.ledger), ["after payment", "pay", "w1", "w2"])


@case(
    "shapes/one-branch-waits-killed",
    "The same when its worker is killed while it waits.",
    one_waits,
    served=False,
    ordered=False,
)
async def one_branch_waits_killed(stage: Stage) -> None:
    with stage.process() as doomed:
        await stage.up(doomed)
        await stage.start()
        await stage.rest(SessionStatus.WAITING)
        doomed.kill()
    await _one_waits(stage)
    async with stage.worker():
        await stage.completed()
    same("the ledger", sorted(stage.world.ledger), ["after payment", "pay", "w1", "w2"])


def watched(world: World) -> AgentSessionFlow:
    """An agent with every callback."""

    def before_agent(callback_context: CallbackContext) -> None:
        world.note("before agent")

    def after_agent(callback_context: CallbackContext) -> None:
        world.note("after agent")

    def before_model(callback_context: CallbackContext, llm_request: LlmRequest) -> None:
        world.note("before model", len(llm_request.contents))

    def after_model(callback_context: CallbackContext, llm_response: LlmResponse) -> None:
        if not llm_response.partial:
            world.note("after model")

    def before_tool(tool: BaseTool, args: dict[str, Any], tool_context: ToolContext) -> dict[str, Any] | None:
        world.note("before", tool.name, args["words"])
        if args["words"] == "forbidden":
            return {"refused": "by a guardrail"}
        args["words"] = args["words"].upper()
        return None

    def after_tool(
        tool: BaseTool, args: dict[str, Any], tool_context: ToolContext, tool_response: Any
    ) -> dict[str, Any]:
        world.note("after", tool.name)
        return {"seen": tool_response}

    agent = Troupe(world, "").llm(
        "watched",
        noting("a"),
        noting("forbidden"),
        text("Watched."),
        before_agent_callback=before_agent,
        after_agent_callback=after_agent,
        before_model_callback=before_model,
        after_model_callback=after_model,
        before_tool_callback=before_tool,
        after_tool_callback=after_tool,
    )
    return world.flow(agent, {"note": READ})


@case(
    "shapes/callbacks",
    "Callbacks run once per call and in the framework's order; a guardrail's answer stands.",
    watched,
)
async def callbacks(stage: Stage) -> None:
    await stage.start()
    await stage.completed()
    same("models called", stage.world.ledger.count("after model"), 3)
    same("the tool ran once, with other arguments", stage.world.ledger.count("A"), 1)
