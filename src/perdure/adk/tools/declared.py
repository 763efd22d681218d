"""The toolsets that an application declares: what they may offer, and that what they opened is closed again."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from weakref import WeakSet

from google.adk.tools.base_toolset import BaseToolset

from perdure.adk import seams
from perdure.errors import UsageError

_logger = logging.getLogger(__name__)

_flows: WeakSet[DeclaredToolsets] = WeakSet()
"""Those of all flows of this process: one toolset may serve several."""


def is_local(toolset: BaseToolset) -> bool:
    """Whether listing asks nobody: the tools are part of the code, as those in ``tools`` are."""
    return seams.openapi_tools(toolset) is not None


def known_names(toolset: BaseToolset) -> frozenset[str] | None:
    """The names that the toolset may offer, as far as they are known without asking it; ``None``: any."""
    tools = seams.openapi_tools(toolset)
    if tools is not None:
        return frozenset(prefixed(toolset, tool.name) for tool in tools)
    if seams.is_mcp_toolset(toolset) and isinstance(toolset.tool_filter, list):
        return frozenset(prefixed(toolset, name) for name in (*toolset.tool_filter, seams.LOAD_MCP_RESOURCE))
    return None


def prefixed(toolset: BaseToolset, name: str) -> str:
    """How a tool of that name is called when the toolset offers it."""
    return f"{toolset.tool_name_prefix}_{name}" if toolset.tool_name_prefix else name


class DeclaredToolsets:
    """The toolsets of one flow.

    Args:
        toolsets: of all agents, in order.
        unplaced: names in ``tool_policies`` that no tool known without asking a toolset has.

    Raises:
        FrameworkDrift: google-adk changed under one of them.
    """

    def __init__(self, toolsets: Iterable[BaseToolset], unplaced: Iterable[str]) -> None:
        self._toolsets = list({id(toolset): toolset for toolset in toolsets}.values())
        for toolset in self._toolsets:
            seams.check_toolset(toolset)
        self._unplaced = set(unplaced)
        self._unlisted = {id(toolset) for toolset in self._toolsets if not is_local(toolset)}
        self._offered: set[str] = set()
        self._used: set[int] = set()

    def used(self, toolset: BaseToolset) -> None:
        """Notes that the toolset may have opened something.  One that nobody declared is its maker's to close."""
        if id(toolset) not in self._used and any(toolset is declared for declared in self._toolsets):
            self._used.add(id(toolset))
            _flows.add(self)

    async def check_names(self, toolset: BaseToolset, names: Iterable[str]) -> UsageError | None:
        """Takes a listing.  When every toolset was listed: an error that names a policy which is for none of its tools.

        A listing may be one user's; before a policy is refused, each toolset is asked for all that it has.
        """
        self._unlisted.discard(id(toolset))
        self._offered.update(names)
        self._unplaced -= self._offered
        if not self._unplaced or self._unlisted:
            return None
        for declared in self._toolsets:
            try:
                everything = await declared.get_tools()
            except Exception:
                _logger.warning("%s does not list its tools without a context", type(declared).__name__, exc_info=True)
                self._unplaced.clear()
                return None
            self._unplaced -= {prefixed(declared, tool.name) for tool in everything}
        if not self._unplaced:
            return None
        name, offered = min(self._unplaced), ", ".join(sorted(self._offered)) or "none"
        return UsageError(
            f"tool_policies names {name!r}, but no agent has such a tool and no toolset offers it (they offer: "
            f"{offered}); correct the name, or take the policy out"
        )

    async def close(self) -> None:
        """Closes what the toolsets opened, unless another flow of this process uses them, too."""
        for toolset in self._toolsets:
            if id(toolset) not in self._used:
                continue
            self._used.discard(id(toolset))
            if any(id(toolset) in flow._used for flow in _flows):
                continue
            try:
                await toolset.close()
            except Exception:
                _logger.warning("%s did not close", type(toolset).__name__, exc_info=True)
