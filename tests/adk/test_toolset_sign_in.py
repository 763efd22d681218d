"""Toolsets that need a sign-in before they can list their tools."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest
from google.adk.agents.readonly_context import ReadonlyContext
from google.adk.auth.auth_tool import AuthConfig
from google.adk.tools.base_tool import BaseTool
from google.adk.tools.base_toolset import BaseToolset
from google.adk.tools.function_tool import FunctionTool
from tests.adk.disk import Crash, Disk
from tests.adk.engine import Engine
from tests.adk.model import calls, says
from tests.adk.shapes import Cast
from tests.support.token_server import TokenServer, token_server

from perdure.session.model import InterruptKind, JsonObject
from perdure.session.runner import AgentFrameworkRunner, Question, QuestionWait

pytestmark = pytest.mark.filterwarnings("ignore:This method is deprecated. Use credential_key:DeprecationWarning")
"""ADK's own ``AuthConfig`` calls a method that it has deprecated."""


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[TokenServer]:
    monkeypatch.setenv("AUTHLIB_INSECURE_TRANSPORT", "1")
    with token_server() as running:
        yield running


class Locked(BaseToolset):
    """A toolset that lists its tool for whoever is signed in."""

    def __init__(self, config: AuthConfig, log: list[str]) -> None:
        super().__init__()
        self._config = config
        self._log = log

    def get_auth_config(self) -> AuthConfig:
        return self._config

    async def get_tools(self, readonly_context: ReadonlyContext | None = None) -> list[BaseTool]:
        assert readonly_context is not None
        credential = readonly_context._invocation_context.credential_by_key.get(self._config.credential_key or "")
        token = credential.oauth2.access_token if credential and credential.oauth2 else None
        self._log.append(f"list {token}")

        def open_door() -> str:
            """Opens the door."""
            self._log.append("open")
            return "open"

        return [FunctionTool(open_door)] if token else []

    async def close(self) -> None:
        pass


def door(server: TokenServer) -> tuple[AgentFrameworkRunner, list[str]]:
    cast = Cast()
    agent = cast.llm("porter", calls(("open_door", {})), says("it is open"))
    runner = cast.world(agent).engine().runner
    agent.tools.append(Locked(server.config(), cast.log))  # what a flow checks when it is built is another matter
    return runner, cast.log


def yes(server: TokenServer, code: str) -> Any:
    def answer(question: Question) -> JsonObject:
        config: JsonObject = json.loads(json.dumps(question.payload))
        oauth2 = config["exchangedAuthCredential"]["oauth2"]
        state = parse_qs(urlsplit(oauth2["authUri"]).query)["state"][0]
        fresh = f"{code}x" if code in server.used else code
        oauth2["authResponseUri"] = f"http://localhost/back?code={fresh}&state={state}"
        return {"approved": True, "payload": config}

    return answer


async def test_the_invocation_waits_and_goes_on_with_the_tools(server: TokenServer) -> None:
    runner, log = door(server)
    engine = Engine(runner)
    engine.answer = yes(server, "code-a")
    await engine.turn("go")
    assert engine.disk.error is None
    (question,) = engine.disk.questions.values()
    assert (question.kind, question.wait) == (InterruptKind.CREDENTIAL, QuestionWait.LIVE)
    assert (question.tool_name, question.agent_name) == ("Locked", "porter")
    assert engine.disk.messages[-1]["content"]["parts"] == [{"text": "it is open"}]
    assert (server.exchanges, server.refused) == (["code-a"], [])
    assert log.count("open") == 1
    assert "access-token" not in json.dumps([engine.disk.messages, engine.disk.state])
    assert not any("credential" in json.dumps(message) for message in engine.disk.messages)


async def test_a_crash_at_any_write_redeems_no_code_twice(server: TokenServer) -> None:
    runner, _ = door(server)
    expected = Engine(runner)
    expected.answer = yes(server, "code-0")
    await expected.turn("go")
    for point in range(1, expected.disk.writes + 1):
        disk, code = Disk(crash_at=point), f"code-{point}"
        first = Engine(door(server)[0], disk)
        first.answer = yes(server, code)
        first.begin("go")
        with pytest.raises(Crash):
            await first.go_on()
        disk.reboot()
        second = Engine(door(server)[0], disk)
        second.answer = yes(server, code)
        assert await second.go_on()
        at = f"crash at write {point}"
        assert disk.messages[-1]["content"]["parts"] == [{"text": "it is open"}], at
        assert [m["id"] for m in disk.messages] == [m["id"] for m in expected.disk.messages], at
        assert set(server.refused) <= {code}, at
        server.refused.clear()


async def test_a_refused_sign_in_is_asked_for_once_in_a_turn(server: TokenServer) -> None:
    runner, log = door(server)
    engine = Engine(runner)
    engine.answer = lambda question: {"approved": False, "payload": None, "message": "No."}
    await engine.turn("go")
    assert len(engine.disk.questions) == 1
    assert server.used == []
    assert log == ["list None"] * len(log)
    response = engine.disk.messages[2]["content"]["parts"][0]["function_response"]["response"]
    assert "no tool with that name" in response["error"]
