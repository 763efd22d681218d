"""Wrong calls of a durable runner: answers that say nothing, ids of others, a runner that was closed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from google.adk.agents import LlmAgent
from google.adk.tools.function_tool import FunctionTool
from google.adk.tools.long_running_tool import LongRunningFunctionTool
from google.genai import types
from tests.durable_runner import agents
from tests.durable_runner.support import (
    APP,
    SESSION,
    USER,
    Talk,
    durable,
    plain,
    requests_in,
    responds,
    text_of,
    words,
)
from tests.durable_runner.test_asking_tools import fetch

from perdure import AgentSessionClient, SessionStatus, ToolEffect, open_engine
from perdure.adk import DurableRunner, DurableSessionService, NoSuchSession, SessionIdTaken, WrongCall
from perdure.testing import ScriptedModel, call, reply, text


def clerk(*tools: Any, script: list[Any]) -> LlmAgent:
    return LlmAgent(name="clerk", model=ScriptedModel([*script, text("Done.")]), instruction="Work.", tools=[*tools])


def pay() -> str:
    """Pays."""
    return "paid"


def ask() -> None:
    """Asks a person."""


def gated() -> LlmAgent:
    return clerk(FunctionTool(pay, require_confirmation=True), script=[call("pay")])


async def _request(talk: Talk, name: str) -> types.FunctionCall:
    await talk.start()
    (request,) = requests_in(await talk.say("go"), name)
    return request


async def _is_refused(runner: DurableRunner, talk: Talk, answer: types.Content, words: str) -> None:
    """The answer is refused in these words, and decides nothing."""
    before = await (await runner.sessions()).get_agent_snapshot(SESSION)
    assert await talk.say(answer) == []
    error = talk.failures[-1]
    assert isinstance(error, WrongCall)
    assert words in str(error)
    after = await (await runner.sessions()).get_agent_snapshot(SESSION)
    assert after.status is SessionStatus.WAITING
    assert after.pending_interrupts == before.pending_interrupts


# ---------------------------------------------------------------- answers


@pytest.mark.parametrize(
    "empty", [None, {}, {"payload": {"days": 2}}, {"hint": "yes"}, {"response": "{}"}, {"response": "null"}], ids=str
)
async def test_a_confirmation_that_says_neither_yes_nor_no_decides_nothing(empty: Any, tmp_path: Path) -> None:
    async with durable(gated(), tmp_path) as runner:
        talk = Talk(runner)
        request = await _request(talk, "adk_request_confirmation")
        response = types.FunctionResponse(id=request.id, name=request.name, response=empty)
        answer = types.UserContent(types.Part(function_response=response))
        await _is_refused(runner, talk, answer, "give {'confirmed': True} or {'confirmed': False}")
        assert text_of(await talk.say(responds((request, {"confirmed": True})))) == ["Done."]


@pytest.mark.parametrize("empty", [None, {}], ids=str)
async def test_a_sign_in_that_is_empty_signs_nobody_in(empty: Any, tmp_path: Path) -> None:
    async with durable(clerk(fetch, script=[call("fetch")]), tmp_path) as runner:
        talk = Talk(runner)
        request = await _request(talk, "adk_request_credential")
        response = types.FunctionResponse(id=request.id, name=request.name, response=empty)
        answer = types.UserContent(types.Part(function_response=response))
        await _is_refused(runner, talk, answer, "is no sign-in; give the request's AuthConfig")


async def test_an_answer_under_another_name_is_refused(tmp_path: Path) -> None:
    agent = clerk(LongRunningFunctionTool(ask), script=[call("ask")])
    async with durable(agent, tmp_path, tool_policies=None) as runner:
        talk = Talk(runner)
        request = await _request(talk, "ask")
        wrong = types.FunctionCall(id=request.id, name="task")
        await _is_refused(runner, talk, responds((wrong, {"result": 1})), "the call with this id is of 'ask'")
        assert text_of(await talk.say(responds((request, {"result": 1})))) == ["Done."]


async def test_one_wrong_name_among_several_answers_decides_none_of_them(tmp_path: Path) -> None:
    agent = clerk(FunctionTool(pay, require_confirmation=True), script=[reply(call("pay"), call("pay"))])
    async with durable(agent, tmp_path) as runner:
        talk = Talk(runner)
        await talk.start()
        first, second = requests_in(await talk.say("go"))
        wrong = types.FunctionCall(id=second.id, name="pay")
        yes = {"confirmed": True}
        answer = responds((first, yes), (wrong, yes))
        await _is_refused(runner, talk, answer, "is of 'adk_request_confirmation'; give that name")
        assert text_of(await talk.say(responds((first, yes), (second, yes)))) == ["Done."]


async def test_words_that_are_no_content_are_refused(tmp_path: Path) -> None:
    async with durable(agents.talker(), tmp_path) as runner:
        with pytest.raises(WrongCall, match=r"new_message is 'hello'; it must be .*UserContent\('Hello'\), not a str"):
            await anext(runner.run_async(user_id=USER, session_id=SESSION, new_message="hello"))  # type: ignore[arg-type]  # that is the test


# ---------------------------------------------------------------- ids


async def test_an_id_that_another_user_or_app_has_says_what_is_the_matter_and_no_more(tmp_path: Path) -> None:
    async with DurableSessionService(f"sqlite:///{tmp_path / 'service.db'}") as service:
        await service.create_session(app_name=APP, user_id=USER, session_id=SESSION, state={"secret": 1})
        for app, user in ((APP, "bob"), ("other", USER)):
            with pytest.raises(SessionIdTaken) as taken:
                await service.create_session(app_name=app, user_id=user, session_id=SESSION)
            told = str(taken.value)
            assert f"It is not a session of user '{user}' of app '{app}': an id is unique in the whole store" in told
            assert "Choose another id" in told
            assert "'ann'" not in told or user == "ann", "nothing is said of whose it is"
        with pytest.raises(SessionIdTaken, match="It is a session of user 'ann' of app 'app': go on with it"):
            await service.create_session(app_name=APP, user_id=USER, session_id=SESSION)


async def test_a_session_of_another_user_is_not_there_and_cannot_be_created(tmp_path: Path) -> None:
    async with durable(agents.talker(), tmp_path) as runner:
        await Talk(runner).start()
        talk = Talk(runner)
        await talk.say("go", user_id="bob")
        assert isinstance(talk.failures[-1], NoSuchSession)
        assert "User 'bob' of app 'app' has no session of this id: check the three" in str(talk.failures[-1])
        runner.auto_create_session = True
        await talk.say("go", user_id="bob")
        assert isinstance(talk.failures[-1], SessionIdTaken), "it says why the session is not created"
        assert "Choose another id" in str(talk.failures[-1])
        assert text_of(await talk.say("go")), "it is still Ann's"


# ---------------------------------------------------------------- after the end


async def test_a_closed_runner_works_on_as_a_plain_one_does(tmp_path: Path) -> None:
    """ADK's runner is not ended by ``close``; neither is this one: it opens its engine anew."""
    build = agents.talker
    expected = Talk(plain(build()))
    await expected.start()
    await expected.runner.close()
    told = text_of(await expected.say("go"))
    runner = DurableRunner(
        agent=build(), app_name=APP, engine=f"sqlite:///{tmp_path / 'runner.db'}", default_tool_effect=ToolEffect.READ
    )
    talk = Talk(runner)
    await talk.start()
    await runner.close()
    assert text_of(await talk.say("go")) == told
    assert expected.failures == talk.failures == [None]
    await runner.close()
    events, _ = await talk.session()
    assert text_of(events)[-len(told) :] == told
    sessions = await runner.sessions()
    assert (await sessions.get_agent_snapshot(SESSION)).status is SessionStatus.IDLE
    await runner.close()
    await runner.close()


async def test_an_engine_of_the_caller_that_is_closed_is_named(tmp_path: Path) -> None:
    engine = open_engine(f"sqlite:///{tmp_path / 'runner.db'}")
    async with engine, DurableRunner(agent=agents.talker(), app_name=APP, engine=engine) as runner:
        await Talk(runner).start()
    with pytest.raises(Exception, match="not open") as refusal:
        await anext(runner.run_async(user_id=USER, session_id=SESSION, new_message=words("go")))
    assert type(refusal.value).__module__.startswith("perdure.")
    with pytest.raises(Exception, match="not open"):
        await AgentSessionClient(engine, runner.flow).get_agent_snapshot(SESSION)
