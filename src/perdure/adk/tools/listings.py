"""The recorded form of a toolset's listing, and tools made from it without the server that was asked for it then.

An MCP tool is rebuilt as what it was.  Of any other tool that only declares itself to the model, the declaration is
kept, and the tool itself is looked up when a call has to run.  A tool that does more to a request has no recorded form:
its toolset is asked again.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Any, cast

from google.adk.agents.readonly_context import ReadonlyContext
from google.adk.tools.base_tool import BaseTool
from google.adk.tools.base_toolset import BaseToolset
from google.adk.tools.tool_context import ToolContext
from google.genai import types

from perdure.adk import seams
from perdure.adk.live import determinism
from perdure.adk.tools.declared import prefixed
from perdure.errors import ToolExecutionError
from perdure.session.model import TOOL_CALL_NOT_RUN_ERROR_PREFIX, JsonObject, JsonValue
from perdure.session.policy import ToolEffect

Relist = Callable[[ReadonlyContext], Awaitable[Sequence[BaseTool]]]
"""Asks the toolset itself."""


def hinted_effect(tool: BaseTool) -> ToolEffect | None:
    """What an MCP server says of a tool: a read-only one reads, an idempotent one writes idempotently."""
    if isinstance(tool, ListedTool):
        return tool.effect
    raw: Any = getattr(tool, "raw_mcp_tool", None)
    annotations = getattr(raw, "annotations", None)
    if _hint(annotations, "read_only_hint", "readOnlyHint"):
        return ToolEffect.READ
    if _hint(annotations, "idempotent_hint", "idempotentHint"):
        return ToolEffect.IDEMPOTENT_WRITE
    return None


def _hint(annotations: Any, *names: str) -> bool:
    """The field is called otherwise in the MCP SDK before release 2."""
    return any(getattr(annotations, name, None) is True for name in names)


def to_record(tools: Sequence[BaseTool], toolset: BaseToolset) -> JsonValue:
    """The tools of a listing, as JSON; ``None`` when one of them has no recorded form."""
    entries: list[JsonValue] = []
    for tool in tools:
        entry = _entry(tool, toolset)
        if entry is None:
            return None
        entries.append(entry)
    return entries


def _entry(tool: BaseTool, toolset: BaseToolset) -> JsonObject | None:
    entry: JsonObject = {"name": tool.name}
    raw = seams.raw_mcp_tool(tool, toolset)
    if raw is not None and tool.name == prefixed(toolset, str(raw["name"])):
        entry["mcp"] = raw
    elif seams.loads_mcp_resources(tool, toolset):
        entry["mcp_resources"] = True
    elif type(tool).process_llm_request is BaseTool.process_llm_request:
        declaration = seams.declaration_of(tool)
        effect = hinted_effect(tool)
        entry["description"] = tool.description
        entry["long_running"] = tool.is_long_running
        entry["declaration"] = None if declaration is None else declaration.model_dump(mode="json", exclude_none=True)
        entry["effect"] = None if effect is None else effect.value
    else:
        return None
    return entry


async def from_record(entries: Sequence[JsonObject], toolset: BaseToolset, relist: Relist) -> list[BaseTool]:
    """The tools of a recorded listing.  Opens no connection."""
    rebuilt: list[BaseTool] = []
    for entry in entries:
        prefixed = _Prefixed(toolset, _rebuilt(entry, toolset, relist))
        rebuilt.extend(await prefixed.get_tools_with_prefix())
    return rebuilt


def _rebuilt(entry: JsonObject, toolset: BaseToolset, relist: Relist) -> BaseTool:
    if "mcp" in entry:
        return seams.mcp_tool_of(toolset, cast(JsonObject, entry["mcp"]))
    if "mcp_resources" in entry:
        return seams.mcp_resource_tool_of(toolset)
    return ListedTool(entry, relist)


class _Prefixed(BaseToolset):
    """Gives one tool the prefix that the toolset gives to its tools, in ADK's own way."""

    def __init__(self, toolset: BaseToolset, tool: BaseTool) -> None:
        # A listed tool has its name from the record: with the prefix.
        super().__init__(tool_name_prefix=None if isinstance(tool, ListedTool) else toolset.tool_name_prefix)
        self._tool = tool

    async def get_tools(self, readonly_context: ReadonlyContext | None = None) -> list[BaseTool]:
        return [self._tool]


class ListedTool(BaseTool):
    """A tool of which only the listing is at hand.  To run it, its toolset is asked for the tool itself."""

    def __init__(self, entry: JsonObject, relist: Relist) -> None:
        super().__init__(
            name=str(entry["name"]),
            description=str(entry["description"]),
            is_long_running=bool(entry["long_running"]),
        )
        effect = entry["effect"]
        self.effect = None if effect is None else ToolEffect(effect)
        self._declared = cast(JsonObject | None, entry["declaration"])
        self._relist = relist

    def _get_declaration(self) -> types.FunctionDeclaration | None:
        return None if self._declared is None else types.FunctionDeclaration.model_validate(self._declared)

    async def check_require_confirmation(self, args: dict[str, Any], tool_context: ToolContext) -> bool:
        """What the tool itself says."""
        with determinism.outside():
            return await (await self._tool(tool_context)).check_require_confirmation(args, tool_context)

    async def run_async(self, *, args: dict[str, Any], tool_context: ToolContext) -> Any:
        """Runs the tool itself.

        Raises:
            ToolExecutionError: its toolset does not offer it any more.
        """
        return await (await self._tool(tool_context)).run_async(args=args, tool_context=tool_context)

    async def _tool(self, tool_context: ToolContext) -> BaseTool:
        tools = await self._relist(ReadonlyContext(seams.invocation_of(tool_context)))
        tool = next((tool for tool in tools if tool.name == self.name), None)
        if tool is None:
            raise ToolExecutionError(
                f"{TOOL_CALL_NOT_RUN_ERROR_PREFIX}: the toolset does not offer {self.name!r} any more"
            )
        return tool
