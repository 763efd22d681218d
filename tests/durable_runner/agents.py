"""The agents that are run on a plain runner and on a durable one; each builder makes one afresh."""

from __future__ import annotations

from typing import Any

from google.adk.agents import LlmAgent
from google.adk.agents.callback_context import CallbackContext
from google.adk.apps.app import App, ResumabilityConfig
from google.adk.events.event import Event
from google.adk.models.llm_response import LlmResponse
from google.adk.plugins.base_plugin import BasePlugin
from google.adk.tools.function_tool import FunctionTool
from google.adk.tools.tool_context import ToolContext
from google.genai import types

from perdure.testing import ScriptedModel, by_turn, call, failing, reply, text, thought


def look(what: str, tool_context: ToolContext) -> dict[str, str]:
    """Looks something up."""
    tool_context.state["seen"] = what
    tool_context.state["user:looks"] = tool_context.state.get("user:looks", 0) + 1
    tool_context.state["temp:hint"] = "gone after the turn"
    return {"what": what, "status": "shipped"}


def pay(amount: int, tool_context: ToolContext) -> str:
    """Pays."""
    tool_context.state["paid"] = amount
    return f"paid {amount}"


def talker() -> LlmAgent:
    """Only words, thoughts among them."""
    script = by_turn([reply(thought("Who is it?", chunks=2), text("Hello Ann.", chunks=3))], [text("Again.")])
    return LlmAgent(name="talker", model=ScriptedModel(script), instruction="Talk.")


def worker() -> LlmAgent:
    """Words and two calls in one response, then another call, then words."""
    script = [
        reply(text("Let me see. ", chunks=2), call("look", what="order 7"), call("look", what="order 8")),
        call("pay", amount=5),
        text("All is done.", chunks=3),
    ]
    return LlmAgent(
        name="worker", model=ScriptedModel(script), instruction="Work.", tools=[look, pay], output_key="answer"
    )


def gated() -> LlmAgent:
    """A call that waits for a person, between two that do not."""
    script = [call("look", what="order 7"), call("pay", amount=500), call("look", what="bill"), text("It is paid.")]
    tools: list[Any] = [look, FunctionTool(pay, require_confirmation=True)]
    return LlmAgent(name="clerk", model=ScriptedModel(script), instruction="Pay.", tools=tools)


def two_gated() -> LlmAgent:
    """Two calls of one response that wait."""
    script = [reply(call("pay", amount=1), call("pay", amount=2)), text("Both are paid.")]
    tools: list[Any] = [FunctionTool(pay, require_confirmation=True)]
    return LlmAgent(name="clerk", model=ScriptedModel(script), instruction="Pay.", tools=tools)


def guarded() -> LlmAgent:
    """Callbacks that change what the model says, piece by piece, and that answer in its place."""

    def shout(callback_context: CallbackContext, llm_response: LlmResponse) -> LlmResponse | None:
        parts = (llm_response.content.parts if llm_response.content else None) or []
        if not any(part.text for part in parts):
            return None
        louder = [types.Part(text=part.text.upper()) if part.text else part for part in parts]
        return llm_response.model_copy(update={"content": types.Content(role="model", parts=louder)})

    def greet(callback_context: CallbackContext) -> types.Content | None:
        if callback_context.state.get("greeted"):
            return None
        callback_context.state["greeted"] = True
        return types.Content(role="model", parts=[types.Part(text="Welcome!")])

    return LlmAgent(
        name="guarded",
        model=ScriptedModel([text("as you wish", chunks=3)]),
        instruction="Talk.",
        before_agent_callback=greet,
        after_model_callback=shout,
    )


class Redacting(BasePlugin):
    """A plugin that changes events on their way out."""

    async def on_event_callback(self, *, invocation_context: Any, event: Event) -> Event | None:
        parts = (event.content.parts if event.content else None) or []
        if not any(part.text and "order" in part.text for part in parts):
            return None
        hidden = [types.Part(text=(part.text or "").replace("order", "***")) for part in parts]
        return Event(author=event.author, content=types.Content(role="model", parts=hidden))


def with_plugin() -> App:
    """An application with a plugin that rewrites what is yielded."""
    model = ScriptedModel([text("Your order is shipped, the other order is not.", chunks=4)])
    agent = LlmAgent(name="talker", model=model, instruction="Talk.")
    return App(name="app", root_agent=agent, plugins=[Redacting(name="redacting")])


def resumable() -> App:
    """A resumable application: ADK yields markers."""
    return App(name="app", root_agent=worker(), resumability_config=ResumabilityConfig(is_resumable=True))


def failing_model() -> LlmAgent:
    """A model that fails for good, after some words."""
    script: list[Any] = [call("look", what="order 7"), failing(400, after_chunks=1, then=text("never said", chunks=3))]
    return LlmAgent(name="worker", model=ScriptedModel(script), instruction="Work.", tools=[look])


def failing_callback() -> LlmAgent:
    """A callback that raises."""

    def refuse(callback_context: CallbackContext, llm_response: LlmResponse) -> None:
        raise LookupError("no such thing")

    return LlmAgent(name="worker", model=ScriptedModel([text("hm")]), instruction="Work.", after_model_callback=refuse)


class Screening(BasePlugin):
    """A plugin that answers in place of the application, and counts what it is told."""

    def __init__(self, log: list[str], *, stops: bool) -> None:
        super().__init__(name="screening")
        self._log = log
        self._stops = stops

    def __getattribute__(self, name: str) -> Any:
        if name.endswith("_callback"):
            log: list[str] = object.__getattribute__(self, "_log")
            stops: bool = object.__getattribute__(self, "_stops")

            async def count(**given: Any) -> types.Content | None:
                log.append(name)
                if name == "before_run_callback" and stops:
                    return types.Content(role="model", parts=[types.Part(text="Not today.")])
                return None

            return count
        return super().__getattribute__(name)


def screened(log: list[str], *, stops: bool) -> App:
    """An application with that plugin."""
    return App(name="app", root_agent=worker(), plugins=[Screening(log, stops=stops)])
