"""Every private name of google-adk that perdure relies on, in one place, with a check that they are still there.

Other modules of ``adk/`` import ADK's public API directly and its private names from here.  ``check_seams`` runs when a
flow is built; it raises ``FrameworkDrift`` rather than letting a durable turn go on over a seam that moved.
"""

# This module is the one place that uses ADK's private names, so the rule against that is off in it.
# pyright: reportPrivateUsage=false

from __future__ import annotations

import importlib
import inspect
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AbstractContextManager, suppress
from dataclasses import dataclass
from functools import lru_cache
from random import Random
from typing import Any, cast

from google.adk.agents.invocation_context import InvocationContext
from google.adk.agents.llm.task._finish_task_tool import FinishTaskTool
from google.adk.auth import auth_preprocessor
from google.adk.events import _abort_events
from google.adk.events.event import Event
from google.adk.events.event_actions import EventActions
from google.adk.flows.llm_flows import functions
from google.adk.flows.llm_flows.base_llm_flow import BaseLlmFlow
from google.adk.flows.llm_flows.tools import _caller
from google.adk.models.base_llm import BaseLlm
from google.adk.models.llm_request import LlmRequest
from google.adk.platform import _random as platform_random
from google.adk.platform import time as platform_time
from google.adk.platform import uuid as platform_uuid
from google.adk.sessions.state import State
from google.adk.telemetry import tracing
from google.adk.tools import _node_tool
from google.adk.tools.base_tool import BaseTool
from google.adk.tools.function_tool import FunctionTool
from google.adk.tools.set_model_response_tool import SetModelResponseTool
from google.adk.tools.tool_context import ToolContext
from google.adk.utils import _callback_pipeline, _sync_runner
from google.adk.version import __version__ as adk_version
from google.genai import types
from pydantic import BaseModel

from perdure.errors import FrameworkDrift

__all__ = [
    "CALL_ID_PREFIX",
    "REQUEST_CONFIRMATION",
    "REQUEST_CREDENTIAL",
    "TOOLSET_AUTH_PREFIX",
    "FinishTaskTool",
    "NodeTool",
    "SetModelResponseTool",
    "check_seams",
]

NodeTool = _node_tool.NodeTool

CALL_ID_PREFIX = functions.AF_FUNCTION_CALL_ID_PREFIX
"""How the ids of calls begin that ADK made up itself; it takes them out of requests to models."""
REQUEST_CONFIRMATION = functions.REQUEST_CONFIRMATION_FUNCTION_CALL_NAME
REQUEST_CREDENTIAL = functions.REQUEST_EUC_FUNCTION_CALL_NAME
TOOLSET_AUTH_PREFIX = auth_preprocessor.TOOLSET_AUTH_CREDENTIAL_ID_PREFIX
"""How the id begins under which a toolset, rather than a call, asks for a sign-in."""

GetLlm = Callable[[BaseLlmFlow, InvocationContext], Awaitable[BaseLlm]]
InferenceSpan = Callable[[LlmRequest, InvocationContext, Event], AbstractAsyncContextManager[Any]]
SyncCallableRunner = Callable[[Callable[..., Any], dict[str, Any]], Awaitable[Any]]


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
    setattr(BaseLlmFlow, "_get_llm", method)  # noqa: B010  (a plain assignment to a method is a type error)


def use_inference_span() -> InferenceSpan:
    """``use_inference_span``: the context in which ADK makes a model call, to tell OpenTelemetry of it."""
    return tracing.use_inference_span


def set_use_inference_span(function: InferenceSpan) -> None:
    """Replaces ``use_inference_span`` for the whole process."""
    setattr(tracing, "use_inference_span", function)  # noqa: B010  (its declared type is narrower than its use)


def invocation_of(context: ToolContext) -> InvocationContext:
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


async def run_tool_error_callbacks(
    callbacks: Sequence[Callable[..., Any]],
    *,
    tool: BaseTool,
    args: dict[str, Any],
    tool_context: ToolContext,
    error: Exception,
) -> Any:
    """Runs an agent's ``on_tool_error`` callbacks as ADK does: the first answer that is not ``None`` counts."""
    return await _callback_pipeline._run_callbacks(
        list(callbacks),
        _callback_pipeline._stop_on_non_none,
        tool=tool,
        args=args,
        tool_context=tool_context,
        error=error,
    )


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
    Seam("google.adk.tools._confirmation_utils", "apply_confirmation_gate"),
    Seam("google.adk.flows.llm_flows.tools._caller", "_extract_multimodal_parts", ("function_result",)),
    Seam("google.adk.flows.llm_flows.tools._error_handler", "run_on_tool_error_callbacks"),
    Seam("google.adk.utils._sync_runner", "_use_sync_callable_runner", ("runner",)),
    Seam("google.adk.utils._callback_pipeline", "_run_callbacks"),
    Seam("google.adk.utils._callback_pipeline", "_stop_on_non_none"),
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
