"""``GeminiServer`` through google-genai's real client, and through ADK's own ``Gemini`` model."""

from __future__ import annotations

import asyncio
import json
import urllib.error
import urllib.request
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from datetime import timedelta

import httpx
import pytest
from google.adk.agents import Agent
from google.adk.models import Gemini
from google.adk.models.llm_request import LlmRequest
from google.genai import Client, types
from google.genai.errors import ClientError, ServerError
from tests.support.plain_adk import run_turns, spoken

from perdure.errors import UsageError
from perdure.testing.gate import Gate
from perdure.testing.gemini_server import GeminiServer
from perdure.testing.model import ScriptedModel
from perdure.testing.reading import agent_name, tool_names, user_text
from perdure.testing.replies import Reply, Tokens, call, reply, text, thought
from perdure.testing.script import Script, api_error, by_agent, failing

SIGNATURE = b"\xfb\xff\xfe\x00"
MODEL = "gemini-2.5-flash"


@contextmanager
def client_of(server: GeminiServer) -> Iterator[Client]:
    """google-genai's client for a server, which runs as long."""
    with server, Client(api_key="any", http_options=types.HttpOptions(base_url=server.url)) as client:
        yield client


async def streamed(client: Client, contents: str = "hi") -> list[types.GenerateContentResponse]:
    stream: AsyncIterator[types.GenerateContentResponse] = await client.aio.models.generate_content_stream(
        model=MODEL, contents=contents
    )
    return [chunk async for chunk in stream]


def parts(response: types.GenerateContentResponse) -> list[types.Part]:
    return response.parts or []


def test_the_real_client_gets_the_reply() -> None:
    script = reply(
        thought("Hm.", signature=SIGNATURE), text("Hello"), call("look_up", key="a").with_id("c1"), usage=Tokens(7, 2)
    )
    with client_of(GeminiServer(script)) as client:
        response = client.models.generate_content(model=MODEL, contents="hi")
    assert parts(response) == [piece.part for piece in script.pieces]
    assert parts(response)[0].thought_signature == SIGNATURE
    assert response.model_version == MODEL
    assert response.usage_metadata == Tokens(7, 2).metadata()


async def test_the_real_client_gets_the_stream() -> None:
    script = reply(text("Hello there", chunks=3), call("look_up").signed(SIGNATURE), usage=Tokens(7, 2))
    with client_of(GeminiServer(script)) as client:
        chunks = await streamed(client)
        await client.aio.aclose()
    assert [part.text for chunk in chunks for part in parts(chunk)] == ["Hel", "lo t", "here", None]
    assert parts(chunks[-1])[0].thought_signature == SIGNATURE
    assert [chunk.usage_metadata for chunk in chunks] == [Tokens(7, 0).metadata()] * 3 + [Tokens(7, 2).metadata()]


def test_one_connection_serves_many_requests() -> None:
    with client_of(GeminiServer(lambda request: text(user_text(request).upper()))) as client:
        answers = [client.models.generate_content(model=MODEL, contents=word).text for word in ("a", "b", "c")]
    assert answers == ["A", "B", "C"]


def test_rules_see_the_request_and_the_rest_is_kept_as_it_came() -> None:
    config = types.GenerateContentConfig(
        system_instruction="Be kind.",
        temperature=0.5,
        tools=[types.Tool(function_declarations=[types.FunctionDeclaration(name="look_up")])],
    )
    server = GeminiServer(text("ok"))
    with client_of(server) as client:
        client.models.generate_content(model=MODEL, contents="hi", config=config)
    [asked], [received] = server.requests, server.received
    assert (asked.model, user_text(asked), tool_names(asked)) == (MODEL, "hi", ["look_up"])
    assert received.path == f"/v1beta/models/{MODEL}:generateContent"
    assert received.headers["x-goog-api-key"] == "any"
    assert received.body["generationConfig"] == {"temperature": 0.5}


def test_an_api_error_arrives_with_its_details() -> None:
    script = failing(api_error(429, "slow down", retry_after=timedelta(seconds=1.5)), times=1, then=text("ok"))
    with client_of(GeminiServer(script)) as client:
        with pytest.raises(ClientError) as caught:
            client.models.generate_content(model=MODEL, contents="hi")
        assert client.models.generate_content(model=MODEL, contents="hi").text == "ok"
    assert (caught.value.code, caught.value.status, caught.value.message) == (429, "RESOURCE_EXHAUSTED", "slow down")
    assert "'retryDelay': '1.5s'" in str(caught.value)


def test_an_api_error_made_otherwise_arrives_too() -> None:
    script = failing(ServerError(503, {"message": "busy", "status": "UNAVAILABLE"}))
    with client_of(GeminiServer(script)) as client, pytest.raises(ServerError, match=r"503 UNAVAILABLE.*busy"):
        client.models.generate_content(model=MODEL, contents="hi")


def test_the_clients_own_retries_come_to_the_server() -> None:
    options = types.HttpOptions(retry_options=types.HttpRetryOptions(attempts=3, initial_delay=0.001, max_delay=0.001))
    with GeminiServer(failing(503, times=2, then=text("ok"))) as server:
        options.base_url = server.url
        with Client(api_key="any", http_options=options) as client:
            assert client.models.generate_content(model=MODEL, contents="hi").text == "ok"
        assert len(server.requests) == 3


async def test_a_stream_can_fail_before_it_begins_and_in_the_middle() -> None:
    script = failing(503, times=1, then=failing(500, times=1, after_chunks=1, then=text("Hello there")))
    with client_of(GeminiServer(script)) as client:
        with pytest.raises(ServerError, match="503"):
            await streamed(client)
        with pytest.raises(ServerError, match="500 INTERNAL"):
            await streamed(client)
        assert len(await streamed(client)) == 2
        await client.aio.aclose()


