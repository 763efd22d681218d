"""Texts on their way in are checked, and named when they cannot be stored; on their way out they are what they were."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.unit.store.builders import call_request

from perdure.errors import PayloadTooLarge, ValueNotStorable
from perdure.session.model import UserMessage
from perdure.store import codec
from perdure.store.codec import LongText, Unreadable, call_request_from_json, from_json, pack, same_json, to_json

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=10,
)


@given(JSON)
def test_values_come_back_equal(value: object) -> None:
    assert same_json(from_json(to_json(value, "x"), "x"), value)


@pytest.mark.parametrize(
    ("value", "path", "type_name"),
    [
        ({"a": [1, {"b": {1, 2}}]}, "['a'][1]['b']", "set"),
        ([math.nan], "[0]", "float"),
        (object(), "", "object"),
        ({(1, 2): 3}, "", "dict"),
        ((1, b"x"), "[1]", "bytes"),
    ],
)
def test_a_value_without_a_json_form_is_named(value: object, path: str, type_name: str) -> None:
    with pytest.raises(ValueNotStorable) as caught:
        to_json(value, "state 'k'")
    assert (caught.value.where, caught.value.path, caught.value.type_name) == ("state 'k'", path, type_name)


def test_a_value_that_contains_itself_is_refused() -> None:
    loop: list[object] = []
    loop.append(loop)
    with pytest.raises(ValueNotStorable):
        to_json(loop, "x")


def test_long_texts_are_kept_apart_by_their_size_in_bytes() -> None:
    limit = codec.MAX_INLINE_BYTES
    assert pack("x" * limit, "t") == "x" * limit
    assert isinstance(pack("x" * (limit + 1), "t"), LongText)
    assert pack("é" * (limit // 2), "t") == "é" * (limit // 2)
    long, same = pack("é" * (limit // 2 + 1), "t"), pack("é" * (limit // 2 + 1), "u")
    assert isinstance(long, LongText)
    assert long == same


def test_too_large_a_text_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(codec, "MAX_PAYLOAD_BYTES", 40_000)
    pack("x" * 40_000, "t")
    with pytest.raises(PayloadTooLarge) as caught:
        pack("é" * 20_001, "the result")
    assert (caught.value.where, caught.value.size, caught.value.limit) == ("the result", 40_002, 40_000)


def test_a_message_that_does_not_steer_is_written_as_before_there_were_any_that_do() -> None:
    """A worker of an earlier release reads it."""
    assert "steers" not in codec.message_to_json(UserMessage(text="hi"), "m")
    steers = UserMessage(text="hi", steers=True)
    assert codec.message_from_json(codec.message_to_json(steers, "m"), "m") == steers


def test_half_a_surrogate_pair_is_no_text() -> None:
    with pytest.raises(ValueNotStorable, match="surrogate"):
        pack("a\ud800", "t")
    with pytest.raises(ValueNotStorable):
        codec.message_to_json(UserMessage(text="\ud800"), "message")


def test_a_message_with_a_strange_state_delta_names_the_key() -> None:
    with pytest.raises(ValueNotStorable) as caught:
        codec.message_to_json(UserMessage(text="x", state_delta={"k": object()}), "message")
    assert "['k']" in str(caught.value)


@pytest.mark.parametrize("text", ["{", "[]", "{}", '{"call_id": 1}'])
def test_what_was_never_stored_is_unreadable(text: str) -> None:
    with pytest.raises(Unreadable) as caught:
        call_request_from_json(text, "call 'c'")
    assert caught.value.where == "call 'c'"


def test_a_call_request_comes_back_equal() -> None:
    request = call_request(payload={"a": [1, None]})
    assert call_request_from_json(codec.call_request_to_json(request, "x"), "x") == request
