"""Toolsets: what they list is recorded for the turn, so that a replay asks no server; what they open is closed again.

``install`` puts this into the one method through which ADK lists a toolset; outside a durable turn nothing changes.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

from google.adk.agents.readonly_context import ReadonlyContext
from google.adk.tools.base_tool import BaseTool
from google.adk.tools.base_toolset import BaseToolset

from perdure.adk import seams
from perdure.adk.live import determinism
from perdure.adk.live.core import TurnCore, turn_of
from perdure.adk.live.runs import current_run
from perdure.adk.marks import is_ours, ours
from perdure.adk.models.once import once
from perdure.adk.tools.declared import is_local
from perdure.adk.tools.listings import from_record, to_record
from perdure.session.model import JsonObject, JsonValue


def install() -> None:
    """Makes ADK list its toolsets through here, once per process."""
    original = seams.list_toolset_method()
    if is_ours(original):
        return

    async def get_tools_with_prefix(
        self: BaseToolset, readonly_context: ReadonlyContext | None = None
    ) -> list[BaseTool]:
        core = None if readonly_context is None else turn_of(seams.invocation_of(readonly_context))
        if core is None or readonly_context is None or determinism.is_suspended() or is_local(self):
            return await original(self, readonly_context)
        return await _Listing(core, self, readonly_context, original).tools()

    seams.set_list_toolset_method(ours(get_tools_with_prefix))


class _Listing:
    """One listing that the invocation asks for."""

    def __init__(
        self, core: TurnCore, toolset: BaseToolset, context: ReadonlyContext, original: seams.ListToolset
    ) -> None:
        self._core = core
        self._toolset = toolset
        self._context = context
        self._original = original
        self._fresh: list[BaseTool] | None = None

    async def tools(self) -> list[BaseTool]:
        """The tools: of this turn's earlier listing if ADK would take that, of the record, or of the toolset itself."""
        core, name = self._core, self._name()
        run = current_run.get()
        assert run is not None, "the code of a turn always belongs to a run"
        place = f"{core.place_of(run, seams.invocation_of(self._context))}|{name}"
        held = core.listings.get(place)
        if held is not None:
            return held
        recorded = await once(core, name, self._ask)
        tools = self._fresh
        if tools is None:
            tools = await self._rebuilt(recorded)
        core.settings.toolsets.used(self._toolset)
        if self._fresh is not None:
            await self._check_names([tool.name for tool in tools])
        if seams.lists_once_per_invocation(self._toolset):
            core.listings[place] = tools
        return tools

    async def _check_names(self, names: Sequence[str]) -> None:
        """A policy for a tool that is nowhere fails the turn; an error ADK would take for that of a broken toolset."""
        with determinism.outside():
            refusal = await self._core.settings.toolsets.check_names(self._toolset, names)
        if refusal is not None:
            self._core.conductor.fail(refusal)
            await self._core.conductor.parking.for_ever()

    async def _ask(self) -> JsonValue:
        with determinism.outside():
            self._fresh = await self._original(self._toolset, self._context)
        return to_record(self._fresh, self._toolset)

    async def _rebuilt(self, recorded: JsonValue) -> list[BaseTool]:
        if recorded is None:
            with determinism.outside():
                return await self._relist(self._context)
        entries = cast(list[JsonObject], recorded)
        return await from_record(entries, self._toolset, self._relist)

    async def _relist(self, context: ReadonlyContext) -> list[BaseTool]:
        return await self._original(self._toolset, context)

    def _name(self) -> str:
        """Which toolset it is, among those that may be listed at the same time."""
        declared: list[object] = list(getattr(seams.invocation_of(self._context).agent, "tools", None) or ())
        index = next((str(i) for i, entry in enumerate(declared) if entry is self._toolset), None)
        return f"tools {index or type(self._toolset).__name__}"
