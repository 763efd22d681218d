"""A process that dies, or a disk that fails, at any durable write: what the next life finds and does."""

from __future__ import annotations

import asyncio
import json
import re
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import pytest
from tests.crash.scenario import APPROVAL, CLOSING, PARALLEL, SESSION, STORIES, address_in, play, run_story
from tests.support.postgres import Server

from perdure import AgentSessionClient, faults, open_engine
from perdure.faults import FAULT_POINTS, Action, DurableWrite, FaultPoint, Moment
from perdure.testing import WorkerChild, read_request_log

OF_OTHERS = (
    DurableWrite.EVENTS_APPENDED,
    DurableWrite.MESSAGES_JOINED,
    DurableWrite.STEP_ASKED,
    DurableWrite.LEG_ENDED,
    DurableWrite.LEG_STARTED,
)

REACHED: dict[str, frozenset[DurableWrite]] = {
    APPROVAL: frozenset(DurableWrite)
    - {DurableWrite.SESSION_BLOCKED, DurableWrite.SESSION_CLOSED, DurableWrite.REQUEST_ACCEPTED, *OF_OTHERS},
    PARALLEL: frozenset(DurableWrite)
    - {DurableWrite.SESSION_BLOCKED, DurableWrite.SESSION_CLOSED, DurableWrite.REQUEST_ACCEPTED}
    - {DurableWrite.ANSWER_ACCEPTED, DurableWrite.INTERRUPT_SETTLED, DurableWrite.ATTEMPT_STARTED, *OF_OTHERS},
    CLOSING: frozenset({DurableWrite.REQUEST_ACCEPTED, DurableWrite.SESSION_CLOSED}),
}
"""Which writes a story makes.  Those of questions are in ``test_waits``, the three others in ``test_rare_writes``."""

CASES = [
    pytest.param(story, point, id=f"{story}-{point}")
    for story in STORIES
    for point in FAULT_POINTS
    if point.write in REACHED[story]
]


ON_POSTGRES = [
    FaultPoint(write, moment)
    for write in (
        DurableWrite.SESSION_CREATED,
        DurableWrite.SESSION_CLAIMED,
        DurableWrite.MODEL_RECORDED,
        DurableWrite.ATTEMPT_STARTED,
        DurableWrite.STEP_SETTLED,
        DurableWrite.TURN_ENDED,
    )
    for moment in Moment
]


@dataclass(frozen=True)
class Journal:
    """What is stored of the story, with ids made comparable."""

    status: str
    state: dict[str, object]
    steps: tuple[str, ...]
    messages: tuple[str, ...]
    interrupts: int


async def read_journal(story: str, folder: Path) -> Journal:
    async with open_engine(address_in(folder)) as engine:
        client = AgentSessionClient(engine)
        snapshot = await client.get_agent_snapshot(SESSION)
        steps = (await client.read_step_history(SESSION, limit=1000)).items
        messages = (await client.list_messages(SESSION)).items
        same = _Renamer()
        return Journal(
            snapshot.status.value,
            dict(snapshot.state),
            tuple(same(f"{s.name.value} {s.key} {s.status.value} {s.tool_name} {s.result} {s.error}") for s in steps),
            tuple(same(f"{m.role.value} {m.text} {m.tool_name} {_content(m.framework_item)}") for m in messages),
            len(snapshot.pending_interrupts),
        )


class _Renamer:
    """Replaces generated ids by their order of appearance."""

    def __init__(self) -> None:
        self._names: dict[str, str] = {}

    def __call__(self, line: str) -> str:
        uuid = r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}"
        return re.sub(uuid, lambda found: self._names.setdefault(found.group(), f"id{len(self._names) + 1}"), line)


def _content(item: dict[str, object]) -> str:
    return json.dumps(item.get("content"), sort_keys=True)


def world_lines(folder: Path) -> list[str]:
    path = folder / "world.txt"
    return path.read_text().splitlines() if path.exists() else []


def world(folder: Path) -> Counter[str]:
    """How often each tool body ran, over all lives."""
    return Counter(line.split()[0] for line in world_lines(folder))


