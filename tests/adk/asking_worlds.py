"""Workflows whose nodes ask: a turn of several legs.  See ``workflow_worlds``."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable
from typing import Any, cast

from fastapi.openapi.models import APIKey
from google.adk.agents import LlmAgent
from google.adk.agents.context import Context
from google.adk.auth.auth_credential import AuthCredential, AuthCredentialTypes
from google.adk.auth.auth_handler import AuthHandler
from google.adk.auth.auth_tool import AuthConfig
from google.adk.events.event import Event
from google.adk.events.request_input import RequestInput
from google.adk.models.llm_request import LlmRequest
from google.adk.models.llm_response import LlmResponse
from google.adk.tools.function_tool import FunctionTool
from google.adk.tools.tool_context import ToolContext
from google.adk.workflow import START, JoinNode, Workflow, node
from pydantic import BaseModel
from tests.adk.model import ScriptedModel, calls, says
from tests.adk.worlds import World
from tests.support.nodes import event, request


def ask_then_use() -> World:
    """A question between two nodes, with state on both sides of it, and a node that leaves no trace."""
    log: list[str] = []

    def prepare(node_input: Any, ctx: Context) -> None:
        log.append("prepare")
        ctx.state["temp:kept"] = {"by": "prepare"}
        ctx.state["prepared"] = True

    def trace(node_input: Any) -> None:
        log.append("trace")

    def ask(node_input: Any) -> RequestInput:
        log.append("ask")
        return request(interrupt_id="name", message="Your name?", payload={"form": 1}, response_schema=str)

    def use(node_input: str, ctx: Context) -> str:
        log.append(f"use {node_input}")
        ctx.state["name"] = node_input
        return f"hello {node_input}"

    model = ScriptedModel(replies=[says("a greeting")])
    writer = LlmAgent(name="writer", model=model, instruction="Greet {name}.")
    return World(model, Workflow(name="flow", edges=[(START, prepare, trace, ask, use, writer)]), log)


def two_at_once() -> World:
    """Two branches ask, a third one works on; a join after all."""
    log: list[str] = []

    def asker(name: str) -> Any:
        def ask(node_input: Any) -> RequestInput:
            log.append(f"ask {name}")
            return request(interrupt_id=name, message=f"{name}?")

        return node(ask, name=name)

    def work(node_input: Any, ctx: Context) -> str:
        log.append("work")
        ctx.state["worked"] = True
        return "done"

    def total(node_input: dict[str, Any]) -> list[str]:
        log.append("total")
        return [f"{name}={value}" for name, value in sorted(node_input.items())]

    asks, join = (asker("left"), asker("right")), JoinNode(name="join")
    flow = Workflow(name="flow", edges=[(START, (*asks, work)), ((*asks, work), join), (join, total)])
    return World(ScriptedModel(), flow, log)


def review_loop() -> World:
    """An agent drafts and a person reviews until it is good (field case 16)."""
    log: list[str] = []

    def reply(asked: LlmRequest) -> LlmResponse:
        return says(f"said to {str(asked.config.system_instruction)[:7]}")

    model = ScriptedModel(replies=[reply] * 9)
    drafter = LlmAgent(name="drafter", model=model, instruction="Draft {round?}.")

    def review(node_input: Any) -> RequestInput:
        log.append(f"review {node_input}")
        return request(message=f"Good? {node_input}")

    def judge(node_input: Any, ctx: Context) -> Event:
        log.append(f"judge {node_input['ok']}")
        ctx.state["round"] = ctx.state.get("round", 0) + 1
        return event(output="feedback", route="publish" if node_input["ok"] else "again")

    def publish(node_input: Any) -> str:
        log.append("publish")
        return "published"

    flow = Workflow(
        name="flow",
        edges=[(START, drafter, review, judge), (judge, {"again": drafter, "publish": publish})],
    )
    return World(model, flow, log)


def supervisor() -> World:
    """A node over three children of which one asks (field case 18)."""
    log: list[str] = []

    @node(rerun_on_resume=True)
    def child(node_input: str, ctx: Context) -> Any:
        log.append(f"child {node_input}")
        if node_input == "beta":
            answer = ctx.resume_inputs.get("beta?")
            if answer is None:
                return request(interrupt_id="beta?", message="beta?")
            return f"beta:{answer['word']}"
        return node_input

    @node(rerun_on_resume=True)
    async def supervise(node_input: Any, ctx: Context) -> list[Any]:
        log.append("supervise")
        results = [await ctx.run_node(child, name) for name in ("alpha", "beta", "gamma")]
        same = await ctx.run_node(child, "delta", run_id="d")
        assert same == await ctx.run_node(child, "delta", run_id="d")
        return results

    def close(node_input: list[Any]) -> str:
        log.append("close")
        return str(node_input)

    return World(ScriptedModel(), Workflow(name="flow", edges=[(START, supervise, close)]), log)


def confirmed() -> World:
    """A node that wants to be confirmed, and a tool node that does."""
    log: list[str] = []

    @node(require_confirmation=True)
    def remove(node_input: Any, ctx: Context) -> str:
        log.append(f"remove {ctx.tool_confirmation.payload if ctx.tool_confirmation else None}")
        ctx.state["removed"] = True
        return "removed"

    def arguments(node_input: Any) -> dict[str, Any]:
        return {"order": "7"}

    def refund(order: str, tool_context: ToolContext) -> dict[str, Any]:
        """Refunds."""
        log.append(f"refund {order}")
        return {"refunded": order}

    flow = Workflow(name="flow", edges=[(START, remove, arguments, FunctionTool(refund, require_confirmation=True))])
    return World(ScriptedModel(), flow, log)


KEY = AuthConfig(
    auth_scheme=APIKey.model_validate({"type": "apiKey", "in": "header", "name": "key"}),
    raw_auth_credential=AuthCredential(auth_type=AuthCredentialTypes.API_KEY),
    credential_key="shop",
)


def signs_in() -> World:
    """A node that needs a key, between two that do not."""
    log: list[str] = []

    def prepare(node_input: Any, ctx: Context) -> str:
        log.append("prepare")
        ctx.state["prepared"] = True
        return "prepared"

    @node(auth_config=KEY, rerun_on_resume=True)
    def fetch(node_input: Any, ctx: Context) -> str:
        credential = AuthHandler(KEY).get_auth_response(ctx.state)
        log.append(f"fetch {credential and credential.api_key}")
        return f"fetched after {node_input}"

    def use(node_input: str, ctx: Context) -> str:
        log.append("use")
        ctx.state["fetched"] = node_input
        return node_input

    model = ScriptedModel(replies=[says("a summary")])
    writer = LlmAgent(name="writer", model=model, instruction="Sum up {fetched}.")
    return World(model, Workflow(name="flow", edges=[(START, prepare, fetch, use, writer)]), log)


def until_ok() -> World:
    """A node that asks until it likes the answer, under one id (field case 22)."""
    log: list[str] = []

    @node(rerun_on_resume=True)
    async def insist(node_input: Any, ctx: Context) -> AsyncGenerator[Any, None]:
        log.append("insist")
        ctx.state["entries"] = ctx.state.get("entries", 0) + 1
        answer = ctx.resume_inputs.get("word")
        if answer is None or answer["word"] != "ok":
            yield request(interrupt_id="word", message="Say ok")
        else:
            yield f"got {answer['word']}"

    def close(node_input: str) -> str:
        log.append(f"close {node_input}")
        return node_input

    return World(ScriptedModel(), Workflow(name="flow", edges=[(START, insist, close)]), log)


class Item(BaseModel):
    """What the workflow below takes."""

    item: str


def workflow_tool_asks() -> World:
    """An agent that calls a workflow which asks, beside an ordinary tool."""
    log: list[str] = []

    def ask(node_input: dict[str, Any]) -> RequestInput:
        log.append(f"ask {node_input['item']}")
        return request(interrupt_id=f"price of {node_input['item']}", message="What does it cost?")

    def price(node_input: Any) -> dict[str, Any]:
        log.append(f"price {node_input}")
        return {"price": node_input}

    def note(words: str, tool_context: ToolContext) -> str:
        """Notes."""
        log.append(f"note {words}")
        tool_context.state["noted"] = words
        return words

    quote = Workflow(name="quote", description="Quotes.", input_schema=Item, edges=[(START, ask, price)])
    model = ScriptedModel(replies=[calls(("quote", {"item": "pen"}), ("note", {"words": "two"})), says("quoted")])
    return World(model, LlmAgent(name="seller", model=model, instruction="Sell.", tools=[cast(Any, quote), note]), log)


ASKING_WORLDS: dict[str, Callable[[], World]] = {
    build.__name__: build
    for build in (
        ask_then_use,
        two_at_once,
        review_loop,
        supervisor,
        confirmed,
        signs_in,
        until_ok,
        workflow_tool_asks,
    )
}
