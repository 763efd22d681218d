"""The wrapped model: what is recorded, what is streamed, what is tried again."""

from __future__ import annotations

import asyncio
import base64
import json
from collections.abc import AsyncGenerator
from datetime import timedelta
from typing import Any

import httpx
import pytest
from google.adk.agents import LlmAgent, RunConfig
from google.adk.models.base_llm import BaseLlm
from google.adk.models.llm_request import LlmRequest
from google.adk.models.llm_response import LlmResponse
from google.genai import types
from google.genai.errors import ClientError, ServerError
from tests.adk.disk import Crash, Disk, Log
from tests.adk.model import Flaky, ScriptedModel, calls, says
from tests.adk.worlds import World, mended_model, shaky_model, usage

from perdure.adk.models.retries import is_transient
from perdure.errors import LeaseLost, PayloadTooLarge
from perdure.session.model import AgentEventType, TurnStatus, Usage, UserMessage
from perdure.session.runner import DriveFailed, ModelCall

SIGNATURE = b"\xfb\xff\xfe\x00\x01"
"""Bytes that look different in the two alphabets of Base64."""


def look() -> dict[str, Any]:
    """Looks."""
    return {"ok": True}


def world(*replies: Any, **agent: Any) -> World:
    model = ScriptedModel(replies=list(replies))
    return World(model, LlmAgent(name="looker", model=model, instruction="Look.", tools=[look], **agent))


def signed() -> World:
    part = types.Part(function_call=types.FunctionCall(name="look", args={}, id="model-1"), thought_signature=SIGNATURE)
    thought = types.Part(text="hm", thought=True, thought_signature=SIGNATURE)
    response = LlmResponse(
        content=types.Content(role="model", parts=[thought, part]),
        model_version="m-1",
        finish_reason=types.FinishReason.STOP,
        custom_metadata={"a": [1, {"b": None}]},
        avg_logprobs=-0.25,
    )
    return world(response, says("done"))


async def test_every_field_of_a_response_survives_a_crash() -> None:
    disk = Disk(crash_at=3)
    first = signed()
    engine = first.engine(disk)
    engine.begin("go")
    with pytest.raises(Crash):
        await engine.go_on()
    disk.reboot()
    second = signed()
    await second.engine(disk).go_on()
    assert len(second.model.requests) == 1
    parts = second.model.requests[0].contents[1].parts or []
    assert [part.thought_signature for part in parts if part.function_call] == [SIGNATURE]
    stored = disk.messages[1]
    assert base64.urlsafe_b64decode(stored["content"]["parts"][1]["thought_signature"]) == SIGNATURE
    assert stored["content"]["parts"][1]["function_call"]["id"] == "model-1"
    assert (stored["model_version"], stored["custom_metadata"]) == ("m-1", {"a": [1, {"b": None}]})
    # The next turn, from the store, sends the same bytes.
    second.model.replies.append(says("again"))
    third = World(second.model, second.agent)
    await third.engine(disk).turn("more")
    parts = second.model.requests[-1].contents[1].parts or []
    assert SIGNATURE in [part.thought_signature for part in parts]


async def test_partial_responses_are_shown_and_not_stored() -> None:
    thinking = LlmResponse(
        content=types.Content(role="model", parts=[types.Part(text="hm", thought=True)]), partial=True
    )
    one = world([thinking, says("a", partial=True), says("b", partial=True), says("ab")])
    engine = one.engine()
    await engine.turn("go")
    assert engine.log is not None
    assert engine.log.deltas == [
        (AgentEventType.REASONING_DELTA, "hm", 1),
        (AgentEventType.TEXT_DELTA, "a", 1),
        (AgentEventType.TEXT_DELTA, "b", 1),
    ]
    assert [message.text for message in engine.disk.new_messages] == ["go", "ab"]


async def test_a_model_is_tried_again_and_streams_under_the_next_attempt() -> None:
    shaky = shaky_model()
    engine = shaky.engine()
    await engine.turn("go")
    assert engine.log is not None
    assert [(text, attempt) for _, text, attempt in engine.log.deltas] == [
        ("loo", 1),
        ("loo", 2),
        ("fou", 1),
        ("nd", 1),
    ]
    assert engine.disk.usage == Usage(input_tokens=31, output_tokens=11, model_calls=4)
    assert [message.text for message in engine.disk.new_messages if message.author == "user"] == ["go"]


async def test_a_run_config_of_the_message_overrides_the_flow_s() -> None:
    one = world([says("a", partial=True), says("a")])
    engine = one.engine()
    await engine.turn(UserMessage(text="go", run_config={"streaming_mode": None, "max_llm_calls": 7}))
    assert engine.log is not None
    assert engine.log.deltas == []


@pytest.mark.parametrize(
    ("error", "transient"),
    [
        (ServerError(500, {}), True),
        (ServerError(503, {}), True),
        (ClientError(429, {}), True),
        (ClientError(408, {}), True),
        (ClientError(400, {}), False),
        (ClientError(403, {}), False),
        (TimeoutError(), True),
        (ConnectionResetError(), True),
        (httpx.ReadTimeout("slow"), True),
        (httpx.ConnectError("down"), True),
        (httpx.InvalidURL("bad"), False),
        (type("RateLimitError", (Exception,), {"status_code": 429})(), True),
        (type("BadRequestError", (Exception,), {"status_code": 400})(), False),
        (type("APIConnectionError", (Exception,), {})(), True),
        (ValueError("no"), False),
    ],
)
def test_what_is_worth_another_try(error: Exception, transient: bool) -> None:
    assert is_transient(error) is transient


