"""Workflows that ask: each frontier ends a leg, and all is as on plain ADK given the same answers."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import Callable
from typing import Any, cast

import pytest
from google.adk.agents import LlmAgent, RunConfig
from google.adk.agents.context import Context
from google.adk.apps.app import App, ResumabilityConfig
from google.adk.auth.auth_credential import AuthCredential, AuthCredentialTypes
from google.adk.auth.auth_tool import AuthConfig
from google.adk.events.event import Event
from google.adk.events.request_input import RequestInput
from google.adk.runners import Runner
from google.adk.sessions import InMemorySessionService
from google.adk.tools.tool_context import ToolContext
from google.adk.workflow import START, Workflow
from google.genai import types
from pydantic import BaseModel
from tests.adk.asking_worlds import ASKING_WORLDS
from tests.adk.disk import Crash, Disk
from tests.adk.model import ScriptedModel, calls, says
from tests.adk.plain import SSE, comparable, request_form, stored_form
from tests.adk.test_workflows_like_plain_adk import by_branch
from tests.adk.worlds import World
from tests.support.nodes import request

from perdure.adk.records.history import content_of, events_of, is_stored
from perdure.session.model import ErrorInfo, InterruptKind, JsonObject, JsonValue, TurnStatus
from perdure.session.runner import Question

RUN_ONCE = {"ask_then_use": Counter({"trace": 1})}
"""What plain ADK runs again in each leg: nodes that left no event.  Here they run once."""


def with_key(asked: Any) -> JsonObject:
    """The answer to a sign-in: what was asked, with a key in it."""
    answer = AuthConfig.model_validate(asked)
    answer.exchanged_auth_credential = AuthCredential(auth_type=AuthCredentialTypes.API_KEY, api_key="secret")
    form: JsonObject = answer.model_dump(mode="json", exclude_none=True, by_alias=True)
    return form


class Person:
    """Gives the same answers to plain ADK and to the engine.  ``rounds``: how often it was asked before, and now."""

    def __init__(self, name: str) -> None:
        self._name = name

    def says(self, asked: str, rounds: int) -> JsonObject:
        if self._name == "ask_then_use":
            return {"result": "Ann"}
        if self._name == "review_loop":
            return {"ok": rounds >= 4}
        if self._name == "until_ok":
            return {"word": "ok" if rounds == 3 else "bad"}
        return {"word": f"yes {asked}"}

    def natively(self, call: types.FunctionCall, rounds: int) -> JsonObject:
        if (call.id or "").startswith("wf_tool_confirmation"):
            return {"confirmed": True, "payload": {"by": "boss"}}
        if call.name == "adk_request_credential":
            return with_key((call.args or {})["authConfig"])
        return self.says(call.id or "", rounds)

    def to_engine(self, disk: Disk) -> Callable[[Question], JsonValue]:
        def reply(question: Question) -> JsonValue:
            if question.kind is InterruptKind.CONFIRMATION:
                return {"approved": True, "payload": {"by": "boss"}, "message": ""}
            if question.kind is InterruptKind.CREDENTIAL:
                return {"approved": True, "payload": with_key(question.payload), "message": ""}
            assert disk.start is not None
            return self.says(question.question_id, disk.start.leg)

        return reply


async def run_plain_answering(
    world: World, reply: Callable[[types.FunctionCall, int], JsonObject]
) -> tuple[list[JsonObject], JsonObject]:
    """The events that plain ADK stores when all that is open is answered at once, and the final state."""
    app = world.agent if isinstance(world.agent, App) else App(name="Flow", root_agent=world.agent)
    service = InMemorySessionService()
    runner = Runner(app=app, session_service=service)
    session = await service.create_session(app_name=app.name, user_id="u1", session_id="s1")
    for message in world.messages:
        content: types.Content | None = content_of(message)
        rounds = 0
        while content is not None:
            rounds += 1
            async for _ in runner.run_async(user_id="u1", session_id="s1", new_message=content, run_config=SSE):
                pass
            found = await service.get_session(app_name=app.name, user_id="u1", session_id="s1")
            assert found is not None
            session = found
            content = _answers(session.events, _of_round(reply, rounds))
    stored = [stored_form(event) for event in session.events if is_stored(event)]
    return stored, json.loads(json.dumps(session.state))


def _of_round(
    reply: Callable[[types.FunctionCall, int], JsonObject], rounds: int
) -> Callable[[types.FunctionCall], JsonObject]:
    return lambda call: reply(call, rounds)


def _answers(events: list[Event], reply: Callable[[types.FunctionCall], JsonObject]) -> types.Content | None:
    waiting: dict[str, types.FunctionCall] = {}
    for event in events:
        for call in event.get_function_calls():
            if call.id in (event.long_running_tool_ids or ()):
                waiting[call.id or ""] = call
        if event.author == "user":
            for response in event.get_function_responses():
                waiting.pop(response.id or "", None)
    parts = [
        types.Part(function_response=types.FunctionResponse(id=i, name=call.name, response=reply(call)))
        for i, call in waiting.items()
    ]
    return types.Content(role="user", parts=parts) if parts else None


@pytest.mark.parametrize("resumable", [False, True])
@pytest.mark.parametrize("name", ASKING_WORLDS)
async def test_a_workflow_that_asks_is_as_on_plain_adk(name: str, resumable: bool) -> None:
    plain = _with_resumability(ASKING_WORLDS[name](), resumable)
    events, state = await run_plain_answering(plain, Person(name).natively)
    durable = _with_resumability(ASKING_WORLDS[name](), resumable)
    engine = durable.engine()
    engine.answer = Person(name).to_engine(engine.disk)
    await engine.turn("go")
    assert engine.disk.error is None
    assert engine.disk.status is TurnStatus.COMPLETED
    log = Counter(plain.log)
    log.update({entry: count - log[entry] for entry, count in RUN_ONCE.get(name, Counter()).items()})
    assert Counter(durable.log) == log
    if name != "confirmed":  # there the tool is asked about, not its node
        assert by_branch(_nameless(engine.disk.messages)) == by_branch(_nameless(events))
        assert [request_form(r) for r in durable.model.requests] == [request_form(r) for r in plain.model.requests]
    assert {key: value for key, value in state.items() if not key.startswith("temp:")} == engine.disk.state


def _nameless(events: list[JsonObject]) -> list[JsonObject]:
    """Comparable events, without the interrupt ids that ADK draws at random."""
    text = json.dumps(comparable(events))
    for number, event in enumerate(events_of(events)):
        for call in event.get_function_calls():
            if call.id in (event.long_running_tool_ids or ()):
                text = text.replace(str(call.id), f"asked {number}")
    renamed: list[JsonObject] = json.loads(text)
    return renamed


def _with_resumability(world: World, resumable: bool) -> World:
    if resumable:
        assert not isinstance(world.agent, App)
        config = ResumabilityConfig(is_resumable=True)
        world.agent = App(name="Flow", root_agent=world.agent, resumability_config=config)
    return world


@pytest.mark.parametrize("name", ASKING_WORLDS)
async def test_a_crash_at_any_write_and_a_restart_before_each_answer_change_nothing(name: str) -> None:
    undisturbed = ASKING_WORLDS[name]()
    engine = undisturbed.engine()
    engine.answer = Person(name).to_engine(engine.disk)
    await engine.turn("go")
    expected = engine.disk
    for point in range(1, expected.writes + 1):
        disk = Disk(crash_at=point)
        person = Person(name)
        first = ASKING_WORLDS[name]()
        engine = first.engine(disk)
        engine.answer = person.to_engine(disk)
        engine.begin("go")
        with pytest.raises(Crash):
            await engine.go_on()
        disk.reboot()
        at = f"crash at write {point}"
        recorded = len(disk.records)
        second = ASKING_WORLDS[name]()
        recovered = second.engine(disk)
        recovered.answer = _patient(person.to_engine(disk)) if point % 2 else person.to_engine(disk)
        assert await recovered.go_on() or await recovered.go_on(), at
        assert by_branch(_timeless(disk.messages)) == by_branch(_timeless(expected.messages)), at
        assert disk.state == expected.state, at
        assert disk.status is TurnStatus.COMPLETED, at
        assert recorded <= len(disk.records) or disk.start is not None, at


def _patient(answer: Callable[[Question], JsonValue]) -> Callable[[Question], Any]:
    """Answers nothing the first time it is asked: the turn is dropped, and goes on in another process."""
    left = [1]

    def reply(question: Question) -> Any:
        if left[0]:
            left[0] -= 1
            return None
        return answer(question)

    return reply


def _timeless(events: list[JsonObject]) -> list[JsonObject]:
    return [{key: value for key, value in event.items() if key != "timestamp"} for event in events]


async def test_temp_state_and_the_count_of_model_calls_live_for_the_whole_turn() -> None:
    def prepare(node_input: Any, ctx: Context) -> None:
        ctx.state["temp:kept"] = (1, "two")

    def ask(node_input: Any) -> RequestInput:
        return request(interrupt_id="more", message="More?")

    def use(node_input: Any, ctx: Context) -> str:
        return repr(ctx.state["temp:kept"])

    def world() -> World:
        model = ScriptedModel(replies=[says("one")])
        agents = [LlmAgent(name=name, model=model) for name in ("first", "second")]
        flow = Workflow(name="flow", edges=[(START, prepare, agents[0], ask, use, agents[1])])
        return World(model, flow, options={"run_config": RunConfig(max_llm_calls=1)})

    disk = Disk()
    engine = world().engine(disk)
    engine.answer = lambda question: None
    engine.begin("go")
    assert not await engine.go_on()
    assert disk.frontier is not None
    (question,) = disk.frontier.questions
    assert (question.question_id, question.tool_name, question.path, question.hint) == (
        "more",
        "ask",
        "flow/ask",
        "More?",
    )
    assert "temp:kept" not in disk.state
    again = world().engine(disk)
    assert await again.go_on()
    assert [message["output"] for message in disk.messages if message.get("output")] == ["(1, 'two')"]
    assert disk.error is not None
    assert disk.error.code == "LlmCallsLimitExceededError"


async def test_an_answer_that_did_not_come_in_time_is_an_error_object() -> None:
    engine = ASKING_WORLDS["two_at_once"]().engine()
    engine.answer = lambda question: ErrorInfo(code="expired", message="nobody answered in time")
    await engine.turn("go")
    assert engine.disk.messages[-1]["output"] == [
        "left={'error': 'nobody answered in time'}",
        "right={'error': 'nobody answered in time'}",
        "work=done",
    ]


def _always(said: Any) -> Callable[[Question], Any]:
    return lambda question: said


async def test_a_confirmation_that_is_refused_or_expires_does_not_run_the_node() -> None:
    refused: JsonObject = {"approved": False, "payload": None, "message": "no"}
    for said in (refused, ErrorInfo(code="expired", message="too late")):
        world = ASKING_WORLDS["confirmed"]()
        engine = world.engine(decide=lambda request: "no")
        engine.answer = _always(said)
        await engine.turn("go")
        assert not [entry for entry in world.log if entry.startswith("remove")]
        assert "removed" not in engine.disk.state


async def test_a_session_whose_turns_ask_under_one_id_keeps_them_apart() -> None:
    """Field case 17, too: what an earlier turn did is not taken for this turn's."""
    world = ASKING_WORLDS["until_ok"]()
    engine = world.engine()
    for turn in (1, 2):
        engine.answer = Person("until_ok").to_engine(engine.disk)
        await engine.turn("go")
        assert engine.disk.error is None
        assert world.log.count("insist") == 4 * turn
        assert engine.disk.state["entries"] == 4 * turn


