"""The turn that a late answer starts runs what plain ADK runs with the same answer, resumable or not."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
from google.adk.apps.app import App, ResumabilityConfig
from tests.adk.disk import Crash, Disk
from tests.adk.engine import Engine
from tests.adk.late_worlds import LATE, asks_afterwards
from tests.adk.plain import comparable, request_form, unordered
from tests.adk.test_long_running import answer, engine_of
from tests.adk.waiting import conversation, run_plain_with_answers
from tests.adk.worlds import World

from perdure.adk.records.history import LEFT
from perdure.errors import UsageError
from perdure.session.model import InterruptKind, JsonObject, QuestionAnswer, TurnStatus, UserMessage
from perdure.session.runner import Question


def late_answer(*questions: Question) -> UserMessage:
    return UserMessage(
        text="",
        answers=tuple(
            QuestionAnswer(question_id=one.question_id, tool_name=one.tool_name, value=answer(one)) for one in questions
        ),
    )


async def answered_late(engine: Engine) -> Engine:
    """Answers what earlier turns left open, all that a turn left at once, until nothing is open."""
    answered = 0
    while len(engine.disk.late) > answered:
        questions = engine.disk.late[answered:]
        answered = len(engine.disk.late)
        await engine.turn(late_answer(*questions))
    return engine


def resumable_world(name: str, resumable: bool) -> World:
    world = LATE[name]()
    if resumable:
        assert not isinstance(world.agent, App)
        config = ResumabilityConfig(is_resumable=True)
        world.agent = App(name="Flow", root_agent=world.agent, resumability_config=config)
    return world


def without_left(items: list[JsonObject]) -> list[JsonObject]:
    return [item for item in items if LEFT not in (item.get("custom_metadata") or {})]


def _requests_of(world: World) -> list[Any]:
    return [request_form(request) for model in (world.model, *world.others) for request in model.requests]


@pytest.mark.parametrize("resumable", [False, True])
@pytest.mark.parametrize("name", LATE)
async def test_a_late_answer_runs_what_plain_adk_runs(name: str, resumable: bool) -> None:
    plain = LATE[name]()
    events, state = await run_plain_with_answers(plain, late=True, resumable=resumable)
    durable = resumable_world(name, resumable)
    engine = engine_of(durable)
    await engine.turn("go")
    await answered_late(engine)
    assert engine.disk.error is None

    def ordered(value: Any) -> Any:
        return unordered(value) if plain.branched else value

    ours = without_left(engine.disk.messages)
    assert ordered(comparable(conversation(ours))) == ordered(comparable(events))
    assert engine.disk.state == state
    assert sorted(durable.log) == sorted(plain.log)
    assert ordered(_requests_of(durable)) == ordered(_requests_of(plain))


@pytest.mark.parametrize("name", ["in_a_line", "in_a_loop", "in_a_workflow", "in_a_single_turn"])
async def test_a_crash_at_any_write_of_the_turn_changes_nothing(name: str) -> None:
    expected = engine_of(resumable_world(name, True))
    await expected.turn("go")
    before = expected.disk.writes
    (asked,) = expected.disk.late
    await expected.turn(late_answer(asked))
    assert expected.disk.writes > before + 1
    for point in range(before + 1, expected.disk.writes + 1):
        disk = Disk(crash_at=point)
        first = engine_of(resumable_world(name, True), disk)
        await first.turn("go")
        first.begin(late_answer(asked))
        with pytest.raises(Crash):
            await first.go_on()
        disk.reboot()
        recorded = set(disk.records)
        second = engine_of(resumable_world(name, True), disk)
        assert await second.go_on()
        assert _timeless(disk.messages) == _timeless(expected.disk.messages), f"crash at write {point}"
        assert not recorded & set(second.ran), f"crash at write {point}"


def _timeless(items: list[JsonObject]) -> list[JsonObject]:
    """What a replay makes anew may come microseconds earlier."""
    return [{name: value for name, value in item.items() if name != "timestamp"} for item in items]


async def test_what_an_answer_lets_go_on_may_ask_for_input() -> None:
    """Over restarts.  A node without a trace runs once: plain ADK runs it again with each answer."""
    world, disk = asks_afterwards(), Disk()
    engine = engine_of(world, disk)
    await engine.turn("go")
    (ticket,) = disk.late
    again = engine_of(asks_afterwards(), disk)
    again.answer = lambda question: None
    again.begin(late_answer(ticket))
    assert not await again.go_on()
    (asked,) = disk.questions.values()
    assert (asked.kind, asked.path) == (InterruptKind.INPUT, "flow/ask")
    third_world = asks_afterwards()
    third = engine_of(third_world, disk)
    third.answer = lambda question: {"word": "hi"}
    assert await third.go_on()
    assert (disk.status, disk.error) == (TurnStatus.COMPLETED, None)
    assert third_world.log == ["use hi"]
    assert conversation(disk.messages)[-1]["content"]["parts"] == [{"text": "after 0"}]


async def test_answers_for_two_invocations_do_not_start_one_turn() -> None:
    """Answered one after the other, each starts a turn of its own."""
    engine = engine_of(resumable_world("in_a_line", True))
    await engine.turn("go")
    (asked,) = engine.disk.late
    again = json.loads(json.dumps(engine.disk.messages).replace(asked.question_id, "another"))
    engine.disk.messages += [{**item, "invocation_id": "e-another", "id": f"{item['id']}2"} for item in again]
    second_life = engine_of(resumable_world("in_a_line", True), engine.disk)
    second_life.begin(late_answer(asked, replace(asked, question_id="another")))
    with pytest.raises(UsageError, match="answer_question"):
        await second_life.open()
