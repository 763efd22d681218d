"""A crash before any durable write of a workflow's turn changes nothing of what the turn gives."""

from __future__ import annotations

from collections import Counter
from itertools import groupby

import pytest
from tests.adk.disk import Crash, Disk
from tests.adk.plain import request_form
from tests.adk.test_workflows_like_plain_adk import by_branch
from tests.adk.workflow_worlds import WORKFLOW_WORLDS
from tests.adk.worlds import World

from perdure.session.model import JsonObject


@pytest.mark.parametrize("name", WORKFLOW_WORLDS)
async def test_a_crash_at_any_write_of_a_workflow_changes_nothing(name: str) -> None:
    world = WORKFLOW_WORLDS[name]()
    engine = world.engine()
    await engine.turn(world.messages[0])
    expected = engine.disk
    assert expected.writes >= 2
    for point in range(1, expected.writes + 1):
        await _crash_and_recover(name, point, world, expected)


async def _crash_and_recover(name: str, point: int, undisturbed: World, expected: Disk) -> None:
    disk = Disk(crash_at=point)
    first = WORKFLOW_WORLDS[name]()
    engine = first.engine(disk)
    engine.begin(first.messages[0])
    with pytest.raises(Crash):
        await engine.go_on()
    disk.reboot()
    recorded_calls, stored = set(disk.records), list(disk.messages)
    recorded_models = len(disk.model_calls)
    second = WORKFLOW_WORLDS[name]()
    recovered = second.engine(disk)
    await recovered.go_on()
    at = f"crash at write {point}"
    assert disk.messages[: len(stored)] == stored, at
    assert by_branch(_timeless(disk.messages)) == by_branch(_timeless(expected.messages)), at
    assert disk.state == expected.state, at
    assert disk.status is expected.status, at
    assert not recorded_calls & set(recovered.ran), at
    assert set(disk.records) == set(expected.records), at
    asked_again = _asked(second)
    assert sum(asked_again.values()) == sum(_asked(undisturbed).values()) - recorded_models, at
    assert not asked_again - _asked(undisturbed), at


def _timeless(events: list[JsonObject]) -> list[JsonObject]:
    """Which branch settles first, and so at which time, is a matter of speed."""
    return [{key: value for key, value in event.items() if key != "timestamp"} for event in events]


def _asked(world: World) -> Counter[str]:
    """What the models were asked; requests that repeat each other are the tries of one call."""
    return Counter(str(request) for model in world.models for request, _ in groupby(map(request_form, model.requests)))
