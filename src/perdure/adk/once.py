"""What the invocation itself does in place and must not do twice: recorded like a model call, answered from the record.

A listing of tools, a summary, an artifact that a callback saves.  Each is known by its place in the turn; a replay that
comes to that place gets what was recorded.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from typing import cast

from perdure.adk import determinism
from perdure.adk.codec import dumps
from perdure.adk.core import TurnCore
from perdure.adk.failures import decode_error, encode_error
from perdure.errors import PayloadTooLarge
from perdure.session.model import JsonObject, JsonValue, Usage
from perdure.session.runner import ModelCall

NO_USAGE = Usage()


async def once(
    core: TurnCore,
    place: str,
    produce: Callable[[], Awaitable[JsonValue]],
    *,
    usage_of: Callable[[JsonValue], Usage] = lambda _: NO_USAGE,
) -> JsonValue:
    """What ``produce`` gives, made once in the turn; *at least once* when a crash comes before the record.

    Args:
        place: where in the turn; the same in a replay.  What is done there again and again is numbered.
        produce: runs with the real clock, ids and random numbers.

    Raises:
        Exception: what ``produce`` raised, in every replay, too.
    """
    number = core.done_once[place] = core.done_once.get(place, 0) + 1
    key = f"{place}|{number}"
    lane = (None, key)
    conductor = core.conductor
    call = await conductor.enter_model(lane, key)
    try:
        if call is None:
            result, usage = await _produced(produce, usage_of)
            call = await record(core, key, dumps(result), usage)
    finally:
        conductor.end_lane(lane)
    recorded: JsonObject = json.loads(call.response)
    error = recorded.get("error")
    if error is not None:
        raise decode_error(cast(JsonObject, error))
    return recorded["value"]


async def _produced(
    produce: Callable[[], Awaitable[JsonValue]], usage_of: Callable[[JsonValue], Usage]
) -> tuple[JsonObject, Usage]:
    try:
        with determinism.outside():
            value = await produce()
    except Exception as error:  # noqa: BLE001  (it is what came out)
        return {"error": encode_error(error)}, NO_USAGE
    return {"value": value}, usage_of(value)


async def record(core: TurnCore, key: str, response: str, usage: Usage) -> ModelCall:
    """Records what came out of something, before anything follows from it.

    Raises:
        PayloadTooLarge: it is larger than the store takes.
    """
    try:
        call = await core.log.record_model_call(key, response, usage, core.log.now_ms())
    except asyncio.CancelledError:
        core.conductor.parking.guard()
        raise
    except PayloadTooLarge:
        raise  # the application's doing: its callbacks may see it
    except Exception as failure:  # noqa: BLE001  (the engine's trouble: no callback may swallow it)
        core.conductor.fail(failure)
        await core.conductor.parking.for_ever()
    finally:
        core.clock.thaw()
    core.clock.advance(call.settled_at_ms)
    return call
