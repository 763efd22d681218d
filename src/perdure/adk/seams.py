"""Every private name of google-adk that perdure relies on, in one place, with a check that they are still there.

Other modules of ``adk/`` import ADK's public API directly and its private names from here.  ``check_seams`` runs when a
flow is built; it raises ``FrameworkDrift`` rather than letting a durable turn go on over a seam that moved.
"""

# This module is the one place that uses ADK's private names, so the rule against that is off in it.
# pyright: reportPrivateUsage=false

from __future__ import annotations

import asyncio
import importlib
import inspect
import sys
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AbstractContextManager, aclosing, suppress
from dataclasses import dataclass
from functools import lru_cache
from random import Random
from typing import Any, cast

from google.adk import runners
from google.adk.agents.base_agent import BaseAgent
from google.adk.agents.context import Context
from google.adk.agents.invocation_context import InvocationContext
from google.adk.agents.llm.task._finish_task_tool import FinishTaskTool
from google.adk.agents.llm_agent import LlmAgent
from google.adk.agents.readonly_context import ReadonlyContext
from google.adk.agents.run_config import RunConfig
from google.adk.auth import _auth_resume, auth_preprocessor, oauth2_credential_util
from google.adk.auth.auth_credential import AuthCredential
from google.adk.auth.auth_tool import AuthConfig
from google.adk.auth.credential_manager import CredentialManager
from google.adk.auth.exchanger.base_credential_exchanger import ExchangeResult
from google.adk.auth.exchanger.oauth2_credential_exchanger import OAuth2CredentialExchanger
from google.adk.auth.refresher.oauth2_credential_refresher import OAuth2CredentialRefresher
from google.adk.events import _abort_events
from google.adk.events.event import Event
from google.adk.events.event_actions import EventActions
from google.adk.events.request_input import RequestInput
from google.adk.flows.llm_flows import base_llm_flow, functions
from google.adk.flows.llm_flows.base_llm_flow import BaseLlmFlow
from google.adk.flows.llm_flows.core import _resume
from google.adk.flows.llm_flows.extensions import _code_execution
from google.adk.flows.llm_flows.tools import _batch_executor, _caller, _error_handler, _toolset_auth
from google.adk.models.base_llm import BaseLlm
from google.adk.models.llm_request import LlmRequest
from google.adk.models.llm_response import LlmResponse
from google.adk.platform import _random as platform_random
from google.adk.platform import time as platform_time
from google.adk.platform import uuid as platform_uuid
from google.adk.sessions.state import State
from google.adk.telemetry import tracing
from google.adk.tools import _node_tool, agent_tool
from google.adk.tools.base_tool import BaseTool
from google.adk.tools.base_toolset import BaseToolset
from google.adk.tools.function_tool import FunctionTool
from google.adk.tools.load_mcp_resource_tool import LoadMcpResourceTool
from google.adk.tools.set_model_response_tool import SetModelResponseTool
from google.adk.tools.tool_context import ToolContext
from google.adk.utils import _function_call_names, _sync_runner
from google.adk.version import __version__ as adk_version
from google.adk.workflow import BaseNode, _function_node
from google.adk.workflow import _errors as workflow_errors
from google.adk.workflow._function_node import FunctionNode
from google.adk.workflow._node_runner import NodeRunner
from google.adk.workflow._node_state import NodeState
from google.adk.workflow._tool_node import _ToolNode
from google.adk.workflow._workflow import Workflow
from google.adk.workflow.utils import _retry_utils, _workflow_hitl_utils
from google.genai import types
from pydantic import BaseModel

from perdure.errors import FrameworkDrift

__all__ = [
    "CALL_ID_PREFIX",
    "REQUEST_CONFIRMATION",
    "REQUEST_CREDENTIAL",
    "TOOLSET_AUTH_PREFIX",
    "ExchangeResult",
    "FinishTaskTool",
    "FunctionNode",
    "NodeInterruptedError",
    "NodeRunner",
    "NodeTool",
    "SetModelResponseTool",
    "TaskAgentTool",
    "ToolNode",
    "Workflow",
    "check_seams",
]

NodeTool = _node_tool.NodeTool
ToolNode = _ToolNode
NodeInterruptedError = workflow_errors.NodeInterruptedError
TaskAgentTool = agent_tool._TaskAgentTool

CALL_ID_PREFIX = functions.AF_FUNCTION_CALL_ID_PREFIX
"""How the ids of calls begin that ADK made up itself; it takes them out of requests to models."""
REQUEST_CONFIRMATION = functions.REQUEST_CONFIRMATION_FUNCTION_CALL_NAME
REQUEST_CREDENTIAL = _function_call_names.REQUEST_EUC_FUNCTION_CALL_NAME
TOOLSET_AUTH_PREFIX = auth_preprocessor.TOOLSET_AUTH_CREDENTIAL_ID_PREFIX
"""How the id begins under which a toolset, rather than a call, asks for a sign-in."""

GetLlm = Callable[[BaseLlmFlow, InvocationContext], Awaitable[BaseLlm]]
ListToolset = Callable[[BaseToolset, ReadonlyContext | None], Awaitable[list[BaseTool]]]
RunAgent = Callable[[BaseAgent, InvocationContext], AsyncGenerator[Event, None]]
RunCalls = Callable[..., Awaitable[Event | None]]
RunCall = Callable[..., Awaitable[Event | None]]
InferenceSpan = Callable[[LlmRequest, InvocationContext, Event], AbstractAsyncContextManager[Any]]
CallLlm = Callable[[Any, InvocationContext, LlmRequest, Event], AsyncGenerator[LlmResponse, None]]
SyncCallableRunner = Callable[[Callable[..., Any], dict[str, Any]], Awaitable[Any]]


