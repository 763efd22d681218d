"""Agents with a long-running tool that gives a first result, so that its answer starts a turn."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from google.adk.agents import LlmAgent, LoopAgent, ParallelAgent, SequentialAgent
from google.adk.events.request_input import RequestInput
from google.adk.tools.agent_tool import AgentTool
from google.adk.tools.long_running_tool import LongRunningFunctionTool
from google.adk.workflow import START
from pydantic import BaseModel
from tests.adk.model import ScriptedModel, calls, says
from tests.adk.shapes import Cast
from tests.adk.worlds import World
from tests.support.nodes import graph, request

from perdure.session.model import JsonObject


def tickets(*subjects: str) -> Any:
    return calls(*[("ticket", {"subject": subject}) for subject in subjects])


def desk_of(cast: Cast, *script: Any, **more: Any) -> LlmAgent:
    """An agent that opens a ticket, says so, and says so again when it is answered."""

    def ticket(subject: str) -> JsonObject:
        """Opens a ticket."""
        cast.log.append(f"ticket {subject}")
        return {"status": "pending"}

    said = script or (tickets("leak"), says("pending"), says("solved"), says("more"))
    return cast.llm("desk", *said, tools=(LongRunningFunctionTool(ticket),), **more)


def after_of(cast: Cast, name: str = "after") -> LlmAgent:
    return cast.llm(name, *(says(f"{name} {number}") for number in range(4)))


def in_a_line() -> World:
    cast = Cast()
    return cast.world(SequentialAgent(name="line", sub_agents=[desk_of(cast), after_of(cast)]))


def two_in_a_line() -> World:
    cast = Cast()
    desk = desk_of(cast, tickets("a", "b"), says("pending"), says("solved"), says("more"))
    return cast.world(SequentialAgent(name="line", sub_agents=[desk, after_of(cast)]))


def in_a_loop() -> World:
    cast = Cast()
    script = (tickets("a"), says("pending"), says("solved"), tickets("b"), says("pending b"), says("solved b"))
    rounds = LoopAgent(name="rounds", sub_agents=[desk_of(cast, *script), after_of(cast)], max_iterations=2)
    return cast.world(rounds)


def in_a_branch() -> World:
    cast = Cast()
    fan = ParallelAgent(name="fan", sub_agents=[desk_of(cast), after_of(cast, "walker")])
    return cast.world(SequentialAgent(name="both", sub_agents=[fan, after_of(cast)]), branched=True)


def in_an_agent_tool() -> World:
    """Its agent is done with the first result: nobody may answer later."""
    cast = Cast()
    wanted = calls(("desk", {"request": "x"}))
    return cast.world(cast.llm("boss", wanted, says("done"), tools=(AgentTool(desk_of(cast, description="D.")),)))


def _over(cast: Cast, first: Any, mode: str | None) -> LlmAgent:
    script = (tickets("leak"), says("pending"), says("solved"), says("more"))
    sub = desk_of(cast, *script, description="D.", **({} if mode is None else {"mode": mode}))
    model = ScriptedModel(replies=[first, says("root is done"), says("root again")])
    cast.models.insert(0, model)
    return LlmAgent(name="root", model=model, instruction="Delegate.", sub_agents=[sub])


def transferred() -> World:
    cast = Cast()
    return cast.world(_over(cast, calls(("transfer_to_agent", {"agent_name": "desk"})), None))


def transferred_in_a_line() -> World:
    cast = Cast()
    root = _over(cast, calls(("transfer_to_agent", {"agent_name": "desk"})), None)
    return cast.world(SequentialAgent(name="line", sub_agents=[root, after_of(cast)]))


def in_a_task() -> World:
    cast = Cast()
    return cast.world(_over(cast, calls(("desk", {"request": "x"})), "task"))


def in_a_single_turn() -> World:
    cast = Cast()
    return cast.world(_over(cast, calls(("desk", {"request": "x"})), "single_turn"))


def in_a_workflow() -> World:
    cast = Cast()
    return cast.world(graph("flow", [(START, desk_of(cast), after_of(cast))]))


def two_in_a_workflow() -> World:
    cast = Cast()
    desk = desk_of(cast, tickets("a", "b"), says("pending"), says("solved"), says("more"))
    return cast.world(graph("flow", [(START, desk, after_of(cast))]))


def tree_in_a_workflow() -> World:
    cast = Cast()
    line = SequentialAgent(name="line", sub_agents=[desk_of(cast), after_of(cast, "second")])
    return cast.world(graph("flow", [(START, line, after_of(cast))]))


class Wanted(BaseModel):
    """What the workflow below takes."""

    what: str


def in_a_workflow_tool() -> World:
    cast = Cast()
    flow: Any = graph(
        "flow", [(START, desk_of(cast), after_of(cast))], input_schema=Wanted, description="Opens tickets."
    )
    return cast.world(cast.llm("root", calls(("flow", {"what": "x"})), says("root is done"), tools=(flow,)))


LATE: dict[str, Callable[[], World]] = {
    build.__name__: build
    for build in (
        in_a_line,
        two_in_a_line,
        in_a_loop,
        in_a_branch,
        in_an_agent_tool,
        transferred,
        transferred_in_a_line,
        in_a_task,
        in_a_single_turn,
        in_a_workflow,
        two_in_a_workflow,
        tree_in_a_workflow,
        in_a_workflow_tool,
    )
}


def asks_afterwards() -> World:
    """What the answer lets go on asks for input: the answer's turn has a second leg.  A node that leaves no trace."""
    cast = Cast()

    def before(node_input: Any) -> None:
        cast.log.append("before")

    def ask(node_input: Any) -> RequestInput:
        cast.log.append("ask")
        return request(interrupt_id="word", message="Which word?")

    def use(node_input: Any) -> str:
        cast.log.append(f"use {node_input['word']}")
        return "used"

    return cast.world(graph("flow", [(START, before, desk_of(cast), ask, use, after_of(cast))]))
