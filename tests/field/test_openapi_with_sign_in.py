"""OpenAPI tools with credentials, end to end: a key in a header, OAuth2, and a death right after the exchange."""

from __future__ import annotations

import asyncio
import json
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest
from google.adk.tools.openapi_tool.auth.auth_helpers import token_to_scheme_credential
from google.adk.tools.openapi_tool.openapi_spec_parser.openapi_toolset import OpenAPIToolset
from tests.field.lives import GO_ON, Hold, life
from tests.field.support import PATIENCE, READ, SESSION, Field, durable, say, steps_of, turn_of, until
from tests.field.test_case_29_sign_in import everything_shown, places_of, sign_in
from tests.support.token_server import TokenServer, token_server

from perdure import AgentSessionFlow, SessionStatus, StepName, TurnStatus
from perdure.testing import call, text

pytestmark = [
    pytest.mark.filterwarnings("ignore:This method is deprecated. Use credential_key:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:Setting per-request cookies:DeprecationWarning"),
]
"""ADK's own."""


@dataclass
class Warehouse:
    """A service that looks items up for whoever has a key or a token.

    Attributes:
        seen: what came with each request.
        hold: while it is not set, requests are not answered.
        asked: counts requests that have come.
    """

    url: str = ""
    seen: list[dict[str, str | None]] = field(default_factory=list)
    hold: threading.Event = field(default_factory=threading.Event)
    asked: threading.Semaphore = field(default_factory=lambda: threading.Semaphore(0))


@contextmanager
def warehouse() -> Iterator[Warehouse]:
    state = Warehouse()
    state.hold.set()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            state.seen.append({"key": self.headers["X-Key"], "token": self.headers["Authorization"]})
            state.asked.release()
            state.hold.wait(PATIENCE)
            sent = json.dumps({"left": 3}).encode()
            try:
                self.send_response(200)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(sent)))
                self.end_headers()
                self.wfile.write(sent)
            except OSError:
                pass  # whoever asked has died

        def log_message(self, format: str, *args: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    state.url = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield state
    finally:
        state.hold.set()
        server.shutdown()
        server.server_close()
        thread.join()


def specification() -> dict[str, Any]:
    item = [{"name": "item", "in": "path", "required": True, "schema": {"type": "string"}}]
    answer = {"200": {"description": "ok", "content": {"application/json": {"schema": {"type": "object"}}}}}
    get = {"operationId": "getStock", "summary": "Looks an item up.", "parameters": item, "responses": answer}
    return {
        "openapi": "3.1.0",
        "info": {"title": "warehouse", "version": "1"},
        "servers": [{"url": os.environ["WAREHOUSE"]}],
        "paths": {"/stock/{item}": {"get": get}},
    }


def flow_with(world: Field, scheme: Any, credential: Any) -> AgentSessionFlow:
    toolset = OpenAPIToolset(
        spec_dict=specification(), auth_scheme=scheme, auth_credential=credential, allow_private_network_access=True
    )
    script = [call("get_stock", item="nut"), call("get_stock", item="bolt"), text("Three.")]
    return durable(world.agent(script, [toolset]), {"get_stock": READ})


def by_oauth(world: Field, hold: Hold = GO_ON) -> AgentSessionFlow:
    config = TokenServer(os.environ["TOKEN_SERVER"]).config()
    return flow_with(world, config.auth_scheme, config.raw_auth_credential)


@pytest.fixture
def shop(monkeypatch: pytest.MonkeyPatch) -> Iterator[Warehouse]:
    with warehouse() as running:
        monkeypatch.setenv("WAREHOUSE", running.url)
        yield running


@pytest.fixture
def tokens(monkeypatch: pytest.MonkeyPatch) -> Iterator[TokenServer]:
    monkeypatch.setenv("AUTHLIB_INSECURE_TRANSPORT", "1")
    with token_server() as running:
        monkeypatch.setenv("TOKEN_SERVER", running.url)
        yield running


async def test_a_key_reaches_the_service_and_nobody_else(field: Field, shop: Warehouse) -> None:
    scheme, credential = token_to_scheme_credential("apikey", "header", "X-Key", "the-key-of-the-application")
    async with field.working(flow_with(field, scheme, credential)) as client:
        snapshot = await say(client, "How many?")
        assert (snapshot.status, turn_of(snapshot).status) == (SessionStatus.IDLE, TurnStatus.COMPLETED)
        assert [step.result for step in await steps_of(client) if step.name is StepName.CALL_TOOL] == [{"left": 3}] * 2
        shown = await everything_shown(client, snapshot)
    assert [seen["key"] for seen in shop.seen] == ["the-key-of-the-application"] * 2
    assert "the-key-of-the-application" not in shown
    assert places_of(field, "the-key-of-the-application") == set()


async def test_a_worker_that_dies_after_the_exchange_does_not_ask_again(
    field: Field, shop: Warehouse, tokens: TokenServer
) -> None:
    async def _is_recorded() -> bool:
        return "model_calls" in places_of(field, "access-token")

    shop.hold.clear()
    async with field.asking() as client:
        with life(by_oauth, field) as first:
            await client.start_session(SESSION, "How many?")
            await sign_in(client, "code-a")
            assert await _within(shop.asked)
            await until(_is_recorded)  # records are written in batches; before this one the code is lost
            first.kill()
        shop.hold.set()
    async with field.working(by_oauth(field)) as client:
        snapshot = await client.wait(SESSION, timeout=PATIENCE)
        assert (snapshot.status, turn_of(snapshot).status) == (SessionStatus.IDLE, TurnStatus.COMPLETED)
        assert snapshot.pending_interrupts == ()
        assert [step.result for step in await steps_of(client) if step.name is StepName.CALL_TOOL] == [{"left": 3}] * 2
    assert (tokens.exchanges, tokens.refused) == (["code-a"], [])
    assert [seen["token"] for seen in shop.seen] == ["Bearer access-token-authorization_code-1-of-a"] * 3


async def _within(semaphore: threading.Semaphore) -> bool:
    return await asyncio.to_thread(semaphore.acquire, timeout=PATIENCE)
