"""Artifacts, memory, token counts and the limit of model calls."""

from __future__ import annotations

import pytest
from google.adk.agents import RunConfig
from google.adk.artifacts import FileArtifactService, InMemoryArtifactService
from google.adk.events import Event
from google.adk.memory import InMemoryMemoryService
from google.adk.sessions import Session
from google.adk.tools.function_tool import FunctionTool
from google.adk.tools.load_memory_tool import load_memory_tool as load_memory
from google.adk.tools.tool_context import ToolContext
from google.genai import types
from tests.field.lives import GO_ON, Hold, life
from tests.field.support import (
    PATIENCE,
    READ,
    SESSION,
    Field,
    answer_all,
    answers_in,
    at_rest,
    call_steps,
    durable,
    messages_of,
    say,
    turn_of,
)

from perdure import AgentSessionFlow, SessionStatus, TurnStatus
from perdure.testing import Tokens, call, reply, text, thought

# ---------------------------------------------------------------- artifacts


async def save(name: str, words: str, tool_context: ToolContext) -> int:
    """Saves an artifact."""
    return await tool_context.save_artifact(name, types.Part.from_bytes(data=words.encode(), mime_type="text/plain"))


async def load(name: str, tool_context: ToolContext) -> str:
    """Loads an artifact."""
    part = await tool_context.load_artifact(name)
    assert part is not None
    assert part.inline_data is not None
    assert part.inline_data.data is not None
    return part.inline_data.data.decode()


async def test_what_a_tool_saves_is_an_artifact_of_the_session(field: Field) -> None:
    """The version is in the event's ``artifact_delta``, where ADK has it."""
    service = InMemoryArtifactService()
    script = [
        call("save", name="a.txt", words="one"),
        call("save", name="a.txt", words="two"),
        call("load", name="a.txt"),
    ]
    flow = field.flow([*script, text("Done.")], [save, load], {"save": READ, "load": READ}, artifact_service=service)
    async with field.working(flow) as client:
        await say(client, "go")
        assert answers_in(field.requests[-1])["load"] == {"result": "two"}
        deltas = [m.framework_item["actions"].get("artifact_delta") for m in await messages_of(client) if m.tool_name]
        assert [delta for delta in deltas if delta] == [{"a.txt": 0}, {"a.txt": 1}]
        scope = {"app_name": "Field", "user_id": "user", "session_id": SESSION}
        assert await service.list_versions(filename="a.txt", **scope) == [0, 1]


def filing(field: Field, hold: Hold) -> AgentSessionFlow:
    async def read_back(tool_context: ToolContext) -> str:
        """Loads the artifact."""
        await hold.here("read_back")
        return await load("a.txt", tool_context)

    return field.flow(
        [call("save", name="a.txt", words="one"), call("read_back"), text("Done.")],
        [save, read_back],
        {"save": READ, "read_back": READ},
        artifact_service=FileArtifactService(field.folder / "artifacts"),
    )


async def test_an_artifact_is_saved_once_though_the_process_dies_behind_it(field: Field) -> None:
    async with field.asking() as client:
        with life(filing, field) as child:
            await client.start_session(SESSION, "go")
            await child.wait_for_async("in read_back")
            child.kill()
    async with field.working(filing(field, GO_ON)) as client:
        await client.wait(SESSION, timeout=PATIENCE)
        assert answers_in(field.requests[-1])["read_back"] == {"result": "one"}
        deltas = [m.framework_item["actions"].get("artifact_delta") for m in await messages_of(client) if m.tool_name]
        assert [delta for delta in deltas if delta] == [{"a.txt": 0}]
    service = FileArtifactService(field.folder / "artifacts")
    scope = {"app_name": "Field", "user_id": "user", "session_id": SESSION}
    assert await service.list_versions(filename="a.txt", **scope) == [0]


# ---------------------------------------------------------------- memory


async def a_memory_of_tea() -> InMemoryMemoryService:
    memory = InMemoryMemoryService()
    content = types.Content(role="user", parts=[types.Part(text="I like green tea")])
    event = Event(author="user", invocation_id="e-1", content=content)
    await memory.add_session_to_memory(Session(id="old", app_name="Field", user_id="user", events=[event]))
    return memory


