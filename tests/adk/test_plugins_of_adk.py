"""ADK's plugins, and one that uses every hook: as on plain ADK, live and after a crash."""

from __future__ import annotations

from typing import Any

import pytest
from google.adk.agents import LlmAgent
from google.adk.agents.readonly_context import ReadonlyContext
from google.adk.apps.app import App
from google.adk.events.event import Event
from google.adk.models.llm_response import LlmResponse
from google.adk.plugins.base_plugin import BasePlugin
from google.adk.plugins.context_filter_plugin import ContextFilterPlugin
from google.adk.plugins.global_instruction_plugin import GlobalInstructionPlugin
from google.adk.plugins.logging_plugin import LoggingPlugin
from google.adk.plugins.reflect_retry_tool_plugin import ReflectAndRetryToolPlugin
from google.adk.tools.tool_context import ToolContext
from google.genai import types
from tests.adk.comparing import assert_as_plain, assert_survives_crashes
from tests.adk.disk import Crash, Disk
from tests.adk.model import Flaky, ScriptedModel, calls, says
from tests.adk.plain import run_plain
from tests.adk.worlds import World

from perdure.errors import ToolExecutionError
from perdure.session.model import TurnStatus, UserMessage

REPLIES = [calls(("look", {"n": 1}), ("look", {"n": 2})), says("found"), calls(("look", {"n": 3})), says("found more")]


def with_plugins(*plugins: BasePlugin, replies: list[Any] | None = None, log: list[str] | None = None) -> World:
    log = [] if log is None else log

    def look(n: int, tool_context: ToolContext) -> str:
        """Looks."""
        log.append(f"look {n}")
        tool_context.state["n"] = n
        if n < 0:
            raise ToolExecutionError(f"no {n}")
        return f"{n} is here"

    model = ScriptedModel(replies=replies or REPLIES)
    agent = LlmAgent(name="looker", model=model, instruction="Look.", tools=[look])
    app = App(name="Flow", root_agent=agent, plugins=list(plugins))
    return World(model, app, log, messages=[UserMessage(text="go"), UserMessage(text="on")])


def global_instruction() -> World:
    async def instruct(context: ReadonlyContext) -> str:
        return f"You have seen {context.state.get('n', 'nothing')}."

    return with_plugins(GlobalInstructionPlugin(global_instruction=instruct))


def logging_all() -> World:
    return with_plugins(LoggingPlugin())


def filtering() -> World:
    """The second turn's prompt lacks the first turn, so its replies are those of a first turn."""
    return with_plugins(ContextFilterPlugin(num_invocations_to_keep=1), replies=REPLIES[:2])


def reflecting() -> World:
    """A call that fails is answered by the plugin with advice, and tried again with other arguments."""
    world = with_plugins(
        ReflectAndRetryToolPlugin(max_retries=2),
        replies=[calls(("look", {"n": -1})), calls(("look", {"n": -2})), calls(("look", {"n": 3})), says("found")],
    )
    world.messages = world.messages[:1]
    return world


class Meddler(BasePlugin):
    """Changes what goes through each hook that lets it."""

    def __init__(self, log: list[str]) -> None:
        super().__init__(name="meddler")
        self._log = log

    async def on_user_message_callback(self, *, user_message: types.Content, **given: Any) -> types.Content:
        text = "".join(part.text or "" for part in user_message.parts or ())
        return types.Content(role="user", parts=[types.Part(text=text.upper())])

    async def on_event_callback(self, *, event: Event, **given: Any) -> Event | None:
        if event.partial or event.author == "user":
            return None
        return event.model_copy(update={"custom_metadata": {"passed": "meddler"}})

    async def before_tool_callback(self, *, tool_args: dict[str, Any], **given: Any) -> dict[str, Any] | None:
        if tool_args["n"] == 2:
            return {"meddled": True}
        tool_args["n"] += 10
        return None

    async def after_tool_callback(self, *, result: Any, **given: Any) -> dict[str, Any] | None:
        return {"wrapped": result}

    async def after_model_callback(self, *, callback_context: Any, llm_response: LlmResponse) -> LlmResponse | None:
        callback_context.state["answers"] = callback_context.state.get("answers", 0) + 1
        return None

    async def on_model_error_callback(self, *, error: Exception, **given: Any) -> LlmResponse:
        return says(f"mended {error}")


def meddling() -> World:
    log: list[str] = []
    return with_plugins(Meddler(log), log=log)


def mended() -> World:
    log: list[str] = []
    return with_plugins(Meddler(log), log=log, replies=[Flaky((ValueError("no"),) * 9), Flaky((ValueError("na"),) * 9)])


class Gatekeeper(BasePlugin):
    """Lets nobody in."""

    async def before_run_callback(self, **given: Any) -> types.Content:
        return types.Content(role="model", parts=[types.Part(text="closed")])


def closed() -> World:
    return with_plugins(Gatekeeper(name="gatekeeper"))


