"""A crash before any durable write of a turn changes nothing of what the turn gives.

* the messages and the state are those of the undisturbed turn;
* the model is asked the same questions, and none whose answer is recorded;
* no tool whose call is recorded runs again.
"""

from __future__ import annotations

from itertools import groupby

import pytest
from tests.adk.disk import Crash, Disk
from tests.adk.model import ScriptedModel
from tests.adk.more_shapes import SHAPES
from tests.adk.plain import request_form, unordered
from tests.adk.worlds import WORLDS, World, gated

from perdure.session.model import JsonObject, TurnStatus
from perdure.session.runner import Approval, CallRequest

ALL = {**WORLDS, **SHAPES}


@pytest.mark.parametrize("name", ALL)
async def test_a_crash_at_any_write_changes_nothing(name: str) -> None:
    build = ALL[name]
    world = build()
    engine = world.engine()
    await engine.turn(world.messages[0])
    expected = engine.disk
    assert expected.writes >= 2
    for point in range(1, expected.writes + 1):
        await _crash_and_recover(name, point, world, expected)


async def _crash_and_recover(name: str, point: int, undisturbed: World, expected: Disk) -> None:
    disk = Disk(crash_at=point)
    first = ALL[name]()
    engine = first.engine(disk)
    engine.begin(first.messages[0])
    try:
        await engine.go_on()
    except Crash:
        disk.reboot()
    else:
        # Of what runs side by side, more may go into one write than the first time.
        assert first.branched or first.beside
        assert disk.writes < point
        return
    recorded_models, recorded_calls = len(disk.model_calls), set(disk.records)
    second = ALL[name]()
    if recorded_calls:
        second.services = first.services  # an artifact survives the process
    recovered = second.engine(disk)
    await recovered.go_on()
    at = f"crash at write {point}"
    assert _events(second, disk.messages) == _events(second, expected.messages), at
    assert disk.state == expected.state, at
    assert disk.status is expected.status, at
    made_again = 0
    for before, after in zip(undisturbed.models, second.models, strict=True):
        asked, asked_again = _asked(before), _asked(after)
        made_again += len(asked_again)
        if second.branched:
            asked, asked_again = unordered(asked), unordered(asked_again)
            assert all(request in asked for request in asked_again), f"{at}: {after.model}"
        else:
            assert asked_again == asked[len(asked) - len(asked_again) :], f"{at}: {after.model}"
    assert made_again == sum(len(_asked(model)) for model in undisturbed.models) - recorded_models, at
    assert not recorded_calls & set(recovered.ran), at


def _events(world: World, messages: list[JsonObject]) -> list[JsonObject]:
    """Exactly, if nothing runs side by side; else which of two comes first, and when, is chance."""
    if world.beside or world.branched:
        messages = [{name: value for name, value in item.items() if name != "timestamp"} for item in messages]
    return sorted(messages, key=lambda item: item.get("branch") or "") if world.branched else messages


def _asked(model: ScriptedModel) -> list[JsonObject]:
    """Its requests; those that repeat each other are the tries of one model call."""
    return [request for request, _ in groupby(map(request_form, model.requests))]


async def test_an_approval_survives_any_number_of_restarts() -> None:
    disk = Disk()
    first = gated()
    engine = first.engine(disk, decide=lambda request: None)
    engine.begin("go")
    assert not await engine.go_on()
    asks = {request.call_id: request.ask for request in disk.requests.values()}
    for _ in range(2):
        again_world = gated()
        again = again_world.engine(disk, decide=lambda request: None)
        live = await again.open()
        await live.replayed()
        await live.close()
        assert not await again.go_on()
        assert not any(entry.startswith("is ") for entry in again_world.log)  # the gate was asked once
        assert {request.call_id: request.ask for request in disk.requests.values()} == asks

    def yes(request: CallRequest) -> Approval:
        return Approval({"amended": True})

    last = gated()
    assert await last.engine(disk, decide=yes).go_on()
    assert disk.status is TurnStatus.COMPLETED
    assert last.log.count("refund 1 500 {'amended': True}") == 1
