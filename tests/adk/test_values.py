"""Values on their way to the store and back: results, state, exceptions."""

from __future__ import annotations

import dataclasses
import enum
import json
import math
import threading
from collections import OrderedDict
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any, NamedTuple
from uuid import UUID

import pytest
from google.adk.agents import LlmAgent
from google.adk.agents.callback_context import CallbackContext
from google.adk.tools.tool_context import ToolContext
from google.genai import types
from google.genai.errors import ServerError
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel
from tests.adk.disk import Crash, Disk
from tests.adk.model import ScriptedModel, calls, says
from tests.adk.plain import request_form
from tests.adk.worlds import World

from perdure.adk.records.codec import UnknownType, decode, dumps, encode, is_plain, plain
from perdure.adk.records.failures import RecordedError, decode_error, encode_error, error_info
from perdure.errors import ToolExecutionError, ValueNotStorable
from perdure.session.model import TurnStatus


class Colour(enum.Enum):
    RED = "red"


class Level(enum.IntEnum):
    HIGH = 3


class Order(BaseModel):
    number: int
    tags: set[str] = set()


@dataclasses.dataclass(frozen=True)
class Point:
    x: float
    inner: Any = None

    def __post_init__(self) -> None:
        if self.x == 13:
            raise ValueError("made by decode")


class Pair(NamedTuple):
    a: int
    b: int


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=12,
)
RICH = st.recursive(
    st.none()
    | st.integers()
    | st.text()
    | st.binary()
    | st.datetimes(timezones=st.just(UTC))
    | st.dates()
    | st.times()
    | st.timedeltas()
    | st.decimals(allow_nan=False)
    | st.uuids()
    | st.sampled_from([Colour.RED, Level.HIGH])
    | st.builds(Order, number=st.integers(0, 9), tags=st.sets(st.text(max_size=3), max_size=2)),
    lambda inner: (
        st.lists(inner)
        | st.tuples(inner, inner)
        | st.dictionaries(st.integers() | st.text() | st.tuples(st.integers()), inner)
        | st.builds(Point, x=st.just(1.5), inner=inner)
    ),
    max_leaves=10,
)


@given(JSON)
def test_json_stays_as_it_is(value: Any) -> None:
    encoded = encode(value, "it")
    assert decode(json.loads(dumps(encoded))) == value


@given(RICH)
def test_other_values_come_back_equal_and_of_the_same_type(value: Any) -> None:
    back = decode(json.loads(dumps(encode(value, "it"))))
    assert back == value
    assert type(back) is type(value)


@pytest.mark.parametrize(
    "value",
    [
        {"$perdure": "bytes", "value": "x"},
        [{"$perdure": 1}],
        frozenset({1, 2}),
        bytearray(b"ab"),
        1 + 2j,
        math.inf,
        types.Part(inline_data=types.Blob(data=b"\xff\x00", mime_type="image/png")),
        {1: {2.5: None}},
        time(1, 2, 3, 4),
        timedelta(days=-1, microseconds=5),
        date(2024, 2, 29),
        datetime(2024, 2, 29, tzinfo=UTC),
        Decimal("1.10"),
        UUID(int=5),
    ],
)
def test_odd_values_come_back(value: Any) -> None:
    back = decode(json.loads(dumps(encode(value, "it"))))
    assert back == value
    assert type(back) is type(value)


def test_not_a_number_comes_back() -> None:
    assert math.isnan(decode(encode(math.nan, "it")))


def test_subclasses_of_builtins_become_the_builtin() -> None:
    assert encode(OrderedDict(a=1), "it") == {"a": 1}
    assert decode(encode(Pair(1, 2), "it")) == (1, 2)


def test_rebuilding_runs_no_code_of_the_class() -> None:
    point = object.__new__(Point)
    object.__setattr__(point, "x", 13)
    object.__setattr__(point, "inner", None)
    assert decode(encode(point, "it")) == point


def _loop() -> list[Any]:
    loop: list[Any] = []
    loop.append(loop)
    return loop


