"""SIGKILL of a real process at each durable write of a workflow: the next life ends it as if nothing had been."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import pytest
from tests.crash.workflow_scenario import ASKING, BRANCHES, SESSION, STORIES, play, run_story

from perdure import AgentSessionClient, open_engine
from perdure.faults import FAULT_POINTS, Action, DurableWrite, FaultPoint
from perdure.session.model import JsonObject
from perdure.testing import WorkerChild, read_request_log

_BOTH = {
    DurableWrite.SESSION_CREATED,
    DurableWrite.TURN_STARTED,
    DurableWrite.MODEL_RECORDED,
    DurableWrite.MODEL_STEP_SETTLED,
    DurableWrite.STEP_SETTLED,
    DurableWrite.TURN_ENDED,
}
REACHED = {
    ASKING: _BOTH
    | {
        DurableWrite.ANSWER_ACCEPTED,
        DurableWrite.INTERRUPT_SETTLED,
        DurableWrite.LEG_ENDED,
        DurableWrite.LEG_STARTED,
    },
    BRANCHES: _BOTH,
}
CASES = [
    pytest.param(story, point, id=f"{story}-{point}")
    for story in STORIES
    for point in FAULT_POINTS
    if point.write in REACHED[story]
]
ONCE = {ASKING: {"begin": 1, "ticket": 1, "close ok": 1}, BRANCHES: {"work 1": 1, "work 2": 1, "look": 1, "total": 1}}


@dataclass(frozen=True)
class Journal:
    """What is stored of the story."""

    status: str
    state: str
    calls: frozenset[tuple[str, str, str]]
    outputs: tuple[str, ...]
    messages: Counter[str]


async def read_journal(folder: Path) -> Journal:
    async with open_engine(f"sqlite:///{folder / 'crash.db'}") as engine:
        client = AgentSessionClient(engine)
        snapshot = await client.get_agent_snapshot(SESSION)
        steps = (await client.read_step_history(SESSION, limit=1000)).items
        items = [message.framework_item for message in (await client.list_messages(SESSION, limit=1000)).items]
        return Journal(
            snapshot.status.value,
            json.dumps(snapshot.state, sort_keys=True),
            frozenset(
                (step.tool_call_id or "", step.status.value, json.dumps(step.result))
                for step in steps
                if step.name.value.startswith("Call")
            ),
            tuple(json.dumps(item["output"]) for item in items[-1:] if "output" in item),
            Counter(_looks(item) for item in items),
        )


def _looks(item: JsonObject) -> str:
    """A join's output has its keys in an order that differs from process to process (ADK goes through a set)."""
    return json.dumps([item["author"], item.get("content"), item.get("output")], sort_keys=True)


def lines(folder: Path) -> Counter[str]:
    return Counter((folder / "world.txt").read_text().splitlines())


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[Journal, Path]]:
    async def tell(story: str) -> tuple[Journal, Path]:
        folder = tmp_path_factory.mktemp(story)
        await run_story(story, folder)
        assert lines(folder) == ONCE[story]
        return await read_journal(folder), folder

    return {story: asyncio.run(tell(story)) for story in STORIES}


@pytest.mark.parametrize(("story", "point"), CASES)
async def test_after_a_kill_the_workflow_ends_as_if_nothing_had_happened(
    story: str, point: FaultPoint, tmp_path: Path, undisturbed: dict[str, tuple[Journal, Path]]
) -> None:
    with WorkerChild.of(play, story, str(tmp_path), fault=point, action=Action.KILL) as child:
        assert await child.wait_exit_async() == -9, f"{point} was never reached"
    await run_story(story, tmp_path)
    expected, reference = undisturbed[story]
    assert await read_journal(tmp_path) == expected
    ran, wanted = lines(tmp_path), lines(reference)
    assert set(ran) == set(wanted)
    assert max((ran - wanted).values(), default=0) <= 1, "a crash repeats at most what was running"
    made = read_request_log(tmp_path / "requests.jsonl")
    assert len(made) <= len(read_request_log(reference / "requests.jsonl")) + 1
