"""Sign-ins of tools: one exchange, one refresh, no token where anybody reads, and nobody's token for another user."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest
from fastapi.openapi.models import APIKey, APIKeyIn
from google.adk.auth.auth_credential import AuthCredential, AuthCredentialTypes
from google.adk.auth.auth_tool import AuthConfig
from google.adk.auth.credential_service.in_memory_credential_service import InMemoryCredentialService
from google.adk.tools.authenticated_function_tool import AuthenticatedFunctionTool
from google.adk.tools.tool_context import ToolContext
from tests.adk.disk import Crash, Disk
from tests.adk.engine import Engine, Rejected
from tests.adk.model import calls, says
from tests.adk.shapes import Cast
from tests.adk.worlds import World
from tests.support.token_server import SECRET, TokenServer, token_server

from perdure.adk.live.journal import ASIDE
from perdure.session.model import InterruptKind, JsonObject, UserMessage
from perdure.session.runner import CallRequest, ToolAsked

pytestmark = pytest.mark.filterwarnings("ignore:This method is deprecated. Use credential_key:DeprecationWarning")
"""ADK's own ``AuthConfig`` calls a method that it has deprecated."""


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[TokenServer]:
    monkeypatch.setenv("AUTHLIB_INSECURE_TRANSPORT", "1")
    with token_server() as running:
        yield running


def signed_in(asked: ToolAsked, code: str, state: str | None = None) -> JsonObject:
    """What a client answers: the request with the address to which the user was sent back."""
    answer: JsonObject = json.loads(json.dumps(asked.payload))
    oauth2 = answer["exchangedAuthCredential"]["oauth2"]
    sent = parse_qs(urlsplit(oauth2["authUri"]).query)["state"][0]
    oauth2["authResponseUri"] = f"http://localhost/back?code={code}&state={state or sent}"
    return answer


def mail(server: TokenServer, *, kind: str = "managed", services: dict[str, Any] | None = None) -> World:
    """Two tools that need one login: called beside each other, and one of them once more afterwards."""
    cast = Cast()

    def token_of(credential: AuthCredential | None) -> str:
        assert credential is not None
        assert credential.oauth2 is not None
        assert credential.oauth2.access_token
        return credential.oauth2.access_token

    def inbox(credential: AuthCredential) -> str:
        """Reads the inbox."""
        cast.log.append(f"inbox {token_of(credential)}")
        return "no mail"

    def sent(credential: AuthCredential) -> str:
        """Reads what was sent."""
        cast.log.append(f"sent {token_of(credential)}")
        return "nothing sent"

    async def by_hand(name: str, tool_context: ToolContext) -> str:
        credential = tool_context.get_auth_response(server.config())
        if credential is None or credential.oauth2 is None or not credential.oauth2.access_token:
            tool_context.request_credential(server.config())
            return "please sign in"
        cast.log.append(f"{name} {token_of(credential)}")
        return "read"

    async def inbox_by_hand(tool_context: ToolContext) -> str:
        """Reads the inbox."""
        return await by_hand("inbox", tool_context)

    async def sent_by_hand(tool_context: ToolContext) -> str:
        """Reads what was sent."""
        return await by_hand("sent", tool_context)

    inbox_by_hand.__name__, sent_by_hand.__name__ = "inbox", "sent"
    tools: tuple[Any, ...] = (inbox_by_hand, sent_by_hand)
    if kind == "managed":
        tools = tuple(AuthenticatedFunctionTool(func=each, auth_config=server.config()) for each in (inbox, sent))
    wanted = calls(("inbox", {}), ("sent", {}))
    agent = cast.llm("post", wanted, calls(("sent", {})), says("all read"), wanted, says("again"), tools=tools)
    return cast.world(agent, services=services or {}, messages=[UserMessage(text="go"), UserMessage(text="again")])


def engine_of(world: World, server: TokenServer, disk: Disk | None = None, code: str = "code-a") -> Engine:
    """Whoever signs in gets a new code once the first one is used."""
    engine = world.engine(disk)
    engine.answerer = lambda request, asked: signed_in(asked, f"{code}x" if code in server.used else code)
    return engine


