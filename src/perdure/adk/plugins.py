"""perdure's two plugins in an application: the first of all, which watches, and the last, which answers failed calls.

``PluginManager`` asks plugins in their order and the agent's own callbacks after them.  So the first plugin sees every
call, whoever answers it; and whatever the application does not answer, the last one does.
"""

from __future__ import annotations

import asyncio
from typing import Any

from google.adk.agents.base_agent import BaseAgent
from google.adk.agents.callback_context import CallbackContext
from google.adk.agents.invocation_context import InvocationContext
from google.adk.agents.llm_agent import LlmAgent
from google.adk.events.event import Event
from google.adk.models.llm_request import LlmRequest
from google.adk.models.llm_response import LlmResponse
from google.adk.plugins.base_plugin import BasePlugin
from google.adk.tools.base_tool import BaseTool
from google.adk.tools.tool_context import ToolContext
from google.genai import types

from perdure.adk import seams
from perdure.adk.core import TurnCore, current_turn
from perdure.adk.failures import message_of
from perdure.adk.lanes import Call
from perdure.adk.tools import is_control_tool, is_durable, make_tools_durable
from perdure.session.model import (
    OUTCOME_UNKNOWN_TOOL_RESULT,
    TOOL_CALL_NOT_RUN_ERROR_PREFIX,
    ErrorInfo,
    JsonObject,
    RecordStatus,
)
from perdure.session.runner import ControlCall

WATCHER = "perdure_watcher"
ANSWERER = "perdure_answerer"


class CallbackFailed(Exception):
    """Carries an exception of an agent's error callback out of our plugin, which ADK would else blame."""


def cause_behind_plugins(error: BaseException) -> BaseException:
    """The failure itself, where ADK says only that it came out of one of our plugins."""
    ours = (f"Error in plugin '{WATCHER}'", f"Error in plugin '{ANSWERER}'")
    while error.__cause__ is not None and (isinstance(error, CallbackFailed) or str(error).startswith(ours)):
        error = error.__cause__
    return error


class WatcherPlugin(BasePlugin):
    """Tells the conductor what the invocation does.  Changes nothing but the tools of a request."""

    def __init__(self) -> None:
        super().__init__(name=WATCHER)

    async def on_user_message_callback(
        self, *, invocation_context: InvocationContext, user_message: types.Content
    ) -> types.Content | None:
        _turn()
        return None

    async def before_run_callback(self, *, invocation_context: InvocationContext) -> types.Content | None:
        _turn()
        return None

    async def on_event_callback(self, *, invocation_context: InvocationContext, event: Event) -> Event | None:
        core = _turn()
        if not event.partial:
            calls = [call.id for call in event.get_function_calls() if call.id]
            if calls:
                core.conductor.floor.open_group((event.branch, event.author), calls)
        return None

    async def after_run_callback(self, *, invocation_context: InvocationContext) -> None:
        _turn()

    async def before_agent_callback(
        self, *, agent: BaseAgent, callback_context: CallbackContext
    ) -> types.Content | None:
        _turn()
        return None

    async def after_agent_callback(
        self, *, agent: BaseAgent, callback_context: CallbackContext
    ) -> types.Content | None:
        _turn().conductor.end_lane((callback_context.branch, agent.name))
        return None

    async def on_agent_error_callback(
        self, *, agent: BaseAgent, callback_context: CallbackContext, error: Exception
    ) -> None:
        _turn().conductor.end_lane((callback_context.branch, agent.name))

    async def before_model_callback(
        self, *, callback_context: CallbackContext, llm_request: LlmRequest
    ) -> LlmResponse | None:
        _turn()
        make_tools_durable(llm_request)
        return None

    async def after_model_callback(
        self, *, callback_context: CallbackContext, llm_response: LlmResponse
    ) -> LlmResponse | None:
        _turn()
        return None

    async def on_model_error_callback(
        self, *, callback_context: CallbackContext, llm_request: LlmRequest, error: Exception
    ) -> LlmResponse | None:
        _turn()
        return None

    async def before_tool_callback(
        self, *, tool: BaseTool, tool_args: dict[str, Any], tool_context: ToolContext
    ) -> dict[str, Any] | None:
        core = _turn()
        call_id = tool_context.function_call_id or ""
        if is_control_tool(tool):
            core.outbox.add_control_call(ControlCall(call_id, tool.name, dict(tool_args)))
            core.conductor.account(call_id)
        elif not is_durable(tool):
            await _expect_unknown(core, call_id, tool)
        return None

    async def after_tool_callback(
        self, *, tool: BaseTool, tool_args: dict[str, Any], tool_context: ToolContext, result: dict[str, Any]
    ) -> dict[str, Any] | None:
        await _answered(_turn(), tool_context)
        return None

    async def on_tool_error_callback(
        self, *, tool: BaseTool, tool_args: dict[str, Any], tool_context: ToolContext, error: Exception
    ) -> dict[str, Any] | None:
        await _answered(_turn(), tool_context)
        return None