async def search(query: str, tool_context: ToolContext) -> list[str]:
    """Searches the memory."""
    found = await tool_context.search_memory(query)
    return [part.text or "" for memory in found.memories for part in memory.content.parts or ()]


async def test_a_tool_searches_the_memory(field: Field) -> None:
    script = [reply(call("search", query="tea"), call("load_memory", query="tea")), text("Green.")]
    memory = await a_memory_of_tea()
    flow = field.flow(script, [FunctionTool(search), load_memory], {"search": READ}, memory_service=memory)
    async with field.working(flow) as client:
        await say(client, "go")
        answers = answers_in(field.requests[-1])
        assert answers["search"] == {"result": ["I like green tea"]}
        assert "I like green tea" in str(answers["load_memory"])
        assert (await call_steps(client))["load_memory"].effect == "read", "ADK's own tool needs no policy"


# ---------------------------------------------------------------- usage


async def test_tokens_are_counted_as_the_design_says(field: Field) -> None:
    """Input: prompt and tool-use prompt; output: candidates and thoughts; calls: requests made."""

    def look() -> str:
        """Looks."""
        return "seen"

    script = [
        reply(thought("Hm."), call("look"), usage=Tokens(100, 7, thoughts=5, tool_use_prompt=3)),
        reply(text("Done."), usage=Tokens(200, 11)),
    ]
    async with field.working(field.flow(script, [look], {"look": READ})) as client:
        snapshot = await say(client, "go")
        expected = {"input_tokens": 303, "output_tokens": 23, "model_calls": 2}
        assert turn_of(snapshot).usage.model_dump() == snapshot.usage.model_dump() == expected
        snapshot = await say(client, "go on")
        assert turn_of(snapshot).usage.model_dump() == expected
        assert snapshot.usage.model_dump() == {name: 2 * count for name, count in expected.items()}


def waiting(field: Field, hold: Hold) -> AgentSessionFlow:
    """Two looks with an approval before the second one; at most two model calls."""

    def look() -> str:
        """Looks."""
        field.note("look")
        return "seen"

    looking = FunctionTool(look, require_confirmation=lambda: bool(field.world))
    agent = field.agent([call("look"), call("look"), text("Done.")], [looking])
    return durable(agent, {"look": READ}, run_config=RunConfig(max_llm_calls=2))


@pytest.mark.parametrize("killed", [False, True])
async def test_the_limit_of_model_calls_counts_over_a_pause(field: Field, killed: bool) -> None:
    """Plain ADK counts from nothing when it resumes."""
    if killed:
        async with field.asking() as client:
            with life(waiting, field) as child:
                await client.start_session(SESSION, "go")
                await at_rest(client, SessionStatus.WAITING)
                child.kill()
    async with field.working(waiting(field, GO_ON)) as client:
        snapshot = await client.wait(SESSION, timeout=PATIENCE) if killed else await say(client, "go")
        assert (snapshot.status, snapshot.usage.model_calls) == (SessionStatus.WAITING, 2)
        snapshot = await answer_all(client)
        error = turn_of(snapshot).error
        assert error is not None
        assert (turn_of(snapshot).status, error.code) == (TurnStatus.FAILED, "LlmCallsLimitExceededError")
        assert field.world == ["look", "look"]
        assert (len(field.requests), snapshot.usage.model_calls) == (2, 2), "the third call was not made"


async def test_a_message_can_change_the_run_configuration_of_its_turn(field: Field) -> None:
    def look() -> str:
        """Looks."""
        return "seen"

    async with field.working(field.flow([call("look"), call("look"), text("Done.")], [look], {"look": READ})) as client:
        for config in (RunConfig(max_llm_calls=2), {"max_llm_calls": 2}):
            snapshot = await say(client, "go", run_config=config)
            assert turn_of(snapshot).status is TurnStatus.FAILED
        assert turn_of(await say(client, "go")).status is TurnStatus.COMPLETED
