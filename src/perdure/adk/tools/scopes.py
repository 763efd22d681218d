"""Scopes: tools that run an agent or a workflow of their own.

Such a call is no step: the model and tool calls inside are, each under a key that begins with the ids of the calls
around it.  So runs of one agent, beside or inside each other, share nothing.
"""

from __future__ import annotations

from typing import Any, cast

from google.adk.tools.base_tool import BaseTool
from google.adk.tools.tool_confirmation import ToolConfirmation
from google.adk.tools.tool_context import ToolContext

from perdure.adk import seams
from perdure.adk.live.core import TurnCore
from perdure.adk.live.places import path_of, place_of
from perdure.adk.live.runs import Run, current_run
from perdure.adk.native.forms import gate_hint
from perdure.adk.records.codec import encode
from perdure.session.model import DEFAULT_REJECTION_MESSAGE, InterruptKind, JsonObject
from perdure.session.runner import Question, QuestionWait


async def run_scope(core: TurnCore, tool: BaseTool, args: dict[str, Any], tool_context: ToolContext) -> Any:
    """Runs the tool's agent or workflow, if a person who is to be asked agrees.

    Where it asks, ADK ends the invocation and cancels the calls beside it; so it says so only when they are done.
    """
    call_id = tool_context.function_call_id or ""
    run = current_run.get()
    assert run is not None, "a tool is called in the run of an agent"
    refusal = await _refusal(core, run, tool, args, tool_context)
    if refusal is not None:
        return refusal
    scope = f"{run.scope}/{call_id}" if run.scope else call_id
    place = core.scopes[call_id] = f"{place_of(core, run, tool_context)}/{call_id}"
    try:
        with core.conductor.run(call_id, scope=scope, place=place):
            core.conductor.account(call_id)
            return await tool.run_async(args=args, tool_context=tool_context)
    except seams.NodeInterruptedError:
        await core.conductor.siblings_of(call_id)
        raise


async def _refusal(
    core: TurnCore, run: Run, tool: BaseTool, args: dict[str, Any], context: ToolContext
) -> JsonObject | None:
    """Asks a person whether an agent may be run, if that is wanted.  What the model sees if not."""
    call_id = context.function_call_id or ""
    kind = core.asks.pop(call_id, None)
    if kind is None and core.settings.rules.asks_for_scope(tool):
        kind = InterruptKind.APPROVAL
    then = core.conductor.journal.question(call_id)
    if kind is None and then is None:
        return None
    question = Question(
        question_id=call_id,
        kind=then.kind if then is not None else kind or InterruptKind.APPROVAL,
        group=f"{call_id}|agent",
        wait=QuestionWait.LIVE,
        tool_name=tool.name,
        arguments=recorded_arguments(tool, args),
        agent_name=context.agent_name,
        path=path_of(core, run, context),
        hint=gate_hint(tool.name) if kind is InterruptKind.CONFIRMATION else "",
    )
    core.conductor.account(call_id)
    (answer,) = await core.conductor.ask(run, [question])
    if answer.error is not None:
        return {"error": answer.error.message}
    said = cast(JsonObject, answer.value)
    if not said.get("approved"):
        context.tool_confirmation = ToolConfirmation(confirmed=False)
        return {"error": said.get("message") or DEFAULT_REJECTION_MESSAGE}
    context.tool_confirmation = ToolConfirmation(confirmed=True, payload=said.get("payload"))
    return None


def recorded_arguments(tool: BaseTool, args: dict[str, Any]) -> JsonObject:
    """The arguments as the journal has them: a copy, since the tool may change its own.

    Raises:
        ValueNotStorable: a callback put something into them that cannot be stored.
    """
    encoded: JsonObject = encode(args, f"the arguments of tool {tool.name!r}")
    return cast(JsonObject, _copied(encoded))


def _copied(value: Any) -> Any:
    if type(value) is dict:
        return {key: _copied(item) for key, item in cast(dict[str, object], value).items()}
    if type(value) is list:
        return [_copied(item) for item in cast(list[object], value)]
    return value
