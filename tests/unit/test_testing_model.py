"""``ScriptedModel`` answers as ADK's Gemini does, keeps what it was asked, and waits where it is told to."""

from __future__ import annotations

import asyncio
import copy
import json
import threading
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path

import pytest
from google.adk.agents import Agent
from google.adk.models.llm_request import LlmRequest
from google.adk.models.llm_response import LlmResponse
from google.genai import types
from google.genai.errors import ClientError, ServerError
from tests.support.plain_adk import run_turns, spoken, user_says

from perdure.errors import UsageError
from perdure.testing.gate import Gate
from perdure.testing.history import HistoryError
from perdure.testing.model import ScriptedModel
from perdure.testing.replies import DEFAULT_USAGE, Tokens, call, image, reply, text, thought
from perdure.testing.request_log import RequestLog, read_request_log
from perdure.testing.script import Script, failing

SIGNATURE = b"\xfb\xff\xfe\x00"
"""Bytes that look different in the two alphabets of base64."""


def request(message: str = "hi") -> LlmRequest:
    return LlmRequest(model="scripted", contents=[user_says(message)])


async def answers(model: ScriptedModel, asked: LlmRequest | None = None, *, stream: bool = False) -> list[LlmResponse]:
    return [answer async for answer in model.generate_content_async(asked or request(), stream=stream)]


def parts(response: LlmResponse) -> list[types.Part]:
    assert response.content is not None
    return response.content.parts or []


async def test_without_streaming_there_is_one_response() -> None:
    script = reply(thought("Hm.", signature=SIGNATURE), text("Hello there"), usage=Tokens(12, 3, thoughts=4))
    [only] = await answers(ScriptedModel(script, model="m"))
    assert only.partial is None
    assert [(part.text, part.thought, part.thought_signature) for part in parts(only)] == [
        ("Hm.", True, SIGNATURE),
        ("Hello there", None, None),
    ]
    assert only.finish_reason is types.FinishReason.STOP
    assert only.model_version == "m"
    assert only.usage_metadata is not None
    assert only.usage_metadata.total_token_count == 19


async def test_streamed_text_comes_in_pieces_and_then_whole() -> None:
    *partial, whole = await answers(ScriptedModel(text("Hello there", chunks=3)), stream=True)
    assert [(answer.partial, [part.text for part in parts(answer)]) for answer in partial] == [
        (True, ["Hel"]),
        (True, ["lo t"]),
        (True, ["here"]),
    ]
    assert whole.partial is False
    assert [part.text for part in parts(whole)] == ["Hello there"]
    assert whole.finish_reason is types.FinishReason.STOP


async def test_streamed_usage_is_full_only_at_the_end() -> None:
    script = reply(text("Hello there"), usage=Tokens(12, 3, tool_use_prompt=5))
    first, last, whole = await answers(ScriptedModel(script), stream=True)
    counts = [
        (usage.prompt_token_count, usage.candidates_token_count, usage.total_token_count)
        for answer in (first, last, whole)
        if (usage := answer.usage_metadata)
    ]
    assert counts == [(12, None, 17), (12, 3, 20), (12, 3, 20)]


async def test_the_whole_of_a_stream_is_what_comes_without_streaming() -> None:
    script = reply(
        thought("Hm."), text("Let me see.").signed(SIGNATURE), call("a", n=1).with_id("c1"), image(b"\x89PNG")
    )
    [plain] = await answers(ScriptedModel(script))
    *_, whole = await answers(ScriptedModel(script), stream=True)
    assert parts(whole) == parts(plain)
    assert parts(whole)[1].thought_signature == SIGNATURE


async def test_each_part_of_a_reply_is_streamed_by_itself() -> None:
    script = reply(thought("Hm."), call("a").signed(SIGNATURE), call("b"))
    *partial, whole = await answers(ScriptedModel(script), stream=True)
    assert [len(parts(answer)) for answer in partial] == [1, 1, 1]
    calls = [part.function_call for part in parts(whole) if part.function_call]
    assert [(item.name, str(item.id).startswith("adk-")) for item in calls] == [("a", True), ("b", True)]


async def test_replies_are_not_changed_by_being_given() -> None:
    script = call("a")
    model = ScriptedModel(script)
    await answers(model, stream=True)
    given = script.pieces[0].part.function_call
    assert given is not None
    assert given.id is None


