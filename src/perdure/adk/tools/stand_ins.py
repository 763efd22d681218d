"""Durable stand-ins for tools.

A stand-in is of a subclass made from the tool's own class and shares its ``__dict__``, so callbacks and ``isinstance``
see the tool they know.  Its ``run_async`` asks for the call and waits for its record; the tool itself runs elsewhere
(``bodies``).
"""

from __future__ import annotations

import contextvars
import types
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any, cast

from google.adk.tools.agent_tool import AgentTool
from google.adk.tools.base_tool import BaseTool
from google.adk.tools.exit_loop_tool import exit_loop
from google.adk.tools.function_tool import FunctionTool
from google.adk.tools.tool_context import ToolContext
from google.adk.tools.transfer_to_agent_tool import TransferToAgentTool, transfer_to_agent

from perdure.adk import seams
from perdure.adk.live.calls import Call, NodeWork, ToolRun
from perdure.adk.live.core import TurnCore, current_turn
from perdure.adk.live.places import path_of
from perdure.adk.live.runs import Run, current_run
from perdure.adk.native.forms import gate_hint
from perdure.adk.records.failures import OUTCOME_UNKNOWN, RecordedError
from perdure.adk.tools.effects import give_idempotency_key, retry_of
from perdure.adk.tools.scopes import recorded_arguments, run_scope
from perdure.errors import UsageError
from perdure.session.model import (
    DEFAULT_REJECTION_MESSAGE,
    OUTCOME_UNKNOWN_TOOL_RESULT,
    InterruptKind,
    JsonObject,
    RecordStatus,
)
from perdure.session.runner import CallRequest

_CONTROL_FUNCTIONS = (transfer_to_agent, exit_loop)
_CONTROL_TOOLS: tuple[type[BaseTool], ...] = (
    TransferToAgentTool,
    seams.SetModelResponseTool,
    seams.FinishTaskTool,
    seams.TaskAgentTool,
)


class _DurableTool:
    """Marks the classes of stand-ins; ``perdure_tool`` is the tool itself."""

    __slots__ = ()
    perdure_tool: BaseTool


_classes: dict[type[BaseTool], type[BaseTool]] = {}


def is_control_tool(tool: BaseTool) -> bool:
    """Whether calls of the tool steer the invocation and are no steps."""
    if isinstance(tool, _CONTROL_TOOLS):
        return True
    return isinstance(tool, FunctionTool) and tool.func in _CONTROL_FUNCTIONS


def is_durable(tool: BaseTool) -> bool:
    """Whether the tool is a stand-in."""
    return isinstance(tool, _DurableTool)


def stand_in_for(tool: BaseTool) -> BaseTool:
    """A stand-in for the tool, unless it is one already or its calls are no steps."""
    return tool if is_durable(tool) or is_control_tool(tool) else _stand_in(tool)


def make_tools_durable(tools: dict[str, BaseTool]) -> None:
    """Puts stand-ins into a request's tools for those that become steps."""
    for name, tool in tools.items():
        tools[name] = stand_in_for(tool)


def check_stand_in(tool: BaseTool) -> None:
    """Tries whether a stand-in can be made.

    Raises:
        UsageError: the tool's class does not let itself be subclassed.
    """
    try:
        _stand_in(tool)
    except (TypeError, AttributeError) as error:
        raise UsageError(
            f"tool {tool.name!r}: no subclass can be made of {type(tool).__name__} ({error}); wrap it in a FunctionTool"
        ) from error


def _stand_in(tool: BaseTool) -> BaseTool:
    kind = type(tool)
    durable = _classes.get(kind)
    if durable is None:
        durable = _classes[kind] = _durable_class(kind)
    stand_in = object.__new__(durable)
    object.__setattr__(stand_in, "__dict__", tool.__dict__)
    cast(Any, stand_in).perdure_tool = tool
    return stand_in


def _durable_class(kind: type[BaseTool]) -> type[BaseTool]:
    namespace: dict[str, Any] = {
        "__slots__": ("perdure_tool",),
        "__module__": kind.__module__,
        "__qualname__": kind.__qualname__,
        "__doc__": kind.__doc__,
        "run_async": _run_agent if issubclass(kind, AgentTool | seams.NodeTool) else _run_async,
        "check_require_confirmation": _check_require_confirmation,
    }
    return types.new_class(kind.__name__, (kind, _DurableTool), exec_body=lambda body: body.update(namespace))


def tool_behind(tool: BaseTool) -> BaseTool:
    """The tool that a stand-in stands for."""
    return cast(_DurableTool, tool).perdure_tool if is_durable(tool) else tool


async def _check_require_confirmation(self: BaseTool, args: dict[str, Any], tool_context: ToolContext) -> bool:
    """Notes what the tool's own gate says.  Never lets ADK ask: the call itself waits for the answer."""
    core = current_turn.get()
    tool = tool_behind(self)
    if core is None:
        return await tool.check_require_confirmation(args, tool_context)
    core.conductor.parking.guard()
    call_id = tool_context.function_call_id or ""
    if core.conductor.journal.call(call_id) is not None or core.conductor.journal.question(call_id) is not None:
        return False  # it was asked then, and the journal has what came of it
    # ADK's rule: anything but True lets the call through.
    if await tool.check_require_confirmation(args, tool_context) is True:
        core.asks[call_id] = InterruptKind.CONFIRMATION
    return False


