"""The workflows of the field tests; each builder gives the same flow in every process."""

from __future__ import annotations

from typing import Any

from google.adk.agents import LlmAgent
from google.adk.agents.context import Context
from google.adk.events.event import Event
from google.adk.events.request_input import RequestInput
from google.adk.workflow import START, Workflow, node
from pydantic import BaseModel
from tests.field.lives import Hold
from tests.field.support import Field, durable
from tests.support.nodes import event, graph, request

from perdure import AgentSessionFlow
from perdure.adk import durable_step
from perdure.testing import text


class Draft(BaseModel):
    """A draft, for an agent with an output schema."""

    words: str


def review_loop(field: Field, *, schema: bool = False) -> AgentSessionFlow:
    """An agent drafts, a person reviews, until it is approved (case 16)."""
    said = [text('{"words": "a draft"}' if schema else "a draft")] * 9
    drafter = LlmAgent(name="drafter", model=field.model(said), output_schema=Draft if schema else None)

    def review(node_input: Any) -> RequestInput:
        field.note("review", node_input)
        return request(message="Good?")

    def judge(node_input: Any) -> Event:
        return event(output="feedback", route="publish" if node_input["good"] else "again")

    def publish(node_input: Any) -> str:
        field.note("published")
        return "published"

    edges: list[Any] = [(START, drafter, review, judge), (judge, {"again": drafter, "publish": publish})]
    return durable(graph("reviewing", [*edges]))


def ask_and_use(field: Field) -> AgentSessionFlow:
    """One node asks, the next one uses the answer (case 7)."""

    def ask(node_input: Any) -> RequestInput:
        return request(interrupt_id="word", message="Which word?")

    def use(node_input: Any) -> str:
        field.note("use", node_input["word"])
        return str(node_input["word"])

    return durable(Workflow(name="asking", edges=[(START, ask, use)]))


def quick_or_ask(field: Field) -> AgentSessionFlow:
    """What the message says decides which branch is taken (case 17)."""

    def prep(node_input: str) -> Event:
        field.note("prep", node_input)
        return event(output=node_input, route=node_input)

    def quick(node_input: Any) -> str:
        return "quick"

    def ask(node_input: Any) -> RequestInput:
        return request(interrupt_id="same", message="Well?")

    def use(node_input: Any) -> str:
        field.note("use", node_input["word"])
        return "used"

    edges: list[Any] = [(START, prep), (prep, {"quick": quick, "ask": ask}), (ask, use)]
    return durable(graph("choosing", [*edges]))


def supervisor(field: Field) -> AgentSessionFlow:
    """A node over three children, of which one asks (case 18)."""

    @node(rerun_on_resume=True)
    def child(node_input: str, ctx: Context) -> Any:
        answer = ctx.resume_inputs.get("beta?")
        if node_input == "beta" and answer is None:
            return request(interrupt_id="beta?", message="beta?")
        field.note("child", node_input)
        return f"beta:{answer['word']}" if node_input == "beta" and answer else node_input

    @node(rerun_on_resume=True)
    async def supervise(node_input: Any, ctx: Context) -> list[Any]:
        names = ("alpha", "beta", "gamma")
        results = [await ctx.run_node(child, name) for name in names]
        assert await ctx.run_node(child, "delta", run_id="d") == await ctx.run_node(child, "delta", run_id="d")
        return results

    return durable(Workflow(name="supervising", edges=[(START, supervise)]))


def fails_once(field: Field, hold: Hold) -> AgentSessionFlow:
    """The second of three nodes is running when the worker dies (case 19)."""

    def first(node_input: Any) -> str:
        field.note("first")
        return "first"

    async def second(node_input: str) -> str:
        field.note("second")
        await hold.here("second")
        return "second"

    def third(node_input: str) -> str:
        field.note("third", node_input)
        return "third"

    return durable(Workflow(name="steps", edges=[(START, first, second, third)]))


def until_ok(field: Field) -> AgentSessionFlow:
    """A node that counts, asks, and goes on only when it likes the answer (case 22)."""

    @node(rerun_on_resume=True)
    async def insist(node_input: Any, ctx: Context) -> Any:
        ctx.state["entries"] = ctx.state.get("entries", 0) + 1

        async def open_ticket() -> str:
            field.note("ticket")
            return "T1"

        ticket = await durable_step(ctx, "open ticket", open_ticket)
        answer = ctx.resume_inputs.get("word")
        if answer is None or answer["word"] != "ok":
            return request(interrupt_id="word", message=f"Say ok for {ticket}")
        return f"ok for {ticket}"

    return durable(Workflow(name="insisting", edges=[(START, insist)]))


def scoped(field: Field, hold: Hold) -> AgentSessionFlow:
    """A node that starts two others; the worker dies in the second one, and its approval is then waited for."""

    @node
    async def work(node_input: str) -> str:
        field.note("work", node_input)
        if node_input == "two":
            await hold.here("work two")
        return str(node_input).upper()

    @node(rerun_on_resume=True)
    async def manage(node_input: Any, ctx: Context) -> str:
        field.note("manage")
        one = await ctx.run_node(work, "one")
        return str(one) + str(await ctx.run_node(work, "two"))

    def close(node_input: str) -> str:
        field.note("close", node_input)
        return node_input

    return durable(Workflow(name="managing", edges=[(START, manage, close)]))
