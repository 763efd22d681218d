"""Runs the function of a node for real: as a step, whose values are held back until they have a record, or in place.

A function that starts other nodes is a *scope*.  It begins as a step; where it starts the first node the step ends,
with a record that says so, and from there on the function goes on in place: what it gives is handed on at once, and a
replay runs it again while the records of its children answer.
"""

from __future__ import annotations

import asyncio
import contextvars
import copy
from collections.abc import AsyncGenerator
from contextlib import aclosing, nullcontext
from dataclasses import dataclass, field
from typing import Any, cast

from google.adk.agents.context import Context
from google.adk.events.event import Event

from perdure.adk import seams
from perdure.adk.live import determinism
from perdure.adk.live.calls import Call
from perdure.adk.live.core import BodySteps, TurnCore
from perdure.adk.live.durable import current_body
from perdure.adk.live.parking import TurnDropped
from perdure.adk.nodes.outcomes import BECAME_SCOPE, OutcomeWriter, bare_node_failure
from perdure.adk.records.failures import error_info
from perdure.adk.tools.effects import KeyedContext
from perdure.adk.tools.outcomes import AttemptBaseline
from perdure.adk.tools.threads import SyncTools
from perdure.errors import ToolExecutionError, UsageError
from perdure.session.policy import EFFECT_RULES, ToolPolicy
from perdure.session.runner import ToolOutcome, ToolRaised, ToolSucceeded


@dataclass(slots=True, eq=False)
class NodeRun:
    """All that running a node's function for real takes.

    Attributes:
        function: as ADK would call it.
        arguments: what ADK would call it with.
        timeout: of the node, in seconds.
        variables: the context variables at the call.
        partials: events that are shown while the function runs and are in no record.
        body: the function as it runs here, the last attempt.
    """

    core: TurnCore
    call_id: str
    name: str
    policy: ToolPolicy
    function: seams.NodeFunction
    arguments: dict[str, Any]
    context: Context
    timeout: float | None
    variables: contextvars.Context
    partials: asyncio.Queue[Event] = field(default_factory=asyncio.Queue[Event])
    body: NodeBody | None = None
    sync_tools: SyncTools | None = None

    def start(self, *, in_place: bool = False) -> NodeBody:
        """Begins to run the function, in a task of its own."""
        arguments = self.arguments if self.policy.retry is None else _copied(self.arguments, self.context)
        self.body = NodeBody(self, arguments, in_place)
        give_body(self.context, self.body)
        return self.body

    def take_back(self) -> None:
        """Makes pending again what the last attempt changed."""
        if self.body is not None:
            self.body.writer.take_back()


class NodeBody:
    """A node's function as it runs."""

    def __init__(self, run: NodeRun, arguments: dict[str, Any], in_place: bool) -> None:
        loop = asyncio.get_running_loop()
        self._run = run
        self._arguments = arguments
        self._providers = run.variables.run(seams.current_providers)
        self._values: asyncio.Queue[tuple[Any, asyncio.Future[None]]] = asyncio.Queue()
        self.writer = OutcomeWriter(run.context, run.name)
        self.error: BaseException | None = None
        self.wants_children: asyncio.Future[None] = loop.create_future()
        self._in_place: asyncio.Future[None] = loop.create_future()
        if in_place:
            self._in_place.set_result(None)
        self.task = loop.create_task(self._carry(), name=f"perdure node {run.call_id}", context=run.variables.copy())
        run.core.tasks.add(self.task)
        self.task.add_done_callback(run.core.tasks.discard)

    async def _carry(self) -> None:
        run = self._run
        determinism.install_for_body(run.core.start, run.call_id)
        current_body.set(BodySteps(run.call_id))
        threads = nullcontext() if run.sync_tools is None else seams.sync_callables_run_with(run.sync_tools.run)
        try:
            with threads:
                async with aclosing(run.function.values(self._arguments)) as values:
                    async for value in values:
                        await self._hand_on(value)
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if task is not None and task.cancelling():
                raise
            self.error = RuntimeError("the node was cancelled from within")
        except seams.NodeInterruptedError as interrupted:  # a child that waits for somebody
            self.error = interrupted
        except BaseException as error:  # noqa: BLE001  (SystemExit too: a node must not end its worker)
            self.error = error

    async def _hand_on(self, value: Any) -> None:
        if isinstance(value, Event) and value.partial and not self._in_place.done():
            self._run.partials.put_nowait(value)
        elif not self._in_place.done():
            self.writer.add(value)
        else:
            taken = asyncio.get_running_loop().create_future()
            self._values.put_nowait((value, taken))
            await taken

    async def become_scope(self) -> None:
        """The function is about to start another node.  Returns when it may.

        Raises:
            UsageError: it is to run at most once, which a replay of a scope could not promise.
        """
        run = self._run
        if EFFECT_RULES[run.policy.effect].single_attempt:
            raise UsageError(
                f"node {run.name!r} starts other nodes, so a replay runs it again, but node_policies gives it the "
                f"effect {run.policy.effect.value!r}, which runs once; give the effect to the nodes that it starts"
            )
        if not self.wants_children.done():
            self.wants_children.set_result(None)
        await run.core.conductor.parking.wait(asyncio.shield(self._in_place))

    def for_children(self) -> seams.Providers:
        """Where ADK takes time, ids and random numbers from while a child is started and runs."""
        return self._providers

    async def values(self) -> AsyncGenerator[Any, None]:
        """What the function gives from now on, in place.  It goes on when the consumer does.

        Raises:
            BaseException: what the function raised.
        """
        if not self._in_place.done():
            self._in_place.set_result(None)
        try:
            while True:
                value_or_end = await self._next()
                if value_or_end is None:
                    break
                value, taken = value_or_end
                yield _restamped(value)
                taken.set_result(None)
        finally:
            await self.stop()
        if self.error is not None:
            raise self.error

    async def _next(self) -> tuple[Any, asyncio.Future[None]] | None:
        getting = asyncio.ensure_future(self._values.get())
        try:
            await asyncio.wait({getting, self.task}, return_when=asyncio.FIRST_COMPLETED)
            return getting.result() if getting.done() else None
        finally:
            getting.cancel()

    async def stop(self) -> None:
        """Ends the function, if it still runs, and waits for that."""
        if not self.task.done():
            self.task.cancel()
            await asyncio.wait({self.task})


