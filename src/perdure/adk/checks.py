"""What is refused when a flow is built, and the fingerprint of what its recorded turns rely on."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Any, cast

from google.adk.agents.base_agent import BaseAgent
from google.adk.agents.llm_agent import LlmAgent

# ADK's documentation imports StreamingMode from here, though the module does not say that it exports it.
from google.adk.agents.run_config import RunConfig, StreamingMode  # type: ignore[attr-defined]
from google.adk.apps.app import App
from google.adk.artifacts.base_artifact_service import BaseArtifactService
from google.adk.auth.credential_service.base_credential_service import BaseCredentialService
from google.adk.memory.base_memory_service import BaseMemoryService
from google.adk.tools.base_tool import BaseTool
from google.adk.workflow import BaseNode
from google.genai import types
from pydantic import ValidationError

from perdure.adk import seams
from perdure.adk.live.plugins import WATCHER
from perdure.adk.tools.declared import known_names
from perdure.adk.tools.stand_ins import check_stand_in, is_control_tool
from perdure.adk.tree import AgentNode, agents_below
from perdure.arguments import expect, wrong
from perdure.errors import UsageError
from perdure.session.model import JsonObject
from perdure.session.policy import RetryPolicy, ToolEffect, ToolPolicy

_AN_EFFECT = "a ToolEffect, such as ToolEffect.READ"
_ROOT_MODES = ("chat", "task", "AgentMode.CHAT", "AgentMode.TASK")
_NOT_DURABLE = ("google.adk.agents.remote_a2a_agent", "google.adk.agents.langgraph_agent")
"""Where ADK keeps agents that call something by themselves."""


def check_application(
    agent: object, flow_type: str, policies: Mapping[str, ToolPolicy], node_policies: Mapping[str, ToolPolicy]
) -> tuple[App, list[AgentNode]]:
    """The application of a flow and its agents and nodes.

    Raises:
        UsageError: its shape, a tool of it or a policy is wrong or not supported.
    """
    app = _app_of(agent, flow_type)
    root = cast(BaseNode, app.root_agent)
    if isinstance(root, LlmAgent) and root.mode is not None and str(root.mode) not in _ROOT_MODES:
        raise UsageError(
            f"agent {root.name!r} has mode={root.mode!r}, which ADK does not run at the root; leave it out"
        )
    agents = agents_below(root)
    for node in agents:
        _check_agent(node)
    _check_policies(policies, agents)
    _check_node_policies(node_policies, [node.agent for node in agents])
    return app, agents


def _app_of(agent: object, flow_type: str) -> App:
    """The application that a flow runs: the one given, or a new one around the agent.

    Raises:
        UsageError: it is no agent, no ``Workflow`` and no ``App`` around one, or its name is no ADK app name.
    """
    expect(flow_type, str, "flow_type", "a str: a stable name, such as 'SupportAgent'")
    if not flow_type:
        raise UsageError("flow_type is empty; give the flow a stable name, such as flow_type='SupportAgent'")
    root = agent.root_agent if isinstance(agent, App) else agent
    if not isinstance(root, BaseAgent | seams.Workflow):
        where = "App.root_agent" if isinstance(agent, App) else "agent"
        raise wrong(where, root, f"a BaseAgent, a Workflow, or an App of one (it is of type {type(root).__name__})")
    if isinstance(agent, App):
        ours = [plugin.name for plugin in agent.plugins if plugin.name == WATCHER]
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


def _check_agent(node: AgentNode) -> None:
    """Refuses an agent, or a tool of it, that cannot be durable.

    Raises:
        UsageError: names the agent and the argument of it.
    """
    agent = node.agent
    name = f"{'agent' if isinstance(agent, BaseAgent) else 'node'} {agent.name!r}"
    kinds = {base.__module__: base.__name__ for base in type(agent).__mro__}
    for module in _NOT_DURABLE:
        if module in kinds:
            raise UsageError(
                f"{name} is a {kinds[module]}, whose work is neither a model call nor a tool call: a crash would "
                "repeat it, so do it in a tool"
            )
    for tool in node.tools.values():
        if not is_control_tool(tool):
            check_stand_in(tool)


def _check_policies(policies: Mapping[str, ToolPolicy], agents: Sequence[AgentNode]) -> None:
    """Refuses a policy for a tool which no agent has or which is no step.

    A toolset that must be asked for its names may have any; its first listing shows.

    Raises:
        UsageError: names the tool.
    """
    toolsets = [known_names(toolset) for node in agents for toolset in node.toolsets]
    tools = {name: tool for node in agents for name, tool in node.tools.items()}
    known = {name for node in agents for name, tool in node.tools.items() if not is_control_tool(tool)}
    known.update(*(names for names in toolsets if names is not None))
    for name in policies:
        if name in known:
            continue
        if name in tools:
            raise UsageError(f"tool_policies names {name!r}, which steers ADK and is no step; leave it out")
        if None in toolsets:
            continue
        who = "the agent has no such tool" if len(agents) == 1 else "no agent of the flow has such a tool"
        raise UsageError(f"tool_policies names {name!r}, but {who} (known: {', '.join(sorted(known)) or 'none'})")


def _check_node_policies(policies: Mapping[str, ToolPolicy], nodes: Sequence[BaseNode]) -> None:
    """Refuses a policy for a node which cannot be there.

    Raises:
        UsageError: names the node.
    """
    known = {node.name for node in nodes if isinstance(node, seams.FunctionNode)}
    starts_others = any(isinstance(node, seams.FunctionNode) and node.rerun_on_resume for node in nodes)
    for name in policies:
        if name not in known and not starts_others:
            raise UsageError(
                f"node_policies names {name!r}, but the flow has no such function node (known: "
                f"{', '.join(sorted(known)) or 'none'})"
            )


def check_options(
    default_tool_effect: object,
    code_execution_effect: object,
    approvals: object,
    model_retry: object,
    model_timeout: object,
    user_id: object,
    sync_tools_in_threads: object,
) -> None:
    """Refuses options of the wrong type or value.

    Raises:
        UsageError: names the option.
    """
    expect(default_tool_effect, ToolEffect, "default_tool_effect", _AN_EFFECT)
    expect(code_execution_effect, ToolEffect, "code_execution_effect", _AN_EFFECT)
    if approvals not in ("by_effect", "declared"):
        raise wrong("approvals", approvals, "'by_effect' or 'declared'")
    expect(model_retry, RetryPolicy, "model_retry", "a RetryPolicy", optional=True)
    if model_timeout is not None and (not isinstance(model_timeout, timedelta) or model_timeout <= timedelta(0)):
        raise wrong("model_timeout", model_timeout, "a positive timedelta, or None for no limit")
    if not isinstance(user_id, str) or not user_id:
        raise wrong("user_id", user_id, "a str that is not empty: the user of sessions that are started without one")
    expect(sync_tools_in_threads, bool, "sync_tools_in_threads", "True or False")


def check_services(artifact_service: object, memory_service: object, credential_service: object) -> None:
    """Refuses what is no service of ADK's.  Raises: UsageError."""
    expect(artifact_service, BaseArtifactService, "artifact_service", "an ADK BaseArtifactService", optional=True)
    expect(memory_service, BaseMemoryService, "memory_service", "an ADK BaseMemoryService", optional=True)
    expect(
        credential_service, BaseCredentialService, "credential_service", "an ADK BaseCredentialService", optional=True
    )