@pytest.mark.parametrize("after_chunks", [0, 1])
async def test_a_connection_can_break(after_chunks: int) -> None:
    script = failing(OSError("cable cut"), times=1, after_chunks=after_chunks, then=text("Hello there"))
    with client_of(GeminiServer(script)) as client:
        with pytest.raises(httpx.TransportError):
            await streamed(client)
        assert len(await streamed(client)) == 2
        await client.aio.aclose()


def test_a_connection_can_break_without_streaming() -> None:
    with client_of(GeminiServer(failing(OSError("cable cut")))) as client, pytest.raises(httpx.TransportError):
        client.models.generate_content(model=MODEL, contents="hi")


def rule_with_a_mistake(request: LlmRequest) -> Script:
    answers: dict[str, Script] = {}
    return answers["x"]


@pytest.mark.parametrize(
    ("script", "message"),
    [
        ([], "ScriptError: no entry 1 in a script of 0"),
        (rule_with_a_mistake, "KeyError: 'x'"),
    ],
)
def test_a_script_that_has_no_answer_is_a_bad_request(script: Script, message: str) -> None:
    with client_of(GeminiServer(script)) as client, pytest.raises(ClientError, match=message):
        client.models.generate_content(model=MODEL, contents="hi")


def test_a_history_that_strict_providers_refuse_is_a_bad_request() -> None:
    contents = [
        types.UserContent("hi"),
        types.ModelContent(types.Part.from_function_call(name="look_up", args={})),
        types.UserContent("and?"),
    ]
    message = r"400 INVALID_ARGUMENT.*lacks the response of look_up"
    with client_of(GeminiServer(text("ok"))) as client, pytest.raises(ClientError, match=message):
        client.models.generate_content(model=MODEL, contents=contents)
    with client_of(GeminiServer(text("ok"), strict=False)) as client:
        assert client.models.generate_content(model=MODEL, contents=contents).text == "ok"


def test_other_paths_are_not_found() -> None:
    with GeminiServer(text("ok")) as server:
        with pytest.raises(urllib.error.HTTPError) as caught:
            urllib.request.urlopen(f"{server.url}/v1beta/models")
        with caught.value as answer:
            assert json.load(answer)["error"]["message"] == "no such method: GET /v1beta/models"
        assert server.received == []


async def test_a_held_reply_waits_and_a_closing_server_lets_nobody_hang() -> None:
    gate = Gate()
    with client_of(GeminiServer(text("Hello there").held(gate, after_chunks=1))) as client:
        asking = asyncio.create_task(streamed(client))
        await gate.wait_arrived()
        gate.open()
        assert len(await asking) == 2
        await client.aio.aclose()
    closed = Gate()
    with client_of(GeminiServer(text("never").held(closed))) as client:
        asking = asyncio.create_task(streamed(client))
        await closed.wait_arrived()
    with pytest.raises(httpx.TransportError):
        await asking
    await client.aio.aclose()


def test_it_has_an_address_only_while_it_runs() -> None:
    server = GeminiServer(text("ok"))
    with pytest.raises(UsageError, match="with block"):
        _ = server.url
    with server:
        assert server.url.startswith("http://127.0.0.1:")
        assert server.environment["GOOGLE_GEMINI_BASE_URL"] == server.url


def look_up(key: str) -> dict[str, str]:
    """Looks something up."""
    return {"value": key}


SCRIPT: list[Reply] = [
    reply(thought("Two of them."), call("look_up", key="a").signed(SIGNATURE), call("look_up", key="b")),
    reply(text("Found both."), usage=Tokens(20, 4, thoughts=3)),
]


@pytest.mark.parametrize("stream", [False, True])
async def test_adks_gemini_model_runs_on_it(stream: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    with GeminiServer(by_agent({"solo": SCRIPT})) as server:
        for name, value in server.environment.items():
            monkeypatch.setenv(name, value)
        agent = Agent(name="solo", model=Gemini(model=MODEL), tools=[look_up])
        events = await run_turns(agent, "find", stream=stream)
        first, second = server.requests
    assert spoken(events) == [("solo", "Found both.")]
    assert agent_name(first) == "solo"
    called = second.contents[1].parts or []
    assert [part.thought_signature for part in called if part.function_call] == [SIGNATURE, None]
    usage = events[-1].usage_metadata
    assert usage is not None
    assert (usage.candidates_token_count, usage.thoughts_token_count) == (4, 3)


@pytest.mark.parametrize("stream", [False, True])
async def test_the_scripted_model_answers_just_as_gemini_does(stream: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same events, ids and times aside, from ADK's own model and from the scripted one."""
    with GeminiServer(SCRIPT) as server:
        for name, value in server.environment.items():
            monkeypatch.setenv(name, value)
        real = await run_turns(Agent(name="solo", model=Gemini(model=MODEL), tools=[look_up]), "find", stream=stream)
    scripted = await run_turns(
        Agent(name="solo", model=ScriptedModel(SCRIPT, model=MODEL), tools=[look_up]), "find", stream=stream
    )
    changing = {"id", "timestamp", "invocation_id"}
    ids = {"function_call": {"id"}, "function_response": {"id"}}
    shown = [
        [
            event.model_dump(exclude=changing | {"content"}, exclude_none=True)
            | {
                "parts": [
                    part.model_dump(exclude=ids, exclude_none=True)
                    for part in (event.content and event.content.parts) or []
                ]
            }
            for event in events
        ]
        for events in (real, scripted)
    ]
    assert shown[0] == shown[1]
