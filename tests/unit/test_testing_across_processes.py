"""The scripted model and the local API through the death of the process that asks: what crash tests rest on."""

from __future__ import annotations

import asyncio
import signal
from pathlib import Path

from google.adk.models.llm_request import LlmRequest
from google.genai import Client
from google.genai.errors import ServerError
from tests.support.plain_adk import user_says

from perdure.testing import (
    Gate,
    GeminiServer,
    Script,
    ScriptedModel,
    WorkerChild,
    by_message,
    failing,
    read_request_log,
    text,
    user_text,
)


def hang(request: LlmRequest) -> Script:
    print("called", flush=True)
    return text("never").held(Gate())


SCRIPT = by_message({"fail": failing(503, times=2, then=text("recovered")), "hang": hang})


async def ask(log: str, message: str) -> None:
    """Asks a scripted model once and prints what came of it."""
    model = ScriptedModel(SCRIPT, log=log)
    try:
        answers = model.generate_content_async(LlmRequest(contents=[user_says(message)]))
        async for answer in answers:
            print("answer:", answer.content and answer.content.parts and answer.content.parts[0].text)
    except ServerError as error:
        print("failed:", error.code)


def ask_gemini() -> None:
    """Asks the API that the environment names, and prints the answer."""
    with Client() as client:
        print("answer:", client.models.generate_content(model="gemini-2.5-flash", contents="hi").text)


def test_a_count_of_failures_outlives_the_process(tmp_path: Path) -> None:
    log = tmp_path / "requests.jsonl"
    outcomes: list[str] = []
    for _ in range(3):
        with WorkerChild.of(ask, str(log), "fail") as child:
            child.wait_exit()
            outcomes.append(child.lines[-1])
    assert outcomes == ["failed: 503", "failed: 503", "answer: recovered"]


def test_the_request_of_a_killed_process_is_still_seen(tmp_path: Path) -> None:
    log = tmp_path / "requests.jsonl"
    with WorkerChild.of(ask, str(log), "hang") as child:
        child.wait_for("called")
        assert child.kill() == -signal.SIGKILL
        pid = child.pid
    [logged] = read_request_log(log)
    assert (logged.process_id, logged.contents) == (pid, (user_says("hang"),))


async def test_the_api_outlives_a_client_that_is_killed_in_the_middle_of_a_call() -> None:
    gate = Gate()
    with GeminiServer(lambda request: text(user_text(request)).held(gate)) as server:
        with WorkerChild.of(ask_gemini, environment=server.environment) as child:
            await gate.wait_arrived()
            assert await asyncio.to_thread(child.kill) == -signal.SIGKILL
        gate.open()
        with WorkerChild.of(ask_gemini, environment=server.environment) as child:
            assert await child.wait_for_async("answer") == "answer: hi"
        assert len(server.requests) == 2
