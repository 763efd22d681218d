"""Tools that ask in the middle of their run, through a durable runner and on plain ADK."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from fastapi.openapi.models import APIKey
from google.adk.agents import BaseAgent, LlmAgent
from google.adk.auth.auth_credential import AuthCredential, AuthCredentialTypes
from google.adk.auth.auth_tool import AuthConfig
from google.adk.tools.agent_tool import AgentTool
from google.adk.tools.function_tool import FunctionTool
from google.adk.tools.tool_context import ToolContext
from google.genai import types
from tests.durable_runner.support import (
    Talk,
    as_stored,
    comparable,
    durable,
    plain,
    requests_in,
    responds,
    text_of,
    without_waits,
)

from perdure.testing import ScriptedModel, call, text

KEY = AuthConfig(
    auth_scheme=APIKey.model_validate({"type": "apiKey", "in": "header", "name": "key"}),
    raw_auth_credential=AuthCredential(auth_type=AuthCredentialTypes.API_KEY),
    credential_key="shop",
)


def book(days: int, tool_context: ToolContext) -> dict[str, Any]:
    """Books, once somebody has said how many days."""
    confirmation = tool_context.tool_confirmation
    if confirmation is None:
        tool_context.state["asked"] = days
        tool_context.request_confirmation(hint="How many days?", payload={"days": days})
        return {"status": "somebody is asked"}
    return {"booked": (confirmation.payload or {})["days"] if confirmation.confirmed else 0}


def fetch(tool_context: ToolContext) -> dict[str, Any]:
    """Fetches, once somebody has signed in."""
    credential = tool_context.get_auth_response(KEY)
    if credential is None:
        tool_context.request_credential(KEY)
        return {"status": "somebody has to sign in"}
    return {"fetched_with": credential.api_key}


def _agent(tool: Any, name: str, **arguments: Any) -> LlmAgent:
    script = [call(name, **arguments), text("That is done.")]
    return LlmAgent(name="clerk", model=ScriptedModel(script), instruction="Work.", tools=[tool])


@pytest.mark.parametrize("confirmed", [True, False])
async def test_a_confirmation_that_a_tool_asks_for_itself(confirmed: bool, tmp_path: Path) -> None:
    expected = Talk(plain(_agent(book, "book", days=3)))
    await expected.start()
    await expected.say("go")
    await expected.approve(confirmed, payload={"days": 2})
    async with durable(_agent(book, "book", days=3), tmp_path) as runner:
        talk = Talk(runner)
        await talk.start()
        await talk.say("go")
    async with durable(_agent(book, "book", days=3), tmp_path) as runner:
        again = Talk(runner, yielded=talk.yielded)
        await again.approve(confirmed, payload={"days": 2})
        assert again.failures == [None]
        state = (await again.session())[1]
    # On plain ADK the model is told of the placeholder and goes on; here it sees the result only.
    assert comparable(again.yielded[0]) == comparable(without_waits(expected.yielded[0])[:2])
    assert text_of(again.yielded[1]) == ["That is done."]
    (result,) = [response.response for event in again.yielded[1] for response in event.get_function_responses()]
    # A rejection is enforced; on plain ADK the tool runs and is asked to behave.
    assert result == ({"booked": 2} if confirmed else {"error": "This tool call is rejected."})
    assert state["asked"] == 3


async def test_a_sign_in(tmp_path: Path) -> None:
    async def signed_in(talk: Talk) -> None:
        await talk.start()
        (request,) = requests_in(await talk.say("go"), "adk_request_credential")
        assert request.args is not None
        answer = AuthConfig.model_validate(request.args["authConfig"])
        answer.exchanged_auth_credential = AuthCredential(auth_type=AuthCredentialTypes.API_KEY, api_key="secret")
        await talk.say(responds((request, answer.model_dump(mode="json", exclude_none=True, by_alias=True))))

    expected = Talk(plain(_agent(fetch, "fetch")))
    await signed_in(expected)
    async with durable(_agent(fetch, "fetch"), tmp_path) as runner:
        talk = Talk(runner)
        await signed_in(talk)
        assert talk.failures == expected.failures == [None, None]
    ours, theirs = (requests_in(one.yielded[0], "adk_request_credential") for one in (talk, expected))
    assert [request.args for request in ours] == [
        {**(request.args or {}), "functionCallId": (ours[0].args or {})["functionCallId"]} for request in theirs
    ]
    assert text_of(talk.yielded[1]) == text_of(expected.yielded[1])
    results = [response.response for event in talk.yielded[1] for response in event.get_function_responses()]
    assert results == [{"fetched_with": "secret"}]


async def test_an_agent_that_runs_as_a_tool_asks_through_its_caller(tmp_path: Path) -> None:
    """Plain ADK cannot answer it; here the request names the inner agent."""

    def pay() -> str:
        """Pays."""
        return "paid"

    def build() -> BaseAgent:
        inner = LlmAgent(
            name="inner",
            model=ScriptedModel([call("pay"), text("It is paid.")]),
            instruction="Pay.",
            tools=[FunctionTool(pay, require_confirmation=True)],
        )
        return _agent(AgentTool(inner), "inner", request="pay")

    async with durable(build(), tmp_path) as runner:
        talk = Talk(runner)
        await talk.start()
        (request,) = requests_in(await talk.say("go"))
        assert talk.yielded[0][-1].author == "inner"
    async with durable(build(), tmp_path) as runner:
        again = Talk(runner, yielded=talk.yielded)
        assert text_of(await again.approve()) == ["That is done."]
        assert isinstance(request, types.FunctionCall)
        assert as_stored((await again.session())[0]) == (await again.session())[0]