def test_a_transient_cause_is_worth_another_try() -> None:
    error = RuntimeError("wrapped")
    error.__cause__ = ServerError(502, {})
    error.__cause__.__cause__ = error  # a loop must not hang it
    assert is_transient(error)


async def test_a_model_that_fails_for_good_fails_the_turn_and_is_not_asked_again_in_a_replay() -> None:
    overloaded = ServerError(503, {"error": {"message": "overloaded", "status": "UNAVAILABLE"}})
    disk = Disk(crash_at=2)
    first = world(Flaky((overloaded,) * 9))
    engine = first.engine(disk)
    engine.begin("go")
    with pytest.raises(Crash):
        await engine.go_on()
    assert len(first.model.requests) == 3
    disk.reboot()
    second = world(Flaky((overloaded,) * 9))
    await second.engine(disk).go_on()
    assert second.model.requests == []
    assert disk.status is TurnStatus.FAILED
    assert disk.error is not None
    assert disk.error.code == "ServerError"
    assert "overloaded" in disk.error.message
    assert disk.usage.model_calls == 3


async def test_the_next_turn_does_not_carry_out_the_failed_one() -> None:
    one = world(Flaky((ValueError("out"),) * 9, says("unused")))
    engine = one.engine()
    await engine.turn("delete everything")
    assert engine.disk.status is TurnStatus.FAILED
    one.model.replies = [says("hello")]
    await engine.turn("hi")
    texts = [part.text or "" for content in one.model.requests[-1].contents for part in content.parts or []]
    assert texts[0] == "delete everything"
    assert texts[1].startswith("Note: ")
    assert "out" in texts[1]
    assert texts[2] == "hi"
    assert engine.disk.error is None


async def test_error_callbacks_see_the_last_failure_only() -> None:
    mended = mended_model()
    engine = mended.engine()
    await engine.turn("go")
    assert mended.log == ["look", "on_model_error ValueError bad request"]
    assert engine.disk.new_messages[-1].text == "the model is out"


class _Full(Log):
    async def record_model_call(self, key: str, response: str, usage: Usage, settled_at_ms: int) -> ModelCall:
        raise PayloadTooLarge("too large", where=key, size=1, limit=0)


class _Lost(Log):
    async def record_model_call(self, key: str, response: str, usage: Usage, settled_at_ms: int) -> ModelCall:
        raise LeaseLost("gone", session_id="s1")


async def test_a_response_that_is_too_large_fails_the_turn() -> None:
    one = world(says("a"))
    engine = one.engine()
    engine.begin("go")
    assert engine.disk.start is not None
    live = await engine.runner.open_turn(engine.disk.start, _Full(engine.disk))
    result = await live.drive("step", ())
    assert isinstance(result, DriveFailed)
    assert result.error.code == "payload_too_large"
    await live.close()


async def test_no_callback_sees_the_engine_s_own_trouble() -> None:
    seen: list[Exception] = []

    def note(**given: Any) -> None:
        seen.append(given["error"])

    one = world(says("a"), on_model_error_callback=note)
    engine = one.engine()
    engine.begin("go")
    assert engine.disk.start is not None
    live = await engine.runner.open_turn(engine.disk.start, _Lost(engine.disk))
    with pytest.raises(LeaseLost):
        await live.drive("step", ())
    await live.close()
    assert seen == []


class _Slow(BaseLlm):
    model: str = "slow"
    asked: int = 0

    async def generate_content_async(
        self, llm_request: LlmRequest, stream: bool = False
    ) -> AsyncGenerator[LlmResponse, None]:
        self.asked += 1
        if self.asked == 1:
            await asyncio.Event().wait()
        yield says("quick")


async def test_a_model_has_a_time_limit() -> None:
    model = _Slow()
    slow = World(
        ScriptedModel(), LlmAgent(name="slow", model=model), options={"model_timeout": timedelta(seconds=0.01)}
    )
    engine = slow.engine()
    await engine.turn("go")
    assert engine.disk.new_messages[-1].text == "quick"
    assert model.asked == 2


async def test_call_ids_are_unique_in_a_turn() -> None:
    def same_id() -> LlmResponse:
        response = calls(("look", {}), ("look", {}))
        for part in (response.content and response.content.parts) or []:
            assert part.function_call is not None
            part.function_call.id = "call_1"
        return response

    one = world(same_id(), same_id(), calls(("look", {})), says("done"))
    engine = one.engine()
    await engine.turn("go")
    assert engine.disk.error is None
    ids = list(engine.disk.requests)
    assert len(ids) == 5
    assert ids[0] == "call_1"
    assert all(call_id.startswith("adk-") for call_id in ids[1:])


async def test_the_limit_of_model_calls_counts_over_a_replay() -> None:
    disk = Disk(crash_at=5)
    config = {"run_config": RunConfig(max_llm_calls=2)}
    replies = [calls(("look", {})), calls(("look", {})), says("done")]
    first = world(*replies)
    first.options = config
    engine = first.engine(disk)
    engine.begin("go")
    with pytest.raises(Crash):
        await engine.go_on()
    disk.reboot()
    second = world(*replies)
    second.options = config
    await second.engine(disk).go_on()
    assert disk.error is not None
    assert disk.error.code == "LlmCallsLimitExceededError"
    assert len(first.model.requests) + len(second.model.requests) == 2


async def test_records_are_json_without_partials() -> None:
    one = world([says("a", partial=True), says("ab", usage_metadata=usage(1, 2))])
    engine = one.engine()
    await engine.turn("go")
    (record,) = engine.disk.model_calls
    assert record.key == "looker@1||looker|1"
    assert [r["content"]["parts"][0]["text"] for r in json.loads(record.response)["responses"]] == ["ab"]