def _put(owner: object, name: str, value: object) -> None:
    """Replaces an attribute of a class or a module of ADK, for the whole process."""
    setattr(owner, name, value)


Providers = tuple[Callable[[], float], Callable[[], str], Callable[[], Random]]


def current_providers() -> Providers:
    """The providers of time, ids and random numbers of the current context."""
    return (
        platform_time._time_provider_context_var.get(),
        platform_uuid._id_provider_context_var.get(),
        platform_random._random_provider_context_var.get(),
    )


REAL_PROVIDERS: Providers = (
    platform_time._default_time_provider,
    platform_uuid._default_id_provider,
    platform_random._default_random_provider,
)
"""ADK's own."""


def set_providers(providers: Providers) -> None:
    """Installs providers in the current context."""
    time_provider, id_provider, random_provider = providers
    platform_time.set_time_provider(time_provider)
    platform_uuid.set_id_provider(id_provider)
    platform_random.set_random_provider(random_provider)


def get_llm_method() -> GetLlm:
    """``BaseLlmFlow._get_llm``: the one place where every agent asks for its model."""
    return cast(GetLlm, BaseLlmFlow._get_llm)


def set_get_llm_method(method: GetLlm) -> None:
    """Replaces ``BaseLlmFlow._get_llm`` for the whole process."""
    _put(BaseLlmFlow, "_get_llm", method)


def call_llm_method() -> CallLlm:
    """``BaseLlmFlow._call_llm_async``: what every model call passes when its request is built, before its callbacks."""
    return cast(CallLlm, BaseLlmFlow._call_llm_async)


def set_call_llm_method(method: CallLlm) -> None:
    """Replaces ``BaseLlmFlow._call_llm_async`` for the whole process."""
    _put(BaseLlmFlow, "_call_llm_async", method)


def agent_run_method() -> RunAgent:
    """``BaseAgent.run_async``: what every run of an agent passes, whoever runs it."""
    return BaseAgent.run_async


def set_agent_run_method(method: RunAgent) -> None:
    """Replaces ``BaseAgent.run_async`` for the whole process."""
    _put(BaseAgent, "run_async", method)


def call_batch_function() -> RunCalls:
    """``handle_function_call_list_async``: what the tool calls of one model response pass together."""
    return functions.handle_function_call_list_async


def set_call_batch_function(function: RunCalls) -> None:
    """Replaces ``handle_function_call_list_async`` for the whole process."""
    _put(functions, "handle_function_call_list_async", function)


def call_function() -> RunCall:
    """``_execute_single_prepared_call_async``: what each tool call passes, with its callbacks."""
    return cast(RunCall, getattr(_batch_executor, "_execute_single_prepared_call_async"))  # noqa: B009  (not exported)


def set_call_function(function: RunCall) -> None:
    """Replaces ``_execute_single_prepared_call_async`` for the whole process."""
    _put(_batch_executor, "_execute_single_prepared_call_async", function)


def tool_error_function() -> Callable[..., Any]:
    """``run_on_tool_error_callbacks``: where ADK asks the application for an answer to a failed call."""
    return _error_handler.run_on_tool_error_callbacks


def set_tool_error_function(function: Callable[..., Any]) -> None:
    """Replaces ``run_on_tool_error_callbacks`` for the whole process."""
    _put(_error_handler, "run_on_tool_error_callbacks", function)


def use_inference_span() -> InferenceSpan:
    """``use_inference_span``: the context in which ADK makes a model call, to tell OpenTelemetry of it."""
    return tracing.use_inference_span


def set_use_inference_span(function: InferenceSpan) -> None:
    """Replaces ``use_inference_span`` for the whole process."""
    _put(tracing, "use_inference_span", function)


class _AsyncioFor:
    """``asyncio`` as one module of ADK sees it: with another ``to_thread``."""

    def __init__(self, to_thread: Callable[..., Awaitable[Any]]) -> None:
        self.to_thread = to_thread

    def __getattr__(self, name: str) -> Any:
        return getattr(asyncio, name)


def set_code_execution_thread(to_thread: Callable[..., Awaitable[Any]]) -> None:
    """Makes ADK's code execution call ``to_thread`` where it calls ``asyncio.to_thread``, in the whole process."""
    _put(_code_execution, "asyncio", _AsyncioFor(to_thread))


def list_toolset_method() -> ListToolset:
    """``BaseToolset.get_tools_with_prefix``: the one method through which ADK lists a toolset."""
    return cast(ListToolset, BaseToolset.get_tools_with_prefix)


def set_list_toolset_method(method: ListToolset) -> None:
    """Replaces ``BaseToolset.get_tools_with_prefix`` for the whole process."""
    _put(BaseToolset, "get_tools_with_prefix", method)


def lists_once_per_invocation(toolset: BaseToolset) -> bool:
    """Whether ADK lists the toolset once in an invocation, and not before each model call."""
    return toolset._use_invocation_cache


