"""What the invocation itself does in place and must not do twice: recorded like a model call, answered from the record.

A listing of tools, a summary, an artifact that a callback saves.  Each is known by its place in the turn; a replay that
comes to that place gets what was recorded.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from typing import cast

from perdure.adk.live.core import TurnCore
from perdure.adk.live.parking import TurnDropped
from perdure.adk.live.runs import Run
from perdure.adk.records.codec import dumps
from perdure.adk.records.failures import decode_error, encode_error
from perdure.errors import PayloadTooLarge
from perdure.session.model import JsonObject, JsonValue, Usage
from perdure.session.runner import ModelCall


async def once(
    core: TurnCore,
    name: str,
    produce: Callable[[], Awaitable[JsonValue]],
    *,
    usage: Callable[[], Usage] = Usage,
    on_disk: bool = False,
) -> JsonValue:
    """What ``produce`` gives, made once in the turn; *at least once* when a crash comes before the record.

    Args:
        name: what it is.  Together with the current run, and numbered if there are several of that name, it says where
            in the turn it is done.
        produce: its time stands still, and its ids are its own.
        usage: what that cost, when it is over.
        on_disk: it changes something outside: go on when the record is on disk.

    Raises:
        Exception: what ``produce`` raised, in every replay, too.
    """
    with core.conductor.run(name) as run:
        key = core.key(run.id)
        run.last_time = core.clock.peek()
        call = await core.conductor.enter_model(run, key)
        if call is None:
            result = await _produced(produce)
            call = await record(core, run, key, behind(result), usage(), on_disk=on_disk)
    recorded: JsonObject = json.loads(call.response)
    error = recorded.get("error")
    if error is not None:
        raise decode_error(cast(JsonObject, error))
    return recorded["value"]


async def _produced(produce: Callable[[], Awaitable[JsonValue]]) -> JsonObject:
    try:
        return {"value": await produce()}
    except Exception as error:  # noqa: BLE001  (it is what came out)
        return {"error": encode_error(error)}


Response = Callable[[list[int]], str]
"""Makes the text of a record, given what had come before it."""


def behind(result: JsonObject) -> Response:
    """A record of a result.  What came before it is first of all: ``journal`` looks for it there."""
    return lambda seen: dumps({"seen": seen, **result})


async def record(
    core: TurnCore, run: Run, key: str, response: Response, usage: Usage, *, on_disk: bool = False
) -> ModelCall:
    """Records what came out of something that a run did, and returns when it may go on with it.

    Args:
        on_disk: it was done to the world and must not be done again: wait until the record is on disk.

    Raises:
        PayloadTooLarge: it is larger than the store takes.
    """
    place = core.conductor.take_place(run)
    try:
        call = await write(core, key, response(place.seen), usage, on_disk=on_disk)
    except BaseException:
        core.conductor.leave_place(place)
        raise
    await core.conductor.settle_model(place, call)
    return call


async def write(
    core: TurnCore, key: str, response: str, usage: Usage, *, in_body: bool = False, on_disk: bool = False
) -> ModelCall:
    """Writes a record, before anything follows from it.

    Args:
        on_disk: as in ``record``.
        in_body: of a tool or function, which has to end before its call can raise what went wrong.

    Raises:
        PayloadTooLarge: it is larger than the store takes.
        TurnDropped: the engine could not write it, ``in_body``; anyone else parks.
    """
    try:
        call = await core.log.record_model_call(key, response, usage, core.log.now_ms())
        if on_disk:
            await core.log.written()
        return call
    except asyncio.CancelledError:
        core.conductor.parking.guard()
        raise
    except PayloadTooLarge:
        raise  # the application's doing: its callbacks may see it
    except Exception as failure:  # the engine's trouble: no callback may swallow it
        core.conductor.fail(failure)
        if in_body:
            raise TurnDropped from failure
        await core.conductor.parking.for_ever()
