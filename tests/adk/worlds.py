"""The agents that the tests of the ADK binding run: each world is an agent with its model, and a log of what it did.

A builder gives the same world afresh, as a new process would.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

from google.adk.agents import BaseAgent, LlmAgent
from google.adk.agents.callback_context import CallbackContext
from google.adk.agents.readonly_context import ReadonlyContext
from google.adk.apps.app import App
from google.adk.artifacts import InMemoryArtifactService
from google.adk.events.ui_widget import UiWidget
from google.adk.models.llm_request import LlmRequest
from google.adk.models.llm_response import LlmResponse
from google.adk.platform import uuid as platform_uuid
from google.adk.tools.base_tool import BaseTool
from google.adk.tools.function_tool import FunctionTool
from google.adk.tools.tool_context import ToolContext
from google.adk.workflow import Workflow
from google.genai import types
from google.genai.errors import ServerError
from pydantic import BaseModel
from tests.adk.disk import Disk
from tests.adk.engine import Decide, Engine
from tests.adk.model import Flaky, ScriptedModel, calls, says

from perdure.adk import adk_agent_session_flow
from perdure.errors import ToolExecutionError
from perdure.session.model import UserMessage
from perdure.session.policy import RetryPolicy, ToolEffect, ToolPolicy

FAST = RetryPolicy(first_delay=timedelta(0))


@dataclass
class World:
    """An agent and what happened in it.

    Attributes:
        log: one entry for each run of a tool or callback.
        others: the models of its other agents.
        branched: agents run side by side, so plain ADK gives their events in any order.
        beside: calls that run agents run beside each other, so when each event comes is chance.
        fails: the turn fails, on plain ADK too.
        options: of the flow.
        services: for plain ADK and for the flow.
    """

    model: ScriptedModel
    agent: BaseAgent | Workflow | App
    log: list[str] = field(default_factory=list)
    options: dict[str, Any] = field(default_factory=dict)
    services: dict[str, Any] = field(default_factory=dict)
    messages: list[UserMessage] = field(default_factory=lambda: [UserMessage(text="go")])
    others: tuple[ScriptedModel, ...] = ()
    branched: bool = False
    beside: bool = False
    fails: bool = False

    @property
    def models(self) -> tuple[ScriptedModel, ...]:
        """All of them."""
        return (self.model, *self.others)

    def engine(self, disk: Disk | None = None, decide: Decide | None = None) -> Engine:
        """An engine with a runner of its own."""
        options: dict[str, Any] = {"flow_type": "Flow", "default_tool_effect": ToolEffect.READ, "model_retry": FAST}
        flow = adk_agent_session_flow(self.agent, **{**options, **self.options}, **self.services)
        return Engine(flow.runner, disk, decide)


def two_tools() -> World:
    """Two tools, one after the other, each of which writes state."""
    log: list[str] = []

    def look(order: str, tool_context: ToolContext) -> dict[str, Any]:
        """Looks an order up."""
        log.append(f"look {order}")
        platform_uuid.new_uuid()  # a replay does not take this id
        tool_context.state["seen"] = [*tool_context.state.get("seen", []), order]
        return {"order": order, "status": "shipped"}

    async def note(words: str, tool_context: ToolContext) -> str:
        """Notes something down."""
        log.append(f"note {words}")
        tool_context.state["app:notes"] = tool_context.state.get("app:notes", 0) + 1
        tool_context.state["user:last"] = words
        tool_context.state["temp:hint"] = f"hint {words}"
        return f"noted {words}"

    model = ScriptedModel(
        replies=[
            calls(("look", {"order": "7"})),
            calls(("note", {"words": "seven"})),
            [says("all ", partial=True), says("done", partial=True), says("all done")],
        ]
    )
    agent = LlmAgent(name="helper", model=model, instruction="Orders {seen?}, hint {temp:hint?}.", tools=[look, note])
    return World(model, agent, log)


def parallel() -> World:
    """Eight calls in one response, half of them synchronous, that all count in one key."""
    log: list[str] = []

    def count(n: int, tool_context: ToolContext) -> int:
        """Counts."""
        log.append(f"count {n}")
        tool_context.state["n"] = tool_context.state.get("n", 0) + 1
        tool_context.state["order"] = [*tool_context.state.get("order", []), n]
        return n * n

    wanted = [("count", {"n": n}) for n in range(8)]
    model = ScriptedModel(replies=[calls(*wanted), says("counted")])
    return World(model, LlmAgent(name="counter", model=model, instruction="Count.", tools=[count]), log)


def gated() -> World:
    """A call that needs a person beside one that does not, and a tool that decides itself whether to ask."""
    log: list[str] = []

    def refund(order: str, amount: int, tool_context: ToolContext) -> dict[str, Any]:
        """Gives money back."""
        confirmation = tool_context.tool_confirmation
        log.append(f"refund {order} {amount} {confirmation.payload if confirmation else None}")
        tool_context.state["refunded"] = order
        return {"refunded": amount}

    def check(order: str) -> dict[str, Any]:
        """Checks."""
        log.append(f"check {order}")
        return {"ok": True}

    def is_large(order: str, amount: int, tool_context: ToolContext) -> bool:
        log.append(f"is {amount} large")
        return amount > 100

    model = ScriptedModel(
        replies=[
            calls(("refund", {"order": "1", "amount": 500}), ("check", {"order": "1"})),
            calls(("refund", {"order": "2", "amount": 5})),
            says("refunded"),
        ]
    )
    agent = LlmAgent(
        name="clerk",
        model=model,
        instruction="Refund.",
        tools=[FunctionTool(refund, require_confirmation=is_large), check],
    )
    policies = {"refund": ToolPolicy(ToolEffect.IDEMPOTENT_WRITE, requires_approval=False)}
    return World(model, agent, log, options={"tool_policies": policies})


def failing() -> World:
    """A tool that raises beside one that works, without callbacks for errors."""
    log: list[str] = []

    async def bad(n: int, tool_context: ToolContext) -> None:
        """Fails."""
        log.append(f"bad {n}")
        tool_context.state["tried"] = tool_context.state.get("tried", 0) + 1
        raise ToolExecutionError(f"no {n}") if n else ValueError("zero")

    async def good(tool_context: ToolContext) -> dict[str, Any]:
        """Works."""
        log.append("good")
        tool_context.state["good"] = True
        return {"fine": True}

    model = ScriptedModel(replies=[calls(("bad", {"n": 0}), ("good", {}), ("bad", {"n": 2})), says("sorry")])
    return World(model, LlmAgent(name="trier", model=model, instruction="Try.", tools=[bad, good]), log)


def failing_with_callbacks() -> World:
    """The same, with a callback of the agent that answers some of the failures."""
    world = failing()
    log = world.log

    def on_error(tool: BaseTool, args: dict[str, Any], tool_context: ToolContext, error: Exception) -> Any:
        log.append(f"on_error {tool.name} {args['n']} {type(error).__name__} {error}")
        return {"handled": str(error)} if args["n"] == 2 else None

    def after(tool: BaseTool, args: dict[str, Any], tool_context: ToolContext, tool_response: Any) -> None:
        log.append(f"after {tool.name} {tool_response}")

    assert isinstance(world.agent, LlmAgent)
    world.agent.on_tool_error_callback = on_error
    world.agent.after_tool_callback = after
    return world


def shaky_model() -> World:
    """A model that fails twice, once in the middle of its stream, before it answers."""
    errors = (
        ServerError(503, {"error": {"message": "overloaded", "status": "UNAVAILABLE"}}),
        ConnectionError("reset"),
    )
    model = ScriptedModel(
        replies=[
            Flaky(errors, calls(("look", {}), usage_metadata=usage(10, 4, thoughts=2, tool_use=1)), partial="loo"),
            [says("fou", partial=True), says("nd", partial=True), says("found", usage_metadata=usage(20, 5))],
        ]
    )

    def look() -> dict[str, Any]:
        """Looks."""
        return {"ok": True}

    return World(model, LlmAgent(name="looker", model=model, instruction="Look.", tools=[look]))


def usage(prompt: int, candidates: int, *, thoughts: int | None = None, tool_use: int | None = None) -> Any:
    return types.GenerateContentResponseUsageMetadata(
        prompt_token_count=prompt,
        candidates_token_count=candidates,
        thoughts_token_count=thoughts,
        tool_use_prompt_token_count=tool_use,
    )


def guarded() -> World:
    """Guardrails: one call is answered by a callback, one gets other arguments, one goes through."""
    log: list[str] = []

    def send(to: str) -> dict[str, Any]:
        """Sends."""
        log.append(f"send {to}")
        return {"sent": to}

    def guard(tool: BaseTool, args: dict[str, Any], tool_context: ToolContext) -> Any:
        log.append(f"guard {tool.name} {args['to']} {isinstance(tool, FunctionTool)}")
        if args["to"] == "evil":
            tool_context.state["refused"] = True
            return {"error": "not there"}
        if args["to"] == "short":
            args["to"] = "shortened"
        return None

    model = ScriptedModel(
        replies=[calls(("send", {"to": "evil"}), ("send", {"to": "short"}), ("send", {"to": "bob"})), says("sent")]
    )
    agent = LlmAgent(
        name="guarded", model=model, instruction="Send.", tools=[send], before_tool_callback=guard, output_key="answer"
    )
    return World(model, agent, log)


class Answer(BaseModel):
    """An answer of a fixed shape."""

    order: str
    days: int


def structured() -> World:
    """An output schema together with a tool, an output key, and a model config."""
    log: list[str] = []

    def look(order: str) -> Answer:
        """Looks."""
        log.append(f"look {order}")
        return Answer(order=order, days=3)

    def instruct(context: ReadonlyContext) -> str:
        log.append("instruct")
        return f"Answer {context.state.get('mood', 'kindly')}."

    model = ScriptedModel(
        replies=[calls(("look", {"order": "7"})), calls(("set_model_response", {"order": "7", "days": 3}))]
    )
    agent = LlmAgent(
        name="teller",
        model=model,
        instruction=instruct,
        tools=[look],
        output_schema=Answer,
        output_key="answer",
        generate_content_config=types.GenerateContentConfig(temperature=0.25),
    )
    return World(model, agent, log, messages=[UserMessage(text="go", state_delta={"mood": "gladly"})])


def plain_schema() -> World:
    """An output schema without tools."""
    model = ScriptedModel(replies=[says('{"order": "7", "days": 3}')])
    agent = LlmAgent(name="teller", model=model, instruction="Tell.", output_schema=Answer, output_key="answer")
    return World(model, agent)


def artifacts() -> World:
    """A tool that saves an artifact and one that loads it."""
    log: list[str] = []

    async def save(name: str, tool_context: ToolContext) -> int:
        """Saves."""
        log.append(f"save {name}")
        return await tool_context.save_artifact(name, types.Part(text=f"text of {name}"))

    async def load(name: str, tool_context: ToolContext) -> Any:
        """Loads."""
        log.append(f"load {name}")
        return await tool_context.load_artifact(name)

    model = ScriptedModel(replies=[calls(("save", {"name": "a.txt"})), calls(("load", {"name": "a.txt"})), says("ok")])
    agent = LlmAgent(name="keeper", model=model, instruction="Keep.", tools=[save, load])
    return World(model, agent, log, services={"artifact_service": InMemoryArtifactService()})


def callbacks() -> World:
    """Every kind of callback an agent can have, each of which leaves a trace."""
    log: list[str] = []

    def before_agent(callback_context: CallbackContext) -> None:
        log.append("before_agent")
        callback_context.state["began"] = True

    def after_agent(callback_context: CallbackContext) -> types.Content:
        log.append("after_agent")
        return types.Content(role="model", parts=[types.Part(text="and goodbye")])

    def before_model(callback_context: CallbackContext, llm_request: LlmRequest) -> None:
        log.append(f"before_model {sorted(llm_request.tools_dict)}")

    def after_model(callback_context: CallbackContext, llm_response: LlmResponse) -> LlmResponse | None:
        log.append("after_model")
        callback_context.state["answered"] = callback_context.state.get("answered", 0) + 1
        return None

    def before_tool(tool: BaseTool, args: dict[str, Any], tool_context: ToolContext) -> None:
        log.append(f"before_tool {tool.name}")
        tool_context.state["tools"] = tool_context.state.get("tools", 0) + 1

    def after_tool(tool: BaseTool, args: dict[str, Any], tool_context: ToolContext, tool_response: Any) -> Any:
        log.append(f"after_tool {tool.name} {tool_response}")
        return {"seen": tool_response}

    def ask(n: int) -> int:
        """Asks."""
        log.append(f"ask {n}")
        return n + 1

    model = ScriptedModel(replies=[calls(("ask", {"n": 1}), ("ask", {"n": 2})), says("asked")])
    agent = LlmAgent(
        name="caller",
        model=model,
        instruction="Ask.",
        tools=[ask],
        before_agent_callback=before_agent,
        after_agent_callback=after_agent,
        before_model_callback=before_model,
        after_model_callback=after_model,
        before_tool_callback=before_tool,
        after_tool_callback=after_tool,
    )
    return World(model, agent, log)


def two_responses() -> World:
    """A model call that gives two whole responses, each with a call: ADK runs the first before it takes the second."""
    log: list[str] = []

    def step(n: int) -> int:
        """Steps."""
        log.append(f"step {n}")
        return n

    model = ScriptedModel(
        replies=[[calls(("step", {"n": 1})), calls(("step", {"n": 2}), ("step", {"n": 3}))], says("unused"), says("ok")]
    )
    return World(model, LlmAgent(name="stepper", model=model, tools=[step]), log)


def neighbours() -> World:
    """Callbacks after a tool that look at what the tools beside it did."""
    log: list[str] = []

    def mark(n: int, tool_context: ToolContext) -> int:
        """Marks."""
        tool_context.state[f"mark {n}"] = n
        return n

    def after(tool: BaseTool, args: dict[str, Any], tool_context: ToolContext, tool_response: Any) -> Any:
        return {"seen": [n for n in range(3) if f"mark {n}" in tool_context.state]}

    model = ScriptedModel(replies=[calls(*[("mark", {"n": n}) for n in range(3)]), says("marked")])
    agent = LlmAgent(name="marker", model=model, tools=[mark], after_tool_callback=after)
    return World(model, agent, log)


def steering() -> World:
    """A tool that uses everything that ``actions`` offers, and ends the invocation."""
    log: list[str] = []

    def steer(end: bool, tool_context: ToolContext) -> dict[str, Any]:
        """Steers."""
        log.append(f"steer {end}")
        tool_context.render_ui_widget(UiWidget(id=f"w{end}", provider="test", payload={"end": end}))
        tool_context.actions.escalate = end
        tool_context.state["temp:steered"] = end
        if end:
            tool_context._invocation_context.end_invocation = True
        return {"end": end}

    model = ScriptedModel(replies=[calls(("steer", {"end": False})), calls(("steer", {"end": True})), says("never")])
    return World(model, LlmAgent(name="pilot", model=model, instruction="{temp:steered?}", tools=[steer]), log)


def mended_model() -> World:
    """A model call that fails for good and is mended by the agent's callback."""
    log: list[str] = []

    def on_error(callback_context: CallbackContext, llm_request: LlmRequest, error: Exception) -> LlmResponse:
        log.append(f"on_model_error {type(error).__name__} {error}")
        return says("the model is out")

    model = ScriptedModel(replies=[calls(("look", {})), Flaky((ValueError("bad request"),) * 9)])

    def look() -> str:
        """Looks."""
        log.append("look")
        return "here"

    agent = LlmAgent(name="mender", model=model, instruction="Look.", tools=[look], on_model_error_callback=on_error)
    return World(model, agent, log)


WORLDS: dict[str, Callable[[], World]] = {
    build.__name__: build
    for build in (
        two_tools,
        parallel,
        gated,
        failing,
        failing_with_callbacks,
        shaky_model,
        guarded,
        structured,
        plain_schema,
        artifacts,
        callbacks,
        two_responses,
        neighbours,
        steering,
        mended_model,
    )
}