@pytest.mark.parametrize(
    ("value", "path"),
    [
        (threading.Lock(), ""),
        ("\ud800", ""),
        ({"a": ["\ud800"]}, ".a[0]"),
        ({"\ud800": 1}, "key"),
        pytest.param(-(10**5000), "", id="a huge integer"),
        ({"a": [1, threading.Lock()]}, ".a[1]"),
        (lambda: None, ""),
        (iter([]), ""),
        (object, ""),
        (type("Local", (BaseModel,), {})(), ""),
    ],
)
def test_what_cannot_be_rebuilt_is_refused_by_name(value: Any, path: str) -> None:
    with pytest.raises(ValueNotStorable, match="the result of tool 't'") as refusal:
        encode(value, "the result of tool 't'")
    assert refusal.value.facts["path"] == path


def test_a_value_that_contains_itself_is_refused() -> None:
    assert not is_plain(_loop())
    with pytest.raises(ValueNotStorable):
        encode(_loop(), "it")
    with pytest.raises(ValueNotStorable):
        plain(_loop(), "it")


def test_only_plain_kinds_of_class_are_imported() -> None:
    for form in (
        {"$perdure": "dataclass", "type": "subprocess:Popen", "value": {}},
        {"$perdure": "model", "type": "subprocess:Popen", "value": {}},
        {"$perdure": "enum", "type": "subprocess:Popen", "value": "x"},
        {"$perdure": "model", "type": "no.such:Thing", "value": {}},
        {"$perdure": "enum", "type": "tests.adk.test_values:Colour", "value": "GONE"},
    ):
        with pytest.raises(UnknownType):
            decode(form)


class Complicated(Exception):
    def __init__(self, *, code: int, lock: Any) -> None:
        super().__init__(f"code {code}")
        self.code = code
        self.lock = lock


@pytest.mark.parametrize(
    "error",
    [
        ValueError("no"),
        KeyError("k"),
        ToolExecutionError("stop"),
        OSError(2, "not there", "file"),
        Complicated(code=7, lock=threading.Lock()),
        ServerError(503, {"error": {"message": "out", "status": "UNAVAILABLE"}}),
        UnicodeDecodeError("utf-8", b"\xff", 0, 1, "bad"),
    ],
)
def test_an_exception_is_rebuilt_as_its_class_with_its_text(error: Exception) -> None:
    back = decode_error(json.loads(dumps(encode_error(error))))
    assert type(back) is type(error)
    assert str(back) == str(error)
    assert getattr(back, "code", None) == getattr(error, "code", None)


class Spoken(Exception):
    def __init__(self, lock: Any) -> None:
        self.lock = lock

    def __str__(self) -> str:
        return f"holds {getattr(self, 'lock', None) is not None}"


def test_an_exception_that_would_say_something_else_keeps_its_text() -> None:
    back = decode_error(encode_error(Spoken(threading.Lock())))
    assert isinstance(back, RecordedError)
    assert (str(back), back.type_name) == ("holds True", "Spoken")


def test_an_exception_of_a_class_that_is_not_there_keeps_its_text() -> None:
    class Local(Exception):
        pass

    back = decode_error(encode_error(Local("words")))
    assert isinstance(back, RecordedError)
    assert (str(back), back.type_name) == ("words", "Local")
    assert error_info(back).code == "Local"


def world(tool: Any, **agent: Any) -> World:
    model = ScriptedModel(replies=[calls((tool.__name__, {})), says("done"), says("done again")])
    return World(model, LlmAgent(name="worker", model=model, tools=[tool], **agent))


def _answer(disk: Disk) -> Any:
    return disk.messages[2]["content"]["parts"][0]["function_response"]["response"]


async def test_an_open_file_as_a_result_fails_the_call_at_once(tmp_path: Path) -> None:
    ran: list[int] = []
    file = (tmp_path / "f").open("w")

    def open_file(tool_context: ToolContext) -> Any:
        """Opens."""
        ran.append(1)
        tool_context.state["opened"] = True
        return file

    one = world(open_file)
    engine = one.engine()
    await engine.turn("go")
    assert ran == [1]
    error = _answer(engine.disk)["error"]
    assert "'open_file'" in error
    assert "TextIOWrapper" in error
    assert engine.disk.state == {}
    await engine.turn("more")
    assert engine.disk.status is TurnStatus.COMPLETED
    file.close()