async def test_a_reply_that_was_cut_off_is_an_error_to_adk() -> None:
    script = reply(text("Once upon"), finish_reason=types.FinishReason.MAX_TOKENS)
    *_, whole = await answers(ScriptedModel(script), stream=True)
    assert whole.error_code == types.FinishReason.MAX_TOKENS
    [blocked] = await answers(ScriptedModel(reply(finish_reason=types.FinishReason.SAFETY)))
    assert blocked.error_code == types.FinishReason.SAFETY
    assert blocked.content is None


@pytest.mark.parametrize("stream", [False, True])
async def test_it_runs_in_an_agent(stream: bool) -> None:
    def look_up(key: str) -> dict[str, str]:
        """Looks something up."""
        return {"value": key}

    model = ScriptedModel([reply(call("look_up", key="a"), call("look_up", key="b")), text("Found both.")])
    events = await run_turns(Agent(name="solo", model=model, tools=[look_up]), "find", stream=stream)
    assert spoken(events) == [("solo", "Found both.")]
    responses = [response.response for event in events for response in event.get_function_responses()]
    assert responses == [{"value": "a"}, {"value": "b"}]
    assert any(event.partial for event in events) is stream
    usages = [event.usage_metadata for event in events if event.usage_metadata and not event.partial]
    assert usages == [DEFAULT_USAGE.metadata()] * 2


async def test_an_error_is_raised_a_number_of_times() -> None:
    model = ScriptedModel(failing(429, times=2, then=text("at last")))
    for _ in range(2):
        with pytest.raises(ClientError, match="RESOURCE_EXHAUSTED"):
            await answers(model)
    [answer] = await answers(model)
    assert parts(answer)[0].text == "at last"


async def test_other_requests_have_a_count_of_their_own() -> None:
    model = ScriptedModel(failing(503, times=1, then=text("ok")))
    for message in ("one", "two"):
        with pytest.raises(ServerError):
            await answers(model, request(message))
        assert await answers(model, request(message))


async def test_a_stream_can_break_off_in_the_middle() -> None:
    model = ScriptedModel(failing(ConnectionResetError("gone"), times=1, after_chunks=1, then=text("Hello there")))
    seen: list[str | None] = []
    with pytest.raises(ConnectionResetError, match="gone"):  # noqa: PT012 - what came before the error matters
        async for answer in model.generate_content_async(request(), stream=True):
            seen.append(parts(answer)[0].text)
    assert seen == ["Hello"]
    assert len(await answers(model, stream=True)) == 3


async def test_requests_are_kept_as_they_were() -> None:
    model = ScriptedModel(text("ok"))
    asked = request()
    asked.config.system_instruction = "Be kind."
    asked.config.labels = {"a": "1"}
    await answers(model, asked)
    asked.contents[0].parts = []
    asked.config.labels["a"] = "2"
    [kept] = model.requests
    assert kept.contents == [user_says("hi")]
    assert kept.config.labels == {"a": "1"}


async def test_copies_of_an_agent_share_the_record() -> None:
    model = ScriptedModel(text("ok"))
    await answers(copy.deepcopy(model))
    await answers(model.model_copy())
    assert len(model.requests) == 2


async def test_a_history_that_strict_providers_refuse_is_refused() -> None:
    broken = request()
    broken.contents.append(types.Content(role="model", parts=[types.Part(function_call=types.FunctionCall(name="a"))]))
    broken.contents.append(user_says("and?"))
    with pytest.raises(HistoryError, match=r"lacks the response of a\(\)"):
        await answers(ScriptedModel(text("ok")), broken)
    assert await answers(ScriptedModel(text("ok"), strict=False), broken)


async def test_without_keeping_requests_a_failure_does_not_end() -> None:
    model = ScriptedModel(failing(503, times=1, then=text("ok")), keep_requests=False)
    for _ in range(2):
        with pytest.raises(ServerError):
            await answers(model)
    assert model.requests == []
    with pytest.raises(UsageError, match="keep_requests"):
        ScriptedModel(text("ok"), log="x", keep_requests=False)


