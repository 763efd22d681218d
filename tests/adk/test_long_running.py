"""Long-running tools: what the model sees, what is stored and what runs is as on plain ADK that is given the answers."""

from __future__ import annotations

from typing import Any

import pytest
from google.adk.apps.app import App, ResumabilityConfig
from google.genai import types
from tests.adk.engine import Crash, Disk, Engine
from tests.adk.plain import comparable, request_form, unordered
from tests.adk.waiting import WAITING, conversation, done, run_plain_with_answers
from tests.adk.worlds import World

from perdure.session.model import InterruptKind, JsonObject, QuestionAnswer, UserMessage
from perdure.session.runner import Approval, CallRequest, Question, QuestionWait


def answer(question: Question) -> JsonObject:
    return done(types.FunctionCall(name=question.tool_name, args=question.arguments))


def yes(request: CallRequest) -> Approval:
    return Approval({"by": "boss"})


def engine_of(world: World, disk: Disk | None = None) -> Engine:
    engine = world.engine(disk, yes)
    engine.answer = answer
    return engine


async def run(world: World) -> Engine:
    """All messages, and the turns that late answers start."""
    engine = engine_of(world)
    for message in world.messages:
        await engine.turn(message)
    for question in engine.disk.late:
        late = QuestionAnswer(question_id=question.question_id, tool_name=question.tool_name, value=answer(question))
        await engine.turn(UserMessage(text="", answers=(late,)))
    return engine


def requests_of(world: World) -> list[Any]:
    return [request_form(request) for model in (world.model, *world.others) for request in model.requests]


@pytest.mark.parametrize("resumable", [False, True])
@pytest.mark.parametrize("name", WAITING)
async def test_a_wait_is_as_on_plain_adk(name: str, resumable: bool) -> None:
    plain = WAITING[name]()
    events, state = await run_plain_with_answers(plain, late=name == "first_result")
    durable = WAITING[name]()
    if resumable:
        durable.agent = App(
            name="Flow", root_agent=durable.agent, resumability_config=ResumabilityConfig(is_resumable=True)
        )
    engine = await run(durable)
    assert engine.disk.error is None
    ordered = (lambda value: value) if name != "branches" else unordered
    assert ordered(comparable(conversation(engine.disk.messages))) == ordered(comparable(events))
    assert engine.disk.state == state
    assert sorted(durable.log) == sorted(plain.log)
    assert ordered(requests_of(durable)) == ordered(requests_of(plain))