def _turn() -> TurnCore:
    core = current_turn.get()
    if core is None:
        raise RuntimeError("perdure's plugin runs outside a durable turn")
    core.conductor.parking.guard()
    return core


async def _expect_unknown(core: TurnCore, call_id: str, tool: BaseTool) -> None:
    """The model named a tool that is not there.  If the journal knows the call, it was there once."""
    if core.conductor.journal.call(call_id) is not None:
        core.conductor.fail_call(call_id, f"no tool {tool.name!r}")
        await core.conductor.parking.for_ever()


async def _answered(core: TurnCore, tool_context: ToolContext) -> None:
    """A call was answered; if a callback did it without a request, that is what becomes of the call."""
    call_id = tool_context.function_call_id or ""
    if core.conductor.journal.call(call_id) is not None and core.conductor.floor.requested_call(call_id) is None:
        core.conductor.fail_call(call_id, "an answer of a callback")
        await core.conductor.parking.for_ever()
    core.conductor.account(call_id)


class AnswererPlugin(BasePlugin):
    """Answers a failed call that no callback of the application answers, so that the model sees the failure."""

    def __init__(self) -> None:
        super().__init__(name=ANSWERER)

    async def on_tool_error_callback(
        self, *, tool: BaseTool, tool_args: dict[str, Any], tool_context: ToolContext, error: BaseException
    ) -> dict[str, Any] | None:
        core = _turn()
        if not is_durable(tool) or isinstance(error, asyncio.CancelledError):
            return None  # a control tool, an unknown one, or a call that ADK cancels: its own rules
        assert isinstance(error, Exception)
        answer: dict[str, Any] | None = await self._ask_agent(tool, tool_args, tool_context, error)
        if answer is not None:
            return answer
        return _error_answer(core.conductor.floor.requested_call(tool_context.function_call_id or ""), error)

    async def _ask_agent(
        self, tool: BaseTool, tool_args: dict[str, Any], tool_context: ToolContext, error: Exception
    ) -> Any:
        """ADK would ask the agent's callbacks only if no plugin answers, and we always do: so we ask them first."""
        agent = seams.invocation_of(tool_context).agent
        if not isinstance(agent, LlmAgent):
            return None
        try:
            return await seams.run_tool_error_callbacks(
                agent.canonical_on_tool_error_callbacks,
                tool=tool,
                args=tool_args,
                tool_context=tool_context,
                error=error,
            )
        except Exception as failure:
            raise CallbackFailed(str(failure)) from failure


def _error_answer(call: Call | None, error: Exception) -> JsonObject:
    record = call.record if call else None
    if record is None:
        return failure_response(RecordStatus.FAILED, ErrorInfo(code="", message=message_of(error)))
    return failure_response(record.status, record.error or ErrorInfo(code="", message=message_of(error)))


def failure_response(status: RecordStatus, error: ErrorInfo | None) -> JsonObject:
    """What the model sees of a call that did not succeed."""
    if status is RecordStatus.OUTCOME_UNKNOWN:
        return {"error": OUTCOME_UNKNOWN_TOOL_RESULT}
    message = error.message if error else "it failed"
    if status is RecordStatus.REJECTED or message.startswith(TOOL_CALL_NOT_RUN_ERROR_PREFIX):
        return {"error": message}
    return {"error": f"The tool call failed: {message}"}
