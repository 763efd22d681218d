"""Worlds whose root is a ``Workflow``, or that have one below an agent.  See ``worlds``."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Generator
from typing import Any, cast

from google.adk.agents import LlmAgent, SequentialAgent
from google.adk.agents.context import Context
from google.adk.events.event import Event
from google.adk.models.llm_request import LlmRequest
from google.adk.models.llm_response import LlmResponse
from google.adk.tools.function_tool import FunctionTool
from google.adk.tools.tool_context import ToolContext
from google.adk.workflow import START, JoinNode, RetryConfig, Workflow, node
from pydantic import BaseModel
from tests.adk.model import ScriptedModel, calls, says
from tests.adk.worlds import World
from tests.support.nodes import event

QUICK = RetryConfig(max_attempts=3, initial_delay=0.0, jitter=0.0)


def chain() -> World:
    """Functions and an agent one after the other: inputs, outputs, state in every direction."""
    log: list[str] = []

    def clean(node_input: str, ctx: Context) -> str:
        log.append(f"clean {node_input}")
        ctx.state["cleaned"] = node_input.strip()
        ctx.state["temp:hint"] = "be brief"
        ctx.state["app:seen"] = ctx.state.get("app:seen", 0) + 1
        return node_input.strip()

    async def count(node_input: Any, cleaned: str, ctx: Context) -> dict[str, Any]:
        log.append(f"count {cleaned}")
        return {"text": str(node_input), "length": len(cleaned)}

    def close(node_input: dict[str, Any]) -> None:
        log.append(f"close {node_input['length']}")

    model = ScriptedModel(replies=[says("an answer")])
    writer = LlmAgent(name="writer", model=model, instruction="Hint {temp:hint?}, {cleaned}.", output_key="written")
    return World(model, Workflow(name="flow", edges=[(START, clean, writer, count, close)]), log)


class Ticket(BaseModel):
    """What a node hands on."""

    kind: str
    tries: int = 0


def routes() -> World:
    """A route that is chosen by a node, and a loop back until it is chosen otherwise."""
    log: list[str] = []

    def classify(node_input: Any, ctx: Context) -> Event:
        tries = ctx.state.get("tries", 0) + 1
        ctx.state["tries"] = tries
        log.append(f"classify {tries}")
        return event(output=Ticket(kind="bug", tries=tries).model_dump(), route="again" if tries < 3 else "done")

    def wait_a_bit(node_input: Ticket) -> str:
        log.append(f"wait {node_input.tries}")
        return f"waited {node_input.tries}"

    def finish(node_input: Ticket) -> Ticket:
        log.append(f"finish {node_input.kind}")
        return Ticket(kind="closed", tries=node_input.tries)

    flow = Workflow(
        name="flow",
        edges=[(START, classify), (classify, {"again": wait_a_bit, "done": finish}), (wait_a_bit, classify)],
    )
    return World(ScriptedModel(), flow, log)


def fan_out() -> World:
    """Branches with functions and agents that end in another order than they began, and a join."""
    log: list[str] = []

    async def slow(node_input: Any) -> str:
        log.append("slow")
        return "slow"

    def quick(node_input: Any, ctx: Context) -> str:
        log.append("quick")
        ctx.state["quick"] = True
        return "quick"

    def polish(node_input: str) -> str:
        log.append(f"polish {node_input}")
        return node_input.upper()

    def total(node_input: dict[str, Any]) -> list[str]:
        log.append("total")
        return [f"{name}={value}" for name, value in sorted(node_input.items())]

    first, second = ScriptedModel(replies=[calls(("look", {})), says("one")]), ScriptedModel(replies=[says("two")])

    def look(tool_context: ToolContext) -> str:
        """Looks."""
        log.append("look")
        tool_context.state["looked"] = tool_context.branch
        return "seen"

    one = LlmAgent(name="one", model=first, instruction="One.", tools=[look])
    two = LlmAgent(name="two", model=second, instruction="Two.")
    join = JoinNode(name="join")
    flow = Workflow(
        name="flow",
        edges=[(START, (slow, quick, one, two)), (quick, polish), ((slow, polish, one, two), join), (join, total)],
    )
    world = World(first, flow, log)
    world.others = (second,)
    return world


def limited() -> World:
    """Four branches of which two may run at a time."""
    log: list[str] = []

    def worker(name: str) -> Any:
        async def work(node_input: Any, ctx: Context) -> str:
            log.append(name)
            ctx.state[f"{name} ran"] = True
            return name

        return node(work, name=name)

    nodes = tuple(worker(name) for name in ("a", "b", "c", "d"))
    join = JoinNode(name="join")
    flow = Workflow(name="flow", max_concurrency=2, edges=[(START, nodes), (nodes, join)])
    return World(ScriptedModel(), flow, log)


def workers() -> World:
    """A node that is run once for each item of a list: a function, then an agent."""
    log: list[str] = []

    def split(node_input: str) -> list[int]:
        log.append("split")
        return [1, 2, 3]

    @node(parallel_worker=True, max_parallel_workers=2)
    def square(node_input: int) -> int:
        log.append(f"square {node_input}")
        return node_input * node_input

    def reply(asked: LlmRequest) -> LlmResponse:
        return says(f"said {(asked.contents[-1].parts or [])[-1].text}")

    model = ScriptedModel(replies=[reply])
    agent = LlmAgent(name="sayer", model=model, instruction="Say.", parallel_worker=True)
    return World(model, Workflow(name="flow", edges=[(START, split, square, agent)]), log)


def dynamic() -> World:
    """A node that starts others: in turn, at the same time, twice under one id, and with its output as its own."""
    log: list[str] = []

    @node
    async def double(node_input: int, ctx: Context) -> int:
        log.append(f"double {node_input}")
        ctx.state[f"double {node_input}"] = ctx.node_path
        return 2 * node_input

    model = ScriptedModel(replies=[says("a word")])
    sayer = LlmAgent(name="sayer", model=model, instruction="Say.")

    @node(rerun_on_resume=True)
    async def supervise(node_input: Any, ctx: Context) -> AsyncGenerator[Any, None]:
        log.append("supervise")
        yield event(message="starting")
        first = await ctx.run_node(double, 1)
        ctx.state["first"] = first
        both = await asyncio.gather(ctx.run_node(double, 2), ctx.run_node(double, 3))
        same = await ctx.run_node(double, 7, run_id="seven")
        again = await ctx.run_node(double, 7, run_id="seven")
        yield event(message=f"half way {both} {same} {again}", state={"half": both})
        said = await ctx.run_node(sayer, f"say {first}")
        yield [first, *both, same, again, said]

    def close(node_input: list[Any]) -> str:
        log.append("close")
        return f"closed {node_input}"

    return World(model, Workflow(name="flow", edges=[(START, supervise, close)]), log)


def retried() -> World:
    """A node that fails twice and is run again by ADK; what a failed try set stays, as on plain ADK."""
    log: list[str] = []

    @node(retry_config=QUICK)
    def flaky(node_input: Any, ctx: Context) -> str:
        log.append(f"flaky {ctx.attempt_count}")
        ctx.state["tries"] = ctx.attempt_count
        if ctx.attempt_count < 3:
            raise ConnectionError(f"no {ctx.attempt_count}")
        return "at last"

    def close(node_input: str) -> str:
        log.append("close")
        return node_input

    return World(ScriptedModel(), Workflow(name="flow", edges=[(START, flaky, close)]), log)


def broken() -> World:
    """A node that fails for good, beside one that works."""
    log: list[str] = []

    def works(node_input: Any) -> str:
        log.append("works")
        return "fine"

    def fails(node_input: Any) -> None:
        log.append("fails")
        raise ValueError("no such order")

    def never(node_input: Any) -> None:
        log.append("never")

    return World(ScriptedModel(), Workflow(name="flow", edges=[(START, works, fails, never)]), log)


def generators() -> World:
    """Generators, asynchronous and not, that yield events, state, a route and an output."""
    log: list[str] = []

    async def tell(node_input: Any, ctx: Context) -> AsyncGenerator[Any, None]:
        log.append("tell")
        yield event(message="a part", partial=True)
        yield event(message="the first thing")
        ctx.state["told"] = 1
        yield event(message="the second thing", state={"second": True})
        ctx.state["told"] = ctx.state["told"] + 1
        yield "told"
        ctx.state["after"] = "late"

    def choose(node_input: str, ctx: Context) -> Generator[Any, None, None]:
        log.append(f"choose {node_input}")
        yield event(state={"chosen": True})
        ctx.route = "left"
        yield {"input": node_input, "chosen": ctx.state.get("chosen")}

    def left(node_input: dict[str, Any], ctx: Context) -> None:
        log.append("left")
        ctx.output = ["left", node_input["input"]]

    def right(node_input: Any) -> None:
        log.append("right")

    flow = Workflow(name="flow", edges=[(START, tell, choose), (choose, {"left": left, "right": right})])
    return World(ScriptedModel(), flow, log)


def tool_nodes() -> World:
    """Tools as nodes: with arguments from the node before, with state, and one that returns nothing."""
    log: list[str] = []

    def order(node_input: Any) -> dict[str, Any]:
        return {"order": "7"}

    def look(order: str, tool_context: ToolContext) -> dict[str, Any]:
        """Looks an order up."""
        log.append(f"look {order}")
        tool_context.state["looked"] = order
        return {"order": order, "weight": 3}

    async def ship(order: str, weight: int, tool_context: ToolContext) -> None:
        """Ships."""
        log.append(f"ship {order} {weight}")
        tool_context.state["shipped"] = [order, weight]

    def close(ctx: Context) -> str:
        log.append("close")
        return f"shipped {ctx.state['shipped']}"

    flow = Workflow(name="flow", edges=[(START, order, FunctionTool(look), FunctionTool(ship), close)])
    return World(ScriptedModel(), flow, log)


def nested() -> World:
    """A workflow in a workflow, in which a node has the name of one outside; visited twice."""
    log: list[str] = []

    def step(node_input: Any, ctx: Context) -> int:
        log.append(f"step {ctx.node_path}")
        ctx.state["n"] = ctx.state.get("n", 0) + 1
        return int(ctx.state["n"])

    def more(node_input: int) -> int:
        log.append(f"more {node_input}")
        return node_input + 10

    inner = Workflow(name="inner", edges=[(START, node(step, name="work"), more)])

    def check(node_input: int, ctx: Context) -> Event:
        log.append(f"check {node_input}")
        return event(output=node_input, route="more" if ctx.state["n"] < 3 else "end")

    def end(node_input: int) -> int:
        return node_input

    flow = Workflow(
        name="flow",
        edges=[(START, node(step, name="work"), inner, check), (check, {"more": inner, "end": end})],
    )
    return World(ScriptedModel(), flow, log)


def workflow_as_tool() -> World:
    """An agent with a workflow among its tools, called twice at once, beside an ordinary tool."""
    log: list[str] = []

    def weigh(node_input: dict[str, Any], ctx: Context) -> int:
        log.append(f"weigh {node_input['item']}")
        ctx.state[f"weighed {node_input['item']}"] = True
        return len(node_input["item"])

    def price(node_input: int) -> dict[str, Any]:
        log.append(f"price {node_input}")
        return {"price": node_input * 2}

    class Item(BaseModel):
        item: str

    def note(words: str, tool_context: ToolContext) -> str:
        """Notes."""
        log.append(f"note {words}")
        return words

    quote = Workflow(name="quote", description="Quotes.", input_schema=Item, edges=[(START, weigh, price)])
    model = ScriptedModel(
        replies=[
            calls(("quote", {"item": "pen"}), ("quote", {"item": "table"}), ("note", {"words": "two"})),
            calls(("quote", {"item": "lamp"})),
            says("quoted"),
        ]
    )
    return World(model, LlmAgent(name="seller", model=model, instruction="Sell.", tools=[cast(Any, quote), note]), log)


def generator_tool() -> World:
    """A tool that is a generator: ADK runs it as a node and shows what it yields on the way."""
    log: list[str] = []

    async def dig(depth: int, tool_context: ToolContext) -> AsyncGenerator[Any, None]:
        """Digs."""
        log.append(f"dig {depth}")
        yield event(message="digging")
        tool_context.state["depth"] = depth
        yield event(message="deeper")
        yield {"found": depth * 2}

    model = ScriptedModel(replies=[calls(("dig", {"depth": 2}), ("dig", {"depth": 3})), says("dug")])
    return World(model, LlmAgent(name="digger", model=model, instruction="Dig.", tools=[dig]), log)


def agents_as_nodes() -> World:
    """A sequence of agents as a node, and an agent with tools after it."""
    log: list[str] = []
    first, second, third = (ScriptedModel(replies=replies) for replies in _replies_of_three())

    def look(n: int, tool_context: ToolContext) -> int:
        """Looks."""
        log.append(f"look {n}")
        tool_context.state["looked"] = n
        return n

    pair = SequentialAgent(
        name="pair",
        sub_agents=[
            LlmAgent(name="first", model=first, instruction="First.", output_key="first"),
            LlmAgent(name="second", model=second, instruction="Second, {first}.", tools=[look]),
        ],
    )
    last = LlmAgent(name="last", model=third, instruction="Last, {looked}.", output_key="last")

    def close(last: str) -> str:
        log.append(f"close {last}")
        return last

    world = World(first, Workflow(name="flow", edges=[(START, pair, last, close)]), log)
    world.others = (second, third)
    return world


def _replies_of_three() -> tuple[list[Any], list[Any], list[Any]]:
    return [says("one")], [calls(("look", {"n": 2})), says("two")], [says("three")]


WORKFLOW_WORLDS: dict[str, Callable[[], World]] = {
    build.__name__: build
    for build in (
        chain,
        routes,
        fan_out,
        limited,
        workers,
        dynamic,
        retried,
        broken,
        generators,
        tool_nodes,
        nested,
        workflow_as_tool,
        generator_tool,
        agents_as_nodes,
    )
}
