"""Workflows: functions are steps, scopes run again, and what one node gave reaches the next, whoever died between."""

from __future__ import annotations

import asyncio
from typing import Any, cast

from google.adk.agents.context import Context
from google.adk.events.event import Event
from google.adk.workflow import START, JoinNode, RetryConfig, Workflow, node

from perdure.adk import durable_step
from perdure.session.runner import AgentSessionFlow
from perdure.testing.conformance.areas.stories import deed, story
from perdure.testing.conformance.world import World
from perdure.testing.replies import text


def _event(**given: Any) -> Event:
    """An event; ``route`` and the like are words of ADK that a type checker does not see."""
    return cast(Event, cast(Any, Event)(**given))


def _flow(world: World, name: str, edges: list[Any], **options: Any) -> AgentSessionFlow:
    return world.flow(Workflow(name=name, edges=edges, **options))


def chain(world: World) -> AgentSessionFlow:
    """Functions and an agent, one after the other."""

    def clean(node_input: str, ctx: Context) -> str:
        world.note("clean", node_input)
        ctx.state["cleaned"] = node_input
        return node_input.upper()

    async def count(node_input: Any, ctx: Context) -> dict[str, Any]:
        await deed(world, "count", "count")
        return {"text": str(node_input), "cleaned": ctx.state["cleaned"]}

    def close(node_input: dict[str, Any]) -> str:
        world.note("close", node_input["cleaned"])
        return "closed"

    writer = world.agent([text("Written.")], name="writer", instruction="Write about {cleaned}", output_key="written")
    return _flow(world, "chain", [(START, clean, writer, count, close)])


CHAIN = story(
    "workflows/chain", "Functions and agents of a chain run once each", chain,
    ["clean go", "count", "close go"], "Written.", middle="count",
)  # fmt: skip


def routes(world: World) -> AgentSessionFlow:
    """A node chooses the way, and comes back until it chooses otherwise."""

    def classify(node_input: Any, ctx: Context) -> Event:
        tries = ctx.state.get("tries", 0) + 1
        ctx.state["tries"] = tries
        world.note("classify", tries)
        return _event(output=tries, route="again" if tries < 3 else "done")

    async def again(node_input: int) -> str:
        await deed(world, f"again {node_input}", "again 2")
        return f"again {node_input}"

    finish = world.agent([text("Finished.")], name="finish")
    return _flow(world, "routes", [(START, classify), (classify, {"again": again, "done": finish}), (again, classify)])


ROUTES = story(
    "workflows/routes", "A route that loops keeps its round", routes,
    ["classify 1", "again 1", "classify 2", "again 2", "classify 3"], "Finished.", middle="again 2",
)  # fmt: skip


def fan_out(world: World) -> AgentSessionFlow:
    """Branches with functions and an agent, and a join."""

    async def slow(node_input: Any) -> str:
        return await deed(world, "slow", "slow")

    def quick(node_input: Any) -> str:
        world.note("quick")
        return "quick"

    def polish(node_input: str) -> str:
        world.note("polish", node_input)
        return node_input.upper()

    def total(node_input: dict[str, Any]) -> str:
        found = ", ".join(f"{name}={value}" for name, value in sorted(node_input.items()))
        world.note("total", found)
        return found

    one = world.agent([text("One.")], name="one")
    join = JoinNode(name="join")
    edges: list[Any] = [(START, (slow, quick, one)), (quick, polish), ((slow, polish, one), join), (join, total)]
    return _flow(world, "fan", edges)


FAN_OUT = story(
    "workflows/join", "A join waits for all of its branches, and gets what each gave", fan_out,
    ["slow", "quick", "polish quick", "total one=One., polish=QUICK, slow=slow done"], "One.",
    middle="slow", ordered=False, before=2,
)  # fmt: skip


