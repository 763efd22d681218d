"""Code execution as a step: what a code executor runs is asked for, recorded and never redone, like a tool call.

ADK runs a code executor in the middle of its flow, in a thread.  ``install`` takes the place of that thread: within a
durable turn the execution becomes a call of a tool that perdure makes for it; outside nothing changes.
"""

from __future__ import annotations

import asyncio
import contextvars
import hashlib
from collections.abc import Callable
from functools import partial
from typing import Any

from google.adk.agents.invocation_context import InvocationContext
from google.adk.code_executors.base_code_executor import BaseCodeExecutor
from google.adk.code_executors.code_execution_utils import CodeExecutionInput, CodeExecutionResult, File
from google.adk.tools.base_tool import BaseTool
from google.adk.tools.tool_context import ToolContext

from perdure.adk import seams
from perdure.adk.live import determinism
from perdure.adk.live.calls import Call, ToolRun
from perdure.adk.live.core import TurnCore, turn_of
from perdure.adk.live.places import path_of
from perdure.adk.live.runs import Run, current_run
from perdure.adk.tools.effects import retry_of
from perdure.adk.tools.threads import ToolThreads
from perdure.session.model import OUTCOME_UNKNOWN_TOOL_RESULT, JsonObject, RecordStatus
from perdure.session.policy import ToolPolicy
from perdure.session.runner import CallRequest

CODE_EXECUTOR = "code_executor"
"""The tool name of executions."""

Execute = Callable[[InvocationContext, CodeExecutionInput], CodeExecutionResult]


def install() -> None:
    """Makes ADK run its code executors through here, once per process."""
    seams.set_code_execution_thread(_in_thread)


async def _in_thread(function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
    """``asyncio.to_thread`` as ADK's code execution calls it."""
    if isinstance(getattr(function, "__self__", None), BaseCodeExecutor):
        invocation, given = args
        core = turn_of(invocation)
        if core is not None:
            return await _execute(core, function, invocation, given)
    return await asyncio.to_thread(function, *args, **kwargs)


async def _execute(
    core: TurnCore, execute: Execute, invocation: InvocationContext, given: CodeExecutionInput
) -> CodeExecutionResult:
    core.conductor.parking.guard()
    run = current_run.get()
    assert run is not None, "the code of a turn always belongs to a run"
    call_id = _call_id(core, run)
    context = ToolContext(invocation, function_call_id=call_id)
    arguments = _arguments(given)
    policy = ToolPolicy(core.settings.code_effect)

    def build(group: str) -> CallRequest:
        return CallRequest(
            call_id=call_id,
            group=group,
            tool_name=CODE_EXECUTOR,
            arguments=arguments,
            agent_name=invocation.agent.name if invocation.agent else "",
            path=path_of(core, run, context),
            effect=policy.effect,
            retry=retry_of(policy),
        )

    tool_run = ToolRun(
        _Execution(execute, given, core.settings.threads), dict(arguments), context, contextvars.copy_context()
    )
    call = core.conductor.request(call_id, run, CODE_EXECUTOR, arguments, build, tool_run)
    await core.conductor.record_of(call)
    return _result(call)


def _call_id(core: TurnCore, run: Run) -> str:
    """An id that a replay gives to the same execution, which is one of the run's last model call, if any."""
    place = run.model_key or run.id
    number = core.code_runs[place] = core.code_runs.get(place, 0) + 1
    with determinism.ids_from(core.start.turn_id, "code", place, number):
        call_id = seams.new_function_call_id()
    core.conductor.floor.add_call(run, call_id)
    return call_id


def _arguments(given: CodeExecutionInput) -> JsonObject:
    """What the journal has of an execution.  Files are in the messages: a digest says whether they match."""
    arguments: JsonObject = {"code": given.code}
    if given.input_files:
        arguments["input_files"] = [_described(file) for file in given.input_files]
    if given.execution_id is not None:
        arguments["execution_id"] = given.execution_id
    return arguments


def _described(file: File) -> JsonObject:
    content = file.content.encode() if isinstance(file.content, str) else file.content
    return {"name": file.name, "mime_type": file.mime_type, "sha256": hashlib.sha256(content).hexdigest()}


def _result(call: Call) -> CodeExecutionResult:
    """What the model sees of the execution.  One that went wrong is an execution that wrote why to its stderr."""
    record = call.record
    assert record is not None
    if record.status is RecordStatus.SUCCEEDED:
        assert call.outcome is not None
        assert isinstance(call.outcome.value, CodeExecutionResult)
        return call.outcome.value
    if record.status is RecordStatus.OUTCOME_UNKNOWN:
        return CodeExecutionResult(stderr=OUTCOME_UNKNOWN_TOOL_RESULT)
    message = record.error.message if record.error else "it failed"
    return CodeExecutionResult(stderr=f"The code execution failed: {message}")


class _Execution(BaseTool):
    """One execution, as a tool that can be run."""

    def __init__(self, execute: Execute, given: CodeExecutionInput, threads: ToolThreads) -> None:
        super().__init__(name=CODE_EXECUTOR, description="Runs code.")
        self._execute = execute
        self._given = given
        self._threads = threads

    async def run_async(self, *, args: dict[str, Any], tool_context: ToolContext) -> CodeExecutionResult:
        """Executes the code, in a thread.  What the executor leaves in the session's state is part of the outcome."""
        invocation = seams.invocation_of(tool_context)
        before = dict(invocation.session.state)
        result: CodeExecutionResult = await self._threads.run(partial(self._execute, invocation, self._given))
        for key, value in invocation.session.state.items():
            if key not in before or before[key] is not value:
                tool_context.state[key] = value
        return result