def visible(disk: Disk) -> str:
    """All of a session that anybody reads."""
    asks = [[asked.hint, asked.payload, asked.outcome] for _, asked in disk.asks]
    outcomes = [record.outcome for record in disk.records.values()]
    items = [message.item for message in disk.new_messages]
    return json.dumps([disk.messages, items, disk.state, disk.results, asks, outcomes])


@pytest.mark.parametrize("kind", ["managed", "by hand"])
async def test_two_tools_that_need_one_login_share_it(server: TokenServer, kind: str) -> None:
    world = mail(server, kind=kind)
    engine = engine_of(world, server)
    await engine.turn("go")
    assert engine.disk.error is None
    assert (server.exchanges, server.refused) == (["code-a"], [])
    token = "access-token-authorization_code-1-of-a"
    assert sorted(world.log) == sorted([f"inbox {token}", f"sent {token}", f"sent {token}"])
    assert {asked.kind for _, asked in engine.disk.asks} == {InterruptKind.CREDENTIAL}
    assert "token-authorization" not in visible(engine.disk)
    assert SECRET not in visible(engine.disk)
    assert any(call.key.startswith(ASIDE) and token in call.response for call in engine.disk.model_calls)


@pytest.mark.parametrize("kind", ["managed", "by hand"])
async def test_a_crash_at_any_write_redeems_no_code_twice(server: TokenServer, kind: str) -> None:
    expected = engine_of(mail(server, kind=kind), server, code="code-0")
    await expected.turn("go")
    for point in range(1, expected.disk.writes + 1):
        code, disk = f"code-{point}", Disk(crash_at=point)
        first = engine_of(mail(server, kind=kind), server, disk, code)
        first.begin("go")
        with pytest.raises(Crash):
            await first.go_on()
        recorded = any(call.key.startswith(ASIDE) for call in disk.model_calls)
        disk.reboot()
        world = mail(server, kind=kind)
        assert await engine_of(world, server, disk, code).go_on()
        at = f"crash at write {point}"
        assert disk.messages[-1]["content"]["parts"] == [{"text": "all read"}], at
        # A worker that died before it could say what it got has burnt the code; whoever signed in is asked again.
        assert set(server.refused) <= {code}, at
        assert not (recorded and server.refused), at
        server.refused.clear()
        assert len({entry.rpartition(" ")[2] for entry in world.log}) <= 1, at


async def test_a_refresh_is_made_once_and_serves_both_tools(server: TokenServer) -> None:
    service = InMemoryCredentialService()
    server.expires_in = -100
    world = mail(server, services={"credential_service": service})
    engine = engine_of(world, server)
    await engine.turn("go")
    server.expires_in = 3600
    used = len(server.used)
    await engine.turn("again")
    assert engine.disk.error is None
    assert len(server.refreshes) == len(set(server.refreshes))
    assert server.refused == []
    assert len(server.used) == used + 1
    assert "token-authorization" not in visible(engine.disk)
    assert "refresh-token" not in visible(engine.disk)


async def test_a_refresh_that_was_recorded_is_not_made_again(server: TokenServer) -> None:
    """The worker dies when it has the new token and before the tool is through: the old refresh token is dead."""
    oauth2 = {"clientId": "app", "accessToken": "old", "refreshToken": "refresh-token-r", "expiresAt": 1}

    def expired() -> dict[str, Any]:
        """What a service that outlives a worker has when the turn begins."""
        old = AuthCredential.model_validate({"authType": "oauth2", "oauth2": oauth2})
        service = InMemoryCredentialService()
        service._credentials = {"Flow": {"u1": {server.config().credential_key: old}}}
        return {"credential_service": service}

    undisturbed = engine_of(mail(server, services=expired()), server)
    await undisturbed.turn("go")
    assert server.refreshes == ["refresh-token-r"]
    recorded = 0
    for point in range(3, undisturbed.disk.writes + 1):
        server.used.clear()
        disk = Disk(crash_at=point)
        first = engine_of(mail(server, services=expired()), server, disk)
        first.begin("go")
        with pytest.raises(Crash):
            await first.go_on()
        if not any(call.key.startswith(ASIDE) for call in disk.model_calls):
            continue
        recorded += 1
        disk.reboot()
        assert await engine_of(mail(server, services=expired()), server, disk).go_on()
        assert (server.refreshes, server.refused) == (["refresh-token-r"], []), f"crash at write {point}"
    assert recorded


