"""Nodes of workflows in a durable turn: functions become steps, tools are called as an agent's are.

``install`` puts wrappers around the functions of ADK that run a node; outside a durable turn nothing changes.

A function's gates (``require_confirmation``, ``auth_config``) and the binding of its parameters stay where ADK has
them, in the invocation; only the call of the function itself is the step.
"""

from __future__ import annotations

import asyncio
import contextvars
import json
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing
from functools import wraps
from typing import Any

from google.adk.agents.context import Context
from google.genai import types
from pydantic import BaseModel

from perdure.adk import seams
from perdure.adk.live.calls import Call
from perdure.adk.live.core import TurnCore, current_turn
from perdure.adk.live.places import path_of_node
from perdure.adk.live.runs import Run, current_run
from perdure.adk.marks import is_ours, ours
from perdure.adk.nodes.bodies import NodeRun
from perdure.adk.nodes.gaps import current_ticket, follow_end, follow_schedule, follow_start
from perdure.adk.nodes.limits import follow_limits, follow_retries
from perdure.adk.nodes.outcomes import NodeOutcome, read_node_outcome, show
from perdure.adk.records.codec import UnknownType, encode, is_plain
from perdure.adk.records.failures import OUTCOME_UNKNOWN, RecordedError
from perdure.adk.tools.effects import give_idempotency_key, retry_of
from perdure.adk.tools.stand_ins import GeneratorCall, current_generator, stand_in_for
from perdure.errors import ValueNotStorable
from perdure.session.model import (
    DEFAULT_REJECTION_MESSAGE,
    OUTCOME_UNKNOWN_TOOL_RESULT,
    InterruptKind,
    JsonObject,
    JsonValue,
    RecordStatus,
)
from perdure.session.runner import CallRecord, CallRequest

Values = AsyncGenerator[Any, None]


def install() -> None:
    """Makes ADK run nodes through here, once per process."""
    if is_ours(seams.node_run_method()):
        return
    seams.set_node_run_method(ours(_follow_runs(seams.node_run_method())))
    seams.set_function_node_method(_run_as(_durable, seams.function_node_method()))
    seams.set_tool_node_method(_run_as(_with_stand_in, seams.tool_node_method()))
    starts, ends, schedules = seams.workflow_methods()
    seams.set_workflow_methods(follow_start(starts), follow_end(ends), follow_schedule(schedules))
    seams.set_run_of_node_under_timeout(follow_limits(seams.run_of_node_under_timeout()))
    seams.set_retry_method(follow_retries(seams.retry_method()))


def _follow_runs(original: Callable[..., Awaitable[Context]]) -> Any:
    @wraps(original)
    async def run(self: seams.NodeRunner, node_input: Any = None, *, resume_inputs: Any = None) -> Context:
        core = current_turn.get()
        if core is None:
            return await original(self, node_input, resume_inputs=resume_inputs)
        ticket = current_ticket.get()
        token = current_ticket.set(None)
        try:
            with core.conductor.run(f"{seams.node_of(self).name}@{self.run_id}") as run:
                run.shadow = _is_of_generator(current_generator.get(), self)
                if ticket is not None:
                    ticket.begin()
                try:
                    return await original(self, node_input, resume_inputs=resume_inputs)
                finally:
                    if ticket is not None:
                        ticket.end()
        finally:
            current_ticket.reset(token)

    return run


def _is_of_generator(call: GeneratorCall | None, runner: seams.NodeRunner) -> bool:
    """Whether the node is the function of a tool, whose run is that of the agent."""
    return call is not None and seams.parent_of(runner) is call.context


def _run_as(in_turn: Callable[[TurnCore, Any, Context], object], original: Callable[..., Values]) -> Any:
    """Around the ``_run_impl`` of a class of nodes: ``in_turn`` gives the node that runs for another in a turn."""

    @wraps(original)
    async def _run_impl(self: object, *, ctx: Context, node_input: Any) -> Values:
        core = current_turn.get()
        node = self if core is None else in_turn(core, self, ctx)
        async with aclosing(original(node, ctx=ctx, node_input=node_input)) as values:
            async for value in values:
                yield value

    return _run_impl


def _with_stand_in(core: TurnCore, node: seams.ToolNode, context: Context) -> seams.ToolNode:
    return node.model_copy(update={"tool": stand_in_for(node.tool)})


def _durable(core: TurnCore, node: seams.FunctionNode, context: Context) -> seams.FunctionNode:
    """The node around a function that stands for its own."""
    own = seams.function_of(node)

    async def values(**arguments: Any) -> Values:
        async with aclosing(_values(core, node, own, context, arguments)) as values:
            async for value in values:
                yield value

    async def value(**arguments: Any) -> Any:
        async with aclosing(_values(core, node, own, context, arguments)) as values:
            given = [value async for value in values]
        return given[-1] if given else None

    return seams.with_function(node, values if own.is_generator else value)


async def _values(
    core: TurnCore, node: seams.FunctionNode, function: seams.NodeFunction, context: Context, arguments: dict[str, Any]
) -> Values:
    """What the node's function gives, once it has a record; a function that starts other nodes gives it in place."""
    if context.node_path in core.carry.silent:
        return
    run = _node_run(core, node, function, context, arguments)
    call = _requested(core, run)
    async with aclosing(_partials(core, call, run)) as partials:
        async for partial in partials:
            yield partial
    record = call.record
    assert record is not None
    outcome = _outcome_of(core, record)
    if outcome is None:
        await core.conductor.parking.for_ever()
    elif outcome.scope:
        async with aclosing(_in_place(core, run)) as values:
            async for value in values:
                yield value
    else:
        async with aclosing(_given(core, node, context, record, outcome)) as values:
            async for value in values:
                yield value


