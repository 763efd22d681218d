"""Mistakes in the set-up are refused when the flow is built, with the argument that fixes them."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from google.adk.agents import BaseAgent, LlmAgent, LoopAgent, RunConfig, SequentialAgent
from google.adk.agents.run_config import StreamingMode  # type: ignore[attr-defined]  # ADK's documented import
from google.adk.apps.app import App
from google.adk.code_executors import BuiltInCodeExecutor
from google.adk.planners import PlanReActPlanner
from google.adk.plugins.base_plugin import BasePlugin
from google.adk.tools.agent_tool import AgentTool
from google.adk.tools.exit_loop_tool import exit_loop
from tests.adk.model import ScriptedModel

from perdure.adk import AdkAgentRunner, adk_agent_session_flow
from perdure.errors import UsageError
from perdure.session.model import ImageInput, UserMessage
from perdure.session.policy import RetryPolicy, ToolEffect, ToolPolicy


def look(order: str) -> str:
    """Looks."""
    return order


def twin() -> Any:
    def look() -> str:
        """Looks elsewhere."""
        return ""

    return look


def agent(**more: Any) -> LlmAgent:
    options: dict[str, Any] = {"name": "worker", "model": ScriptedModel(), "tools": [look]}
    return LlmAgent(**{**options, **more})


def flow(root: Any = None, **options: Any) -> Any:
    given: dict[str, Any] = {"flow_type": "Flow", **options}
    return adk_agent_session_flow(root if root is not None else agent(), **given)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"tool_policies": {"lok": ToolPolicy(ToolEffect.READ)}}, "tool_policies names 'lok'.*look"),
        ({"tool_policies": {"look": ToolEffect.READ}}, r"tool_policies\['look'\].*ToolPolicy"),
        ({"default_tool_effect": "read"}, "default_tool_effect.*ToolEffect"),
        ({"approvals": "always"}, "approvals.*'by_effect' or 'declared'"),
        ({"model_retry": 3}, "model_retry.*RetryPolicy"),
        ({"model_timeout": 30}, "model_timeout.*timedelta"),
        ({"model_timeout": timedelta(0)}, "model_timeout"),
        ({"interrupt_deadline": timedelta(seconds=-1)}, "interrupt_deadline"),
        ({"event_stream_capacity_bytes": 0}, "event_stream_capacity_bytes"),
        ({"user_id": ""}, "user_id"),
        ({"flow_type": ""}, "flow_type"),
        ({"flow_type": "no spaces"}, "flow_type 'no spaces'"),
        ({"flow_type": "user"}, "flow_type 'user'"),
        ({"run_config": RunConfig(streaming_mode=StreamingMode.BIDI)}, "run_config.*BIDI"),
        ({"run_config": RunConfig(support_cfc=True)}, "run_config.*support_cfc"),
    ],
)
def test_options(options: dict[str, Any], words: str) -> None:
    with pytest.raises(UsageError, match=words):
        flow(**options)


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ({"tools": [look, twin()]}, "two tools named 'look'.*rename"),
        ({"mode": "single_turn"}, "mode='single_turn', which ADK does not run at the root"),
    ],
)
def test_agents(more: dict[str, Any], words: str) -> None:
    with pytest.raises(UsageError, match=words):
        flow(agent(**more))


def test_roots() -> None:
    for root in (BaseAgent(name="s"), App(name="A", root_agent=BaseAgent(name="l"))):
        flow(root)
    with pytest.raises(UsageError, match=r"agent is .agent.; it must be a BaseAgent, a Workflow.*type str"):
        flow("agent")


def test_trees_of_agents() -> None:
    """Policies are looked up in the whole tree; what cannot be durable is named wherever it is."""
    inner = agent(name="inner", tools=[look, twin()])
    deep = SequentialAgent(name="line", sub_agents=[agent(name="root", tools=[AgentTool(inner)])])
    with pytest.raises(UsageError, match="agent 'inner' has two tools named 'look'"):
        flow(deep)
    with pytest.raises(UsageError, match="agent 'a' has two tools named 'look'"):
        flow(SequentialAgent(name="line", sub_agents=[agent(name="a", tools=[look, twin()])]))
    same_name: list[BaseAgent] = [agent(name="a"), agent(name="b", tools=[twin(), exit_loop])]
    tree = LoopAgent(name="loop", sub_agents=same_name)
    flow(tree, tool_policies={"look": ToolPolicy(ToolEffect.READ)})
    with pytest.raises(UsageError, match=r"no agent of the flow has such a tool \(known: look\)"):
        flow(tree, tool_policies={"lok": ToolPolicy(ToolEffect.READ)})
    with pytest.raises(UsageError, match="'exit_loop', which steers ADK"):
        flow(tree, tool_policies={"exit_loop": ToolPolicy(ToolEffect.READ)})
    remote = type("RemoteA2aAgent", (BaseAgent,), {"__module__": "google.adk.agents.remote_a2a_agent"})
    with pytest.raises(UsageError, match=r"agent 'r' is a RemoteA2aAgent.*do .* in a tool"):
        flow(SequentialAgent(name="line", sub_agents=[remote(name="r")]))


def test_the_fingerprint_is_of_the_whole_tree() -> None:
    def tree(tool: Any, *, name: str = "inner", instruction: str = "x") -> str:
        inner = agent(name=name, tools=[tool], instruction=instruction)
        line = SequentialAgent(name="line", sub_agents=[agent(name="root", tools=[AgentTool(inner)])])
        definition: str = flow(line).runner.definition()
        return definition

    def find(order: str) -> str:
        """Finds."""
        return order

    assert tree(look) == tree(look, instruction="y")
    assert len({tree(look), tree(find), tree(look, name="other")}) == 3


def test_a_plugin_with_our_name() -> None:
    app = App(name="A", root_agent=agent(), plugins=[BasePlugin(name="perdure_watcher")])
    with pytest.raises(UsageError, match=r"App\.plugins"):
        flow(app)


def test_what_is_fine() -> None:
    flow(agent(code_executor=BuiltInCodeExecutor()))
    flow(agent(planner=PlanReActPlanner()))
    app = App(name="Shop-1", root_agent=agent())
    built = flow(app, tool_policies={"look": ToolPolicy(ToolEffect.READ)}, model_retry=RetryPolicy(1))
    assert (built.flow_type, built.app_name, built.user_id) == ("Flow", "Shop-1", "user")
    assert flow().app_name == "Flow"
    assert app.plugins == []


def test_the_runner_takes_the_same_arguments() -> None:
    runner = AdkAgentRunner(agent(), flow_type="Flow", tool_policies={"look": ToolPolicy(ToolEffect.READ)})
    assert runner.app_name == "Flow"
    with pytest.raises(UsageError):
        AdkAgentRunner(agent(), flow_type="Flow", tool_policies={"no": ToolPolicy(ToolEffect.READ)})


@pytest.mark.parametrize(
    ("message", "words"),
    [
        (UserMessage(text=""), "empty"),
        (UserMessage(text="a", run_config={"no_such": 1}), "run_config"),
        (UserMessage(text="a", run_config={"max_llm_calls": "many"}), "run_config"),
        (UserMessage(text="a", run_config={"streaming_mode": "bidi"}), "run_config of the message.*BIDI"),
        (UserMessage(text="a", run_config={"service_tier": "deferred"}), "run_config"),  # the flow streams
    ],
)
def test_messages(message: UserMessage, words: str) -> None:
    with pytest.raises(UsageError, match=words):
        flow().runner.check_message(message)


def test_good_messages() -> None:
    runner = flow().runner
    runner.check_message(UserMessage(text="hi"))
    runner.check_message(UserMessage(text="", images=(ImageInput(data=b"\xff", mime_type="image/png"),)))
    runner.check_message(UserMessage(text="hi", run_config={"max_llm_calls": 3, "custom_metadata": {"a": 1}}))


def _strict(order: str, account: str) -> str:
    return order


def test_the_definition_is_of_tools_and_parameters_not_of_texts() -> None:
    def told_otherwise(order: str) -> str:
        """Looks, with other words."""
        return order

    told_otherwise.__name__ = "look"
    _strict.__name__ = "look"
    same = flow().runner.definition()
    assert (
        flow(agent(tools=[told_otherwise], instruction="other", model="gemini-2.5-flash")).runner.definition() == same
    )
    others = [
        flow(agent(tools=[_strict])).runner.definition(),
        flow(agent(tools=[])).runner.definition(),
        flow(agent(name="another")).runner.definition(),
        flow(agent(output_schema=UserMessage)).runner.definition(),
    ]
    assert len({same, *others}) == 5