def openapi_tools(toolset: BaseToolset) -> Sequence[BaseTool] | None:
    """All tools of an OpenAPI toolset, which it has from its specification; ``None``: it is another toolset."""
    module = sys.modules.get(_OPENAPI_TOOLSET)
    kind = None if module is None else module.OpenAPIToolset
    if kind is None or not isinstance(toolset, kind) or type(toolset).get_tools is not kind.get_tools:
        return None
    tools: Sequence[BaseTool] = cast(Any, toolset)._tools
    return tools


_OPENAPI_TOOLSET = "google.adk.tools.openapi_tool.openapi_spec_parser.openapi_toolset"
_MCP_TOOLSET = "google.adk.tools.mcp_tool.mcp_toolset"
"""Slow to import, and MCP needs a package of its own.  Who has such a toolset has imported its module."""

LOAD_MCP_RESOURCE = "load_mcp_resource"
"""Name of the tool that an MCP toolset adds for the resources of its server."""


def is_mcp_toolset(toolset: BaseToolset) -> bool:
    module = sys.modules.get(_MCP_TOOLSET)
    return module is not None and isinstance(toolset, module.McpToolset)


def raw_mcp_tool(tool: BaseTool, toolset: BaseToolset) -> dict[str, Any] | None:
    """What the server said of the tool; ``None`` unless it is a plain ``McpTool`` over the toolset's connections."""
    if not is_mcp_toolset(toolset) or type(tool).__name__ not in ("McpTool", "MCPTool"):
        return None
    listed: Any = tool
    if type(tool).__module__ != _MCP_TOOL or listed._mcp_session_manager is not cast(Any, toolset)._mcp_session_manager:
        return None
    raw: dict[str, Any] = listed.raw_mcp_tool.model_dump(mode="json", by_alias=True, exclude_none=True)
    return raw


_MCP_TOOL = "google.adk.tools.mcp_tool.mcp_tool"


_MCP_TOOLSET_ATTRIBUTES = (
    "_mcp_session_manager",
    "_auth_scheme",
    "_auth_credential",
    "_require_confirmation",
    "_header_provider",
    "_progress_callback",
    "_propagate_grounding_metadata",
)


def check_toolset(toolset: BaseToolset) -> None:
    """Checks the attributes of a toolset that are not public and that perdure reads.

    Raises:
        FrameworkDrift: one of them is not there.
    """
    names = ["_use_invocation_cache"]
    module = sys.modules.get(_OPENAPI_TOOLSET)
    if module is not None and isinstance(toolset, module.OpenAPIToolset):
        names.append("_tools")
    if is_mcp_toolset(toolset):
        names.extend(_MCP_TOOLSET_ATTRIBUTES)
    for name in names:
        if not hasattr(toolset, name):
            kind = type(toolset)
            raise drifted(Seam(kind.__module__, f"{kind.__qualname__}.{name}"), "no such attribute")


def mcp_tool_of(toolset: BaseToolset, raw: dict[str, Any]) -> BaseTool:
    """An ``McpTool`` as the toolset makes it of what its server says of a tool."""
    module, given = sys.modules[_MCP_TOOLSET], cast(Any, toolset)
    tool: BaseTool = module.McpTool(
        mcp_tool=module.McpBaseTool.model_validate(raw),
        mcp_session_manager=given._mcp_session_manager,
        auth_scheme=given._auth_scheme,
        auth_credential=given._auth_credential,
        require_confirmation=given._require_confirmation,
        header_provider=given._header_provider,
        progress_callback=given._progress_callback,
        propagate_grounding_metadata=given._propagate_grounding_metadata,
    )
    return tool


def loads_mcp_resources(tool: BaseTool, toolset: BaseToolset) -> bool:
    """Whether the tool is the one that the toolset adds for the resources of its server."""
    return type(tool) is LoadMcpResourceTool and cast(Any, tool)._mcp_toolset is toolset


def mcp_resource_tool_of(toolset: BaseToolset) -> BaseTool:
    """The tool for the resources of the toolset's server."""
    return LoadMcpResourceTool(mcp_toolset=cast(Any, toolset))


def invocation_of(context: ReadonlyContext) -> InvocationContext:
    """The invocation context itself (``get_invocation_context`` gives a copy)."""
    return context._invocation_context


def own_actions(context: ToolContext) -> EventActions:
    """The context's actions without the side effect of the ``actions`` property."""
    return context._event_actions


class _RememberingState(State):
    """Keeps the first copy that ADK takes of each dict or list that a read hands out (ADK keeps the last)."""

    def __init__(self, value: dict[str, Any], delta: dict[str, Any], schema: type[BaseModel] | None) -> None:
        super().__init__(value, delta, schema)
        self.first_reads: dict[str, tuple[Any, Any]] = {}

    def _take_snapshot(self, key: str, value: Any) -> None:
        super()._take_snapshot(key, value)
        taken = self._snapshots.get(key)
        if taken is not None:
            self.first_reads.setdefault(key, taken)


def watch_state(context: ToolContext) -> Mapping[str, tuple[Any, Any]]:
    """Gives the context a fresh view of the session's state, over the actions' delta.

    Returns:
        what reads through it will hand out: key -> the dict or list, and a copy of what it held at its first read.
    """
    actions = context.actions  # records what was written into containers that the former view handed out
    watched = _RememberingState(
        invocation_of(context).session.state,
        actions.state_delta,
        context.state._schema,
    )
    context._state = watched
    return watched.first_reads


