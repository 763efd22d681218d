"""``check_history`` finds what strict providers refuse, clause by clause, and passes what they accept."""

from __future__ import annotations

import pytest
from google.adk.models.llm_request import LlmRequest
from google.genai import types
from hypothesis import given
from hypothesis import strategies as st

from perdure.testing.history import HistoryError, check_history, history_problems

Part = types.Part


def user(*parts: Part) -> types.Content:
    return types.Content(role="user", parts=list(parts))


def model(*parts: Part) -> types.Content:
    return types.Content(role="model", parts=list(parts))


def say(text: str = "words") -> Part:
    return Part(text=text)


def ask(name: str, call_id: str | None = None) -> Part:
    return Part(function_call=types.FunctionCall(name=name, id=call_id, args={}))


def answer(name: str, call_id: str | None = None) -> Part:
    return Part(function_response=types.FunctionResponse(name=name, id=call_id, response={}))


SOUND = {
    "words only": [user(say()), model(say()), user(say())],
    "two messages in a row": [user(say()), user(say()), model(say()), model(say())],
    "a summary first": [model(say("summary")), user(say())],
    "a call and its result": [user(say()), model(ask("a")), user(answer("a"))],
    "calls by id, answered in another order": [
        user(say()),
        model(say(), ask("a", "1"), ask("a", "2")),
        user(answer("a", "2"), answer("a", "1")),
    ],
    "one name twice, without ids": [user(say()), model(ask("a"), ask("a")), user(answer("a"), answer("a"))],
    "words behind the results": [user(say()), model(ask("a")), user(answer("a"), say()), model(say())],
    "one call after another": [user(say()), model(ask("a")), user(answer("a")), model(ask("b")), user(answer("b"))],
    "a signature by itself": [user(say()), model(Part(thought_signature=b"x"))],
    "media": [user(Part(inline_data=types.Blob(data=b"x", mime_type="image/png")))],
}

BROKEN = {
    "no role": ([types.Content(parts=[say()])], "H1"),
    "another role": ([types.Content(role="tool", parts=[say()])], "H1"),
    "no parts": ([user(say()), model()], "H1"),
    "an empty part": ([user(Part())], "H1"),
    "a bare thought": ([user(say()), model(Part(thought=True))], "H1"),
    "the user calls": ([user(say()), user(ask("a")), user(answer("a"))], "H2"),
    "the model answers": ([user(say()), model(ask("a")), model(answer("a"))], "H2"),
    "a call first": ([model(ask("a")), user(answer("a"))], "H3"),
    "a call without a result": ([user(say()), model(ask("a")), user(say())], "H4"),
    "a call at the end": ([user(say()), model(ask("a"))], "H4"),
    "one of two calls without a result": ([user(say()), model(ask("a"), ask("b")), user(answer("a"))], "H4"),
    "words before the result": ([user(say()), model(ask("a")), user(say(), answer("a"))], "H4"),
    "another id": ([user(say()), model(ask("a", "1")), user(answer("a", "2"))], "H5"),
    "an id on one side only": ([user(say()), model(ask("a", "1")), user(answer("a"))], "H5"),
    "another name": ([user(say()), model(ask("a")), user(answer("b"))], "H5"),
    "a result without a call": ([user(say()), user(answer("a"))], "H5"),
    "a result too late": ([user(say()), model(ask("a")), user(say()), user(answer("a"))], "H5"),
    "a result twice": ([user(say()), model(ask("a")), user(answer("a"), answer("a"))], "H5"),
    "results in two contents": (
        [user(say()), model(ask("a"), ask("b")), user(answer("a")), user(answer("b"))],
        "H5",
    ),
}


@pytest.mark.parametrize("contents", SOUND.values(), ids=SOUND.keys())
def test_a_sound_history_passes(contents: list[types.Content]) -> None:
    assert history_problems(contents) == []
    check_history(LlmRequest(contents=contents))


@pytest.mark.parametrize(("contents", "clause"), BROKEN.values(), ids=BROKEN.keys())
def test_a_broken_history_is_found(contents: list[types.Content], clause: str) -> None:
    assert any(f"({clause})" in problem for problem in history_problems(contents))


def test_the_error_says_where_and_shows_the_history() -> None:
    contents = [user(say("x" * 80)), model(ask("refund", "c1")), user(say("well?"))]
    with pytest.raises(HistoryError) as caught:
        check_history(LlmRequest(contents=contents))
    assert caught.value.problems == (
        "contents[2] lacks the response of refund() with the id 'c1', which was called directly before (H4)",
    )
    assert f"[0] user: '{'x' * 57}...'" in str(caught.value)
    assert "[1] model: call refund() with the id 'c1'" in str(caught.value)


@given(st.lists(st.lists(st.sampled_from("abc"), max_size=3), max_size=4), st.data())
def test_taking_one_result_away_is_always_found(groups: list[list[str]], data: st.DataObject) -> None:
    contents = [user(say())]
    for names in groups:
        contents += [model(say(), *map(ask, names)), user(*map(answer, names), say())]
    assert history_problems(contents) == []
    answers = [(content, part) for content in contents for part in content.parts or [] if part.function_response]
    if answers:
        content, part = data.draw(st.sampled_from(answers))
        assert content.parts is not None
        content.parts.remove(part)
        assert history_problems(contents) != []
