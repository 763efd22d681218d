"""What is refused when a flow is built, and the fingerprint of what its recorded turns rely on."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from datetime import timedelta
from typing import Any, cast

from google.adk.agents.llm_agent import LlmAgent

# ADK's documentation imports StreamingMode from here, though the module does not say that it exports it.
from google.adk.agents.run_config import RunConfig, StreamingMode  # type: ignore[attr-defined]
from google.adk.apps.app import App
from google.adk.code_executors.built_in_code_executor import BuiltInCodeExecutor
from google.adk.tools.base_tool import BaseTool
from google.adk.tools.base_toolset import BaseToolset
from google.adk.tools.function_tool import FunctionTool
from google.genai import types
from pydantic import ValidationError

from perdure.adk import seams
from perdure.adk.plugins import ANSWERER, WATCHER
from perdure.adk.tools import check_stand_in, unsupported
from perdure.errors import UsageError
from perdure.session.model import JsonObject
from perdure.session.policy import RetryPolicy, ToolEffect, ToolPolicy

_NOT_YET = "which a durable flow does not support yet"


def check_application(
    agent: object, flow_type: str, policies: Mapping[str, ToolPolicy]
) -> tuple[App, dict[str, BaseTool]]:
    """The application of a flow and its tools by name.

    Raises:
        UsageError: its shape, a tool of it or a policy is wrong or not supported.
    """
    app = _app_of(agent, flow_type)
    root = cast(LlmAgent, app.root_agent)
    _check_agent(root)
    tools = _tools_of(root)
    _check_policies(policies, tools)
    return app, tools


def _app_of(agent: object, flow_type: str) -> App:
    """The application that a flow runs: the one given, or a new one around the agent.

    Raises:
        UsageError: it is neither an ``LlmAgent`` nor an ``App`` around one, or its name is no ADK app name.
    """
    if not flow_type:
        raise UsageError("flow_type is empty; give the flow a stable name, such as flow_type='SupportAgent'")
    root = agent.root_agent if isinstance(agent, App) else agent
    if not isinstance(root, LlmAgent):
        raise UsageError(
            f"agent: the root is of type {type(root).__name__}, {_NOT_YET}; pass an LlmAgent or an App of one"
        )
    if isinstance(agent, App):
        ours = [plugin.name for plugin in agent.plugins if plugin.name in (WATCHER, ANSWERER)]
        if ours:
            raise UsageError(f"App.plugins has a plugin named {ours[0]!r}, which is perdure's own name; rename it")
        return agent
    try:
        return App(name=flow_type, root_agent=root)
    except ValueError as error:
        raise UsageError(
            f"flow_type {flow_type!r} is no ADK app name (a letter, then letters, digits, '_' or '-'; not 'user'); "
            "choose another flow_type, or pass an App with a name of its own"
        ) from error


def _check_agent(agent: LlmAgent) -> None:
    """Refuses an agent of a shape that is not durable yet.

    Raises:
        UsageError: names the agent and the argument of it.
    """
    name = f"agent {agent.name!r}"
    if agent.sub_agents:
        raise UsageError(f"{name} has sub_agents, {_NOT_YET}; leave sub_agents empty")
    if agent.mode is not None and str(agent.mode) not in ("chat", "AgentMode.CHAT"):
        raise UsageError(f"{name} has mode={agent.mode!r}, {_NOT_YET} at the root; leave mode out")
    if agent.code_executor is not None and not isinstance(agent.code_executor, BuiltInCodeExecutor):
        executor = type(agent.code_executor).__name__
        raise UsageError(f"{name} has code_executor={executor}, {_NOT_YET}; use BuiltInCodeExecutor or leave it out")


def _tools_of(agent: LlmAgent) -> dict[str, BaseTool]:
    """The agent's tools by name.

    Raises:
        UsageError: a tool cannot be made durable, or two tools have one name.
    """
    found: dict[str, BaseTool] = {}
    for entry in cast(list[object], agent.tools):  # pyright: ignore[reportUnknownMemberType]  (ADK's bare Callable)
        tool = _tool_of(agent, entry)
        reason = unsupported(tool)
        if reason is not None:
            raise UsageError(f"agent {agent.name!r}: tool {tool.name!r} {reason}, {_NOT_YET}; take it out of tools")
        check_stand_in(tool)
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


def _check_policies(policies: Mapping[str, ToolPolicy], tools: Mapping[str, BaseTool]) -> None:
    """Refuses a policy that is none, or that is for a tool which is not there.

    Raises:
        UsageError: names the tool.
    """
    for name, policy in policies.items():
        if not isinstance(cast(object, policy), ToolPolicy):
            raise UsageError(
                f"tool_policies[{name!r}] is {policy!r}; give a ToolPolicy, such as ToolPolicy(ToolEffect.READ)"
            )
        if name not in tools:
            known = ", ".join(sorted(tools)) or "none"
            raise UsageError(f"tool_policies names {name!r}, but the agent has no such tool (it has: {known})")


def check_options(
    default_tool_effect: object, approvals: object, model_retry: object, model_timeout: object, user_id: object
) -> None:
    """Refuses options of the wrong type or value.

    Raises:
        UsageError: names the option.
    """
    if not isinstance(default_tool_effect, ToolEffect):
        raise UsageError(f"default_tool_effect is {default_tool_effect!r}; give a ToolEffect, such as ToolEffect.READ")
    if approvals not in ("by_effect", "declared"):
        raise UsageError(f"approvals is {approvals!r}; give 'by_effect' or 'declared'")
    if model_retry is not None and not isinstance(model_retry, RetryPolicy):
        raise UsageError(f"model_retry is {model_retry!r}; give a RetryPolicy, or None for three attempts")
    if model_timeout is not None and (not isinstance(model_timeout, timedelta) or model_timeout <= timedelta(0)):
        raise UsageError(f"model_timeout is {model_timeout!r}; give a positive timedelta, or None for no limit")
    if not isinstance(user_id, str) or not user_id:
        raise UsageError(f"user_id is {user_id!r}; give a name for sessions that are started without one")


def check_run_config(config: RunConfig, where: str) -> None:
    """Refuses what a durable turn cannot run.

    Raises:
        UsageError: names ``where`` it was given.
    """
    if config.streaming_mode is StreamingMode.BIDI:
        raise UsageError(f"{where}: streaming_mode BIDI is live audio and video, which has no durable form; use SSE")
    if config.support_cfc:
        raise UsageError(f"{where}: support_cfc runs tools inside the model's live connection; leave it out")


def fingerprint(app: App, tools: Mapping[str, BaseTool]) -> str:
    """A fingerprint of the agent, its tools and their parameters.  Texts and models do not count."""
    agent = cast(LlmAgent, app.root_agent)
    shape = {
        "agents": [{"name": agent.name, "output": _schema_name(agent.output_schema)}],
        "tools": {name: _parameters(tool) for name, tool in sorted(tools.items())},
    }
    text = json.dumps(shape, sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()


def _schema_name(schema: object) -> str | None:
    return None if schema is None else getattr(schema, "__qualname__", str(schema))


def _parameters(tool: BaseTool) -> Any:
    declaration = seams.declaration_of(tool)
    if declaration is None:
        return None
    schema = declaration.model_dump(mode="json", exclude_none=True)
    return _without_texts(schema.get("parameters") or schema.get("parameters_json_schema"))


def _without_texts(schema: Any) -> Any:
    """A JSON schema without its descriptions and titles."""
    if isinstance(schema, list):
        return [_without_texts(item) for item in cast(list[object], schema)]
    if not isinstance(schema, dict):
        return schema
    kept: dict[str, Any] = {}
    for key, value in cast(dict[str, Any], schema).items():
        if key in ("properties", "$defs") and isinstance(value, dict):
            kept[key] = {name: _without_texts(item) for name, item in cast(dict[str, Any], value).items()}
        elif key not in ("description", "title"):
            kept[key] = _without_texts(value)
    return kept


def check_limits(interrupt_deadline: object, event_stream_capacity_bytes: object) -> None:
    """Raises: UsageError, when one of them is of the wrong type or not positive."""
    deadline, capacity = interrupt_deadline, event_stream_capacity_bytes
    if deadline is not None and (not isinstance(deadline, timedelta) or deadline <= timedelta(0)):
        raise UsageError(f"interrupt_deadline is {deadline!r}; give a positive timedelta, or None for ever")
    if not isinstance(capacity, int) or capacity <= 0:
        raise UsageError(f"event_stream_capacity_bytes is {capacity!r}; give a positive number of bytes")


def check_content(content: JsonObject) -> None:
    """Raises: UsageError, when ADK does not take the content as a user's message."""
    try:
        parts = types.Content.model_validate_json(json.dumps(content)).parts
    except ValidationError as error:
        raise UsageError(f"the content of the message is no google.genai Content: {error}") from error
    if not parts:
        raise UsageError("No parts in the new_message.")
    if any(part.function_call or part.function_response for part in parts):
        raise UsageError(
            "the content of a message holds function calls or responses; calls are made by the model, and responses "
            "are given with resolve_interrupt or answer_question"
        )
