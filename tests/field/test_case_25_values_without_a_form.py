"""Field case 25: values that cannot be stored fail where they are written, by name, at the first try."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from google.adk.agents.callback_context import CallbackContext
from google.adk.tools.tool_context import ToolContext
from tests.field.support import READ, SESSION, Field, answers_in, call_steps, durable, say, turn_of

from perdure import SessionNotFound, SessionStatus, TurnStatus, ValueNotStorable
from perdure.testing import by_message, call, text

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


@pytest.mark.parametrize(
    ("tool", "names"),
    [
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
