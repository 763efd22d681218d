"""``durable_step``: something that happens in place and must not be repeated by a replay, recorded where it happens.

In a callback, a plugin or a custom agent a step is ordered like a model call: a replay gets its value when its turn
comes.  In a tool or the function of a node, and in the callbacks around a call, it is looked up by its key alone.
"""

from __future__ import annotations

import asyncio
import inspect
import json
from collections.abc import Awaitable, Callable, Mapping
from contextvars import ContextVar
from typing import Any, TypeVar, cast, overload

from google.adk.agents.base_agent import BaseAgent
from google.adk.agents.context import Context
from google.adk.agents.invocation_context import InvocationContext
from google.adk.agents.readonly_context import ReadonlyContext

from perdure.adk.live import determinism
from perdure.adk.live.core import BodySteps, TurnCore, current_turn
from perdure.adk.live.journal import ASIDE
from perdure.adk.models.once import behind, record, write
from perdure.adk.records.codec import UnknownType, decode, dumps, encode
from perdure.adk.records.failures import decode_error, encode_error
from perdure.arguments import wrong
from perdure.errors import UsageError
from perdure.session.model import JsonObject, Usage

T = TypeVar("T")


current_body: ContextVar[BodySteps | None] = ContextVar("perdure_current_body", default=None)
"""The tool or function that the present code belongs to."""


@overload
async def durable_step(
    context: ReadonlyContext | InvocationContext, name: str, fn: Callable[[], Awaitable[T]]
) -> T: ...
@overload
async def durable_step(
    context: ReadonlyContext | InvocationContext, name: str, fn: Callable[[], Awaitable[T] | T]
) -> T: ...
async def durable_step(context: ReadonlyContext | InvocationContext, name: str, fn: Callable[[], Any]) -> Any:
    """Runs ``fn`` once and records what it returned or raised; a replay of the turn gets that and does not run it.

    For what a callback, a plugin, a custom agent or a node does to the world beside calling tools.  *At least once*:
    when the worker dies while ``fn`` runs, it runs again.  The same name may be used any number of times; the first
    use in a replay gets what the first one gave, and so on.  In a node it is also remembered over the legs of a turn
    and, if it did not fail, over the node's retries.

    Args:
        context: that of the callback, tool or node, or the invocation context of a custom agent.
        name: what is done, for the journal.
        fn: without arguments; a synchronous one runs in the event loop, as a synchronous callback does.

    Raises:
        UsageError: outside of a durable turn, or with arguments of the wrong type.
        ValueNotStorable: what ``fn`` returned has no form that can be stored; a replay raises it again.
        PayloadTooLarge: it is larger than the store takes.
        Exception: what ``fn`` raised, live and in every replay; of the same class, if that can be rebuilt.
    """
    core = current_turn.get()
    if core is None:
        raise UsageError("durable_step works inside a durable turn only; run the agent through a flow")
    if not isinstance(cast(object, context), ReadonlyContext | InvocationContext):
        raise wrong("context", context, "a context of ADK: the one that the callback, tool or node got")
    if not isinstance(cast(object, name), str) or not name:
        raise wrong("name", name, "a str that is not empty")
    if not callable(cast(object, fn)):
        raise wrong("fn", fn, "a function without arguments")
    core.conductor.parking.guard()
    body = current_body.get() or _callback_of_call(core, context)
    taken = await (_ordered(core, name, fn) if body is None else _aside(core, body, context, name, fn))
    return await _given(core, name, taken)


def _callback_of_call(core: TurnCore, context: ReadonlyContext | InvocationContext) -> BodySteps | None:
    """The callbacks around a call, if the context is theirs: the calls of one agent run beside each other."""
    call_id = context.function_call_id if isinstance(context, Context) else None
    return core.callback_steps.setdefault(call_id, BodySteps(f"{call_id}|callback")) if call_id else None


async def _ordered(core: TurnCore, name: str, fn: Callable[[], Any]) -> JsonObject:
    """A step whose place among the other records counts."""
    conductor = core.conductor
    with conductor.run(f"step {name}") as run:
        key = core.key(run.id)
        call = await conductor.enter_model(run, key)
        if call is None:
            outcome = await _outcome(core, name, fn)
            call = await record(core, run, key, behind(outcome), Usage(), on_disk=True)
        conductor.leave_model(run, key, ())
        taken: JsonObject = json.loads(call.response)
        return taken


async def _aside(
    core: TurnCore, body: BodySteps, context: ReadonlyContext | InvocationContext, name: str, fn: Callable[[], Any]
) -> JsonObject:
    """A step of a tool or node."""
    place = f"{_node_place(context)}|{name}"
    number = body.counts[place] = body.counts.get(place, 0) + 1
    lasting = f"{place}#{number}" if _node_place(context) else None
    key = f"{ASIDE}{core.key(body.name)}|{name}#{number}"
    if lasting is not None and lasting in core.steps:
        return cast(JsonObject, core.steps[lasting])
    text = core.conductor.journal.asides.get(key)
    if text is None:
        outcome = await _outcome(core, name, fn)
        kept = outcome if lasting is None or "error" in outcome else {**outcome, "lasting": lasting}
        in_body = current_body.get() is not None
        call = await write(core, key, dumps(kept), Usage(), in_body=in_body, on_disk=True)
        text = core.conductor.journal.asides[key] = call.response
    taken: JsonObject = json.loads(text)
    if "lasting" in taken:
        core.steps[taken["lasting"]] = taken
    return taken


def lasting_steps(asides: Mapping[str, str]) -> JsonObject:
    """The steps in a journal that a later run of their node gets, too, by what they are known by there."""
    records = (json.loads(text) for key, text in asides.items() if "|" in key.removeprefix(ASIDE))
    return {record["lasting"]: record for record in records if isinstance(record, dict) and "lasting" in record}


def _node_place(context: ReadonlyContext | InvocationContext) -> str:
    """The path of the node that the step belongs to; empty when it is no node's."""
    if not isinstance(context, Context) or context.node is None or isinstance(context.node, BaseAgent):
        return ""
    return context.node_path


async def _outcome(core: TurnCore, name: str, fn: Callable[[], Any]) -> JsonObject:
    """Runs the function, with the real time and ids.  What comes out, for a record."""
    providers = determinism.suspend()
    try:
        value = fn()
        if inspect.isawaitable(value):
            value = await value
        return {"value": encode(value, f"the value of durable step {name!r}")}
    except asyncio.CancelledError:
        core.conductor.parking.guard()
        raise
    except Exception as error:  # noqa: BLE001  (whatever it is, it is what the step gave)
        return {"error": encode_error(error)}
    finally:
        determinism.resume(providers)


async def _given(core: TurnCore, name: str, taken: JsonObject) -> Any:
    """What the record says.

    Raises:
        Exception: that ``fn`` raised.
    """
    if "error" in taken:
        raise decode_error(taken["error"])
    try:
        return decode(taken["value"])
    except UnknownType as error:
        core.conductor.fail_replay(f"durable step {name!r}", f"a value of class {error}", "no such class")
        await core.conductor.parking.for_ever()
