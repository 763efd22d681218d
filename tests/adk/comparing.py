"""The two things that every kind of agent is held to: it is as on plain ADK, and a crash anywhere changes nothing."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from itertools import groupby

import pytest
from google.adk.agents import LlmAgent
from google.adk.apps.app import App
from tests.adk.disk import Crash, Disk
from tests.adk.plain import comparable, request_form, run_plain
from tests.adk.test_like_plain_adk import CountingPlugin
from tests.adk.worlds import World

Build = Callable[[], World]


def counted(world: World) -> World:
    """The world with a plugin that logs every callback."""
    if isinstance(world.agent, App):
        world.agent = world.agent.model_copy(update={"plugins": [*world.agent.plugins, CountingPlugin(world.log)]})
    else:
        assert isinstance(world.agent, LlmAgent)
        world.agent = App(name="Flow", root_agent=world.agent, plugins=[CountingPlugin(world.log)])
    return world


async def assert_as_plain(build: Build) -> None:
    """All messages of the world: stored events, state, what ran how often, and what the model was asked."""
    plain = counted(build())
    events, state, failure = await run_plain(plain.agent, plain.messages, **plain.services)
    assert failure is None
    durable = counted(build())
    engine = durable.engine()
    for message in durable.messages:
        await engine.turn(message)
        assert engine.disk.error is None
    assert comparable(engine.disk.messages) == comparable(events)
    assert engine.disk.state == {key: value for key, value in state.items() if not key.startswith("temp:")}
    asked, asked_on_plain = (list(map(request_form, world.model.requests)) for world in (durable, plain))
    assert comparable(asked) == comparable(asked_on_plain)
    assert Counter(durable.log) == Counter(plain.log)


async def assert_survives_crashes(build: Build, *, between: int | None = None) -> int:
    """The last message of the world, with a crash before each of its durable writes.  Returns the number of points.

    Args:
        between: a write to leave out: before it something happened in the world that its record is to tell of, and that
            happens again when the record is lost.
    """
    expected = build()
    engine = expected.engine()
    *earlier, last = expected.messages
    for message in earlier:
        await engine.turn(message)
    before, asked_before = engine.disk.writes, len(expected.model.requests)
    await engine.turn(last)
    points = range(before + 1, engine.disk.writes + 1)
    assert len(points) >= 2
    asked = [request for request, _ in groupby(map(request_form, expected.model.requests[asked_before:]))]
    for point in points:
        if point - before == between:
            continue
        recovered, asked_again, records = await _crash_and_recover(build, point)
        at = f"crash at write {point}"
        assert recovered.messages == engine.disk.messages, at
        assert recovered.state == engine.disk.state, at
        assert recovered.status is engine.disk.status, at
        assert asked_again == asked[len(asked) - len(asked_again) :], at
        assert len(asked_again) + records >= len(asked), at
    return len(points)


async def _crash_and_recover(build: Build, point: int) -> tuple[Disk, list[object], int]:
    disk = Disk()
    first = build()
    engine = first.engine(disk)
    *earlier, last = first.messages
    for message in earlier:
        await engine.turn(message)
    disk.crash_at = point
    engine.begin(last)
    with pytest.raises(Crash):
        await engine.go_on()
    disk.reboot()
    recorded, done = len(disk.model_calls), set(disk.records)
    second = build()
    second.services = first.services  # what services keep survives the process
    recovered = second.engine(disk)
    await recovered.go_on()
    assert not done & set(recovered.ran), f"crash at write {point}"
    asked_again: list[object] = [request for request, _ in groupby(map(request_form, second.model.requests))]
    return disk, asked_again, recorded
