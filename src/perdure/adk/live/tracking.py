"""Where a durable turn follows what ADK runs: each agent, each batch of tool calls, each call.

``install`` puts a wrapper around the one function of ADK that each of them passes; outside a durable turn nothing
changes.  Plugins would not do: an ``AgentTool`` may run its agent without them.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable
from functools import wraps
from typing import Any, Protocol

from google.adk.agents.base_agent import BaseAgent
from google.adk.agents.invocation_context import InvocationContext
from google.adk.events.event import Event
from google.adk.tools.base_tool import BaseTool
from google.adk.tools.tool_context import ToolContext
from google.genai import types

from perdure.adk import seams
from perdure.adk.live.calls import apart_key
from perdure.adk.live.core import TurnCore, turn_of
from perdure.adk.live.runs import current_run, streamed
from perdure.adk.marks import is_ours, ours
from perdure.adk.tools.answers import answer_to_failure
from perdure.adk.tools.stand_ins import is_control_tool, is_durable, make_tools_durable
from perdure.adk.waits.long_running import announce_open_call
from perdure.session.runner import ControlCall


def install() -> None:
    """Makes ADK run agents and tool calls through here, once per process."""
    if is_ours(seams.agent_run_method()):
        return
    seams.set_agent_run_method(ours(_follow_agents(seams.agent_run_method())))
    seams.set_call_batch_function(ours(_follow_batches(seams.call_batch_function())))
    seams.set_call_function(ours(_follow_calls(seams.call_function())))
    seams.set_tool_error_function(ours(_answer_failures(seams.tool_error_function())))


def _follow_agents(original: seams.RunAgent) -> seams.RunAgent:
    @wraps(original)
    def run_async(self: BaseAgent, parent_context: InvocationContext) -> AsyncGenerator[Event, None]:
        core = turn_of(parent_context)
        events = original(self, parent_context)
        return events if core is None else _run_of_agent(core, self.name, events)

    return run_async


async def _run_of_agent(core: TurnCore, name: str, events: AsyncGenerator[Event, None]) -> AsyncGenerator[Event, None]:
    run = core.conductor.begin_run(name)
    try:
        stream = streamed(run, events)
        try:
            async for event in stream:
                yield event
        finally:
            await stream.aclose()
    finally:
        core.conductor.end_run(run)


def _follow_batches(original: seams.RunCalls) -> seams.RunCalls:
    @wraps(original)
    async def handle_function_call_list_async(
        invocation_context: InvocationContext,
        function_calls: list[types.FunctionCall],
        tools_dict: dict[str, BaseTool],
        filters: set[str] | None = None,
        tool_confirmation_dict: Any = None,
    ) -> Event | None:
        core, run = turn_of(invocation_context), current_run.get()
        wanted = [call.id for call in function_calls if call.id and (not filters or call.id in filters)]
        if core is None or run is None or not wanted:
            return await original(invocation_context, function_calls, tools_dict, filters, tool_confirmation_dict)
        core.conductor.parking.guard()
        make_tools_durable(tools_dict)
        batch = core.conductor.floor.open_batch(run, wanted, _apart(core, function_calls, wanted, tools_dict))
        try:
            return await original(invocation_context, function_calls, tools_dict, filters, tool_confirmation_dict)
        finally:
            core.conductor.floor.close_batch(batch)

    return handle_function_call_list_async


def _apart(core: TurnCore, calls: list[types.FunctionCall], wanted: list[str], tools: dict[str, BaseTool]) -> set[str]:
    """The calls of long-running tools beside others.  What the journal has in one group comes back in one."""
    long_running = {call.id for call in calls if call.id in wanted and _is_long_running(tools.get(call.name or ""))}
    recorded = {call_id: core.conductor.journal.call(call_id) for call_id in long_running if call_id}
    if len(wanted) == 1:
        return set()
    return {i for i, then in recorded.items() if then is None or then.request.group.endswith(apart_key("", i))}


def _is_long_running(tool: BaseTool | None) -> bool:
    return tool is not None and tool.is_long_running and is_durable(tool)


class _PreparedCall(Protocol):
    """What of ADK's own class for it is used here."""

    function_call: types.FunctionCall
    tool: BaseTool
    tool_context: ToolContext
    function_args: dict[str, Any]


def _follow_calls(original: seams.RunCall) -> seams.RunCall:
    @wraps(original)
    async def execute(invocation_context: InvocationContext, prepared_call: _PreparedCall, agent: Any) -> Event | None:
        core = turn_of(invocation_context)
        if core is None:
            return await original(invocation_context, prepared_call, agent)
        context = prepared_call.tool_context
        call_id = context.function_call_id or ""
        try:
            await _before_call(core, prepared_call)
            event = await original(invocation_context, prepared_call, agent)
            await _after_call(core, call_id)
            if event is None:
                core.unsaid[call_id] = context.actions
            if event is None or invocation_context.session is core.session:
                announce_open_call(core, prepared_call.function_call, context.agent_name, event)
            return event
        finally:
            core.conductor.end_call(call_id)

    return execute


async def _before_call(core: TurnCore, prepared: _PreparedCall) -> None:
    call_id, tool = prepared.tool_context.function_call_id or "", prepared.tool
    core.conductor.parking.guard()
    if is_control_tool(tool):
        core.outbox.add_control_call(ControlCall(call_id, tool.name, dict(prepared.function_args)))
    elif not is_durable(tool) and core.conductor.journal.call(call_id) is not None:
        # The model named a tool that is not there; but the journal knows the call, so it was there once.
        core.conductor.fail_call(call_id, f"no tool {tool.name!r}")
        await core.conductor.parking.for_ever()


async def _after_call(core: TurnCore, call_id: str) -> None:
    """A call was answered; if a callback did it without a request, that is what becomes of the call."""
    if core.conductor.journal.call(call_id) is not None and core.conductor.floor.requested_call(call_id) is None:
        core.conductor.fail_call(call_id, "an answer of a callback")
        await core.conductor.parking.for_ever()
    core.conductor.account(call_id)


def _answer_failures(original: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(original)
    async def run_on_tool_error_callbacks(
        *, tool: BaseTool, tool_context: ToolContext, error: Exception, **more: Any
    ) -> dict[str, Any] | None:
        answer: dict[str, Any] | None = await original(tool=tool, tool_context=tool_context, error=error, **more)
        core = turn_of(seams.invocation_of(tool_context))
        if answer is not None or core is None:
            return answer
        return answer_to_failure(core, tool, tool_context, error)

    return run_on_tool_error_callbacks
