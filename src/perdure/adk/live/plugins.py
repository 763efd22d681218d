"""perdure's plugin in an application, the first of all: it stops a dropped turn at every callback.

What the turn must see to be durable it sees elsewhere (``tracking``): an ``AgentTool`` may run without plugins.
"""

from __future__ import annotations

from typing import Any

from google.adk.agents.base_agent import BaseAgent
from google.adk.agents.callback_context import CallbackContext
from google.adk.agents.invocation_context import InvocationContext
from google.adk.events.event import Event
from google.adk.models.llm_request import LlmRequest
from google.adk.models.llm_response import LlmResponse
from google.adk.plugins.base_plugin import BasePlugin
from google.adk.tools.base_tool import BaseTool
from google.adk.tools.tool_context import ToolContext
from google.genai import types

from perdure.adk import seams
from perdure.adk.live.core import TurnCore, current_turn
from perdure.adk.tools.stand_ins import make_tools_durable

WATCHER = "perdure_watcher"


def cause_behind_plugins(error: BaseException) -> BaseException:
    """The failure itself, where ADK says only that it came out of our plugin."""
    while error.__cause__ is not None and str(error).startswith(f"Error in plugin '{WATCHER}'"):
        error = error.__cause__
    return error


class WatcherPlugin(BasePlugin):
    """Lets nothing of a dropped turn go on.  Changes nothing but the tools of a request."""

    def __init__(self) -> None:
        super().__init__(name=WATCHER)

    async def on_user_message_callback(
        self, *, invocation_context: InvocationContext, user_message: types.Content
    ) -> types.Content | None:
        _turn()
        return None

    async def before_run_callback(self, *, invocation_context: InvocationContext) -> types.Content | None:
        core = _turn()
        if core.invocation is None and invocation_context.session is core.session:
            core.invocation = invocation_context
            seams.set_model_calls_of(invocation_context, core.carry.model_calls)
        return None

    async def on_event_callback(self, *, invocation_context: InvocationContext, event: Event) -> Event | None:
        _turn()
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
        _turn()
        return None

    async def on_agent_error_callback(
        self, *, agent: BaseAgent, callback_context: CallbackContext, error: Exception
    ) -> None:
        _turn()

    async def before_model_callback(
        self, *, callback_context: CallbackContext, llm_request: LlmRequest
    ) -> LlmResponse | None:
        _turn()
        make_tools_durable(llm_request.tools_dict)
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
        _turn()
        return None

    async def after_tool_callback(
        self, *, tool: BaseTool, tool_args: dict[str, Any], tool_context: ToolContext, result: dict[str, Any]
    ) -> dict[str, Any] | None:
        _turn()
        return None

    async def on_tool_error_callback(
        self, *, tool: BaseTool, tool_args: dict[str, Any], tool_context: ToolContext, error: Exception
    ) -> dict[str, Any] | None:
        _turn()
        return None


def _turn() -> TurnCore:
    core = current_turn.get()
    if core is None:
        raise RuntimeError("perdure's plugin runs outside a durable turn")
    core.conductor.parking.guard()
    return core