async def test_the_log_counts_for_all_processes(tmp_path: Path) -> None:
    """A new model object on the same file is what a new process has."""
    log = tmp_path / "requests.jsonl"
    script: Script = failing(503, times=2, then=text("ok"))
    for _ in range(2):
        with pytest.raises(ServerError):
            await answers(ScriptedModel(script, log=log))
    assert await answers(ScriptedModel(script, log=log), stream=True)
    logged = read_request_log(log)
    assert [(entry.attempt, entry.stream) for entry in logged] == [(1, False), (2, False), (3, True)]
    assert logged[0].contents == (user_says("hi"),)
    assert len({entry.fingerprint for entry in logged}) == 1
    assert [json.loads(line)["model"] for line in log.read_text().splitlines()] == ["scripted"] * 3


async def test_a_request_never_ends_with_the_models_own_words() -> None:
    """As ADK's models for real providers do it: the user asks to go on."""
    asked = request()
    asked.contents.append(types.Content(role="model", parts=[types.Part(text="one")]))
    model = ScriptedModel([text("one"), text("two")])
    [answer] = await answers(model, asked)
    assert [content.role for content in model.requests[0].contents] == ["user", "model", "user"]
    assert parts(answer)[0].text == "two"


def test_each_of_many_equal_requests_has_a_number_of_its_own(tmp_path: Path) -> None:
    log = tmp_path / "requests.jsonl"

    def record(_: int) -> list[int]:
        own = RequestLog(log)
        return [own.record(request(), stream=False) for _ in range(10)]

    with ThreadPoolExecutor(8) as threads:
        numbers = [number for some in threads.map(record, range(8)) for number in some]
    assert sorted(numbers) == list(range(1, 81))


def test_a_log_that_was_never_written_is_empty(tmp_path: Path) -> None:
    assert read_request_log(tmp_path / "nothing.jsonl") == []


async def test_a_held_reply_waits_for_its_gate() -> None:
    gate = Gate()
    asking = asyncio.create_task(answers(ScriptedModel(text("ok").held(gate))))
    await gate.wait_arrived()
    assert not asking.done()
    gate.open()
    assert len(await asking) == 1
    assert gate.arrived == 1


async def test_a_stream_can_be_held_in_the_middle() -> None:
    gate = Gate()
    stream = ScriptedModel(text("Hello there").held(gate, after_chunks=1)).generate_content_async(
        request(), stream=True
    )
    assert parts(await anext(stream))[0].text == "Hello"
    rest = asyncio.create_task(anext(stream))
    await gate.wait_arrived()
    assert not rest.done()
    gate.open()
    assert parts(await rest)[0].text == " there"
    await stream.aclose()


async def test_pauses_keep_their_place_when_replies_are_joined() -> None:
    first, second = Gate(), Gate()
    script = reply(text("ab"), text("cd").held(first), text("ef").held(second, after_chunks=9))
    stream = ScriptedModel(script).generate_content_async(request(), stream=True)
    assert [parts(await anext(stream))[0].text for _ in range(2)] == ["a", "b"]
    third = asyncio.ensure_future(anext(stream))
    await first.wait_arrived()
    first.open()
    await third
    assert [parts(await anext(stream))[0].text for _ in range(3)] == ["d", "e", "f"]
    whole = asyncio.ensure_future(anext(stream))
    await second.wait_arrived()
    second.open()
    assert (await whole).partial is False


async def test_a_gate_works_across_threads() -> None:
    gate = Gate()
    thread = threading.Thread(target=lambda: asyncio.run(gate.pass_through()))
    thread.start()
    await gate.wait_arrived()
    gate.open()
    await asyncio.to_thread(thread.join)
    await gate.pass_through()
    assert gate.arrived == 2


async def test_a_cancelled_wait_leaves_the_gate_usable() -> None:
    gate = Gate()
    waiting = asyncio.create_task(gate.pass_through())
    await gate.wait_arrived()
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    gate.open()
    await gate.pass_through()


async def test_a_delay_is_a_wait() -> None:
    [answer] = await answers(ScriptedModel(text("ok").delayed(timedelta(milliseconds=1))))
    assert parts(answer)[0].text == "ok"


@pytest.mark.parametrize(
    "make", [lambda: text("x").with_id("1"), lambda: reply().signed(b"x"), lambda: text("x", chunks=0)]
)
def test_replies_that_make_no_sense_are_refused(make: object) -> None:
    assert callable(make)
    with pytest.raises(UsageError):
        make()
