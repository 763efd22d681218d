"""Workflows through a durable runner: what comes out, and questions asked and answered as on plain ADK."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from fastapi.openapi.models import APIKey
from google.adk.agents import LlmAgent
from google.adk.agents.context import Context
from google.adk.apps.app import App
from google.adk.auth.auth_credential import AuthCredential, AuthCredentialTypes
from google.adk.auth.auth_handler import AuthHandler
from google.adk.auth.auth_tool import AuthConfig
from google.adk.events.event import Event
from google.adk.events.request_input import RequestInput
from google.adk.runners import Runner
from google.adk.sessions import InMemorySessionService
from google.adk.tools._request_input_tool import request_input
from google.adk.workflow import START, JoinNode, Workflow, node
from google.genai import types
from tests.durable_runner.support import APP, SESSION, USER, Talk, comparable, responds
from tests.support.nodes import request

from perdure import SessionStatus, ToolEffect, open_engine
from perdure.adk import DurableRunner
from perdure.testing import ScriptedModel, call, text

KEY = AuthConfig(
    auth_scheme=APIKey.model_validate({"type": "apiKey", "in": "header", "name": "key"}),
    raw_auth_credential=AuthCredential(auth_type=AuthCredentialTypes.API_KEY),
    credential_key="shop",
)

Root = dict[str, Any]
"""The arguments with which both kinds of runner take a root."""


def question() -> Root:
    """A node asks; the next one uses the answer, and an agent speaks last."""

    def ask(node_input: Any, ctx: Context) -> RequestInput:
        ctx.state["asked"] = True
        return request(interrupt_id="name", message="Your name?", payload={"form": 1}, response_schema=str)

    def use(node_input: Any, ctx: Context) -> str:
        ctx.state["name"] = node_input
        return f"hello {node_input}"

    writer = LlmAgent(name="writer", model=ScriptedModel([text("A greeting.")]), instruction="Greet.")
    return {"node": Workflow(name="flow", edges=[(START, ask, use, writer)]), "app_name": APP}


def two_questions() -> Root:
    """Two branches ask at once."""

    def asker(name: str) -> Any:
        def ask(node_input: Any) -> RequestInput:
            return request(interrupt_id=name, message=f"{name}?")

        return node(ask, name=name)

    def use(node_input: Any) -> str:
        return f"got {node_input}"

    left, right = asker("left"), asker("right")
    flow = Workflow(name="flow", edges=[(START, (left, right), JoinNode(name="both"), use)])
    return {"app": App(name=APP, root_agent=flow)}


def confirmed() -> Root:
    @node(require_confirmation=True)
    def pay(node_input: Any) -> str:
        return "paid"

    def after(node_input: Any) -> str:
        return f"after {node_input}"

    return {"node": Workflow(name="flow", edges=[(START, pay, after)]), "app_name": APP}


def signed_in() -> Root:
    @node(auth_config=KEY, rerun_on_resume=True)
    def fetch(node_input: Any, ctx: Context) -> str:
        credential = AuthHandler(KEY).get_auth_response(ctx.state)
        return f"fetched with {credential and credential.api_key}"

    def after(node_input: Any) -> str:
        return f"after: {node_input}"

    return {"node": Workflow(name="flow", edges=[(START, fetch, after)]), "app_name": APP}


def asking_tool() -> Root:
    script = [call("adk_request_input", message="Which one?"), text("Thanks.")]
    agent = LlmAgent(name="asker", model=ScriptedModel(script), instruction="Ask.", tools=[request_input])
    return {"agent": agent, "app_name": APP}


def _key(asked: types.FunctionCall) -> dict[str, Any]:
    answer = AuthConfig.model_validate((asked.args or {})["authConfig"])
    answer.exchanged_auth_credential = AuthCredential(auth_type=AuthCredentialTypes.API_KEY, api_key="secret")
    return answer.model_dump(mode="json", exclude_none=True, by_alias=True)


WORLDS: dict[str, tuple[Callable[[], Root], Callable[[types.FunctionCall], dict[str, Any]]]] = {
    "question": (question, lambda asked: {"result": "Ann"}),
    "two questions": (two_questions, lambda asked: {"result": asked.id}),
    "confirmed": (confirmed, lambda asked: {"confirmed": True}),
    "refused": (confirmed, lambda asked: {"confirmed": False}),
    "signed in": (signed_in, _key),
    "asking tool": (asking_tool, lambda asked: {"result": "that one"}),
}


@asynccontextmanager
async def durable(root: Root, folder: Path) -> AsyncGenerator[DurableRunner]:
    async with (
        open_engine(f"sqlite:///{folder / 'runner.db'}", durability="process") as engine,
        DurableRunner(engine=engine, default_tool_effect=ToolEffect.READ, **root) as runner,
    ):
        yield runner


def open_calls(events: list[Event]) -> list[types.FunctionCall]:
    return [c for event in events for c in event.get_function_calls() if c.id in (event.long_running_tool_ids or ())]


def shape(events: list[Event]) -> list[dict[str, Any]]:
    """Comparable events; a plain runner yields a generated interrupt id that differs from run to run."""
    return [{key: value for key, value in form.items() if key != "id"} for form in comparable(events)]


@pytest.mark.filterwarnings("ignore:This method is deprecated. Use credential_key:DeprecationWarning")  # ADK does
@pytest.mark.parametrize("restart", [False, True], ids=["live", "restarted"])
@pytest.mark.parametrize("name", WORLDS)
async def test_it_asks_and_goes_on_as_on_plain_adk(name: str, restart: bool, tmp_path: Path) -> None:
    build, answer = WORLDS[name]
    expected = Talk(Runner(session_service=InMemorySessionService(), **build()))
    await expected.start()
    asked = open_calls(await expected.say("go"))
    await expected.say(responds(*((one, answer(one)) for one in asked)))
    assert expected.failures == [None, None]

    async with durable(build(), tmp_path) as runner:
        talk = Talk(runner)
        await talk.start()
        ours = open_calls(await talk.say("go"))
        joined = [event async for event in runner.run_async(
            user_id=USER, session_id=SESSION, invocation_id=talk.yielded[0][0].invocation_id
        )]  # fmt: skip
        if not restart:
            await talk.say(responds(*((one, answer(one)) for one in ours)))
    if restart:
        async with durable(build(), tmp_path) as runner:
            talk.runner = runner
            await talk.say(responds(*((one, answer(one)) for one in ours)))
            snapshot = await (await runner.sessions()).get_agent_snapshot(SESSION)
            assert snapshot.status is SessionStatus.IDLE
            state = (await talk.session())[1]
        assert {k: v for k, v in (await expected.session())[1].items() if not k.startswith("temp:")} == state
    assert talk.failures == [None, None]
    for run in (0, 1):
        assert shape(talk.yielded[run]) == shape(expected.yielded[run]), f"run {run}"
    assert [(one.id, one.name) for one in open_calls(joined)] == [(one.id, one.name) for one in ours]
    assert [one.args for one in open_calls(joined)] == [one.args for one in ours], "whoever joins is asked the same"


async def test_an_answer_to_a_question_of_an_earlier_turn_is_not_taken_for_this_one(tmp_path: Path) -> None:
    """A node asks under one id in every turn: the newest question is meant."""
    async with durable(confirmed(), tmp_path) as runner:
        talk = Talk(runner)
        await talk.start()
        for confirmed_now in (True, False):
            (asked,) = open_calls(await talk.say("go"))
            answer = responds((asked, {"confirmed": confirmed_now}))
            await talk.say(answer)
            assert talk.failures == [None] * len(talk.failures)
            await talk.say(answer)
            assert (talk.yielded[-1], talk.failures[-1]) == ([], None), "the identical answer again changes nothing"