def abort_event(turn_id: str, root_agent: str) -> Event:
    """The event with which ADK tells that an invocation was aborted."""
    (event,) = _abort_events._build_abort_events([], invocation_id=turn_id, root_agent_name=root_agent, branch=None)
    return event


def new_function_call_id() -> str:
    """A function-call id from ADK's own generator; ADK strips ids of this form from requests."""
    return functions.generate_client_function_call_id()


def mandatory_parameters(tool: FunctionTool) -> list[str]:
    """The names of a function tool's parameters that have no default."""
    return tool._get_mandatory_args()


def takes_arguments_as_they_are(tool: BaseTool) -> bool:
    """Whether the tool is a function tool that answers missing arguments itself, before it calls its function."""
    return (
        isinstance(tool, FunctionTool)
        and type(tool).run_async is FunctionTool.run_async
        and type(tool)._preprocess_args is FunctionTool._preprocess_args
    )


def is_generator_tool(tool: BaseTool) -> bool:
    """Whether the tool's function is a generator, which ADK runs as a workflow node."""
    return isinstance(tool, FunctionTool) and tool._spec.is_generator


def declaration_of(tool: BaseTool) -> types.FunctionDeclaration | None:
    """What the tool tells the model about itself."""
    return tool._get_declaration()


def split_media(result: Any) -> tuple[Any, list[types.FunctionResponsePart] | None]:
    """Takes media parts out of a tool's result, as ADK does before it builds the function response."""
    return _caller._extract_multimodal_parts(result)


def sync_callables_run_with(runner: SyncCallableRunner) -> AbstractContextManager[None]:
    """While entered, function tools call their synchronous functions through ``runner``."""
    return _sync_runner._use_sync_callable_runner(runner)


def sync_callables_run_inline() -> AbstractContextManager[None]:
    """While entered, function tools call their synchronous functions at once."""
    return _sync_runner._use_sync_callable_runner(None)


# ------------------------------------------------------------ workflow nodes


def children_of(node: BaseNode) -> list[BaseNode]:
    """What a node is declared to run: the nodes of a workflow, the sub-agents of an agent."""
    return list(node._iter_static_children())


@dataclass(frozen=True, slots=True)
class NodeFunction:
    """The function of a ``FunctionNode``, as the node would call it."""

    function: Callable[..., Any]
    unwrapped: Callable[..., Any]

    @property
    def is_generator(self) -> bool:
        """Whether it gives its values one by one."""
        return inspect.isasyncgenfunction(self.unwrapped) or inspect.isgeneratorfunction(self.unwrapped)

    async def values(self, arguments: dict[str, Any]) -> AsyncGenerator[Any, None]:
        """Calls it; what it returns is its one value."""
        if inspect.isasyncgenfunction(self.unwrapped):
            values = self.function(**arguments)
        elif inspect.isgeneratorfunction(self.unwrapped):
            values = _function_node._sync_to_async_gen(self.function(**arguments))
        else:
            yield await _sync_runner._invoke_callable(self.function, arguments, unwrapped=self.unwrapped)
            return
        async with aclosing(values):
            async for value in values:
                yield value


def function_of(node: FunctionNode) -> NodeFunction:
    """The node's function."""
    return NodeFunction(node._func, node._unwrapped_func or node._func)


def with_function(node: FunctionNode, function: Callable[..., Any]) -> FunctionNode:
    """The same node around another function, which must be asynchronous."""
    copy = node.model_copy()
    copy._func = copy._unwrapped_func = function
    return copy


def function_node_method() -> Callable[..., AsyncGenerator[Any, None]]:
    """``FunctionNode._run_impl``: binds the parameters, asks at the node's gates, and calls the function."""
    return FunctionNode._run_impl


def set_function_node_method(method: Callable[..., AsyncGenerator[Any, None]]) -> None:
    """Replaces ``FunctionNode._run_impl`` for the whole process."""
    _put(FunctionNode, "_run_impl", method)


def tool_node_method() -> Callable[..., AsyncGenerator[Any, None]]:
    """``_ToolNode._run_impl``: calls the tool between the plugins' callbacks."""
    return _ToolNode._run_impl


def set_tool_node_method(method: Callable[..., AsyncGenerator[Any, None]]) -> None:
    """Replaces ``_ToolNode._run_impl`` for the whole process."""
    _put(_ToolNode, "_run_impl", method)


def node_run_method() -> Callable[..., Awaitable[Context]]:
    """``NodeRunner.run``: what every run of a node passes, with all its retries."""
    return NodeRunner.run


def set_node_run_method(method: Callable[..., Awaitable[Context]]) -> None:
    """Replaces ``NodeRunner.run`` for the whole process."""
    _put(NodeRunner, "run", method)


def node_of(runner: NodeRunner) -> Any:
    """The node that is run."""
    return runner._node


def parent_of(runner: NodeRunner) -> Context:
    """The context of what runs the node."""
    return runner._parent_ctx


def run_of_node_under_timeout() -> Callable[..., Awaitable[None]]:
    """``NodeRunner._run_node_loop_with_timeout``."""
    return NodeRunner._run_node_loop_with_timeout