class Stopper(BasePlugin):
    """Answers in the place of the agent, and of the model."""

    def __init__(self, hook: str) -> None:
        super().__init__(name="stopper")
        self._hook = hook

    async def before_agent_callback(self, **given: Any) -> types.Content | None:
        return types.Content(role="model", parts=[types.Part(text="stopped")]) if self._hook == "agent" else None

    async def before_model_callback(self, **given: Any) -> LlmResponse | None:
        return says("stopped") if self._hook == "model" else None

    async def after_agent_callback(self, **given: Any) -> types.Content | None:
        return types.Content(role="model", parts=[types.Part(text="and more")]) if self._hook == "after" else None


def stopped_before_the_agent() -> World:
    return with_plugins(Stopper("agent"))


def stopped_before_the_model() -> World:
    return with_plugins(Stopper("model"))


def added_after_the_agent() -> World:
    world = with_plugins(Stopper("after"))
    world.messages = world.messages[:1]
    return world


WORLDS = [
    global_instruction,
    logging_all,
    filtering,
    reflecting,
    meddling,
    mended,
    closed,
    stopped_before_the_agent,
    stopped_before_the_model,
    added_after_the_agent,
]


@pytest.mark.parametrize("build", WORLDS)
async def test_it_is_as_on_plain_adk(build: Any) -> None:
    await assert_as_plain(build)


WITHOUT_STEPS = (closed, stopped_before_the_agent, stopped_before_the_model)


@pytest.mark.parametrize("build", [world for world in WORLDS if world not in WITHOUT_STEPS])
async def test_a_crash_at_any_write_changes_nothing(build: Any) -> None:
    await assert_survives_crashes(build)


class Raising(BasePlugin):
    """Fails in one of its hooks."""

    def __init__(self, hook: str) -> None:
        super().__init__(name="raising")
        self._hook = hook

    def __getattribute__(self, name: str) -> Any:
        if name == object.__getattribute__(self, "__dict__").get("_hook"):

            async def fail(**given: Any) -> None:
                raise LookupError(f"in {name}")

            return fail
        return super().__getattribute__(name)


HOOKS = [
    "on_user_message_callback",
    "before_run_callback",
    "before_agent_callback",
    "before_model_callback",
    "after_model_callback",
    "on_event_callback",
    "before_tool_callback",
    "after_tool_callback",
    "after_agent_callback",
    "after_run_callback",
]


@pytest.mark.parametrize("hook", HOOKS)
async def test_a_plugin_that_raises_fails_the_turn_with_adk_s_words(hook: str) -> None:
    world = with_plugins(Raising(hook))
    engine = world.engine()
    await engine.turn("go")
    assert engine.disk.status is TurnStatus.FAILED
    assert engine.disk.error is not None
    assert engine.disk.error.message == f"Error in plugin 'raising' during '{hook}' callback: in {hook}"
    assert "Note: the work on the request above failed" in str(engine.disk.messages[-1])


class Endings(BasePlugin):
    """Notes what it hears of failures."""

    def __init__(self, log: list[str]) -> None:
        super().__init__(name="endings")
        self._log = log

    async def on_agent_error_callback(self, *, agent: Any, error: Exception, **given: Any) -> None:
        self._log.append(f"agent {agent.name}: {error}")

    async def on_run_error_callback(self, *, error: Exception, **given: Any) -> None:
        self._log.append(f"run: {error}")

    async def after_run_callback(self, **given: Any) -> None:
        self._log.append("after run")


def guarded(log: list[str]) -> World:
    """An agent that fails behind a call that has its record."""

    def refuse(callback_context: Any, llm_request: Any) -> None:
        if callback_context.state.get("n"):
            raise LookupError("no second look")

    world = with_plugins(Endings(log), log=log, replies=REPLIES[:2])
    assert isinstance(world.agent, App)
    assert isinstance(world.agent.root_agent, LlmAgent)
    world.agent.root_agent.before_model_callback = refuse
    world.messages = world.messages[:1]
    return world


def of_failures(log: list[str]) -> list[str]:
    return [entry for entry in log if not entry.startswith("look")]


async def test_plugins_hear_of_the_failure_of_an_agent_and_of_the_run() -> None:
    plain, durable = guarded([]), guarded([])
    _, _, failure = await run_plain(plain.agent, plain.messages)
    assert isinstance(failure, LookupError)
    engine = durable.engine()
    await engine.turn("go")
    assert engine.disk.error is not None
    assert engine.disk.error.code == "LookupError"
    assert of_failures(durable.log) == of_failures(plain.log)
    assert of_failures(plain.log) == ["agent looker: no second look", "run: no second look"]


async def test_they_hear_of_it_after_a_crash_too() -> None:
    expected = guarded([])
    engine = expected.engine()
    await engine.turn("go")
    for point in range(1, engine.disk.writes + 1):
        disk = Disk(crash_at=point)
        first = guarded([]).engine(disk)
        first.begin("go")
        with pytest.raises(Crash):
            await first.go_on()
        disk.reboot()
        second = guarded([])
        await second.engine(disk).go_on()
        at = f"crash at write {point}"
        assert of_failures(second.log) == of_failures(expected.log), at
        assert disk.messages == engine.disk.messages, at