def workers(world: World) -> AgentSessionFlow:
    """A node that is run once for each item of a list."""

    def split(node_input: str) -> list[int]:
        world.note("split")
        return [1, 2, 3]

    @node(parallel_worker=True, max_parallel_workers=2)
    async def square(node_input: int) -> int:
        await deed(world, f"square {node_input}", "square 2")
        return node_input * node_input

    def total(node_input: list[int]) -> str:
        world.note("total", sum(node_input))
        return f"The total is {sum(node_input)}."

    return _flow(world, "workers", [(START, split, square, total)])


WORKERS = story(
    "workflows/parallel-workers", "Each item of a list has a worker, and the results keep their order", workers,
    ["split", "square 1", "square 2", "square 3", "total 14"], "go", middle="square 2", ordered=False, before=3,
)  # fmt: skip


def dynamic(world: World) -> AgentSessionFlow:
    """A node that starts others: in turn, at one time, and twice under one id."""

    @node
    async def double(node_input: int) -> int:
        await deed(world, f"double {node_input}", "double 3")
        return 2 * node_input

    @node(rerun_on_resume=True)
    async def supervise(node_input: Any, ctx: Context) -> list[Any]:
        first = await ctx.run_node(double, 1)
        both = await asyncio.gather(ctx.run_node(double, 2), ctx.run_node(double, 3))
        same = await ctx.run_node(double, 7, run_id="seven")
        return [first, *both, same, await ctx.run_node(double, 7, run_id="seven")]

    def close(node_input: list[Any]) -> str:
        world.note("close", *node_input)
        return "closed"

    return _flow(world, "dynamic", [(START, supervise, close)])


DYNAMIC = story(
    "workflows/dynamic-nodes", "Nodes that a node starts are steps; the node itself is a scope", dynamic,
    ["double 1", "double 2", "double 3", "double 7", "close 2 4 6 14 14"], "go",
    middle="double 3", ordered=False, before=3,
)  # fmt: skip


def retried(world: World) -> AgentSessionFlow:
    """A node that fails twice and is run again by the framework; then one in which the worker dies."""

    @node(retry_config=RetryConfig(max_attempts=3, initial_delay=0.0, jitter=0.0))
    def flaky(node_input: Any, ctx: Context) -> str:
        world.note("flaky", ctx.attempt_count)
        if ctx.attempt_count < 3:
            raise ConnectionError("not yet")
        return "at last"

    async def then(node_input: str) -> str:
        return await deed(world, "then", "then")

    return _flow(world, "retried", [(START, flaky, then)])


RETRIED = story(
    "workflows/retries", "A node is tried as often as its own retry rule says", retried,
    ["flaky 1", "flaky 2", "flaky 3", "then"], "go", middle="then",
)  # fmt: skip


def aside(world: World) -> AgentSessionFlow:
    """A scope that does something on the side, once."""

    async def work(node_input: str) -> str:
        return await deed(world, "work", "work")

    inner = node(work, name="work")

    @node(rerun_on_resume=True)
    async def manage(node_input: Any, ctx: Context) -> str:
        async def ticket() -> str:
            world.note("ticket")
            return "T1"

        number = await durable_step(ctx, "open ticket", ticket)
        return f"{number}: {await ctx.run_node(inner, 'x')}"

    return _flow(world, "aside", [(START, manage)])


ASIDE = story(
    "workflows/durable-step", "What a scope does on the side in a durable step is done once", aside,
    ["ticket", "work"], "go", middle="work",
)  # fmt: skip


def nested(world: World) -> AgentSessionFlow:
    """A workflow inside a workflow."""

    async def inside(node_input: Any) -> str:
        return await deed(world, "inside", "inside")

    def outside(node_input: Any) -> str:
        world.note("outside", node_input)
        return "outside done"

    inner = Workflow(name="inner", edges=[(START, inside)])
    return _flow(world, "outer", [(START, inner, outside)])


NESTED = story(
    "workflows/nested", "A workflow is a node of another", nested,
    ["inside", "outside inside done"], "go", middle="inside",
)  # fmt: skip
