"""A process that dies, or a disk that fails, at any durable write of a turn that waits in every way there is.

The story is a play (``tests.support.troupe``), told without ADK: a tool asks in the middle, the turn comes to a
frontier, its next leg asks a question and one that outlives it, whose answer starts a second turn.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

import pytest
from tests.support.session_rules import check_rules, read_stored
from tests.support.troupe import World

from perdure import AgentSessionClient, WorkerOptions, faults
from perdure.faults import FAULT_POINTS, Action, DurableWrite, FaultPoint, InjectedFault, Moment
from perdure.testing import WorkerChild

WAITS = (
    DurableWrite.ANSWER_ACCEPTED,
    DurableWrite.MESSAGE_ACCEPTED,
    DurableWrite.MODEL_STEP_SETTLED,
    DurableWrite.STEP_ASKED,
    DurableWrite.ATTEMPT_STARTED,
    DurableWrite.STEP_SETTLED,
    DurableWrite.INTERRUPT_SETTLED,
    DurableWrite.LEG_ENDED,
    DurableWrite.LEG_STARTED,
    DurableWrite.TURN_ENDED,
    DurableWrite.SESSION_RELEASED,
)
POINTS = [point for point in FAULT_POINTS if point.write in WAITS]
NTH = {
    DurableWrite.ANSWER_ACCEPTED: (1, 2, 3, 4),
    DurableWrite.INTERRUPT_SETTLED: (1, 2, 3, 4),
    DurableWrite.MESSAGE_ACCEPTED: (1, 2),
    DurableWrite.MODEL_STEP_SETTLED: (1, 2, 3, 4),
}
"""Which time the point is reached; else the first."""

MILD, WRITE = "mild", "half"
"""The tool that asks: it may be repeated, or not."""

CASES = [
    pytest.param(tool, point, nth, id=f"{tool}-{point}-{nth}")
    for tool in (MILD, WRITE)
    for point in POINTS
    for nth in (NTH.get(point.write, (1,)) if tool == MILD else (1,))
    if (tool, point.write) != (MILD, DurableWrite.ATTEMPT_STARTED)
]

IN_DOUBT = (
    FaultPoint(DurableWrite.ATTEMPT_STARTED, Moment.AFTER),
    FaultPoint(DurableWrite.STEP_ASKED, Moment.BEFORE),
    FaultPoint(DurableWrite.STEP_SETTLED, Moment.BEFORE),
)
"""A single attempt whose start mark is stored, and nothing of what came of it."""


async def tell(folder: str, tool: str) -> None:
    """Tells the story from wherever it stands to its end, in a child that may die."""
    faults.arm_from_environment()
    await run_story(World(Path(folder)), tool)


async def run_story(world: World, tool: str) -> None:
    """All that it asks for is idempotent, so it can be told again."""
    options = WorkerOptions(drain_grace=timedelta(seconds=5))
    flow = world.flow()
    async with world.engine(flow, options=options) as engine, engine.worker():
        client = AgentSessionClient(engine, flow)
        await client.start_session("s", f"model {tool} leg quest late model")
        while pending := (await client.wait("s", timeout=30)).pending_interrupts:
            yes = {one.interrupt_id: {"yes": 1} if one.kind.takes_value else True for one in pending}
            await client.resume("s", yes)
        await client.wait("s", timeout=30)


@dataclass(frozen=True)
class Told:
    """What is stored of the story, and what happened in the world."""

    shape: tuple[str, ...]
    messages: tuple[str, ...]
    runs: Counter[str]


async def read_told(world: World) -> Told:
    async with world.engine() as engine:
        stored = await read_stored(AgentSessionClient(engine), "s")
    check_rules(stored, world)
    runs = Counter(line.split()[3] for line in world.lines("end s "))
    return Told(tuple(stored.shape()), tuple(message.text for message in stored.messages), runs)


async def check(world: World, tool: str, point: FaultPoint, undisturbed: dict[str, Told]) -> None:
    found, expected = await read_told(world), undisturbed[tool]
    assert found.messages == expected.messages
    if tool == WRITE:
        assert found.runs[WRITE] <= 1, "a write that must not be repeated ran twice"
    if tool == WRITE and point in IN_DOUBT and found.shape != expected.shape:
        assert "CallSingleAttemptTool outcome_unknown" in found.shape
    else:
        assert found.shape == expected.shape
        assert found.runs[tool] >= 1


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Told]:
    """The story, told without a fault."""

    async def tell_it(tool: str) -> Told:
        world = World(tmp_path_factory.mktemp(tool))
        await run_story(world, tool)
        return await read_told(world)

    return {tool: asyncio.run(tell_it(tool)) for tool in (MILD, WRITE)}


async def test_the_story_waits_in_every_way_there_is(undisturbed: dict[str, Told]) -> None:
    told = undisturbed[WRITE]
    assert told.messages == ("model half leg quest late model", "done 1", "", "done 2")
    waits = [line for line in told.shape if line.startswith(("AwaitAnswer", "AwaitToolApproval"))]
    assert waits == ["AwaitToolApproval succeeded", *["AwaitAnswer succeeded"] * 3]
    assert told.runs == {WRITE: 1}


@pytest.mark.parametrize(("tool", "point", "nth"), CASES)
async def test_after_a_kill_the_story_ends_as_if_nothing_had_happened(
    tool: str, point: FaultPoint, nth: int, tmp_path: Path, undisturbed: dict[str, Told]
) -> None:
    with WorkerChild.of(tell, str(tmp_path), tool, fault=point, action=Action.KILL, nth=nth) as child:
        assert await child.wait_exit_async() == -9, f"{point} was never reached"
    world = World(tmp_path)
    await run_story(world, tool)
    await check(world, tool, point, undisturbed)


@pytest.mark.parametrize(("tool", "point", "nth"), CASES)
async def test_a_failing_disk_loses_no_answer(
    tool: str, point: FaultPoint, nth: int, tmp_path: Path, undisturbed: dict[str, Told]
) -> None:
    world = World(tmp_path)
    with faults.arm(point, Action.RAISE, nth=nth) as armed:
        try:
            await run_story(world, tool)
        except InjectedFault:
            await run_story(world, tool)  # the client's own write failed: it asks again
    assert armed.fired, f"{point} was never reached"
    await check(world, tool, point, undisturbed)
