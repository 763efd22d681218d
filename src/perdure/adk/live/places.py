"""Where in an application something happens, for people: one form for agents, tools and nodes.

A path has names from the root down: of agents and workflows, and of a node that asks or is asked for itself.  Where an
agent or a workflow runs as a tool, the id of the call stands before its name: ``boss/adk-1/flow/check``.
"""

from __future__ import annotations

from google.adk.agents.base_agent import BaseAgent
from google.adk.agents.callback_context import CallbackContext

from perdure.adk import seams
from perdure.adk.live.core import TurnCore
from perdure.adk.live.runs import Run


def place_of(core: TurnCore, run: Run, context: CallbackContext) -> str:
    """Where the agent of a context is."""
    names = node_names(core, context.node_path)
    agents: list[str] = []
    agent = seams.invocation_of(context).agent
    while isinstance(agent, BaseAgent):
        agents.insert(0, agent.name)
        agent = agent.parent_agent
    if names and names[-1] in agents:  # ADK's path ends with the agent, or with one above it
        agents = agents[agents.index(names[-1]) + 1 :]
    return _behind(run, [*names, *agents])


def path_of(core: TurnCore, run: Run, context: CallbackContext) -> str:
    """The same for an interrupt: empty when the root of all asks."""
    place = place_of(core, run, context)
    return place if "/" in place else ""


def path_of_node(core: TurnCore, run: Run, context: CallbackContext) -> str:
    """Where the node of a context is."""
    return _behind(run, node_names(core, context.node_path))


def node_names(core: TurnCore, node_path: str) -> list[str]:
    """The names on one of ADK's node paths, behind the place of the call in which the node runs."""
    names: list[str] = []
    for segment in filter(None, node_path.split("/")):
        name, _, run_id = segment.partition("@")
        if run_id in core.scopes:
            names = [core.scopes[run_id]]
        names.append(name)
    return names


def _behind(run: Run, names: list[str]) -> str:
    """The path of these names, behind the call in which they run as a tool.

    Its agent may begin a path of its own, or be one that has the agent with the call above it.
    """
    if run.place and names[:1] != [run.place]:
        above = run.place.split("/")[:-1]
        names = [run.place, *(names[len(above) :] if names[: len(above)] == above else names)]
    return "/".join(names)