async def test_a_workflow_that_asks_as_a_tool_does_not_cut_off_the_tool_beside_it() -> None:
    """Plain ADK cancels it, and runs it again after the answer."""
    log: list[str] = []

    def ask(node_input: Any) -> RequestInput:
        return request(interrupt_id="more", message="More?")

    def use(node_input: Any) -> Any:
        return node_input

    async def slow(tool_context: ToolContext) -> str:
        """Takes longer than the question."""
        log.append("slow")
        while not any(event.long_running_tool_ids for event in tool_context.session.events):  # noqa: ASYNC110 - nobody tells
            await asyncio.sleep(0)
        log.append("slow is done")
        return "slow"

    class Item(BaseModel):
        item: str

    quote = Workflow(name="quote", description="Quotes.", input_schema=Item, edges=[(START, ask, use)])
    model = ScriptedModel(replies=[calls(("quote", {"item": "pen"}), ("slow", {})), says("quoted")])
    engine = World(model, LlmAgent(name="seller", model=model, tools=[cast(Any, quote), slow])).engine()
    engine.answer = lambda question: {"price": 2}
    await engine.turn("go")
    assert log == ["slow", "slow is done"]
    answers = [part.function_response for part in model.requests[-1].contents[-1].parts or []]
    assert {answer.name: answer.response for answer in answers if answer} == {
        "quote": {"price": 2},
        "slow": {"result": "slow"},
    }
