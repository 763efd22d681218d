"""Long-running tools: what the model sees, what is stored and what runs is as on plain ADK with the same answers."""

from __future__ import annotations

from typing import Any

import pytest
from google.adk.agents import BaseAgent, SequentialAgent
from google.adk.apps.app import App, ResumabilityConfig
from google.adk.tools._request_input_tool import request_input
from google.adk.tools.agent_tool import AgentTool
from google.adk.tools.long_running_tool import LongRunningFunctionTool
from google.adk.tools.tool_context import ToolContext
from google.genai import types
from tests.adk.disk import Crash, Disk
from tests.adk.engine import Engine
from tests.adk.model import calls, says
from tests.adk.plain import comparable, request_form, unordered
from tests.adk.shapes import Cast
from tests.adk.waiting import WAITING, conversation, done, render_of, renders, run_plain_with_answers
from tests.adk.worlds import World

from perdure.errors import ToolExecutionError
from perdure.session.model import ErrorInfo, InterruptKind, JsonObject, QuestionAnswer, TurnStatus, UserMessage
from perdure.session.policy import ToolEffect, ToolPolicy
from perdure.session.runner import Approval, CallRequest, Question, QuestionWait


def answer(question: Question) -> JsonObject:
    return done(types.FunctionCall(name=question.tool_name, args=question.arguments))


def yes(request: CallRequest) -> Approval:
    return Approval({"by": "boss"})


def engine_of(world: World, disk: Disk | None = None) -> Engine:
    engine = world.engine(disk, yes)
    engine.answer = answer
    engine.decide = lambda request: yes(request) if request.tool_name != "release" or engine.disk.answers else None
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


LIKE_PLAIN = [name for name in WAITING if name not in ("gated_render", "beside_gate")]
"""Plain ADK 2.13 asks the model again as soon as a long-running call is confirmed, without the result."""


@pytest.mark.parametrize("resumable", [False, True])
@pytest.mark.parametrize("name", LIKE_PLAIN)
async def test_a_wait_is_as_on_plain_adk(name: str, resumable: bool) -> None:
    plain = WAITING[name]()
    events, state = await run_plain_with_answers(plain, late=name == "first_result")
    durable = WAITING[name]()
    if resumable:
        assert isinstance(durable.agent, BaseAgent)
        config = ResumabilityConfig(is_resumable=True)
        durable.agent = App(name="Flow", root_agent=durable.agent, resumability_config=config)
    engine = await run(durable)
    assert engine.disk.error is None

    def ordered(value: Any) -> Any:
        return unordered(value) if name == "branches" else value

    assert ordered(comparable(conversation(engine.disk.messages))) == ordered(comparable(events))
    assert engine.disk.state == state
    assert sorted(durable.log) == sorted(plain.log)
    assert ordered(requests_of(durable)) == ordered(requests_of(plain))


@pytest.mark.parametrize("name", WAITING)
async def test_a_crash_at_any_write_changes_nothing(name: str) -> None:
    undisturbed = WAITING[name]()
    expected = engine_of(undisturbed)
    await expected.turn("go")
    assert expected.disk.writes > 4
    for point in range(1, expected.disk.writes + 1):
        disk = Disk(crash_at=point)
        first = engine_of(WAITING[name](), disk)
        first.begin("go")
        if not await _crashes(first):
            assert undisturbed.branched or undisturbed.beside, "a crash that was to happen did not"
            break  # with branches, how often the turn is driven is chance, and so is the number of writes
        disk.reboot()
        recorded, models = set(disk.records), len(disk.model_calls)
        world = WAITING[name]()
        second = engine_of(world, disk)
        assert await second.go_on()
        at = f"crash at write {point}"
        assert _events(world, disk) == _events(world, expected.disk), at
        assert disk.state == expected.disk.state, at
        assert disk.late == expected.disk.late, at
        assert not recorded & set(second.ran), at
        assert len(requests_of(world)) == len(requests_of(undisturbed)) - models, at


