"""The agents whose sessions are in the frozen stores.

Stored sessions go on with these agents for ever, so what is here stays as it is: add agents, and change none.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

from google.adk.agents import LlmAgent
from google.adk.apps.app import App, EventsCompactionConfig
from google.adk.apps.base_events_summarizer import BaseEventsSummarizer
from google.adk.events.event import Event
from google.adk.events.event_actions import EventActions, EventCompaction
from google.adk.events.request_input import RequestInput
from google.adk.models.llm_request import LlmRequest
from google.adk.tools.long_running_tool import LongRunningFunctionTool
from google.adk.tools.tool_context import ToolContext
from google.adk.workflow import START, Workflow
from google.genai import types
from tests.support.nodes import request

from perdure import AgentSessionFlow, RetryPolicy, ToolEffect, ToolExecutionError, ToolPolicy
from perdure.adk import adk_agent_session_flow
from perdure.testing import ScriptedModel, by_message, call, failing, reply, text
from perdure.testing.script import Script

MANUAL = "Übung macht den Meister. " * 1300
"""Longer than what a row of SQLite holds."""

READ = ToolPolicy(ToolEffect.READ)
ONCE = ToolPolicy(ToolEffect.NON_IDEMPOTENT_WRITE, requires_approval=True)
IN_A_HUNDRED_YEARS = timedelta(days=36_500)

DESK = "Desk"
CHRONICLE = "Chronicle"
REVIEW = "Review"
RENAMED = "Renamed"


def film_script(shown: LlmRequest) -> Script:
    """What the model says of a film depends on what it is shown of it."""
    responses = [part.function_response for content in shown.contents for part in content.parts or ()]
    answers = [response.response or {} for response in responses if response is not None]
    if any("film" in answer for answer in answers):
        return text("The film is here.")
    return text("It is being made.") if answers else call("film", title="Up")


SCRIPT = by_message(
    {
        "look": [call("look", what="manual"), text("Seen.")],
        "gaze": [call("look", what="moon"), text("Too bad.")],
        "pay": [reply(call("look", what="price"), call("pay", amount=5)), text("It is done.")],
        "wire": [call("wire", amount=7), text("Wired.")],
        "film": film_script,
        "fail": failing(400),
        "hello": text("Hello."),
    }
)


@dataclass
class Cast:
    """The agents, and what they do to the world.

    Attributes:
        world: one line for each thing that a tool did, the session first.
        models: the model of each agent, by flow type; they keep their requests.
    """

    world: list[str] = field(default_factory=list)
    models: dict[str, ScriptedModel] = field(default_factory=dict)

    def flows(self) -> list[AgentSessionFlow]:
        return [self.desk(), self.chronicle(), self.review(), self.renamed()]

    def did(self, session_id: str) -> list[str]:
        """What the tools of a session did."""
        lines = (line.partition(": ") for line in self.world)
        return [what for who, _, what in lines if who == session_id]

    def desk(self) -> AgentSessionFlow:
        """Every kind of wait that an agent's tools have."""

        def look(what: str, tool_context: ToolContext) -> str:
            """Looks."""
            if what == "moon":
                raise ToolExecutionError("behind clouds")
            tool_context.state["seen"] = what
            tool_context.state["user:last"] = what
            self.world.append(f"{tool_context.session.id}: look {what}")
            return MANUAL if what == "manual" else f"the {what}"

        def wire(amount: int, tool_context: ToolContext) -> str:
            """Wires, and asks for itself."""
            if tool_context.tool_confirmation is None:
                tool_context.request_confirmation(hint=f"Wire {amount}?", payload={"amount": amount})
                return "asked"
            self.world.append(f"{tool_context.session.id}: wire {amount}")
            return "wired"

        def film(title: str, tool_context: ToolContext) -> dict[str, str]:
            """Makes a film; it comes later."""
            self.world.append(f"{tool_context.session.id}: film {title}")
            return {"status": "pending"}

        agent = LlmAgent(
            name="clerk",
            model=self._model(DESK, SCRIPT),
            instruction="Help.",
            tools=[look, self._pay(), wire, LongRunningFunctionTool(film)],
        )
        policies = {"look": READ, "pay": ONCE, "wire": READ, "film": READ}
        return _flow(agent, DESK, policies, interrupt_deadline=IN_A_HUNDRED_YEARS)

    def chronicle(self) -> AgentSessionFlow:
        """ADK's compaction: what happened before is a summary."""

        def look(what: str, tool_context: ToolContext) -> str:
            """Looks."""
            self.world.append(f"{tool_context.session.id}: look {what}")
            return f"the {what}"

        model = self._model(CHRONICLE, SCRIPT)
        agent = LlmAgent(name="chronicler", model=model, instruction="Help.", tools=[look, self._pay()])
        config = EventsCompactionConfig(summarizer=Counter(), compaction_interval=2, overlap_size=0)
        app = App(name="chronicle", root_agent=agent, events_compaction_config=config)
        return _flow(app, CHRONICLE, {"look": READ, "pay": ONCE})

    def review(self) -> AgentSessionFlow:
        """A workflow with a node that asks: its turn is suspended between two legs."""

        def draft(node_input: Any) -> str:
            self.world.append("review: draft")
            return "a draft"

        def ask(node_input: Any) -> RequestInput:
            return request(interrupt_id="good", message="Good?", payload={"draft": node_input})

        def publish(node_input: Any) -> str:
            self.world.append(f"review: publish {node_input['word']}")
            return "published"

        return _flow(Workflow(name="reviewing", edges=[(START, draft, ask, publish)]), REVIEW, {})

    def renamed(self, name: str = "pay") -> AgentSessionFlow:
        """An agent with one tool, whose name may change while a session waits for it."""
        tool = self._pay()
        tool.__name__ = name
        model = self._model(RENAMED, [call("pay", amount=5), text("It is done.")])
        agent = LlmAgent(name="clerk", model=model, instruction="Help.", tools=[tool])
        return _flow(agent, RENAMED, {name: ONCE})

    def _pay(self) -> Any:
        def pay(amount: int, tool_context: ToolContext) -> str:
            """Pays."""
            self.world.append(f"{tool_context.session.id}: pay {amount}")
            return "paid"

        return pay

    def _model(self, flow_type: str, script: Script) -> ScriptedModel:
        self.models[flow_type] = ScriptedModel(script)
        return self.models[flow_type]


class Counter(BaseEventsSummarizer):
    """Counts what happened."""

    async def maybe_summarize_events(self, *, events: list[Event]) -> Event | None:
        content = types.Content(role="model", parts=[types.Part(text=f"{len(events)} things happened")])
        compaction = EventCompaction(
            start_timestamp=events[0].timestamp, end_timestamp=events[-1].timestamp, compacted_content=content
        )
        return Event(author="user", actions=EventActions(compaction=compaction), invocation_id=Event.new_id())


def _flow(agent: Any, flow_type: str, policies: dict[str, ToolPolicy], **options: Any) -> AgentSessionFlow:
    at_once = RetryPolicy(first_delay=timedelta(0))
    return adk_agent_session_flow(
        agent, flow_type=flow_type, tool_policies=policies, model_retry=at_once, user_id="ann", **options
    )