def _restamped(value: Any) -> Any:
    """An event of the function with an id and a time of the turn: it was made outside of the turn's providers."""
    if isinstance(value, Event):
        value.id, value.timestamp = seams.new_event_stamp()
    return value


class _NodeContext(KeyedContext):
    """A node's context, through which its function may start other nodes."""

    _perdure_body: NodeBody

    def perdure_bind(self, body: NodeBody) -> None:
        """Says which run of the function uses the context."""
        self._perdure_body = body

    async def _run_node_internal(self, *args: Any, **options: Any) -> Any:
        if not seams.may_start_nodes(self):
            return await super()._run_node_internal(*args, **options)  # which says why not
        body = self._perdure_body
        await body.become_scope()
        own, steps = seams.current_providers(), current_body.get()
        seams.set_providers(body.for_children())
        current_body.set(None)
        try:
            return await super()._run_node_internal(*args, **options)
        finally:
            seams.set_providers(own)
            current_body.set(steps)


def give_body(context: Context, body: NodeBody) -> None:
    """Lets the function that runs in ``body`` start other nodes through its context."""
    context.__class__ = _NodeContext
    cast(_NodeContext, context).perdure_bind(body)


def _copied(arguments: dict[str, Any], context: Context) -> dict[str, Any]:
    """Arguments for one of several attempts, as far as they let themselves be copied."""
    copied: dict[str, Any] = {}
    for name, value in arguments.items():
        try:
            copied[name] = value if value is context else copy.deepcopy(value)
        except Exception:  # noqa: BLE001  (a lock, an open file: the attempts share it)
            copied[name] = value
    return copied


async def run_node_attempt(call: Call, run: NodeRun, sync_tools: SyncTools | None) -> ToolOutcome:
    """Runs the function of a node once and says what came out."""
    run.sync_tools = sync_tools
    if call.baseline is None:
        call.baseline = AttemptBaseline(run.context)
    else:
        run.take_back()
        call.baseline.restore()
    body = run.start()
    try:
        await asyncio.wait({body.task, body.wants_children}, timeout=run.timeout, return_when=asyncio.FIRST_COMPLETED)
        if not body.task.done() and not body.wants_children.done():
            await body.stop()
            body.error = seams.node_timeout_error(run.name, run.timeout or 0.0)
    except asyncio.CancelledError:
        await body.stop()
        raise
    outcome = _outcome(run, body) if body.task.done() else ToolSucceeded(BECAME_SCOPE, None)
    call.live_outcome = outcome.outcome
    return outcome


def _outcome(run: NodeRun, body: NodeBody) -> ToolSucceeded | ToolRaised:
    error = body.error
    if isinstance(error, TurnDropped):
        raise error
    try:
        if error is None:
            return ToolSucceeded(body.writer.finish(), body.writer.shown)
        if isinstance(error, UsageError):
            return ToolRaised(error_info(error), final=True, outcome=bare_node_failure(error))
        final = run.policy.retry is None or isinstance(error, ToolExecutionError)  # retries are ADK's, unless asked for
        return ToolRaised(error_info(error), final=final, outcome=body.writer.finish(error))
    except UsageError as refusal:
        return ToolRaised(error_info(refusal), final=True, outcome=bare_node_failure(refusal))
