"""Time in workflows: the limits of nodes that run others, and the pauses before a node's retries.

Whether a limit ran out is a fact of the turn, so it is recorded; a replay is cut off where the first run was.  Only the
time counts in which something is done: not that in which everything waits for people, nor that of a replay.
"""

from __future__ import annotations

import asyncio
from functools import wraps
from typing import Any

from google.adk.agents.context import Context

from perdure.adk import seams
from perdure.adk.live.core import TurnCore, current_turn
from perdure.adk.live.runs import RunState, current_run
from perdure.adk.records.codec import dumps
from perdure.adk.records.failures import OUTCOME_UNKNOWN, RecordedError
from perdure.session.model import Usage


def follow_limits(original: Any) -> Any:
    """Around ``NodeRunner._run_node_loop_with_timeout``."""

    @wraps(original)
    async def _run_node_loop_with_timeout(
        self: seams.NodeRunner, ctx: Context, node_input: Any, timeout: float
    ) -> None:
        core = current_turn.get()
        if core is None:
            await original(self, ctx, node_input, timeout)
        elif isinstance(seams.node_of(self), seams.FunctionNode) and not seams.may_start_nodes(ctx):
            await seams.run_of_node(self, ctx, node_input)  # its function itself is under the limit
        else:
            await _under_limit(core, self, ctx, node_input, timeout)

    return _run_node_loop_with_timeout


async def _under_limit(core: TurnCore, runner: seams.NodeRunner, ctx: Context, node_input: Any, timeout: float) -> None:
    run = current_run.get()
    assert run is not None, "a node runs in a run"
    key = core.key(f"{run.id}|timeout#{ctx.attempt_count}")
    work = asyncio.ensure_future(seams.run_of_node(runner, ctx, node_input))
    limit = asyncio.ensure_future(_limit(core, key, timeout))
    try:
        await asyncio.wait({work, limit}, return_when=asyncio.FIRST_COMPLETED)
        if not limit.done():
            return await work
        limit.result()
    finally:
        for task in (work, limit):
            task.cancel()
        await asyncio.wait({work, limit})
        if not limit.cancelled():
            limit.exception()
    if not work.cancelled():
        work.exception()
    raise seams.node_timeout_error(seams.node_of(runner).name, timeout)


async def _limit(core: TurnCore, key: str, timeout: float) -> None:
    """Returns when the limit has run out, now or in the journal."""
    conductor = core.conductor
    if conductor.journal.knows_model_call(key):
        with conductor.run("timeout") as run:
            run.shadow = True
            await conductor.enter_model(run, key)
            run.state = RunState.RUNNING
        return
    loop = asyncio.get_running_loop()
    left = timeout
    while left > 0:
        await conductor.until(core.is_active)
        began = loop.time()
        await asyncio.sleep(min(left, _SLICE))
        left -= loop.time() - began
    await core.log.record_model_call(key, dumps({"seen": conductor.seen()}), Usage(), core.log.now_ms())


_SLICE = 0.1
"""Seconds after which it is seen that nothing is done any more."""


def follow_retries(original: Any) -> Any:
    """Around ``NodeRunner._attempt_retry``."""

    @wraps(original)
    async def _attempt_retry(self: seams.NodeRunner, e: Exception, attempt_count: int) -> bool:
        core, run = current_turn.get(), current_run.get()
        if core is None or run is None:
            return bool(await original(self, e, attempt_count))
        if isinstance(e, RecordedError) and e.type_name == OUTCOME_UNKNOWN:
            return False  # it may have happened: nothing repeats it silently
        if not core.conductor.journal.replayed:
            return seams.would_retry(self, e, attempt_count)  # the pause has been made
        run.state = RunState.SETTLED  # the others go on meanwhile
        try:
            return bool(await original(self, e, attempt_count))
        finally:
            run.state = RunState.RUNNING

    return _attempt_retry
