"""Field case 29: two tools that need one login; a code and a refresh token are good for one use."""

from __future__ import annotations

import json
import os
import sqlite3
from collections.abc import AsyncIterator, Iterator
from contextlib import closing
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest
from google.adk.agents import LlmAgent
from google.adk.auth.auth_credential import AuthCredential
from google.adk.tools.authenticated_function_tool import AuthenticatedFunctionTool
from google.adk.tools.base_tool import BaseTool
from google.adk.tools.tool_context import ToolContext
from tests.field.lives import GO_ON, Hold, life
from tests.field.support import PATIENCE, READ, SESSION, Field, at_rest, durable, messages_of, say, steps_of
from tests.support.token_server import SECRET, TokenServer, token_server

from perdure import (
    AgentEvent,
    AgentSessionClient,
    AgentSessionFlow,
    AgentSnapshot,
    Interrupt,
    InterruptKind,
    SessionStatus,
)
from perdure.testing import call, reply, text

pytestmark = pytest.mark.filterwarnings("ignore:This method is deprecated. Use credential_key:DeprecationWarning")
"""ADK's own ``AuthConfig`` calls a method that it has deprecated."""


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[TokenServer]:
    monkeypatch.setenv("AUTHLIB_INSECURE_TRANSPORT", "1")
    with token_server() as running:
        monkeypatch.setenv("TOKEN_SERVER", running.url)
        yield running


def mail(field: Field, hold: Hold = GO_ON) -> AgentSessionFlow:
    """The first life stops when it has the token and before its tool does anything with it."""
    config = TokenServer(os.environ["TOKEN_SERVER"]).config()

    def token_of(credential: AuthCredential) -> str:
        assert credential.oauth2 is not None
        assert credential.oauth2.access_token is not None
        return credential.oauth2.access_token

    async def inbox(credential: AuthCredential) -> str:
        """Reads the inbox."""
        await hold.here("inbox")
        field.note("inbox", token_of(credential))
        return "no mail"

    async def sent(credential: AuthCredential) -> str:
        """Reads what was sent."""
        await hold.here("sent")
        field.note("sent", token_of(credential))
        return "nothing sent"

    tools: list[BaseTool] = [AuthenticatedFunctionTool(func=each, auth_config=config) for each in (inbox, sent)]
    script = [reply(call("inbox"), call("sent")), call("sent"), text("Read.")]
    agent = LlmAgent(name="post", model=field.model(script), tools=list(tools))
    return durable(agent, {"inbox": READ, "sent": READ})


def signed_in(interrupt: Interrupt, code: str) -> dict[str, Any]:
    """What a client answers: the request with the address to which the user was sent back."""
    answer: dict[str, Any] = json.loads(json.dumps(interrupt.payload))
    oauth2 = answer["exchangedAuthCredential"]["oauth2"]
    state = parse_qs(urlsplit(oauth2["authUri"]).query)["state"][0]
    oauth2["authResponseUri"] = f"http://localhost/back?code={code}&state={state}"
    return answer


async def sign_in(client: AgentSessionClient, code: str, session_id: str = SESSION) -> None:
    snapshot = await client.wait(session_id, timeout=PATIENCE)
    assert snapshot.status is SessionStatus.WAITING
    for interrupt in snapshot.pending_interrupts:
        assert interrupt.kind is InterruptKind.CREDENTIAL
        answered = await client.resolve_interrupt(
            session_id, interrupt.interrupt_id, approved=True, payload=signed_in(interrupt, code)
        )
        assert code not in json.dumps(answered.response)


def places_of(field: Field, secret: str) -> set[str]:
    """The tables of the database in which a secret is."""
    found: set[str] = set()
    with closing(sqlite3.connect(field.folder / "field.db")) as database:
        for (table,) in database.execute("SELECT name FROM sqlite_master WHERE type = 'table'").fetchall():
            for row in database.execute(f'SELECT * FROM "{table}"'):
                text_of_row = " ".join(
                    str(bytes(v), "utf8", "replace") if isinstance(v, bytes) else str(v) for v in row
                )
                if secret in text_of_row:
                    found.add(table)
    return found


async def everything_shown(client: AgentSessionClient, snapshot: AgentSnapshot) -> str:
    """All that a reader of the session can see."""
    events = [event.model_dump_json() async for event in _until_idle(client)]
    messages = [message.model_dump_json() for message in await messages_of(client)]
    steps = [step.model_dump_json() for step in await steps_of(client)]
    return "\n".join([snapshot.model_dump_json(), *events, *messages, *steps])


async def _until_idle(client: AgentSessionClient) -> AsyncIterator[AgentEvent]:
    async for event in client.stream_events(SESSION):
        yield event
        if event.type.value in ("turn_completed", "turn_failed"):
            return


async def test_a_worker_that_dies_right_after_the_exchange_loses_nothing(field: Field, server: TokenServer) -> None:
    async with field.asking() as client:
        with life(mail, field) as first:
            await client.start_session(SESSION, "Read my mail.")
            await sign_in(client, "code-a")
            for _ in ("inbox", "sent"):
                await first.wait_for_async("in ")
            first.kill()
    async with field.working(mail(field)) as client:
        snapshot = await at_rest(client, SessionStatus.IDLE)
        shown = await everything_shown(client, snapshot)
    token = "access-token-authorization_code-1-of-a"
    assert field.world.count(f"inbox {token}") == 1
    assert field.world.count(f"sent {token}") == 2
    assert (server.exchanges, server.refused) == (["code-a"], [])
    for secret in ("access-token", "refresh-token", SECRET, "code-a"):
        assert secret not in shown
    assert places_of(field, "access-token") == {"model_calls"}
    assert places_of(field, SECRET) == set()


async def test_one_users_token_is_never_anothers(field: Field, server: TokenServer) -> None:
    async with field.working(mail(field)) as client:
        await say(client, "Read my mail.", "of-ann", user_id="ann")
        await sign_in(client, "code-ann", "of-ann")
        await client.wait("of-ann", timeout=PATIENCE)
        await say(client, "Read my mail.", "of-bob", user_id="bob")
        await sign_in(client, "code-bob", "of-bob")
        await client.wait("of-bob", timeout=PATIENCE)
    assert [entry.rpartition("-")[2] for entry in field.world] == ["ann"] * 3 + ["bob"] * 3


def asks_by_itself(field: Field) -> AgentSessionFlow:
    def wire(amount: int, tool_context: ToolContext) -> str:
        """Wires money."""
        if not tool_context.tool_confirmation:
            tool_context.state["drafted"] = amount
            tool_context.request_confirmation(hint=f"Wire {amount}?", payload={"amount": amount})
            return "asked"
        field.note("wire", amount)
        return "wired"

    agent = LlmAgent(name="clerk", model=field.model([call("wire", amount=5), text("Done.")]), tools=[wire])
    return durable(agent, {"wire": READ})


@pytest.mark.parametrize("approved", [True, False])
async def test_case_9_a_no_to_a_tool_that_asks_by_itself_is_enforced(field: Field, approved: bool) -> None:
    async with field.working(asks_by_itself(field)) as client:
        (interrupt,) = (await say(client, "Wire 5.")).pending_interrupts
        assert (interrupt.hint, interrupt.payload) == ("Wire 5?", {"amount": 5})
    async with field.working(asks_by_itself(field)) as client:
        await client.resolve_interrupt(SESSION, interrupt.interrupt_id, approved=approved)
        snapshot = await client.wait(SESSION, timeout=PATIENCE)
        assert snapshot.status is SessionStatus.IDLE
        assert snapshot.state == {"drafted": 5}
    assert field.world == (["wire 5"] if approved else [])