def set_run_of_node_under_timeout(method: Callable[..., Awaitable[None]]) -> None:
    """Replaces ``NodeRunner._run_node_loop_with_timeout`` for the whole process."""
    _put(NodeRunner, "_run_node_loop_with_timeout", method)


def run_of_node(runner: NodeRunner, context: Context, node_input: Any) -> Awaitable[None]:
    """One try of a node, without its time limit."""
    return runner._run_node_loop(context, node_input)


def retry_method() -> Callable[..., Awaitable[bool]]:
    """``NodeRunner._attempt_retry``: decides whether a failed node is tried again, and waits before that."""
    return NodeRunner._attempt_retry


def set_retry_method(method: Callable[..., Awaitable[bool]]) -> None:
    """Replaces ``NodeRunner._attempt_retry`` for the whole process."""
    _put(NodeRunner, "_attempt_retry", method)


def would_retry(runner: NodeRunner, error: Exception, attempt_count: int) -> bool:
    """What ``_attempt_retry`` decides, without the pause; the random number for the pause is drawn."""
    state = NodeState(attempt_count=attempt_count)
    if not _retry_utils._should_retry_node(error, runner._node.retry_config, state):
        return False
    _retry_utils._get_retry_delay(runner._node.retry_config, state)
    return True


def workflow_methods() -> tuple[Any, Any, Any]:
    """Where a workflow schedules a node, sees that one is done, and schedules all that are ready."""
    return Workflow._start_node_task, Workflow._pop_completed_task, Workflow._schedule_ready_nodes


def set_workflow_methods(starts: Any, ends: Any, schedules: Any) -> None:
    """Replaces ``workflow_methods`` for the whole process."""
    _put(Workflow, "_start_node_task", starts)
    _put(Workflow, "_pop_completed_task", ends)
    _put(Workflow, "_schedule_ready_nodes", schedules)


def task_of_node(loop_state: Any, node_name: str) -> Any:
    """The task in which a workflow runs the node that it has just scheduled."""
    return loop_state.pending_tasks[node_name]


def may_start_nodes(context: Context) -> bool:
    """Whether ADK lets the node of this context start others."""
    return context._node_rerun_on_resume


def take_node_results(context: Context) -> tuple[Any, Any]:
    """Takes what a function set as output and route out of its node's context."""
    taken = context._output_value, context._route_value
    context._output_value = context._route_value = None
    return taken


def event_of_request(request: RequestInput) -> Event:
    """The event as which ADK asks for input."""
    return _workflow_hitl_utils.create_request_input_event(request)


def asks_for_confirmation(interrupt_id: str) -> bool:
    """Whether the interrupt is that of a node's ``require_confirmation``."""
    return interrupt_id.startswith(_workflow_hitl_utils.confirmation_interrupt_id(""))


def is_request_of_node(call_id: str) -> bool:
    """Whether a call is ADK's own, to have a node confirmed or its user signed in."""
    return asks_for_confirmation(call_id) or call_id.startswith(_workflow_hitl_utils.auth_interrupt_id(""))


def call_of_request(interrupt_id: str, message: str | None, payload: Any, response_schema: Any) -> types.FunctionCall:
    """The call by which ADK asks for input."""
    request = cast(Any, RequestInput)(
        interrupt_id=interrupt_id, message=message, payload=payload, response_schema=response_schema
    )
    (call,) = event_of_request(request).get_function_calls()
    return call


def node_timeout_error(node_name: str, timeout: float) -> Exception:
    """What ADK raises for a node that takes too long."""
    return workflow_errors.NodeTimeoutError(node_name=node_name, timeout=timeout)


def new_event_stamp() -> tuple[str, float]:
    """An id and a time for an event, from the present providers."""
    return platform_uuid.new_uuid(), platform_time.get_time()


def model_calls_of(invocation: InvocationContext) -> int:
    """How many model calls ADK has counted in an invocation."""
    return invocation._invocation_cost_manager._number_of_llm_calls


def set_model_calls_of(invocation: InvocationContext, count: int) -> None:
    """Makes ADK go on counting model calls from here."""
    invocation._invocation_cost_manager._number_of_llm_calls = count


# ------------------------------------------------------------ the check
def credential_from_value(config: AuthConfig, value: Any) -> AuthCredential:
    """The credential that a client's bare answer to a sign-in request is."""
    return _auth_resume._build_credential_from_value(config, value)


def complete_credential(
    credential: AuthCredential, asked: AuthCredential | None, configured: AuthCredential | None
) -> AuthCredential | None:
    """A credential from a client, with what was asked for filled in, and pinned to the configured OAuth client."""
    merged = _auth_resume._merge_credential_oauth2_fields(credential, asked)
    pinned = oauth2_credential_util._with_configured_client(credential=merged, raw_credential=configured)
    return None if pinned is None else without_client_secret(pinned)


def without_client_secret(credential: AuthCredential) -> AuthCredential:
    """A copy of a credential without the application's own secret."""
    redacted = oauth2_credential_util._credential_without_client_secret(credential)
    assert redacted is not None
    return redacted


@dataclass(frozen=True, slots=True)
class TokenMethods:
    """The methods in which ADK talks to token servers, and the one from which it does so without awaiting."""

    exchange: Callable[..., Awaitable[ExchangeResult]]
    exchange_sync: Callable[..., ExchangeResult]
    refresh: Callable[..., Awaitable[AuthCredential]]
    load_from_auth_response: Callable[..., Awaitable[AuthCredential | None]]


