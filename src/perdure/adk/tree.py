"""The agents and tools that an application is made of: its agent, all below it, and those that its tools run."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import cast

from google.adk.agents.base_agent import BaseAgent
from google.adk.agents.llm_agent import LlmAgent
from google.adk.tools.agent_tool import AgentTool
from google.adk.tools.base_tool import BaseTool
from google.adk.tools.base_toolset import BaseToolset
from google.adk.tools.function_tool import FunctionTool

from perdure.errors import UsageError

_NOT_YET = "which a durable flow does not support yet"


@dataclass(frozen=True, slots=True)
class AgentNode:
    """An agent in its place.

    Attributes:
        path: the names from the root down; an agent that a tool runs is below the agent that has the tool.
        tools: by name; those that ADK itself added for sub-agents included.
    """

    path: str
    agent: BaseAgent
    tools: dict[str, BaseTool]


def agents_below(root: BaseAgent) -> list[AgentNode]:
    """The agent and all that may run when it does, each before those below it.

    Raises:
        UsageError: an agent has two tools of one name, or something that is no tool.
    """
    return list(_walk(root, "", ()))


def _walk(agent: BaseAgent, above: str, around: tuple[BaseAgent, ...]) -> Iterator[AgentNode]:
    if agent in around:
        return  # a tool that runs an agent around it: seen already
    path = f"{above}/{agent.name}" if above else agent.name
    tools = _tools_of(agent) if isinstance(agent, LlmAgent) else {}
    yield AgentNode(path, agent, tools)
    inside = (*around, agent)
    for sub_agent in agent.sub_agents:
        yield from _walk(sub_agent, path, inside)
    for tool in tools.values():
        if isinstance(tool, AgentTool) and tool.agent not in agent.sub_agents:
            yield from _walk(tool.agent, path, inside)


def _tools_of(agent: LlmAgent) -> dict[str, BaseTool]:
    found: dict[str, BaseTool] = {}
    for entry in cast(list[object], agent.tools):  # pyright: ignore[reportUnknownMemberType]  (ADK's bare Callable)
        tool = _tool_of(agent, entry)
        other = found.setdefault(tool.name, tool)
        if other is not tool:
            raise UsageError(
                f"agent {agent.name!r} has two tools named {tool.name!r} in tools; ADK would offer only one: rename one"
            )
    return found


def _tool_of(agent: LlmAgent, entry: object) -> BaseTool:
    if isinstance(entry, BaseTool):
        return entry
    if isinstance(entry, BaseToolset):
        kind = type(entry).__name__
        raise UsageError(
            f"agent {agent.name!r}: {kind} lists its tools at run time, {_NOT_YET}; put the tools themselves into tools"
        )
    if callable(entry):
        return FunctionTool(entry)
    raise UsageError(f"agent {agent.name!r}: {type(entry).__name__} in tools is a workflow node, {_NOT_YET}")
