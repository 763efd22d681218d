"""Field case 26: connections to MCP servers are opened once, serve whom they were opened for, and are closed again."""

from __future__ import annotations

import asyncio
import gc
import logging
from pathlib import Path

import psutil
import pytest
from google.adk.agents.readonly_context import ReadonlyContext
from google.adk.models.llm_request import LlmRequest
from tests.field.support import PATIENCE, Field, turn_of, until
from tests.support.mcp_servers import ServerLog, http_server, http_toolset, stdio_toolset

from perdure import SessionStatus, TurnStatus
from perdure.testing import call, reply, text
from perdure.testing.reading import user_text
from perdure.testing.script import Script

SESSIONS = [f"s{number}" for number in range(5)]
CALLS = 10


@pytest.fixture(autouse=True)
def no_client_certificates(monkeypatch: pytest.MonkeyPatch) -> None:
    """ADK would look for credentials of Google's cloud in the network."""
    monkeypatch.setenv("GOOGLE_API_USE_CLIENT_CERTIFICATE", "false")


@pytest.fixture
def server_log(tmp_path: Path) -> ServerLog:
    return ServerLog(tmp_path / "server.log")


LOOKS: Script = [
    *[reply(call("look", item=f"i{n}"), call("look", item=f"j{n}")) for n in range(CALLS // 2)],
    text("Ok."),
]


def script(request: LlmRequest) -> Script:
    """Ten calls, two in a response; in the session that is to be cancelled, one that never ends."""
    return [call("wait", item="x"), text("Ok.")] if user_text(request) == "wait" else LOOKS


def children() -> set[int]:
    return {child.pid for child in psutil.Process().children(recursive=True)}


async def test_fifty_calls_of_five_sessions_use_one_server_process(
    field: Field, server_log: ServerLog, caplog: pytest.LogCaptureFixture
) -> None:
    """One of the sessions is cancelled in the middle of a call; the others do not notice."""
    caplog.set_level(logging.ERROR)
    before = children()
    toolset = stdio_toolset(server_log)

    async with field.working(field.flow(script, [toolset])) as client:
        await client.start_session("cancelled", "wait")
        await asyncio.gather(*(client.start_session(session_id, "look") for session_id in SESSIONS))

        async def waits() -> bool:
            return "wait x" in server_log.calls()

        await until(waits)
        await client.cancel_turn("cancelled")
        snapshot = await client.wait("cancelled", timeout=PATIENCE)
        assert (snapshot.status, turn_of(snapshot).status) == (SessionStatus.IDLE, TurnStatus.CANCELLED)
        for session_id in SESSIONS:
            assert turn_of(await client.wait(session_id, timeout=PATIENCE)).status is TurnStatus.COMPLETED
        assert len(children() - before) == 1
    assert children() == before
    assert len([what for what in server_log.calls() if what.startswith("look")]) == len(SESSIONS) * CALLS
    gc.collect()  # a task that failed with nobody to see it would be logged now
    assert [record.getMessage() for record in caplog.records] == []


async def test_a_connection_serves_only_the_session_whose_headers_it_has(field: Field, server_log: ServerLog) -> None:
    def headers(context: ReadonlyContext) -> dict[str, str]:
        return {"x-tenant": context.session.id}

    def own(request: LlmRequest) -> Script:
        return [*[call("look", item=user_text(request))] * CALLS, text("Ok.")]

    async with http_server(server_log) as port:
        toolset = http_toolset(port, header_provider=headers)
        async with field.working(field.flow(own, [toolset])) as client:
            await asyncio.gather(*(client.start_session(session_id, session_id) for session_id in SESSIONS))
            for session_id in SESSIONS:
                assert turn_of(await client.wait(session_id, timeout=PATIENCE)).status is TurnStatus.COMPLETED
    looks = [entry for entry in server_log.entries() if entry.what.startswith("look")]
    assert len(looks) == len(SESSIONS) * CALLS
    assert all(entry.what == f"look {entry.tenant}" for entry in looks)