def token_methods() -> TokenMethods:
    """Those methods as they are."""
    return TokenMethods(
        OAuth2CredentialExchanger.exchange,
        OAuth2CredentialExchanger._exchange_sync,
        OAuth2CredentialRefresher.refresh,
        CredentialManager._load_from_auth_response,
    )


def set_token_methods(methods: TokenMethods) -> None:
    """Replaces them for the whole process."""
    # (A plain assignment to a method is a type error.)
    _put(OAuth2CredentialExchanger, "exchange", methods.exchange)
    _put(OAuth2CredentialExchanger, "_exchange_sync", methods.exchange_sync)
    _put(OAuth2CredentialRefresher, "refresh", methods.refresh)
    _put(CredentialManager, "_load_from_auth_response", methods.load_from_auth_response)


TOOLSET_AUTH = auth_preprocessor.TOOLSET_AUTH_CREDENTIAL_ID_PREFIX
"""How ADK names the sign-in of a toolset: this, and the toolset's class."""

ResolveToolsetAuth = Callable[[InvocationContext, LlmAgent], AsyncGenerator[Event, None]]


def resolve_toolset_auth() -> ResolveToolsetAuth:
    """The function in which ADK signs an agent's toolsets in."""
    return _toolset_auth.resolve_toolset_auth


def set_resolve_toolset_auth(function: ResolveToolsetAuth) -> None:
    """Replaces it for the whole process."""
    _put(_toolset_auth, "resolve_toolset_auth", function)


PAUSE = _resume.ResumeDecision(_resume.ResumeAction.PAUSE)
"""The decision of an agent's loop to stop until what it waits for has come."""

REQUEST_INPUT = _function_call_names.REQUEST_INPUT_FUNCTION_CALL_NAME
"""The tool with which a model asks the user something."""

RunFlow = Callable[[BaseLlmFlow, InvocationContext], AsyncGenerator[Event, None]]


@dataclass(frozen=True, slots=True)
class PausingFunctions:
    """An agent's loop, and where ADK decides that an invocation is to pause."""

    run_flow: RunFlow
    decide_step_resume: Callable[[InvocationContext, dict[str, Any]], Any]
    should_pause: Callable[[InvocationContext, Event], bool]
    track_event: Callable[[Any, Event, Any], None]


def pausing_functions() -> PausingFunctions:
    """Those functions as they are."""
    return PausingFunctions(
        BaseLlmFlow.run_async,
        cast(Any, base_llm_flow).decide_step_resume,
        InvocationContext.should_pause_invocation,
        NodeRunner._track_event_in_context,
    )


def set_pausing_functions(pausing: PausingFunctions) -> None:
    """Replaces them for the whole process."""
    # (A plain assignment to a method is a type error.)
    _put(BaseLlmFlow, "run_async", pausing.run_flow)
    _put(base_llm_flow, "decide_step_resume", pausing.decide_step_resume)
    _put(InvocationContext, "should_pause_invocation", pausing.should_pause)
    _put(NodeRunner, "_track_event_in_context", pausing.track_event)


def interrupts_of(context: Any) -> set[str]:
    """The interrupts on which a node waits: the set itself."""
    interrupts: set[str] = context._interrupt_ids
    return interrupts


def stamp_run_metadata(event: Event, run_config: RunConfig | None) -> None:
    """Puts the run configuration's metadata into a user's event."""
    runners._apply_run_config_custom_metadata(event, run_config)


@dataclass(frozen=True, slots=True)
class Seam:
    """A name we rely on: where it is, and which parameters it must take."""

    module: str
    path: str
    parameters: tuple[str, ...] = ()


INVOCATION_ID = Seam("google.adk.agents.invocation_context", "new_invocation_context_id")
"""ADK takes the invocation's id first of all ids of a run; a turn looks whether it did."""

