"""Nodes of workflows that need a sign-in (``auth_config``) with a code that is good for one use."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest
from google.adk.agents.context import Context
from google.adk.auth.auth_handler import AuthHandler
from google.adk.events.request_input import RequestInput
from google.adk.workflow import START, Workflow, node
from google.genai import types
from tests.adk.disk import Crash, Disk
from tests.adk.engine import Engine
from tests.adk.model import ScriptedModel
from tests.adk.test_asking_workflows import run_plain_answering
from tests.adk.worlds import World
from tests.support.nodes import request
from tests.support.token_server import SECRET, TokenServer, token_server

from perdure.session.model import InterruptKind, JsonObject, TurnStatus
from perdure.session.runner import Question, QuestionWait

pytestmark = pytest.mark.filterwarnings("ignore:This method is deprecated. Use credential_key:DeprecationWarning")
"""ADK's own ``AuthConfig`` calls a method that it has deprecated."""


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[TokenServer]:
    monkeypatch.setenv("AUTHLIB_INSECURE_TRANSPORT", "1")
    with token_server() as running:
        yield running


def mailing(server: TokenServer) -> World:
    """A node signs in and reads; a later one asks a person, so that the turn has one leg more; the last one reads."""
    log: list[str] = []

    def token(ctx: Context) -> str | None:
        credential = AuthHandler(server.config("mail")).get_auth_response(ctx.state)
        return credential.oauth2.access_token if credential and credential.oauth2 else None

    @node(auth_config=server.config("mail"), rerun_on_resume=True)
    def inbox(node_input: Any, ctx: Context) -> str:
        log.append(f"inbox {token(ctx)}")
        return "no mail"

    def ask(node_input: Any) -> RequestInput:
        return request(interrupt_id="more", message="And what was sent?")

    @node(auth_config=server.config("mail"), rerun_on_resume=True)
    def sent(node_input: Any, ctx: Context) -> str:
        log.append(f"sent {token(ctx)}")
        return "nothing sent"

    return World(ScriptedModel(replies=[]), Workflow(name="flow", edges=[(START, inbox, ask, sent)]), log)


def signed(asked: Any, code: str) -> JsonObject:
    answer: JsonObject = json.loads(json.dumps(asked))
    oauth2 = answer["exchangedAuthCredential"]["oauth2"]
    state = parse_qs(urlsplit(oauth2["authUri"]).query)["state"][0]
    oauth2["authResponseUri"] = f"http://localhost/back?code={code}&state={state}"
    return answer


def person(server: TokenServer, code: str) -> Any:
    """Whoever signs in gets a new code once the first one is used."""

    def answer(question: Question) -> JsonObject:
        if question.kind is InterruptKind.INPUT:
            return {"result": "yes"}
        assert question.wait is QuestionWait.NEXT_LEG
        fresh = f"{code}x" if code in server.used else code
        return {"approved": True, "payload": signed(question.payload, fresh), "message": ""}

    return answer


def working(world: World, server: TokenServer, code: str, disk: Disk | None = None) -> Engine:
    engine = world.engine(disk)
    engine.answer = person(server, code)
    return engine


async def test_it_runs_as_on_plain_adk_and_shows_nobody_a_secret(server: TokenServer) -> None:
    def reply(call: types.FunctionCall, rounds: int) -> JsonObject:
        if call.name == "adk_request_input":
            return {"result": "yes"}
        return signed((call.args or {})["authConfig"], f"code-plain{rounds}")

    plain = mailing(server)
    await run_plain_answering(plain, reply)
    world = mailing(server)
    engine = working(world, server, "code-a")
    await engine.turn("go")
    assert (engine.disk.error, engine.disk.status) == (None, TurnStatus.COMPLETED)
    assert [line.split(" ")[0] for line in world.log] == [line.split(" ")[0] for line in plain.log] == ["inbox", "sent"]
    assert all("access-token" in line for line in plain.log[:1] + world.log), (plain.log, world.log)
    assert server.exchanges.count("code-a") == 1
    assert server.refused == []
    shown = json.dumps([engine.disk.messages, [q.payload for q in engine.disk.questions.values()], engine.disk.state])
    for secret in ("access-token", "refresh-token", SECRET):
        assert secret not in shown, secret


async def test_a_crash_at_any_write_redeems_no_code_twice(server: TokenServer) -> None:
    expected = working(mailing(server), server, "code-0")
    await expected.turn("go")
    burnt: list[int] = []
    for point in range(1, expected.disk.writes + 1):
        disk, code = Disk(crash_at=point), f"code-{point}"
        first = working(mailing(server), server, code, disk)
        first.begin("go")
        with pytest.raises(Crash):
            await first.go_on()
        disk.reboot()
        world = mailing(server)
        second = working(world, server, code, disk)
        assert await second.go_on() or await second.go_on()
        at = f"crash at write {point}"
        assert (disk.status, disk.error) == (TurnStatus.COMPLETED, None), at
        assert [message.get("output") for message in disk.messages if message.get("output")] == [
            message.get("output") for message in expected.disk.messages if message.get("output")
        ], at
        if any("None" in line for line in world.log):
            burnt.append(point)
            assert set(server.refused) == {code}, "the code was used up"
        else:
            assert server.refused == [], at
        server.refused.clear()
    assert len(burnt) == 1, "between the token server's answer and its record nothing helps"
