"""A toolset that needs a sign-in before it lists its tools, in a flow as anybody builds it, and through a runner."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from google.adk.agents import LlmAgent
from google.adk.auth.auth_tool import AuthConfig
from google.genai import types
from tests.adk.test_toolset_sign_in import Locked
from tests.durable_runner.support import Talk, comparable, plain, requests_in, responds, text_of
from tests.durable_runner.support import durable as durable_runner
from tests.field.support import PATIENCE, READ, SESSION, Field, durable, say, turn_of
from tests.field.test_case_29_sign_in import signed_in
from tests.support.token_server import SECRET, TokenServer, token_server

from perdure import InterruptKind, SessionStatus, TurnStatus
from perdure.testing import ScriptedModel, call, text

pytestmark = pytest.mark.filterwarnings("ignore:This method is deprecated. Use credential_key:DeprecationWarning")
"""ADK's own ``AuthConfig`` calls a method that it has deprecated."""


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[TokenServer]:
    monkeypatch.setenv("AUTHLIB_INSECURE_TRANSPORT", "1")
    with token_server() as running:
        yield running


def porter(config: AuthConfig, log: list[str]) -> LlmAgent:
    script = [call("open_door"), text("It is open.")]
    return LlmAgent(name="porter", model=ScriptedModel(script), instruction="Open.", tools=[Locked(config, log)])


async def test_a_flow_waits_for_the_sign_in_and_goes_on_in_another_process(field: Field, server: TokenServer) -> None:
    log: list[str] = []
    async with field.working(durable(porter(server.config(), log), {"open_door": READ})) as client:
        snapshot = await say(client, "go")
        assert snapshot.status is SessionStatus.WAITING
        (asked,) = snapshot.pending_interrupts
        assert (asked.kind, asked.agent_name, asked.tool_name) == (InterruptKind.CREDENTIAL, "porter", "Locked")
        assert SECRET not in asked.model_dump_json()
    async with field.working(durable(porter(server.config(), log), {"open_door": READ})) as client:
        await client.resolve_interrupt(SESSION, asked.interrupt_id, approved=True, payload=signed_in(asked, "code-a"))
        snapshot = await client.wait(SESSION, timeout=PATIENCE)
        assert (snapshot.status, turn_of(snapshot).status) == (SessionStatus.IDLE, TurnStatus.COMPLETED)
        messages = [item.model_dump_json() for item in (await client.list_messages(SESSION)).items]
    assert log.count("open") == 1
    assert (server.exchanges, server.refused) == (["code-a"], [])
    assert not any(secret in "".join(messages) for secret in ("access-token", SECRET, "code-a"))


async def test_a_runner_asks_and_is_answered_as_a_plain_one(tmp_path: Path, server: TokenServer) -> None:
    async def through(talk: Talk, code: str) -> types.FunctionCall:
        await talk.start()
        (asked,) = requests_in(await talk.say("go"), "adk_request_credential")
        answer: dict[str, Any] = json.loads(json.dumps((asked.args or {})["authConfig"]))
        oauth2 = answer["exchangedAuthCredential"]["oauth2"]
        state = oauth2["state"]
        oauth2["authResponseUri"] = f"http://localhost/back?code={code}&state={state}"
        await talk.say(responds((asked, answer)))
        return asked

    log: list[str] = []
    expected = Talk(plain(porter(server.config(), log)))
    theirs = await through(expected, "code-plain")
    async with durable_runner(porter(server.config(), log), tmp_path) as runner:
        talk = Talk(runner)
        ours = await through(talk, "code-ours")
    assert talk.failures == expected.failures == [None, None]
    assert (ours.args or {}).keys() == (theirs.args or {}).keys()
    assert (ours.args or {})["functionCallId"] == (theirs.args or {})["functionCallId"]
    assert _roles(talk) == _roles(expected)
    assert text_of(talk.yielded[1]) == text_of(expected.yielded[1]) == ["It is open."]
    assert _calls(talk) == _calls(expected)
    assert log.count("open") == 2
    assert (server.exchanges, server.refused) == (["code-plain", "code-ours"], [])


def _roles(talk: Talk) -> list[str | None]:
    return [event.content.role if event.content else None for event in talk.yielded[0]]


def _calls(talk: Talk) -> list[Any]:
    return [event.get("content") for event in comparable(talk.yielded[1])]