async def test_one_users_token_is_never_anothers(server: TokenServer) -> None:
    service = InMemoryCredentialService()
    one = mail(server, services={"credential_service": service})
    runner = engine_of(one, server).runner
    first = Engine(runner, Disk(user_id="ann", session_id="s1"))
    first.answerer = lambda request, asked: signed_in(asked, "code-ann")
    await first.turn("go")
    second = Engine(runner, Disk(user_id="bob", session_id="s2"))
    second.answerer = lambda request, asked: signed_in(asked, "code-bob")
    one.model.requests.clear()
    await second.turn("go")
    assert second.disk.asks, "bob has to sign in himself"
    assert [entry.rpartition("-")[2] for entry in one.log] == ["ann"] * 3 + ["bob"] * 3


async def test_what_whoever_signs_in_is_shown(server: TokenServer) -> None:
    engine = engine_of(mail(server), server)
    await engine.turn("go")
    _, asked = engine.disk.asks[0]
    config = AuthConfig.model_validate(asked.payload)
    assert config.exchanged_auth_credential is not None
    oauth2 = config.exchanged_auth_credential.oauth2
    assert oauth2 is not None
    assert oauth2.auth_uri is not None
    assert oauth2.auth_uri.startswith(f"{server.url}/authorize?")
    assert oauth2.client_secret is None
    assert config.credential_key == server.config().credential_key
    assert asked.hint == "Tool 'inbox' needs a sign-in before it can go on."


async def test_an_answer_that_does_not_fit_is_not_used_and_the_tool_asks_again(server: TokenServer) -> None:
    engine = mail(server).engine()
    said: list[str] = []

    def answer(request: CallRequest, asked: ToolAsked) -> Any:
        said.append(request.tool_name)
        if len(said) <= 2:
            return signed_in(asked, "code-evil", state="of somebody else") if len(said) == 1 else {"odd": True}
        return signed_in(asked, "code-good")

    engine.answerer = answer
    await engine.turn("go")
    assert server.exchanges == ["code-good"]
    assert len(engine.disk.asks) > 2
    assert engine.disk.messages[-1]["content"]["parts"] == [{"text": "all read"}]


async def test_a_refused_sign_in_is_a_rejected_call(server: TokenServer) -> None:
    world = mail(server)
    engine = world.engine()
    engine.answerer = lambda request, asked: Rejected("Not with my account.")
    await engine.turn("go")
    assert (world.log, server.used) == ([], [])
    response = engine.disk.messages[2]["content"]["parts"][0]["function_response"]["response"]
    assert response == {"error": "Not with my account."}


async def test_an_api_key_is_given_as_it_is_and_is_not_kept_in_the_session() -> None:
    cast = Cast()
    config = AuthConfig(
        auth_scheme=APIKey.model_validate({"in": APIKeyIn.header, "name": "X-Key"}),
        raw_auth_credential=AuthCredential(auth_type=AuthCredentialTypes.API_KEY),
    )

    def look(tool_context: ToolContext) -> str:
        """Looks."""
        credential = tool_context.get_auth_response(config)
        if credential is None:
            tool_context.request_credential(config)
            return "please"
        cast.log.append(f"look {credential.api_key}")
        return "seen"

    world = cast.world(cast.llm("looker", calls(("look", {})), calls(("look", {})), says("ok"), tools=(look,)))
    engine = world.engine()
    engine.answerer = lambda request, asked: "key-of-the-user"
    await engine.turn("go")
    assert cast.log == ["look key-of-the-user"] * 2
    assert "key-of-the-user" not in visible(engine.disk)
