"""Field case 28: the application's own plugins see what they see on plain ADK."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

from google.adk.agents import LlmAgent, RunConfig
from google.adk.agents.run_config import StreamingMode  # type: ignore[attr-defined]  # where ADK's documentation has it
from google.adk.apps import App
from google.adk.models.llm_request import LlmRequest
from google.adk.models.llm_response import LlmResponse
from google.adk.plugins.base_plugin import BasePlugin
from google.adk.runners import Runner
from google.adk.sessions import InMemorySessionService
from google.genai import types
from tests.field.lives import GO_ON, Hold, life
from tests.field.support import PATIENCE, READ, SESSION, Field, conversation, durable, say, turn_of

from perdure import AgentSessionFlow, TurnStatus
from perdure.testing import ScriptedModel, call, reply, text

SCRIPT = [reply(call("a"), call("b")), call("a"), text("Done.")]


class CountingPlugin(BasePlugin):
    """Notes each callback in a file, and changes nothing."""

    def __init__(self, path: Path) -> None:
        super().__init__(name="counting")
        self.path = path

    def note(self, name: str) -> None:
        with self.path.open("a") as file:
            file.write(name + "\n")

    @property
    def counts(self) -> Counter[str]:
        return Counter(self.path.read_text().split()) if self.path.exists() else Counter()

    async def on_user_message_callback(self, **given: Any) -> None:
        self.note("on_user_message")

    async def before_run_callback(self, **given: Any) -> None:
        self.note("before_run")

    async def after_run_callback(self, **given: Any) -> None:
        self.note("after_run")

    async def on_event_callback(self, **given: Any) -> None:
        self.note("on_event")

    async def before_agent_callback(self, **given: Any) -> None:
        self.note("before_agent")

    async def after_agent_callback(self, **given: Any) -> None:
        self.note("after_agent")

    async def before_model_callback(self, **given: Any) -> None:
        self.note("before_model")

    async def after_model_callback(self, **given: Any) -> None:
        self.note("after_model")

    async def before_tool_callback(self, **given: Any) -> None:
        self.note("before_tool")

    async def after_tool_callback(self, **given: Any) -> None:
        self.note("after_tool")

    async def on_tool_error_callback(self, **given: Any) -> None:
        self.note("on_tool_error")


def build_app(field: Field, model: ScriptedModel, hold: Hold, *plugins: BasePlugin) -> App:
    def a() -> str:
        """Does A."""
        return "A"

    async def b() -> str:
        """Does B."""
        await hold.here("b")
        return "B"

    return App(name="Field", root_agent=LlmAgent(name="helper", model=model, tools=[a, b]), plugins=list(plugins))


POLICIES = {"a": READ, "b": READ}


def counted(field: Field, hold: Hold) -> AgentSessionFlow:
    """Without streaming: partial responses, which a replay does not repeat, are callbacks and events of their own."""
    plugin = CountingPlugin(field.folder / ("first life" if hold.holds else "last life"))
    app = build_app(field, field.model(SCRIPT), hold, plugin)
    return durable(app, POLICIES, run_config=RunConfig(streaming_mode=StreamingMode.NONE))


async def plain_counts(field: Field, streaming: StreamingMode) -> Counter[str]:
    """The same turn on plain ADK."""
    plugin = CountingPlugin(field.folder / f"plain {streaming}")
    service = InMemorySessionService()
    async with Runner(app=build_app(field, ScriptedModel(SCRIPT), GO_ON, plugin), session_service=service) as runner:
        await service.create_session(app_name="Field", user_id="user", session_id=SESSION)
        content = types.Content(role="user", parts=[types.Part(text="go")])
        config = RunConfig(streaming_mode=streaming)
        async for _ in runner.run_async(user_id="user", session_id=SESSION, new_message=content, run_config=config):
            pass
    return plugin.counts


async def test_a_plugin_sees_each_callback_as_often_as_on_plain_adk(field: Field) -> None:
    """Case 28.  Durable wrappers that answer in a plugin callback hide calls from the plugins behind them."""
    for streaming in (StreamingMode.NONE, StreamingMode.SSE):
        expected = await plain_counts(field, streaming)
        plugin = CountingPlugin(field.folder / f"durable {streaming}")
        app = build_app(field, ScriptedModel(SCRIPT), GO_ON, plugin)
        flow = durable(app, POLICIES, run_config=RunConfig(streaming_mode=streaming))
        async with field.working(flow) as client:
            assert turn_of(await say(client, "go", f"s {streaming}")).status is TurnStatus.COMPLETED
        assert plugin.counts == expected
        assert (expected["before_model"], expected["before_tool"], expected["on_tool_error"]) == (3, 3, 0)


async def test_after_a_recovery_a_plugin_sees_the_whole_turn_once_more(field: Field) -> None:
    """Case 28: the documented count: callbacks run again when a turn is replayed, recorded calls do not."""
    async with field.asking() as client:
        with life(counted, field) as child:
            await client.start_session(SESSION, "go")
            await child.wait_for_async("in b")
            child.kill()
    async with field.working(counted(field, GO_ON)) as client:
        await client.wait(SESSION, timeout=PATIENCE)
    first, last = (CountingPlugin(field.folder / name).counts for name in ("first life", "last life"))
    assert last == await plain_counts(field, StreamingMode.NONE)
    assert (first["before_run"], first["before_model"], first["before_tool"], first["after_run"]) == (1, 1, 2, 0)
    assert len(field.requests) == 3, "the model is called as often as in a clean run"


class Screen(BasePlugin):
    """Answers in the model's place, before the run or before the model."""

    def __init__(self, place: str) -> None:
        super().__init__(name="screen")
        self.place = place

    async def before_run_callback(self, **given: Any) -> types.Content | None:
        return _refusal() if self.place == "run" else None

    async def before_model_callback(self, **given: Any) -> LlmResponse | None:
        return LlmResponse(content=_refusal()) if self.place == "model" else None


def _refusal() -> types.Content:
    return types.Content(role="model", parts=[types.Part(text="Not here.")])


async def test_a_screen_keeps_the_model_from_being_called(field: Field) -> None:
    """Case 28: an early exit before the run, and one before the model."""
    for place in ("run", "model"):
        app = build_app(field, field.model(SCRIPT), GO_ON, Screen(place))
        async with field.working(durable(app, POLICIES)) as client:
            snapshot = await say(client, "go", f"s {place}")
            assert turn_of(snapshot).status is TurnStatus.COMPLETED
            assert (await conversation(client, f"s {place}"))[-1] == "assistant: Not here."
            assert snapshot.usage.model_calls == 0
    assert field.requests == []


class Reworder(BasePlugin):
    """Changes what the user said, and what the model is asked."""

    def __init__(self) -> None:
        super().__init__(name="reworder")

    async def on_user_message_callback(self, *, user_message: types.Content, **given: Any) -> types.Content:
        said = "".join(part.text or "" for part in user_message.parts or ())
        return types.Content(role="user", parts=[types.Part(text=said.upper())])

    async def before_model_callback(self, *, llm_request: LlmRequest, **given: Any) -> None:
        llm_request.append_instructions(["Be brief."])


async def test_what_a_plugin_changes_reaches_the_model_and_the_log(field: Field) -> None:
    app = build_app(field, field.model(text("Yes.")), GO_ON, Reworder())
    async with field.working(durable(app, POLICIES)) as client:
        await say(client, "go")
        assert await conversation(client) == ["user: GO", "assistant: Yes."]
        assert "Be brief." in field.requests[0].system_instruction
