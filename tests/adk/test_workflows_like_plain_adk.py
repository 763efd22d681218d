"""A durable turn of a workflow is what plain ADK does with the same workflow, undisturbed and crashed at any write."""

from __future__ import annotations

from collections import Counter

import pytest
from google.adk.apps.app import App
from tests.adk.plain import comparable, request_form, run_plain
from tests.adk.test_like_plain_adk import CountingPlugin
from tests.adk.workflow_worlds import WORKFLOW_WORLDS
from tests.adk.worlds import World

from perdure.session.model import JsonObject


def _with_plugin(world: World) -> World:
    assert not isinstance(world.agent, App)
    world.agent = App(name="Flow", root_agent=world.agent, plugins=[CountingPlugin(world.log)])
    return world


def by_branch(events: list[JsonObject]) -> dict[str, list[JsonObject]]:
    """The events of each branch: which of several that run at the same time is first is a matter of speed."""
    branches: dict[str, list[JsonObject]] = {}
    for event in events:
        branches.setdefault(str(event.get("branch")), []).append(event)
    return branches


@pytest.mark.parametrize("name", WORKFLOW_WORLDS)
async def test_a_workflow_is_as_on_plain_adk(name: str) -> None:
    plain = _with_plugin(WORKFLOW_WORLDS[name]())
    events, state, failure = await run_plain(plain.agent, plain.messages, **plain.services)
    durable = _with_plugin(WORKFLOW_WORLDS[name]())
    engine = durable.engine()
    for message in durable.messages:
        await engine.turn(message)
    stored = engine.disk.messages
    if failure is not None:
        assert engine.disk.error is not None
        assert engine.disk.error.message == str(failure)
        stored = stored[:-1]  # the turn-failure note
    else:
        assert engine.disk.error is None
    assert by_branch(comparable(stored)) == by_branch(comparable(events))
    assert engine.disk.state == {key: value for key, value in state.items() if not key.startswith("temp:")}
    assert Counter(durable.log) == Counter(plain.log)
    for mine, theirs in zip(durable.models, plain.models, strict=True):
        assert [request_form(r) for r in mine.requests] == [request_form(r) for r in theirs.requests]
