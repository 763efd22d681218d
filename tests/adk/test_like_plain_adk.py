"""An undisturbed durable turn is what plain ADK does with the same agent: events, state, callbacks, model requests."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
from google.adk.agents import BaseAgent
from google.adk.apps.app import App
from google.adk.plugins.base_plugin import BasePlugin
from tests.adk.plain import comparable, request_form, run_plain
from tests.adk.worlds import WORLDS, World

_NOT_AS_PLAIN = ("gated", "failing", "failing_with_callbacks", "shaky_model", "neighbours")
"""These do what plain ADK does not: wait for a person, answer failed calls, try a model again, end tools together."""

AS_PLAIN = [name for name in WORLDS if name not in _NOT_AS_PLAIN]


class CountingPlugin(BasePlugin):
    """Counts every callback that it gets."""

    def __init__(self, log: list[str]) -> None:
        super().__init__(name="counting")
        self._log = log

    def __getattribute__(self, name: str) -> Any:
        found = super().__getattribute__(name)
        if name.endswith("_callback"):

            async def count(**given: Any) -> None:
                event = given.get("event")
                self._log.append(f"plugin {name}{' partial' if event is not None and event.partial else ''}")

            return count
        return found


def with_plugin(world: World) -> World:
    """The world with a plugin that counts."""
    assert isinstance(world.agent, BaseAgent)
    world.agent = App(name="Flow", root_agent=world.agent, plugins=[CountingPlugin(world.log)])
    return world


@pytest.mark.parametrize("name", AS_PLAIN)
async def test_a_turn_is_as_on_plain_adk(name: str) -> None:
    plain = with_plugin(WORLDS[name]())
    events, state, failure = await run_plain(plain.agent, plain.messages, **plain.services)
    assert failure is None
    durable = with_plugin(WORLDS[name]())
    engine = durable.engine()
    for message in durable.messages:
        await engine.turn(message)
    assert engine.disk.error is None
    assert comparable(engine.disk.messages) == comparable(events)
    assert engine.disk.state == state
    assert Counter(durable.log) == Counter(plain.log)
    assert list(map(request_form, durable.model.requests)) == list(map(request_form, plain.model.requests))


async def test_many_turns_of_a_warm_session_are_as_on_plain_adk() -> None:
    def five_turns() -> World:
        world = with_plugin(WORLDS["two_tools"]())
        world.model.replies *= 5
        world.messages *= 5
        return world

    plain = five_turns()
    events, state, _ = await run_plain(plain.agent, plain.messages)
    durable = five_turns()
    engine = durable.engine()
    for message in durable.messages:
        await engine.turn(message)
        assert engine.log is not None
        assert engine.log.history_loads == 0
    assert comparable(engine.disk.messages) == comparable(events)
    assert engine.disk.state == {key: value for key, value in state.items() if not key.startswith("temp:")}
    assert list(map(request_form, durable.model.requests)) == list(map(request_form, plain.model.requests))


async def test_a_session_is_the_same_from_the_store_as_from_memory() -> None:
    warm, cold = WORLDS["structured"](), WORLDS["structured"]()
    for world in (warm, cold):
        world.model.replies *= 3
    disk_of_warm, disk_of_cold = warm.engine(), cold.engine()
    for _ in range(3):
        await disk_of_warm.turn("go")
        await disk_of_cold.turn("go")
        fresh = cold.engine(disk_of_cold.disk)  # a new process: nothing is in memory
        disk_of_cold = fresh
    assert disk_of_warm.disk.messages == disk_of_cold.disk.messages
    assert list(map(request_form, warm.model.requests)) == list(map(request_form, cold.model.requests))
