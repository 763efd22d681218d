"""Session state: shared as ADK shares it, kept over a crash as the design promises, counted as ADK counts."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from google.adk.agents import LlmAgent
from google.adk.agents.callback_context import CallbackContext
from google.adk.runners import Runner
from google.adk.sessions import InMemorySessionService
from google.adk.tools.tool_context import ToolContext
from google.genai import types
from tests.field.lives import GO_ON, Hold, life
from tests.field.support import PATIENCE, READ, SESSION, Field, answers_in, durable, say, step_settled, steps_of

from perdure import AgentSessionFlow
from perdure.testing import ScriptedModel, by_message, call, reply, text


def remember(key: str, value: str, tool_context: ToolContext) -> str:
    """Puts a value into the state."""
    tool_context.state[key] = value
    return "kept"


def recall(tool_context: ToolContext) -> dict[str, Any]:
    """Tells the whole state."""
    return tool_context.state.to_dict()


POLICIES = {"remember": READ, "recall": READ}
KEEP_AND_TELL = by_message(
    {
        "keep": [
            reply(*[call("remember", key=f"{scope}k", value="v") for scope in ("", "user:", "app:", "temp:")]),
            call("recall"),
            text("Kept."),
        ],
        "tell": [call("recall"), text("Told.")],
    }
)


def told(field: Field) -> dict[str, Any]:
    """What ``recall`` told the model last."""
    response: dict[str, Any] = answers_in(field.requests[-1])["recall"]
    return response


async def test_app_and_user_state_are_shared_between_sessions_and_temp_state_lasts_a_turn(field: Field) -> None:
    """As ADK defines the prefixes."""
    async with field.working(field.flow(KEEP_AND_TELL, [remember, recall], POLICIES)) as client:
        snapshot = await say(client, "keep", "first", user_id="ann")
        assert told(field) == {"k": "v", "user:k": "v", "app:k": "v", "temp:k": "v"}
        assert snapshot.state == {"k": "v", "user:k": "v", "app:k": "v"}
        await say(client, "tell", "first")
        assert told(field) == {"k": "v", "user:k": "v", "app:k": "v"}
        await say(client, "tell", "second", user_id="ann")
        assert told(field) == {"user:k": "v", "app:k": "v"}
        snapshot = await say(client, "tell", "third", user_id="ben")
        assert told(field) == snapshot.state == {"app:k": "v"}


async def test_a_session_sees_at_its_next_turn_what_others_shared_meanwhile(field: Field) -> None:
    async with field.working(field.flow(KEEP_AND_TELL, [remember, recall], POLICIES)) as client:
        await say(client, "tell", "first")
        assert told(field) == {}
        await say(client, "keep", "second")
        snapshot = await say(client, "tell", "first")
        assert told(field) == snapshot.state == {"user:k": "v", "app:k": "v"}


async def test_state_at_the_start_and_with_a_message(field: Field) -> None:
    async with field.working(field.flow(KEEP_AND_TELL, [remember, recall], POLICIES)) as client:
        await client.start_session(
            SESSION,
            "tell",
            state={"tenant": "t1", "user:name": "Ann", "app:motto": "m", "n": {"deep": [1, None, True]}},
            state_delta={"with": "the first", "temp:only": "now"},
        )
        await client.wait(SESSION, timeout=PATIENCE)
        start = {"tenant": "t1", "user:name": "Ann", "app:motto": "m", "n": {"deep": [1, None, True]}}
        assert told(field) == {**start, "with": "the first", "temp:only": "now"}
        snapshot = await say(client, "tell", state_delta={"with": "the second", "app:motto": "other"})
        assert told(field) == snapshot.state == {**start, "with": "the second", "app:motto": "other"}


async def test_state_is_there_before_any_turn(field: Field) -> None:
    async with field.asking() as client:
        await client.start_session(SESSION, state={"tenant": "t1", "user:name": "Ann", "temp:x": 1})
        assert (await client.get_agent_snapshot(SESSION)).state == {"tenant": "t1", "user:name": "Ann"}


# ---------------------------------------------------------------- over a crash


def keeping(field: Field, hold: Hold) -> AgentSessionFlow:
    """State set by a callback and by a tool, then a crash, then a look at it."""

    def before(callback_context: CallbackContext) -> None:
        callback_context.state["temp:began"] = callback_context.state.get("temp:began", 0) + 1

    async def keep(tool_context: ToolContext) -> str:
        """Keeps some values."""
        field.note("keep")
        tool_context.state["temp:draft"] = {"lines": [1, 2]}
        tool_context.state["own"] = "o"
        tool_context.state["app:shared"] = "s"
        return "kept"

    async def tell(tool_context: ToolContext) -> dict[str, Any]:
        """Tells the whole state."""
        await hold.here("tell")
        return tool_context.state.to_dict()

    agent = field.agent(
        by_message({"go": [call("keep"), call("tell"), text("Done.")], "again": [call("tell"), text("Done.")]}),
        [keep, tell],
        before_agent_callback=before,
    )
    return durable(agent, {"keep": READ, "tell": READ})


async def test_temp_state_survives_a_crash_inside_its_turn_and_no_longer(field: Field) -> None:
    """Plain ADK has its ``temp:`` keys in memory only."""
    async with field.asking() as client:
        with life(keeping, field) as child:
            await client.start_session(SESSION, "go", state_delta={"temp:given": True})
            await child.wait_for_async("in tell")
            child.kill()
    async with field.working(keeping(field, GO_ON)) as client:
        await client.wait(SESSION, timeout=PATIENCE)
        assert field.world == ["keep"], "what set the state did not run again"
        kept = {"own": "o", "app:shared": "s"}
        assert answers_in(field.requests[-1])["tell"] == {
            **kept,
            "temp:given": True,
            "temp:began": 1,
            "temp:draft": {"lines": [1, 2]},
        }
        snapshot = await say(client, "again")
        assert snapshot.state == kept
        assert answers_in(field.requests[-1])["tell"] == {**kept, "temp:began": 1}


# ---------------------------------------------------------------- parallel calls that share a key


def add_at_once(n: int, tool_context: ToolContext) -> int:
    """Adds, without a pause in between."""
    tool_context.state["sum"] = tool_context.state.get("sum", 0) + n
    return int(tool_context.state["sum"])


async def add_with_a_pause(n: int, tool_context: ToolContext) -> int:
    """Reads, lets the others run, and writes."""
    seen = tool_context.state.get("sum", 0)
    await asyncio.sleep(0.001 * n)
    tool_context.state["sum"] = seen + n
    return int(tool_context.state["sum"])


async def append_to_a_list(n: int, tool_context: ToolContext) -> int:
    """Appends to a list in the state, in place."""
    found: list[int] = tool_context.state.setdefault("list", [])
    found.append(n)
    tool_context.state["list"] = found
    return len(found)


@pytest.mark.parametrize("tool", [add_at_once, add_with_a_pause, append_to_a_list])
async def test_parallel_calls_that_change_one_key_count_as_on_plain_adk(field: Field, tool: Any) -> None:
    """Design: parallel calls that increment one key both count if ADK alone would count both."""
    script = [reply(*[call(tool.__name__, n=n) for n in (1, 2, 3)]), call(tool.__name__, n=10), text("Done.")]
    model = ScriptedModel(script)
    service = InMemorySessionService()
    async with Runner(
        app_name="field", agent=LlmAgent(name="helper", model=model, tools=[tool]), session_service=service
    ) as runner:
        await service.create_session(app_name="field", user_id="user", session_id=SESSION)
        content = types.Content(role="user", parts=[types.Part(text="go")])
        async for _ in runner.run_async(user_id="user", session_id=SESSION, new_message=content):
            pass
        session = await service.get_session(app_name="field", user_id="user", session_id=SESSION)
    assert session is not None
    async with field.working(field.flow(script, [tool], {tool.__name__: READ})) as client:
        snapshot = await say(client, "go")
        assert snapshot.state == session.state
        assert [answers_in(request) for request in field.requests] == [
            answers_in(request) for request in model.requests
        ]


def adding(field: Field, hold: Hold) -> AgentSessionFlow:
    """In each session another one of the three calls takes its time before it adds."""

    async def add(n: int, tool_context: ToolContext) -> int:
        """Adds."""
        if n == int(tool_context.session.id):
            await hold.here(f"call {n}")
        tool_context.state["sum"] = tool_context.state.get("sum", 0) + n
        return int(tool_context.state["sum"])

    script = [reply(*[call("add", n=n) for n in (1, 2, 3)]), text("Done.")]
    return field.flow(script, [add], {"add": READ})


async def test_parallel_calls_count_over_a_crash_between_them_as_without_one(field: Field) -> None:
    """A call that runs after the crash sees what its siblings set before it.

    What stays is what ADK lets stay when the calls end in that order: it merges what they set in the order of the
    calls, so the sum that call 3 set stands, whichever ended last.
    """
    async with field.asking() as client:
        with life(adding, field) as child:
            for held in "123":
                await client.start_session(held, "go")
            for held in "123":
                await child.wait_for_async("in call")
                await step_settled(client, "add", held, count=2)
            child.kill()
    async with field.working(adding(field, GO_ON)) as client:
        for held, results, stays in (("1", [6, 2, 5], 5), ("2", [1, 6, 4], 4), ("3", [1, 3, 6], 6)):
            snapshot = await client.wait(held, timeout=PATIENCE)
            steps = [step for step in await steps_of(client, held) if step.tool_name]
            assert [step.result["result"] for step in steps] == results
            assert snapshot.state == {"sum": stays}