async def _crashes(engine: Engine) -> bool:
    try:
        await engine.go_on()
    except Crash:
        return True
    return False


def _events(world: World, disk: Disk) -> list[JsonObject]:
    """Exactly, if nothing runs side by side; else which of two comes first, and when, is chance."""
    if not (world.branched or world.beside):
        return disk.messages
    items = [{name: value for name, value in item.items() if name != "timestamp"} for item in disk.messages]
    return sorted(items, key=lambda item: str(item.get("branch")))


async def test_each_answer_may_come_after_a_restart_and_none_is_asked_for_again() -> None:
    """Case 12: two tools that render run twice in all, however often the worker dies meanwhile."""
    disk, ran, starts, over = Disk(), list[str](), 0, False
    while not over:
        world = WAITING["two_renders"]()
        engine = world.engine(disk)
        answered: list[str] = []

        def answer_one(question: Question, answered: list[str] = answered) -> JsonObject | None:
            if answered:
                return None
            answered.append(question.question_id)
            return answer(question)

        engine.answer = answer_one
        if not starts:
            engine.begin("go")
        starts += 1
        assert starts < 9
        over = await engine.go_on()
        ran += world.log
    assert starts == 3
    assert sorted(ran) == ["note n", "render a", "render b", "render c"]


async def test_an_answer_that_did_not_come_in_time_is_an_error_that_the_model_sees() -> None:
    world = WAITING["choice"]()
    engine = world.engine()
    engine.answer = lambda question: ErrorInfo(code="expired", message="Nobody answered in time.")
    await engine.turn("go")
    assert engine.disk.messages[-2]["content"]["parts"][0]["function_response"]["response"] == {
        "error": "Nobody answered in time."
    }
    assert engine.disk.messages[-1]["content"]["parts"] == [{"text": "chosen"}]


@pytest.mark.parametrize(("value", "seen"), [("red", {"result": "red"}), ({}, {}), ({"a": 1}, {"a": 1})])
async def test_what_the_model_sees_of_an_answer(value: Any, seen: JsonObject) -> None:
    engine = WAITING["choice"]().engine()
    engine.answer = lambda question: value
    await engine.turn("go")
    assert engine.disk.messages[-2]["content"]["parts"][0]["function_response"]["response"] == seen


async def test_what_whoever_answers_is_told() -> None:
    engine = await run(WAITING["choice"]())
    (question,) = engine.disk.questions.values()
    assert (question.kind, question.wait) == (InterruptKind.LONG_RUNNING, QuestionWait.LIVE)
    assert (question.tool_name, question.arguments) == ("get_user_choice", {"options": ["red", "blue"]})
    assert (question.agent_name, question.path) == ("asker", "")
    engine = await run(WAITING["branches"]())
    (question,) = engine.disk.questions.values()
    assert (question.agent_name, question.path) == ("waiter", "both/fan/waiter")
    engine = await run(WAITING["first_result"]())
    (question,) = engine.disk.late
    assert (question.wait, question.payload) == (QuestionWait.NEXT_TURN, {"status": "pending", "subject": "leak"})


async def test_the_tool_that_lets_the_model_ask_is_a_question_with_its_words() -> None:
    cast = Cast()
    wanted = calls((request_input.name, {"message": "Which one?", "response_schema": {"type": "string"}}))
    engine = cast.world(cast.llm("asker", wanted, says("thanks"), tools=(request_input,))).engine()
    engine.answer = lambda question: "the red one"
    await engine.turn("go")
    (question,) = engine.disk.questions.values()
    assert (question.kind, question.hint) == (InterruptKind.INPUT, "Which one?")
    assert question.payload == {"response_schema": {"type": "string"}}
    assert engine.disk.messages[-1]["content"]["parts"] == [{"text": "thanks"}]


