"""The path of an interrupt has one form, whatever asks and wherever: names from the root down, a call's id before what
it runs as a tool."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest
from fastapi.openapi.models import APIKey, APIKeyIn
from google.adk.agents import LlmAgent, LoopAgent, ParallelAgent, SequentialAgent
from google.adk.auth.auth_credential import AuthCredential, AuthCredentialTypes
from google.adk.auth.auth_tool import AuthConfig
from google.adk.events.request_input import RequestInput
from google.adk.tools.agent_tool import AgentTool
from google.adk.tools.long_running_tool import LongRunningFunctionTool
from google.adk.tools.tool_context import ToolContext
from google.adk.workflow import START
from pydantic import BaseModel
from tests.field.support import ASKED, READ, Field, durable, say
from tests.support.nodes import graph, request

from perdure import InterruptKind, ToolEffect, ToolPolicy
from perdure.testing import call, reply, text

pytestmark = pytest.mark.filterwarnings("ignore:.*deprecated.*:DeprecationWarning")
"""ADK's own ``AuthConfig`` calls a method that it has deprecated."""

POLICIES = {"pay": ASKED, "wire": READ, "login": READ, "render": READ, "ticket": READ}
NODES = {"gate": ToolPolicy(ToolEffect.IDEMPOTENT_WRITE, requires_approval=True)}
KINDS = ["pay", "wire", "login", "render", "ticket"]


class Wanted(BaseModel):
    """What the workflows below take."""

    what: str


def pay(what: str) -> str:
    """Needs an approval."""
    return what


def wire(what: str, tool_context: ToolContext) -> None:
    """Asks in its own body."""
    tool_context.request_confirmation(hint="Really?")


def login(what: str, tool_context: ToolContext) -> None:
    """Needs a sign-in."""
    scheme = APIKey.model_validate({"in": APIKeyIn.header, "name": "X-Key"})
    credential = AuthCredential(auth_type=AuthCredentialTypes.API_KEY, api_key="k")
    tool_context.request_credential(AuthConfig(auth_scheme=scheme, raw_auth_credential=credential))


def render(what: str) -> None:
    """Its result comes later."""


def ticket(what: str) -> dict[str, str]:
    """Its last result comes later."""
    return {"status": "pending"}


def ask(node_input: Any) -> RequestInput:
    """A node that asks for input."""
    return request(message="Which?")


def gate(node_input: Any) -> None:
    """A node that needs an approval."""


def agent(field: Field, name: str, *script: Any, tools: Any = (), **more: Any) -> LlmAgent:
    asks = [reply(*(call(kind, what=kind) for kind in KINDS)), text("ok")]
    own: list[Any] = [pay, wire, login, LongRunningFunctionTool(render), LongRunningFunctionTool(ticket)]
    model = field.model(list(script) or asks)
    return LlmAgent(name=name, model=model, tools=[*own, *tools], description=name, **more)


def root(field: Field) -> Any:
    return agent(field, "a")


def sequence(field: Field) -> Any:
    return SequentialAgent(name="line", sub_agents=[LoopAgent(name="rounds", sub_agents=[agent(field, "a")])])


def parallel(field: Field) -> Any:
    fan = ParallelAgent(name="par", sub_agents=[agent(field, "a"), agent(field, "b", text("ok"))])
    return SequentialAgent(name="line", sub_agents=[fan])


def transfer(field: Field) -> Any:
    away = call("transfer_to_agent", agent_name="a")
    return agent(field, "boss", away, text("ok"), sub_agents=[agent(field, "a")])


def task(field: Field) -> Any:
    return agent(field, "boss", call("a", request="x"), text("ok"), sub_agents=[agent(field, "a", mode="task")])


def single_turn(field: Field) -> Any:
    return agent(field, "boss", call("a", request="x"), text("ok"), sub_agents=[agent(field, "a", mode="single_turn")])


def as_tool(field: Field) -> Any:
    return agent(field, "boss", call("a", request="x"), text("ok"), tools=[AgentTool(agent(field, "a"))])


def tree_as_tool(field: Field) -> Any:
    line = SequentialAgent(name="line", sub_agents=[agent(field, "a")])
    return agent(field, "boss", call("line", request="x"), text("ok"), tools=[AgentTool(line)])


def workflow(field: Field) -> Any:
    return graph("flow", [(START, (agent(field, "a"), ask, gate))])


def nested_workflow(field: Field) -> Any:
    return graph("flow", [(START, graph("inner", [(START, (agent(field, "a"), ask, gate))]))])


def tree_in_workflow(field: Field) -> Any:
    return graph("flow", [(START, SequentialAgent(name="line", sub_agents=[agent(field, "a")]))])


def tool_in_workflow(field: Field) -> Any:
    return graph("flow", [(START, as_tool(field))])


def transfer_in_workflow(field: Field) -> Any:
    return graph("flow", [(START, transfer(field))])


def workflow_as_tool(field: Field) -> Any:
    flow: Any = graph("flow", [(START, (agent(field, "a"), ask, gate))], description="F.", input_schema=Wanted)
    return agent(field, "boss", call("flow", what="x"), text("ok"), tools=[flow])


PATHS: dict[Callable[[Field], Any], str] = {
    root: "",
    sequence: "line/rounds/",
    parallel: "line/par/",
    transfer: "boss/",
    task: "boss/",
    single_turn: "boss/c1/",
    as_tool: "boss/c1/",
    tree_as_tool: "boss/c1/line/",
    workflow: "flow/",
    nested_workflow: "flow/inner/",
    tree_in_workflow: "flow/line/",
    tool_in_workflow: "flow/boss/c1/",
    transfer_in_workflow: "flow/boss/",
    workflow_as_tool: "boss/c1/flow/",
}


@pytest.mark.parametrize(("build", "where"), PATHS.items(), ids=[build.__name__ for build in PATHS])
async def test_a_path_leads_from_the_root_to_who_asks(field: Field, build: Callable[[Field], Any], where: str) -> None:
    nodes = NODES if where.endswith(("flow/", "inner/")) else {}
    async with field.working(durable(build(field), POLICIES, node_policies=nodes)) as client:
        snapshot = await say(client, "Go.")
    found = {(one.kind, one.tool_name): re.sub("adk-[0-9a-f-]+", "c1", one.path) for one in snapshot.pending_interrupts}
    agents = {
        (InterruptKind.APPROVAL, "pay"),
        (InterruptKind.CONFIRMATION, "wire"),
        (InterruptKind.CREDENTIAL, "login"),
        (InterruptKind.LONG_RUNNING, "render"),
    }
    late = (InterruptKind.LONG_RUNNING, "ticket")
    expected = dict.fromkeys(agents, f"{where}a" if where else "")
    if late in found:  # inside an agent that is run as a tool, nobody can answer late
        expected[late] = expected[InterruptKind.APPROVAL, "pay"]
    if nodes:
        expected[InterruptKind.INPUT, "ask"] = f"{where}ask"
        expected[InterruptKind.APPROVAL, "gate"] = f"{where}gate"
    assert found == expected