async def _run_agent(self: BaseTool, *, args: dict[str, Any], tool_context: ToolContext) -> Any:
    """Runs the agent or the workflow behind the tool."""
    core = current_turn.get()
    if core is None:
        return await tool_behind(self).run_async(args=args, tool_context=tool_context)
    return await run_scope(core, tool_behind(self), args, tool_context)


@dataclass(frozen=True, slots=True, eq=False)
class GeneratorCall:
    """A call of a tool that is a generator.  ADK runs its function as a node, and that is the step."""

    tool: BaseTool
    args: dict[str, Any]
    context: ToolContext

    def request(self, core: TurnCore, run: Run, work: NodeWork) -> Call:
        """Asks for the call."""
        call_id = self.context.function_call_id or ""
        arguments = recorded_arguments(self.tool, self.args)
        return core.conductor.request(
            call_id,
            run,
            self.tool.name,
            arguments,
            lambda group: _request(
                core, self.tool, call_id, group, arguments, self.context, path_of(core, run, self.context)
            ),
            work,
        )


current_generator: ContextVar[GeneratorCall | None] = ContextVar("perdure_current_generator", default=None)
"""The call whose function ADK is about to run as a node."""


async def _run_generator(self: BaseTool, args: dict[str, Any], tool_context: ToolContext) -> Any:
    """Lets the tool prepare its call; the function that it then runs as a node is the step (see ``nodes``)."""
    token = current_generator.set(GeneratorCall(tool_behind(self), args, tool_context))
    try:
        return await super(cast(Any, type(self)), self).run_async(args=args, tool_context=tool_context)
    finally:
        current_generator.reset(token)


async def _run_async(self: BaseTool, *, args: dict[str, Any], tool_context: ToolContext) -> Any:
    """Asks for the call, waits for its record, and returns or raises what that says."""
    core = current_turn.get()
    tool = tool_behind(self)
    if core is None:
        return await tool.run_async(args=args, tool_context=tool_context)
    core.conductor.parking.guard()
    call_id = tool_context.function_call_id or ""
    if seams.is_generator_tool(tool):
        return await _run_generator(self, args, tool_context)
    if _lacks_arguments(core, tool, call_id, args):
        return await tool.run_async(args=args, tool_context=tool_context)
    give_idempotency_key(tool_context, core.start.turn_id)
    arguments = recorded_arguments(tool, args)
    run = current_run.get()
    assert run is not None, "a tool is called in the run of an agent"
    call = core.conductor.request(
        call_id,
        run,
        tool.name,
        arguments,
        lambda group: _request(core, tool, call_id, group, arguments, tool_context, path_of(core, run, tool_context)),
        ToolRun(tool, args, tool_context, contextvars.copy_context()),
    )
    await core.conductor.record_of(call)
    return _answer(call)


def _lacks_arguments(core: TurnCore, tool: BaseTool, call_id: str, args: dict[str, Any]) -> bool:
    """Whether the function cannot be called.  ADK's tool then answers without running it: that is no step."""
    if not seams.takes_arguments_as_they_are(tool):
        return False
    missing = [name for name in seams.mandatory_parameters(cast(FunctionTool, tool)) if name not in args]
    if not missing:
        return False
    recorded = core.conductor.journal.call(call_id)
    if recorded is not None and recorded.record is None:
        core.conductor.fail_call(call_id, f"tool {tool.name!r} with another required parameter, {missing[0]!r}")
    return recorded is None


def _request(
    core: TurnCore,
    tool: BaseTool,
    call_id: str,
    group: str,
    arguments: JsonObject,
    tool_context: ToolContext,
    path: str,
) -> CallRequest:
    rules = core.settings.rules
    policy = rules.policy_of(tool)
    ask = core.asks.pop(call_id, None)
    hint = ""
    if ask is InterruptKind.CONFIRMATION:
        hint = gate_hint(tool.name)
    elif rules.asks_for_approval(policy):
        ask = InterruptKind.APPROVAL
    return CallRequest(
        call_id=call_id,
        group=group,
        tool_name=tool.name,
        arguments=arguments,
        agent_name=tool_context.agent_name,
        effect=policy.effect,
        retry=retry_of(policy),
        timeout=policy.timeout,
        ask=ask,
        hint=hint,
        path=path,
    )


def _answer(call: Call) -> Any:
    record = call.record
    assert record is not None
    if record.status is RecordStatus.SUCCEEDED:
        return call.outcome.value if call.outcome else None
    if record.status is RecordStatus.REJECTED:
        return {"error": record.error.message if record.error else DEFAULT_REJECTION_MESSAGE}
    if call.outcome is not None and call.outcome.error is not None:
        raise call.outcome.error
    if record.status is RecordStatus.OUTCOME_UNKNOWN:
        raise RecordedError(OUTCOME_UNKNOWN_TOOL_RESULT, OUTCOME_UNKNOWN)
    message = record.error.message if record.error else "it failed"
    raise RecordedError(message, record.error.code if record.error else "")
