"""Field case 25: values that cannot be stored fail where they are written, by name, at the first try."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from google.adk.agents.callback_context import CallbackContext
from google.adk.tools.tool_context import ToolContext
from tests.field.support import READ, SESSION, Field, answers_in, call_steps, durable, prompt, say, turn_of

from perdure import PayloadTooLarge, SessionNotFound, SessionStatus, TurnStatus, ValueNotStorable
from perdure.store import codec
from perdure.testing import by_message, call, failing, reply, text

SCRIPT = by_message({"go": [call("tool"), text("Done.")], "hello": text("Hi.")})

Tool = Callable[[ToolContext], Any]


def returns_an_open_file(tool_context: ToolContext) -> Any:
    """Opens a file."""
    with Path(__file__).open() as file:
        return file


def returns_a_lock_deep_inside(tool_context: ToolContext) -> Any:
    """Returns a lock."""
    return {"ok": True, "inner": [1, {"lock": threading.Lock()}]}


def puts_a_lock_into_the_state(tool_context: ToolContext) -> Any:
    """Keeps a lock."""
    tool_context.state["kept"] = 1
    tool_context.state["the_lock"] = threading.Lock()
    return "ok"


def puts_a_lock_into_the_turns_state(tool_context: ToolContext) -> Any:
    """Keeps a lock for the turn."""
    tool_context.state["temp:the_lock"] = threading.Lock()
    return "ok"


def returns_half_a_surrogate_pair(tool_context: ToolContext) -> Any:
    """Returns text that is no Unicode."""
    return {"text": "\ud83d"}


def returns_a_number_that_is_none(tool_context: ToolContext) -> Any:
    """Returns NaN."""
    return {"mean": float("nan")}


def returns_a_huge_number(tool_context: ToolContext) -> Any:
    """Returns a number that JSON can hold and Python will not print."""
    return 10**5000


def returns_a_list_that_holds_itself(tool_context: ToolContext) -> Any:
    """Returns a list without an end."""
    endless: list[Any] = []
    endless.append(endless)
    return endless


def returns_numbers_as_keys(tool_context: ToolContext) -> Any:
    """Returns what a response cannot be."""
    return {1: "one"}


def puts_a_number_that_is_none_into_the_state(tool_context: ToolContext) -> Any:
    """Keeps NaN."""
    tool_context.state["mean"] = [float("inf")]
    return "ok"


def puts_half_a_surrogate_pair_into_the_state(tool_context: ToolContext) -> Any:
    """Keeps text that is no Unicode."""
    tool_context.state["text"] = "\ud83d"
    return "ok"


@pytest.mark.parametrize(
    ("tool", "names"),
    [
        (returns_half_a_surrogate_pair, ["the result of tool 'tool'", "no valid Unicode", ".text"]),
        (returns_a_number_that_is_none, ["the result of tool 'tool'", "the number nan", ".mean"]),
        (returns_a_huge_number, ["the result of tool 'tool'", "4,000 digits"]),
        (returns_a_list_that_holds_itself, ["the result of tool 'tool'"]),
        (returns_numbers_as_keys, ["the result of tool 'tool'", "the key 1"]),
        (puts_a_number_that_is_none_into_the_state, ["state key 'mean'", "the number inf", "[0]"]),
        (puts_half_a_surrogate_pair_into_the_state, ["state key 'text'", "no valid Unicode"]),
        (returns_an_open_file, ["the result of tool 'tool'", "_io.TextIOWrapper"]),
        (returns_a_lock_deep_inside, ["the result of tool 'tool'", ".inner[1].lock", "_thread.lock"]),
        (puts_a_lock_into_the_state, ["state key 'the_lock'", "_thread.lock"]),
        (puts_a_lock_into_the_turns_state, ["state key 'temp:the_lock'", "_thread.lock"]),
    ],
)
async def test_a_call_whose_value_cannot_be_stored_fails_at_its_first_try(
    field: Field, tool: Tool, names: list[str]
) -> None:
    """Case 25.  Engines that retry what they cannot encode hang; plain ADK in memory keeps a reference to the value."""
    runs: list[int] = []

    def counted(tool_context: ToolContext) -> Any:
        """Does it."""
        runs.append(1)
        return tool(tool_context)

    counted.__name__ = "tool"
    async with field.working(field.flow(SCRIPT, [counted], {"tool": READ})) as client:
        snapshot = await say(client, "go")
        step = (await call_steps(client))["tool"]
        assert step.error is not None
        assert (len(runs), step.attempts, step.status.value) == (1, 1, "failed")
        assert step.error.code == "value_not_storable"
        assert all(name in step.error.message for name in names), step.error.message
        assert answers_in(field.requests[-1]) == {"tool": {"error": f"The tool call failed: {step.error.message}"}}
        assert turn_of(snapshot).status is TurnStatus.COMPLETED
        assert snapshot.state == {}, "nothing of the attempt counts"
        assert (await say(client, "hello", "another")).status is SessionStatus.IDLE, "the worker goes on"
        assert turn_of(await say(client, "hello")).status is TurnStatus.COMPLETED, "and so does the session"


def _locks_before_the_agent(callback_context: CallbackContext) -> None:
    callback_context.state["the_lock"] = threading.Lock()


def _locks_after_the_agent(callback_context: CallbackContext) -> None:
    callback_context.state["the_lock"] = threading.Lock()


@pytest.mark.parametrize(
    "callback",
    [{"before_agent_callback": _locks_before_the_agent}, {"after_agent_callback": _locks_after_the_agent}],
)
async def test_a_callback_whose_value_cannot_be_stored_fails_its_turn(field: Field, callback: dict[str, Any]) -> None:
    """Case 25: the same outside a tool: a typed failure of the turn, and the other sessions go on."""
    allowed = [False]

    def only_now_and_then(callback_context: CallbackContext) -> None:
        if not allowed[0]:
            (function,) = callback.values()
            function(callback_context)

    options: dict[str, Any] = dict.fromkeys(callback, only_now_and_then)
    agent = field.agent(SCRIPT, **options)
    async with field.working(durable(agent)) as client:
        snapshot = await say(client, "hello")
        error = turn_of(snapshot).error
        assert error is not None
        assert (snapshot.status, turn_of(snapshot).status) == (SessionStatus.IDLE, TurnStatus.FAILED)
        assert error.code == "value_not_storable"
        assert "'the_lock'" in error.message
        allowed[0] = True
        assert turn_of(await say(client, "hello", "another")).status is TurnStatus.COMPLETED
        assert turn_of(await say(client, "hello")).status is TurnStatus.COMPLETED


async def test_what_a_client_gives_is_refused_before_it_is_sent(field: Field) -> None:
    """Case 25: state at start, state with a message, a payload; each names the place."""
    async with field.working(field.flow(SCRIPT, [])) as client:
        with pytest.raises(ValueNotStorable, match=r"state\['cart'\]\[0\] is a _thread.lock"):
            await client.start_session(SESSION, state={"cart": [threading.Lock()]})
        with pytest.raises(SessionNotFound):
            await client.get_agent_snapshot(SESSION)
        await client.start_session(SESSION)
        with pytest.raises(ValueNotStorable, match=r"state_delta\['x'\] is a builtins.object"):
            await client.send_user_message(SESSION, "go", state_delta={"x": object()})
        with pytest.raises(ValueNotStorable, match=r"payload\['x'\] is the number nan"):
            await client.resolve_interrupt(SESSION, "i", approved=True, payload={"x": float("nan")})
        snapshot = await client.get_agent_snapshot(SESSION)
        assert (snapshot.status, snapshot.turn, snapshot.queued_messages) == (SessionStatus.IDLE, None, 0)


# ---------------------------------------------------------------- too large


@pytest.fixture
def small_limit(monkeypatch: pytest.MonkeyPatch) -> int:
    """A store that takes values of up to 50 kB, so that the tests need no 64 MB."""
    limit = 50_000
    monkeypatch.setattr(codec, "MAX_PAYLOAD_BYTES", limit)
    return limit


async def test_a_result_that_is_too_large_fails_its_call(field: Field, small_limit: int) -> None:
    """Case 24: an error that names the tool, at the first try, and never a silent loop."""
    runs: list[int] = []

    def tool() -> str:
        """Returns too much.  (Each character takes two bytes.)"""
        runs.append(1)
        return "é" * (small_limit // 2)

    async with field.working(field.flow(SCRIPT, [tool], {"tool": READ})) as client:
        snapshot = await say(client, "go")
        step = (await call_steps(client))["tool"]
        assert step.error is not None
        assert (len(runs), step.status.value, step.error.code) == (1, "failed", "payload_too_large")
        assert "the result of tool 'tool' has 50" in step.error.message
        assert turn_of(snapshot).status is TurnStatus.COMPLETED
        assert answers_in(field.requests[-1]) == {"tool": {"error": f"The tool call failed: {step.error.message}"}}


async def test_results_that_are_too_large_together_fail_the_turn(field: Field, small_limit: int) -> None:
    """ADK puts the results of parallel calls into one event.  What became of them is in the note."""

    def tool() -> str:
        """Returns much."""
        field.note("tool")
        return "x" * (small_limit * 2 // 3)

    script = by_message({"go": [reply(call("tool"), call("tool")), text("Done.")], "hello": text("Hi.")})
    async with field.working(field.flow(script, [tool], {"tool": READ})) as client:
        snapshot = await say(client, "go")
        error = turn_of(snapshot).error
        assert error is not None
        assert (snapshot.status, turn_of(snapshot).status) == (SessionStatus.IDLE, TurnStatus.FAILED)
        assert error.code == "payload_too_large"
        assert field.world == ["tool", "tool"]
        assert turn_of(await say(client, "hello")).status is TurnStatus.COMPLETED
        assert "- tool(): it succeeded; do not repeat it" in prompt(field.requests[-1])[-2]


async def test_an_answer_of_the_model_that_is_too_large_fails_the_turn(field: Field, small_limit: int) -> None:
    script = by_message({"go": text("x" * small_limit), "hello": text("Hi.")})
    async with field.working(field.flow(script)) as client:
        error = turn_of(await say(client, "go")).error
        assert error is not None
        assert error.code == "payload_too_large"
        assert turn_of(await say(client, "hello")).status is TurnStatus.COMPLETED


async def test_a_message_that_is_too_large_is_refused_to_its_sender(field: Field, small_limit: int) -> None:
    async with field.asking() as client:
        await client.start_session(SESSION)
        with pytest.raises(PayloadTooLarge):
            await client.send_user_message(SESSION, "x" * small_limit)
        half = "\ud83d"
        for refused in (
            client.send_user_message(SESSION, half),
            client.send_user_message(SESSION, "hi", request_id=half),
            client.send_user_message(SESSION, "hi", state_delta={half: 1}),
            client.resolve_interrupt(SESSION, "i", approved=False, message=half),
            client.resolve_interrupt(SESSION, "i", approved=False, resolved_by=half),
            client.start_session("new", user_id=half),
        ):
            with pytest.raises(ValueNotStorable):
                await refused
        endless: list[Any] = []
        endless.append(endless)
        with pytest.raises(ValueNotStorable, match="deep"):
            await client.start_session("new", state={"endless": endless})
        assert (await client.get_agent_snapshot(SESSION)).queued_messages == 0


@pytest.mark.parametrize("words", ["half of \ud83d", "x" * 200_000])
async def test_whatever_an_exception_says_can_be_kept(field: Field, small_limit: int, words: str) -> None:
    """Text of a tool's or a model's exception that no store would take: it is mended and cut."""

    def tool() -> str:
        """Fails."""
        raise RuntimeError(words)

    script = by_message({"go": [call("tool"), failing(RuntimeError(words))], "hello": text("Hi.")})
    async with field.working(field.flow(script, [tool], {"tool": READ})) as client:
        snapshot = await say(client, "go")
        step = (await call_steps(client))["tool"]
        failures = (step.error, turn_of(snapshot).error)
        for error in failures:
            assert error is not None
            assert error.code == "RuntimeError"
            assert error.message.startswith(words[:8])
            assert len(error.message) < 21_000
        assert (step.status.value, step.attempts) == ("failed", 3)
        assert turn_of(await say(client, "hello")).status is TurnStatus.COMPLETED