async def test_a_lock_in_the_state_fails_the_call_and_names_the_key() -> None:
    def lock(tool_context: ToolContext) -> str:
        """Locks."""
        tool_context.state["fine"] = 1
        tool_context.state["temp:lock"] = threading.Lock()
        return "locked"

    engine = world(lock).engine()
    await engine.turn("go")
    assert "'temp:lock'" in _answer(engine.disk)["error"]
    assert engine.disk.state == {}


async def test_a_lock_that_a_callback_puts_into_the_state_fails_the_turn_and_names_the_key() -> None:
    def before(callback_context: CallbackContext) -> None:
        callback_context.state["lock"] = threading.Lock()

    def noop() -> None:
        """Does nothing."""

    engine = world(noop, before_agent_callback=before).engine()
    await engine.turn("go")
    assert engine.disk.error is not None
    assert engine.disk.error.code == "value_not_storable"
    assert "'lock'" in engine.disk.error.message
    assert engine.disk.state == {}


async def test_an_answer_of_a_callback_that_cannot_be_stored_fails_the_turn() -> None:
    def noop() -> None:
        """Does nothing."""

    def answer(**given: Any) -> dict[str, Any]:
        return {"lock": threading.Lock()}

    engine = world(noop, before_tool_callback=answer).engine()
    await engine.turn("go")
    assert engine.disk.error is not None
    assert engine.disk.error.code == "value_not_storable"
    assert "noop" in engine.disk.error.message


def rich(tool_context: ToolContext) -> Any:
    """Gives rich values."""
    tool_context.state["when"] = datetime(2024, 1, 2, tzinfo=UTC)
    tool_context.state["temp:order"] = Order(number=5)
    return {
        "order": Order(number=1, tags={"a"}),
        "picture": types.Part(inline_data=types.Blob(data=b"\xff\x00", mime_type="image/png")),
        "at": datetime(2024, 1, 2, tzinfo=UTC),
    }


async def test_callbacks_see_the_same_rich_values_live_and_in_a_replay() -> None:
    seen: list[Any] = []

    def after(tool: Any, args: dict[str, Any], tool_context: ToolContext, tool_response: Any) -> None:
        seen.append((tool_response, tool_context.state["when"], tool_context.state["temp:order"]))

    live = world(rich, after_tool_callback=after)
    engine = live.engine()
    await engine.turn("go")
    disk = Disk(crash_at=4)
    crashed = world(rich, after_tool_callback=after).engine(disk)
    crashed.begin("go")
    with pytest.raises(Crash):
        await crashed.go_on()
    disk.reboot()
    again = world(rich, after_tool_callback=after)
    await again.engine(disk).go_on()
    assert len(seen) == 3
    assert seen[0] == seen[1] == seen[2]
    assert isinstance(seen[2][0]["order"], Order)
    assert disk.messages == engine.disk.messages
    assert disk.state == engine.disk.state == {"when": "2024-01-02T00:00:00Z"}
    assert engine.disk.new_messages[2].images == ("image/png",)
    assert list(engine.disk.results.values()) == list(disk.results.values())


async def test_the_next_turn_sees_rich_values_as_the_store_has_them() -> None:
    warm, cold = world(rich), world(rich)
    engine, other = warm.engine(), cold.engine()
    await engine.turn("go")
    await engine.turn("more")
    await other.turn("go")
    await cold.engine(other.disk).turn("more")
    assert list(map(request_form, warm.model.requests)) == list(map(request_form, cold.model.requests))
    assert engine.disk.messages == other.disk.messages
    for each in (warm, cold):
        parts = each.model.requests[-1].contents[2].parts or []
        (response,) = [part.function_response.response for part in parts if part.function_response]
        assert response is not None
        assert response["order"] == {"number": 1, "tags": ["a"]}