SEAMS: tuple[Seam, ...] = (
    Seam("google.adk.flows.llm_flows.base_llm_flow", "BaseLlmFlow._get_llm", ("self", "invocation_context")),
    Seam(
        "google.adk.flows.llm_flows.base_llm_flow",
        "BaseLlmFlow._call_llm_async",
        ("self", "invocation_context", "llm_request", "model_response_event"),
    ),
    Seam(
        "google.adk.telemetry.tracing",
        "use_inference_span",
        ("llm_request", "invocation_context", "model_response_event"),
    ),
    Seam("google.adk.agents.context", "Context.custom_metadata"),
    Seam("google.adk.agents.context", "Context.get_invocation_context"),
    INVOCATION_ID,
    Seam("google.adk.sessions.state", "State._record_nested_writes", ("self",)),
    Seam("google.adk.sessions.state", "State._take_snapshot", ("self", "key", "value")),
    Seam("google.adk.sessions.base_session_service", "BaseSessionService._commit_event_to_session"),
    Seam("google.adk.flows.llm_flows.functions", "generate_client_function_call_id"),
    Seam(
        "google.adk.events._abort_events",
        "_build_abort_events",
        ("events", "invocation_id", "root_agent_name", "branch"),
    ),
    Seam("google.adk.tools.function_tool", "FunctionTool._get_mandatory_args", ("self",)),
    Seam("google.adk.tools.function_tool", "FunctionTool._preprocess_args", ("self", "args")),
    Seam("google.adk.tools.base_tool", "BaseTool.check_require_confirmation", ("self", "args", "tool_context")),
    Seam("google.adk.tools.base_tool", "BaseTool.run_async", ("self", "args", "tool_context")),
    Seam("google.adk.tools.base_tool", "BaseTool._get_declaration", ("self",)),
    Seam("google.adk.tools.base_toolset", "BaseToolset.get_tools_with_prefix", ("self", "readonly_context")),
    Seam("google.adk.tools._confirmation_utils", "apply_confirmation_gate"),
    Seam("google.adk.flows.llm_flows.tools._caller", "_extract_multimodal_parts", ("function_result",)),
    Seam("google.adk.agents.base_agent", "BaseAgent.run_async", ("self", "parent_context")),
    Seam(
        "google.adk.flows.llm_flows.functions",
        "handle_function_call_list_async",
        ("invocation_context", "function_calls", "tools_dict", "filters", "tool_confirmation_dict"),
    ),
    Seam(
        "google.adk.flows.llm_flows.tools._batch_executor",
        "_execute_single_prepared_call_async",
        ("invocation_context", "prepared_call", "agent"),
    ),
    Seam(
        "google.adk.flows.llm_flows.tools._error_handler",
        "run_on_tool_error_callbacks",
        ("invocation_context", "agent", "tool", "tool_args", "tool_context", "error"),
    ),
    Seam("google.adk.utils._sync_runner", "_use_sync_callable_runner", ("runner",)),
    Seam("google.adk.utils._sync_runner", "_invoke_callable", ("target", "kwargs", "unwrapped")),
    Seam("google.adk.workflow._function_node", "FunctionNode._run_impl", ("self", "ctx", "node_input")),
    Seam("google.adk.workflow._function_node", "_sync_to_async_gen", ("sync_gen",)),
    Seam("google.adk.workflow._tool_node", "_ToolNode._run_impl", ("self", "ctx", "node_input")),
    Seam("google.adk.workflow._node_runner", "NodeRunner.run", ("self", "node_input", "resume_inputs")),
    Seam("google.adk.workflow._node_runner", "NodeRunner._run_node_loop", ("self", "ctx", "node_input")),
    Seam(
        "google.adk.workflow._node_runner",
        "NodeRunner._run_node_loop_with_timeout",
        ("self", "ctx", "node_input", "timeout"),
    ),
    Seam("google.adk.workflow._node_runner", "NodeRunner._attempt_retry", ("self", "e", "attempt_count")),
    Seam(
        "google.adk.workflow._workflow",
        "Workflow._start_node_task",
        ("self", "loop_state", "ctx", "node_name", "trigger"),
    ),
    Seam("google.adk.workflow._workflow", "Workflow._pop_completed_task", ("self", "loop_state", "task")),
    Seam("google.adk.workflow._workflow", "Workflow._schedule_ready_nodes", ("self", "loop_state", "ctx")),
    Seam("google.adk.agents.context", "Context._run_node_internal", ("self", "node", "node_input")),
    Seam("google.adk.workflow.utils._retry_utils", "_should_retry_node", ("exception", "retry_config", "node_state")),
    Seam("google.adk.workflow.utils._retry_utils", "_get_retry_delay", ("retry_config", "node_state")),
    Seam("google.adk.workflow._node_state", "NodeState", ("attempt_count",)),
    Seam("google.adk.workflow.utils._workflow_hitl_utils", "create_request_input_event", ("request_input",)),
    Seam("google.adk.workflow.utils._workflow_hitl_utils", "confirmation_interrupt_id", ("node_path",)),
    Seam("google.adk.workflow.utils._workflow_hitl_utils", "auth_interrupt_id", ("node_path",)),
    Seam("google.adk.utils._function_call_names", "REQUEST_EUC_FUNCTION_CALL_NAME"),
    Seam("google.adk.workflow._errors", "NodeInterruptedError"),
    Seam("google.adk.workflow._errors", "NodeTimeoutError", ("node_name", "timeout")),
    Seam("google.adk.agents.invocation_context", "_InvocationCostManager.increment_and_enforce_llm_calls_limit"),
    Seam("google.adk.flows.llm_flows.base_llm_flow", "BaseLlmFlow.run_async", ("self", "invocation_context")),
    Seam("google.adk.flows.llm_flows.base_llm_flow", "decide_step_resume", ("invocation_context", "tools_dict")),
    Seam("google.adk.flows.llm_flows.core._resume", "ResumeAction.PAUSE"),
    Seam("google.adk.flows.llm_flows.tools._toolset_auth", "resolve_toolset_auth", ("invocation_context", "agent")),
    Seam("google.adk.auth.auth_preprocessor", "TOOLSET_AUTH_CREDENTIAL_ID_PREFIX"),
    Seam("google.adk.flows.llm_flows.core._resume", "ResumeDecision", ("action",)),
    Seam("google.adk.agents.invocation_context", "InvocationContext.should_pause_invocation", ("self", "event")),
    Seam("google.adk.workflow._node_runner", "NodeRunner._track_event_in_context", ("self", "event", "ctx")),
    Seam("google.adk.agents.context", "Context.interrupt_ids"),
    Seam("google.adk.runners", "Runner._new_invocation_context", ("self", "session", "invocation_id")),
    Seam("google.adk.runners", "Runner._resolve_invocation_id", ("self", "session", "new_message", "invocation_id")),
    Seam("google.adk.runners", "Runner._resolve_invocation_id_from_fr", ("self", "session", "new_message", "strict")),
    Seam("google.adk.runners", "Runner._find_user_message_for_invocation", ("self", "events", "invocation_id")),
    Seam("google.adk.runners", "_apply_run_config_custom_metadata", ("event", "run_config")),
    Seam("google.adk.utils._function_call_names", "REQUEST_INPUT_FUNCTION_CALL_NAME"),
    Seam("google.adk.auth._auth_resume", "_build_credential_from_value", ("auth_config", "value")),
    Seam("google.adk.auth._auth_resume", "_merge_credential_oauth2_fields", ("target_cred", "source_cred")),
    Seam("google.adk.auth.oauth2_credential_util", "_with_configured_client", ("credential", "raw_credential")),
    Seam("google.adk.auth.oauth2_credential_util", "_credential_without_client_secret", ("credential",)),
    Seam(
        "google.adk.auth.exchanger.oauth2_credential_exchanger",
        "OAuth2CredentialExchanger.exchange",
        ("self", "auth_credential", "auth_scheme"),
    ),
    Seam(
        "google.adk.auth.exchanger.oauth2_credential_exchanger",
        "OAuth2CredentialExchanger._exchange_sync",
        ("self", "auth_credential", "auth_scheme"),
    ),
    Seam(
        "google.adk.auth.refresher.oauth2_credential_refresher",
        "OAuth2CredentialRefresher.refresh",
        ("self", "auth_credential", "auth_scheme"),
    ),
    Seam("google.adk.auth.credential_manager", "CredentialManager._load_from_auth_response", ("self", "context")),
    Seam("google.adk.tools.agent_tool", "_TaskAgentTool"),
    Seam("google.adk.platform.time", "set_time_provider", ("provider",)),
    Seam("google.adk.platform.uuid", "set_id_provider", ("provider",)),
    Seam("google.adk.platform", "set_random_provider", ("provider",)),
    Seam("google.adk.platform.time", "_time_provider_context_var.get"),
    Seam("google.adk.platform.uuid", "_id_provider_context_var.get"),
    Seam("google.adk.platform._random", "_random_provider_context_var.get"),
)