async def test_a_confirmed_call_waits_for_its_result_and_the_model_is_asked_only_then() -> None:
    world = WAITING["gated_render"]()
    await run(world)
    assert sorted(world.log) == ["pay 5", "render a"]
    first, second = world.model.requests
    assert len(second.contents) == len(first.contents) + 2


@pytest.mark.parametrize("how", ["rejected", "raised"])
async def test_a_call_that_gave_no_result_of_its_own_waits_for_nobody_and_stops_nothing(how: str) -> None:
    cast = Cast()

    def render(what: str) -> None:
        """Renders."""
        raise ToolExecutionError("no paint")

    planner = cast.llm("planner", calls(("render", {"what": "x"})), says("planned"))
    planner.tools.append(LongRunningFunctionTool(render))
    root = SequentialAgent(name="line", sub_agents=[planner, cast.llm("executor", says("executed"))])
    approval = ToolPolicy(ToolEffect.READ, requires_approval=how == "rejected")
    world = cast.world(root, options={"tool_policies": {"render": approval}})
    engine = world.engine(decide=lambda request: "No.")
    await engine.turn("go")
    assert (engine.disk.questions, engine.disk.late) == ({}, [])
    assert engine.disk.messages[-1]["content"]["parts"] == [{"text": "executed"}]


async def test_what_a_tool_did_to_the_state_before_it_returned_nothing_is_kept() -> None:
    """Plain ADK 2.13 loses it: there is no response to carry it."""
    cast = Cast()

    def order(what: str, tool_context: ToolContext) -> None:
        """Orders."""
        tool_context.state["ordered"] = what

    agent = cast.llm("buyer", calls(("order", {"what": "x"})), says("ok"), tools=(LongRunningFunctionTool(order),))
    engine = engine_of(cast.world(agent))
    await engine.turn("go")
    assert engine.disk.state == {"ordered": "x"}
    assert engine.disk.messages[2]["actions"]["state_delta"] == {"ordered": "x"}


async def test_an_agent_that_runs_as_a_tool_can_wait() -> None:
    """Plain ADK 2.13 cannot: the tool answers that its agent stopped waiting."""
    cast = Cast()
    inner = cast.llm("inner", renders("x"), says("rendered"), tools=(render_of(cast),))
    world = cast.world(
        cast.llm("outer", calls(("inner", {"request": "render"})), says("done"), tools=(AgentTool(inner),))
    )
    disk = Disk()
    engine = engine_of(world, disk)
    engine.answer = lambda question: None
    engine.begin("go")
    assert not await engine.go_on()
    (question,) = disk.questions.values()
    assert question.agent_name == "inner"
    assert question.path.startswith("outer/adk-")
    assert question.path.endswith("/inner")
    cast = Cast()
    inner = cast.llm("inner", renders("x"), says("rendered"), tools=(render_of(cast),))
    again = cast.world(
        cast.llm("outer", calls(("inner", {"request": "render"})), says("done"), tools=(AgentTool(inner),))
    )
    assert await engine_of(again, disk).go_on()
    assert again.log == []
    assert disk.messages[2]["content"]["parts"][0]["function_response"]["response"] == {"result": "rendered"}
    assert disk.messages[-1]["content"]["parts"] == [{"text": "done"}]


async def test_a_turn_that_ends_first_answers_the_call_that_waited() -> None:
    world = WAITING["two_renders"]()
    engine = world.engine()
    engine.answer = lambda question: None
    engine.begin("go")
    assert not await engine.go_on()
    await engine.close_failed(TurnStatus.CANCELLED, None)
    response, note = engine.disk.messages[-2:]
    unanswered = {"error": "The turn ended before the result of this call came."}
    assert [part["function_response"]["response"] for part in response["content"]["parts"]] == [unanswered] * 2
    assert note["content"]["parts"][0]["text"].count("its result had not come") == 2
    assert "render" in response["content"]["parts"][0]["function_response"]["name"]