def policies_in(given: object, argument: str) -> dict[str, ToolPolicy]:
    """A copy of an argument that gives policies to names.  Raises: UsageError, when it is of another type."""
    expect(given, Mapping, argument, "a mapping of names to ToolPolicy", optional=True)
    policies = dict(cast("Mapping[str, ToolPolicy] | None", given) or {})
    for name, policy in policies.items():
        expect(name, str, f"a name in {argument}", "a str")
        expect(policy, ToolPolicy, f"{argument}[{name!r}]", "a ToolPolicy, such as ToolPolicy(ToolEffect.READ)")
    return policies


def check_run_config(config: RunConfig, where: str) -> None:
    """Refuses what is no run configuration, and what a durable turn cannot run.

    Raises:
        UsageError: names ``where`` it was given.
    """
    expect(config, RunConfig, where, "an ADK RunConfig")
    if config.streaming_mode is StreamingMode.BIDI:
        raise UsageError(f"{where}: streaming_mode BIDI is live audio and video, which has no durable form; use SSE")
    if config.support_cfc:
        raise UsageError(f"{where}: support_cfc runs tools inside the model's live connection; leave it out")


def fingerprint(agents: Sequence[AgentNode]) -> str:
    """A fingerprint of the agents, their tools and the tools' parameters.  Texts and models do not count."""
    shape = [
        {
            "agent": node.path,
            "output": _schema_name(getattr(node.agent, "output_schema", None)),
            "tools": {name: _parameters(tool) for name, tool in sorted(node.tools.items())},
        }
        for node in agents
    ]
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


def check_content(content: JsonObject) -> None:
    """Raises: UsageError, when ADK does not take the content as a user's message."""
    try:
        parts = types.Content.model_validate_json(json.dumps(content)).parts
    except ValidationError as error:
        raise UsageError(f"the content of the message is no google.genai Content: {error}") from error
    if not parts:
        raise UsageError("content: No parts in the new_message; give it at least one part, such as a text")
    if any(part.function_call or part.function_response for part in parts):
        raise UsageError(
            "the content of a message holds function calls or responses; calls are made by the model, and responses "
            "are given with resolve_interrupt or answer_question"
        )
