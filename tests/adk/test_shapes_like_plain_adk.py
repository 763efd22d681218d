"""A durable turn of any shape of agents is what plain ADK does with it: events, state, callbacks, model requests.

Side by side, plain ADK gives the events of branches in any order.  There the events of each branch are compared, and
requests and state without the order in which branches came.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
from tests.adk.more_shapes import SHAPES
from tests.adk.plain import comparable, request_form, run_plain, unordered
from tests.adk.test_like_plain_adk import with_plugin
from tests.adk.worlds import World

from perdure.session.model import JsonObject


@pytest.mark.parametrize("name", SHAPES)
async def test_a_turn_is_as_on_plain_adk(name: str) -> None:
    plain, durable = with_plugin(SHAPES[name]()), with_plugin(SHAPES[name]())
    events, state, failure = await run_plain(plain.agent, plain.messages, **plain.services)
    engine = durable.engine()
    for message in durable.messages:
        await engine.turn(message)
    assert (engine.disk.error is not None) == (failure is not None) == durable.fails, (engine.disk.error, failure)
    stored = engine.disk.messages
    if durable.fails:  # what perdure adds: the note
        stored = stored[: len(events)]
    assert _events(durable, stored) == _events(plain, events)
    assert _state(durable, engine.disk.state) == _state(plain, state)
    assert Counter(durable.log) == Counter(plain.log)
    assert _requests(durable) == _requests(plain)


def _events(world: World, items: list[JsonObject]) -> list[JsonObject]:
    if world.branched:
        items = sorted(items, key=lambda item: item.get("branch") or "")
    return comparable(items)


def _state(world: World, state: JsonObject) -> JsonObject:
    state = {key: value for key, value in state.items() if not key.startswith("temp:")}
    return unordered(state) if world.branched else state


def _requests(world: World) -> dict[str, list[Any]]:
    asked = {model.model: list(map(request_form, model.requests)) for model in world.models}
    return unordered(asked) if world.branched else asked