def _node_run(
    core: TurnCore, node: seams.FunctionNode, function: seams.NodeFunction, context: Context, arguments: dict[str, Any]
) -> NodeRun:
    within, tool = current_run.get(), _generator_of(context)
    assert within is not None, "a node's function is called in the run of the node"
    rules = core.settings.rules
    run = NodeRun(
        core=core,
        call_id=tool.context.function_call_id or "" if tool else core.node_call_id(within.scope, context.node_path),
        name=tool.tool.name if tool else node.name,
        policy=rules.policy_of(tool.tool) if tool else rules.policy_of_node(node.name),
        function=function,
        arguments=arguments,
        context=context,
        timeout=None if seams.may_start_nodes(context) else node.timeout,
        variables=contextvars.copy_context(),
    )
    context.function_call_id = run.call_id
    give_idempotency_key(context, core.start.turn_id)
    return run


def _generator_of(context: Context) -> GeneratorCall | None:
    """The call of a tool whose function the node is."""
    call = current_generator.get()
    return call if call is not None and context.parent_ctx is call.context else None


def _requested(core: TurnCore, run: NodeRun) -> Call:
    within, tool = current_run.get(), _generator_of(run.context)
    assert within is not None
    if tool is not None:
        assert within.parent is not None
        return tool.request(core, within.parent, run)
    arguments: JsonObject = {
        name: _argument(value) for name, value in run.arguments.items() if value is not run.context
    }
    core.conductor.floor.note_group(run.call_id, [run.call_id])
    return core.conductor.request(
        run.call_id, within, run.name, arguments, lambda group: _request(core, run, group, arguments, within), run
    )


def _request(core: TurnCore, run: NodeRun, group: str, arguments: JsonObject, within: Run) -> CallRequest:
    asks = core.settings.rules.asks_for_approval(run.policy)
    return CallRequest(
        call_id=run.call_id,
        group=group,
        tool_name=run.name,
        arguments=arguments,
        agent_name=run.context.event_author or run.name,
        effect=run.policy.effect,
        retry=retry_of(run.policy),
        timeout=run.policy.timeout,
        ask=InterruptKind.APPROVAL if asks else None,
        path=path_of_node(core, within, run.context),
    )


def _argument(value: object) -> JsonValue:
    """An argument as the journal has it.  It is compared in a replay, so a set must not change its order."""
    if is_plain(value):
        return json.loads(json.dumps(value))  # a copy: the function may change its own
    if not isinstance(value, types.Content | BaseModel):
        try:
            return encode(value, "an argument")
        except ValueNotStorable:
            pass
    return show(value)


async def _partials(core: TurnCore, call: Call, run: NodeRun) -> Values:
    """Waits for the record of the call; what the function streams until then is handed on."""
    assert call.settled is not None
    while run.function.is_generator and not call.settled.done():
        streamed = asyncio.ensure_future(run.partials.get())
        try:
            both: set[asyncio.Future[Any]] = {call.settled, streamed}
            await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
            if streamed.done():
                yield streamed.result()
        except (asyncio.CancelledError, GeneratorExit):
            core.conductor.give_up(call)
            raise
        finally:
            streamed.cancel()
    await core.conductor.record_of(call)


def _outcome_of(core: TurnCore, record: CallRecord) -> NodeOutcome | None:
    """What the record says; ``None`` when the code cannot read it any more, which fails the turn from outside."""
    try:
        return NodeOutcome() if record.outcome is None else read_node_outcome(json.loads(record.outcome))
    except UnknownType as error:
        core.conductor.fail_replay(record.call_id, f"a value of class {error}", "no such class")
        return None


async def _given(
    core: TurnCore, node: seams.FunctionNode, context: Context, record: CallRecord, outcome: NodeOutcome
) -> Values:
    """Hands on what the record says, and raises what it says."""
    for value, effects in outcome.items:
        effects.put_into(context)
        yield value
    outcome.rest.put_into(context)
    if outcome.output is not None:
        context.output = outcome.output
    if outcome.route is not None:
        context.route = outcome.route
    if record.status is RecordStatus.SUCCEEDED:
        if outcome.silent:
            core.silent_now.append(context.node_path)
        return
    if outcome.error is not None:
        raise outcome.error
    message = record.error.message if record.error else DEFAULT_REJECTION_MESSAGE
    if record.status is RecordStatus.REJECTED and node.output_schema is None:
        yield {"error": message}
    elif record.status is RecordStatus.OUTCOME_UNKNOWN:
        raise RecordedError(OUTCOME_UNKNOWN_TOOL_RESULT, OUTCOME_UNKNOWN)
    else:
        raise RecordedError(message, record.error.code if record.error else "Rejected")


async def _in_place(core: TurnCore, run: NodeRun) -> Values:
    """What a function gives that starts other nodes.  It is the one that runs, or a new run in a replay."""
    body, gave = run.body, False
    if body is None:
        body = run.start(in_place=True)
    else:
        held = read_node_outcome(json.loads(body.writer.finish()))
        for value, effects in held.items:
            effects.put_into(run.context)
            gave = gave or value is not None
            yield value
        held.rest.put_into(run.context)
    async with aclosing(body.values()) as values:
        async for value in values:
            gave = gave or value is not None
            yield value
    if not gave:
        core.silent_now.append(run.context.node_path)
