"""The agents, nodes and tools that an application is made of: its root, all below it, and what its tools run."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import cast

from google.adk.agents.llm_agent import LlmAgent
from google.adk.tools.agent_tool import AgentTool
from google.adk.tools.base_tool import BaseTool
from google.adk.tools.base_toolset import BaseToolset
from google.adk.tools.function_tool import FunctionTool
from google.adk.workflow import BaseNode

from perdure.adk import seams
from perdure.adk.tools.declared import prefixed
from perdure.errors import UsageError


@dataclass(frozen=True, slots=True)
class AgentNode:
    """An agent, or a node of a workflow, in its place.

    Attributes:
        path: the names from the root down; what a tool runs is below the agent that has the tool.
        tools: by name; those that ADK itself added for sub-agents included.
        toolsets: in order.  Tools of one that is part of the code are among the tools.
    """

    path: str
    agent: BaseNode
    tools: dict[str, BaseTool]
    toolsets: tuple[BaseToolset, ...] = ()


def agents_below(root: BaseNode) -> list[AgentNode]:
    """The agent or node and all that may run when it does, each before those below it.

    What a node starts by itself (``ctx.run_node``) is not known before it does.

    Raises:
        UsageError: an agent has two tools of one name, or something that is no tool.
    """
    return list(_walk(root, "", ()))


def _walk(node: BaseNode, above: str, around: tuple[BaseNode, ...]) -> Iterator[AgentNode]:
    if node in around:
        return  # a tool that runs an agent around it: seen already
    path = f"{above}/{node.name}" if above else node.name
    tools = _tools_of(node)
    yield AgentNode(path, node, tools, _toolsets_of(node) if isinstance(node, LlmAgent) else ())
    inside = (*around, node)
    children = seams.children_of(node)
    for child in children:
        yield from _walk(child, path, inside)
    for tool in tools.values():
        run_by_tool = _run_by(tool)
        if run_by_tool is not None and run_by_tool not in children:
            yield from _walk(run_by_tool, path, inside)


def _run_by(tool: BaseTool) -> BaseNode | None:
    """The agent or workflow that the tool runs."""
    if isinstance(tool, AgentTool):
        return tool.agent
    return tool.node if isinstance(tool, seams.NodeTool) else None


def _tools_of(agent: BaseNode) -> dict[str, BaseTool]:
    if isinstance(agent, seams.ToolNode):
        return {agent.tool.name: agent.tool}
    if not isinstance(agent, LlmAgent):
        return {}
    found: dict[str, BaseTool] = {}
    for entry in cast(list[object], agent.tools):  # pyright: ignore[reportUnknownMemberType]  (ADK's bare Callable)
        if isinstance(entry, BaseToolset):
            for tool in seams.openapi_tools(entry) or ():
                found.setdefault(prefixed(entry, tool.name), tool)
            continue
        tool = _tool_of(agent, entry)
        other = found.setdefault(tool.name, tool)
        if other is not tool:
            raise UsageError(
                f"agent {agent.name!r} has two tools named {tool.name!r} in tools; ADK would offer only one: rename one"
            )
    return found


def _toolsets_of(agent: LlmAgent) -> tuple[BaseToolset, ...]:
    entries = cast(list[object], agent.tools)  # pyright: ignore[reportUnknownMemberType]  (ADK's bare Callable)
    return tuple(entry for entry in entries if isinstance(entry, BaseToolset))


def _tool_of(agent: LlmAgent, entry: object) -> BaseTool:
    if isinstance(entry, BaseTool):
        return entry
    if isinstance(entry, BaseNode):
        return seams.NodeTool(node=entry)
    if callable(entry):
        return FunctionTool(entry)
    raise UsageError(f"agent {agent.name!r}: {entry!r} in tools is no tool")
