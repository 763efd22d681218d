"""ADK's own HTTP server over durable sessions: they come from our service, and our runner runs their turns."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
from google.adk.agents import LlmAgent
from google.adk.artifacts import InMemoryArtifactService
from google.adk.auth.credential_service.in_memory_credential_service import InMemoryCredentialService
from google.adk.cli.api_server import ApiServer
from google.adk.cli.utils.base_agent_loader import BaseAgentLoader
from google.adk.evaluation.in_memory_eval_sets_manager import InMemoryEvalSetsManager
from google.adk.evaluation.local_eval_set_results_manager import LocalEvalSetResultsManager
from google.adk.memory import InMemoryMemoryService
from tests.durable_runner import agents
from tests.durable_runner.support import APP, SESSION, USER, durable

SESSIONS = f"/apps/{APP}/users/{USER}/sessions"


class _OneAgent(BaseAgentLoader):
    def load_agent(self, agent_name: str) -> LlmAgent:
        return agents.gated()

    def list_agents(self) -> list[str]:
        return [APP]


@asynccontextmanager
async def _served(folder: Path) -> AsyncGenerator[httpx.AsyncClient]:
    async with durable(agents.gated(), folder) as runner:
        server = ApiServer(
            agent_loader=_OneAgent(),
            session_service=runner.session_service,
            memory_service=InMemoryMemoryService(),
            artifact_service=InMemoryArtifactService(),
            credential_service=InMemoryCredentialService(),
            eval_sets_manager=InMemoryEvalSetsManager(),
            eval_set_results_manager=LocalEvalSetResultsManager(str(folder)),
            agents_dir=str(folder),
        )
        server.runner_dict[APP] = runner
        transport = httpx.ASGITransport(app=server.get_fast_api_app())
        async with httpx.AsyncClient(transport=transport, base_url="http://adk.example") as http:
            yield http


def _run(parts: list[dict[str, Any]], **more: Any) -> dict[str, Any]:
    message = {"role": "user", "parts": parts}
    return {"appName": APP, "userId": USER, "sessionId": SESSION, "newMessage": message, **more}


async def _stream(http: httpx.AsyncClient, parts: list[dict[str, Any]]) -> list[dict[str, Any]]:
    async with http.stream("POST", "/run_sse", json=_run(parts, streaming=True)) as stream:
        return [json.loads(line.removeprefix("data: ")) async for line in stream.aiter_lines() if line]


async def test_a_conversation_over_http(tmp_path: Path) -> None:
    async with _served(tmp_path) as http:
        created = await http.post(SESSIONS, json={"sessionId": SESSION, "state": {"tenant": "t1"}})
        assert created.json()["state"] == {"tenant": "t1"}
        assert (await http.post(SESSIONS, json={"sessionId": SESSION})).status_code == 409
        said = await _stream(http, [{"text": "go"}])
        assert any(event.get("partial") for event in said)
        request = said[-1]["content"]["parts"][0]["functionCall"]
        assert request["name"] == "adk_request_confirmation"
    async with _served(tmp_path) as http:  # after a restart
        answer = {"id": request["id"], "name": request["name"], "response": {"confirmed": True}}
        paid = await http.post("/run", json=_run([{"functionResponse": answer}]))
        assert paid.json()[-1]["content"]["parts"][0]["text"] == "It is paid."
        changed = await http.patch(f"{SESSIONS}/{SESSION}", json={"stateDelta": {"mood": "calm"}})
        assert changed.json()["state"]["mood"] == "calm"
        session = (await http.get(f"{SESSIONS}/{SESSION}")).json()
        assert session["state"]["paid"] == 500
        assert session["state"]["mood"] == "calm"
        assert len(session["events"]) == 9
        assert [one["id"] for one in (await http.get(SESSIONS)).json()] == [SESSION]
        await http.delete(f"{SESSIONS}/{SESSION}")
        assert (await http.get(f"{SESSIONS}/{SESSION}")).status_code == 404
        assert (await http.post("/run", json=_run([{"text": "go"}]))).status_code == 404