def requests(folder: Path) -> list[str]:
    """The model requests over all lives, as text, in order.  (The model itself refuses an invalid history.)"""
    same = _Renamer()
    texts: list[str] = []
    for logged in read_request_log(folder / "requests.jsonl"):
        contents = [content.model_dump_json(exclude_none=True) for content in logged.contents]
        texts.append(same(json.dumps([logged.system_instruction, logged.tools, contents])))
    return texts


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[Journal, Path]]:
    """Each story, told without a fault."""

    async def tell(story: str) -> tuple[Journal, Path]:
        folder = tmp_path_factory.mktemp(story)
        await run_story(story, folder)
        return await read_journal(story, folder), folder

    return {story: asyncio.run(tell(story)) for story in STORIES}


async def check(story: str, point: FaultPoint, folder: Path, undisturbed: dict[str, tuple[Journal, Path]]) -> None:
    """The next life ended well; nothing happened that must not."""
    expected, reference = undisturbed[story]
    found = await read_journal(story, folder)
    assert found.status == expected.status
    assert found.interrupts == 0
    ran = world(folder)
    assert ran["mail"] <= 1, "a write that must not be repeated ran twice"
    keys = {line.split()[-1] for line in world_lines(folder) if line.startswith("refund")}
    assert len(keys) <= 1, "one idempotency key for every attempt of the call"
    if story == CLOSING:
        assert ran["mail"] == 0
        return
    # The one write whose outcome cannot be known: its start mark is stored and its record is not.
    in_doubt = story == APPROVAL and (
        point == FaultPoint(DurableWrite.ATTEMPT_STARTED, Moment.AFTER)
        or (point == FaultPoint(DurableWrite.STEP_SETTLED, Moment.BEFORE) and ran["look"] == 2 and ran["mail"] == 1)
    )
    if not in_doubt or found == expected:
        assert found == expected
        made, wanted = requests(folder), requests(reference)
        assert list(dict.fromkeys(made)) == wanted, "the model gets exactly the requests of an undisturbed run"
        assert len(made) <= len(wanted) + 1, "a crash repeats at most the call that was running"
    else:
        assert any("outcome_unknown" in step for step in found.steps)
    reads = {"look": 2, "stock": 1} if story == PARALLEL else {"look": 2}
    for tool, least in reads.items():
        assert ran[tool] >= least


@pytest.mark.parametrize(("story", "point"), CASES)
async def test_after_a_kill_the_story_ends_as_if_nothing_had_happened(
    story: str, point: FaultPoint, tmp_path: Path, undisturbed: dict[str, tuple[Journal, Path]]
) -> None:
    with WorkerChild.of(play, story, str(tmp_path), fault=point, action=Action.KILL) as child:
        assert await child.wait_exit_async() == -9, f"{point} was never reached"
    await run_story(story, tmp_path)
    await check(story, point, tmp_path, undisturbed)


@pytest.mark.parametrize("point", ON_POSTGRES, ids=str)
async def test_so_it_does_on_postgresql(
    point: FaultPoint, tmp_path: Path, undisturbed: dict[str, tuple[Journal, Path]], postgres: Server
) -> None:
    """What the session's loop makes of what it finds is the same; so the writes that differ most are enough."""
    (tmp_path / "address").write_text(postgres.address(postgres.empty_schema()))
    with WorkerChild.of(play, APPROVAL, str(tmp_path), fault=point, action=Action.KILL) as child:
        assert await child.wait_exit_async() == -9, f"{point} was never reached"
    await run_story(APPROVAL, tmp_path)
    await check(APPROVAL, point, tmp_path, undisturbed)


@pytest.mark.parametrize(("story", "point"), CASES)
async def test_a_failing_disk_stops_no_session(
    story: str, point: FaultPoint, tmp_path: Path, undisturbed: dict[str, tuple[Journal, Path]]
) -> None:
    with faults.arm(point, Action.RAISE) as armed:
        try:
            await run_story(story, tmp_path)
        except faults.InjectedFault:
            await run_story(story, tmp_path)  # the client's own write failed: it asks again
    assert armed.fired, f"{point} was never reached"
    await check(story, point, tmp_path, undisturbed)