LOADED_LATE = (
    "google.adk.workflow._workflow",
    "google.adk.workflow._llm_agent_wrapper",
    "google.adk.flows.llm_flows.auto_flow",
    "google.adk.models.google_llm",
)
"""What ADK imports in the middle of the first turn of a process, and some 450 modules with it: half a second in which
no other session of the process moves, and by which a take-over would be late."""


@lru_cache(maxsize=1)
def load_early() -> None:
    """Imports what ADK would import in the middle of the first turn, as far as it is there."""
    for module in LOADED_LATE:
        with suppress(ImportError):
            importlib.import_module(module)


_TO_THREAD = "await asyncio.to_thread("
"""How ADK's code execution gets into a thread."""


def _find(seam: Seam) -> object:
    try:
        found: object = importlib.import_module(seam.module)
        for name in seam.path.split("."):
            found = getattr(found, name)
    except (ImportError, AttributeError) as error:
        raise drifted(seam, str(error)) from error
    return found


def drifted(seam: Seam, reason: str) -> FrameworkDrift:
    """The error that says that a seam moved."""
    name = f"{seam.module}.{seam.path}"
    return FrameworkDrift(
        f"google-adk {adk_version} does not have {name} as perdure needs it ({reason}); install google-adk 2.13",
        name=name,
        version=adk_version,
    )


def check_seam(seam: Seam) -> None:
    """Raises ``FrameworkDrift`` unless the seam is there and takes the parameters that we pass."""
    found = _find(seam)
    if not seam.parameters:
        return
    if not callable(found):
        raise drifted(seam, "it is not callable")
    names = tuple(inspect.signature(found).parameters)
    missing = [name for name in seam.parameters if name not in names]
    if missing:
        raise drifted(seam, f"it has no parameter {missing[0]!r}")


def _check_shapes() -> None:
    """The seams that are attributes of instances, checked on an instance."""
    state = State(value={}, delta={})
    if not isinstance(getattr(state, "_snapshots", None), dict):
        raise drifted(Seam("google.adk.sessions.state", "State._snapshots"), "no dict of that name")
    if not hasattr(state, "_schema"):
        raise drifted(Seam("google.adk.sessions.state", "State._schema"), "no attribute of that name")
    tool = FunctionTool(check_seam)
    if not hasattr(getattr(tool, "_spec", None), "is_generator"):
        raise drifted(Seam("google.adk.tools.function_tool", "FunctionTool._spec.is_generator"), "no such attribute")
    if _TO_THREAD not in inspect.getsource(_code_execution):
        raise drifted(
            Seam("google.adk.flows.llm_flows.extensions", "_code_execution"), f"it does not call {_TO_THREAD}"
        )
    if "invocation_id" not in Event.model_fields:
        raise drifted(Seam("google.adk.events.event", "Event.invocation_id"), "no such field")


@lru_cache(maxsize=1)
def check_seams() -> None:
    """Checks every seam, once per process.

    Raises:
        FrameworkDrift: google-adk changed under one of them.
    """
    for seam in SEAMS:
        check_seam(seam)
    _check_shapes()
