"""How a scripted model chooses its reply: by the request alone, in every shape in which ADK puts a conversation."""

from __future__ import annotations

from typing import Any

import pytest
from google.adk.agents import Agent, BaseAgent, LoopAgent, ParallelAgent, SequentialAgent
from google.adk.code_executors import BaseCodeExecutor
from google.adk.code_executors.code_execution_utils import CodeExecutionInput, CodeExecutionResult
from google.adk.models.llm_request import LlmRequest
from google.adk.tools.agent_tool import AgentTool
from google.adk.tools.exit_loop_tool import exit_loop
from google.genai import types
from tests.support.plain_adk import run_turns, spoken, user_says

from perdure.errors import UsageError
from perdure.testing.model import ScriptedModel
from perdure.testing.reading import agent_name, tool_names, tool_results, user_text
from perdure.testing.replies import Reply, call, reply, text
from perdure.testing.script import (
    Script,
    ScriptError,
    api_error,
    by_agent,
    by_message,
    by_turn,
    failing,
    resolve,
)


def look_up(key: str) -> dict[str, str]:
    """Looks something up."""
    return {"value": f"<{key}>"}


def agent(name: str, script: Script, **options: Any) -> Agent:
    return Agent(name=name, model=ScriptedModel(script), **options)


def request_of(*contents: types.Content) -> LlmRequest:
    return LlmRequest(model="scripted", contents=list(contents))


def model_says(value: str) -> types.Content:
    return types.Content(role="model", parts=[types.Part(text=value)])


def chosen(script: Script, *contents: types.Content) -> Reply:
    return resolve(script, request_of(*contents), 1).reply


ONE, TWO, THREE = text("one"), text("two"), text("three")


def test_a_list_is_counted_in_the_contents_of_the_turn() -> None:
    script = [ONE, TWO]
    hello, again = user_says("hello"), user_says("again")
    assert chosen(script, hello) is ONE
    assert chosen(script, hello, model_says("one")) is TWO
    assert chosen(script, hello, model_says("one"), again) is ONE


def test_a_script_that_is_used_up_says_where() -> None:
    with pytest.raises(ScriptError, match=r"no entry 2 in a script of 1: .* answered 1 times since the user said 'hi'"):
        chosen([ONE], user_says("hi"), model_says("one"))


def test_rules_and_lists_nest() -> None:
    script: Script = [ONE, lambda request: [THREE, by_message({"left": TWO}, otherwise=THREE)]]
    assert chosen(script, user_says("go LEFT"), model_says("one")) is TWO
    assert chosen(script, user_says("go right"), model_says("one")) is THREE


def test_by_message_refuses_what_it_does_not_know() -> None:
    with pytest.raises(ScriptError, match=r"'hello'; there are scripts for \['refund'\]"):
        chosen(by_message({"refund": ONE}), user_says("hello"))


def test_by_turn_counts_user_messages() -> None:
    script = by_turn(ONE, [TWO, THREE])
    first, second = user_says("first"), user_says("second")
    assert chosen(script, first) is ONE
    assert chosen(script, first, model_says("one"), second) is TWO
    assert chosen(script, first, model_says("one"), second, model_says("two")) is THREE
    with pytest.raises(ScriptError, match="user message 3"):
        chosen(script, first, second, user_says("third"))


def test_the_note_on_a_failed_turn_is_no_user_message() -> None:
    note = user_says("Note: the work on the request above failed before it was finished. No tool was called.")
    assert chosen(by_turn(ONE, TWO), user_says("first"), note, user_says("second")) is TWO


def test_by_agent_refuses_an_agent_it_does_not_know() -> None:
    with pytest.raises(ScriptError, match="no script for the agent None"):
        chosen(by_agent({"a": ONE}), user_says("hi"))


def test_a_failure_is_counted_and_failures_nest() -> None:
    script = failing(429, times=2, then=failing(503, times=1, then=ONE))
    codes = [
        getattr(resolve(script, request_of(user_says("hi")), attempt).error, "code", None) for attempt in range(1, 6)
    ]
    assert codes == [429, 429, 503, None, None]


def test_a_failure_without_a_count_is_for_ever() -> None:
    assert resolve(failing(ValueError("no")), request_of(user_says("hi")), 99).error is not None


@pytest.mark.parametrize(
    "options",
    [{"times": 0, "then": ONE}, {"after_chunks": -1, "then": ONE}, {"times": 1}, {"after_chunks": 1}, {"then": ONE}],
)
def test_a_failure_that_makes_no_sense_is_refused(options: dict[str, Any]) -> None:
    with pytest.raises(UsageError):
        failing(503, **options)


def test_an_api_error_looks_like_the_real_one() -> None:
    error = api_error(403, "no access")
    assert (error.code, error.status, error.message) == (403, "PERMISSION_DENIED", "no access")
    assert type(error).__name__ == "ClientError"
    assert type(api_error(500)).__name__ == "ServerError"


async def test_the_list_goes_on_behind_tool_results_and_begins_anew_with_the_next_message() -> None:
    script: Script = [call("look_up", key="a"), lambda request: text(str(tool_results(request)[0].response))]
    events = await run_turns(agent("solo", script, tools=[look_up]), "first", "second")
    assert spoken(events) == [("solo", "{'value': '<a>'}")] * 2


async def test_words_of_other_agents_are_no_user_message() -> None:
    writer = agent("writer", [text("draft 1"), text("draft 2"), text("draft 3")])
    critic = agent("critic", [text("longer"), call("exit_loop")], tools=[exit_loop])
    events = await run_turns(LoopAgent(name="loop", sub_agents=[writer, critic]), "write")
    assert spoken(events) == [("writer", "draft 1"), ("critic", "longer"), ("writer", "draft 2")]


async def test_a_loop_of_one_agent_counts_its_own_replies() -> None:
    solo = agent("solo", [text("one"), text("two"), reply(text("three"))])
    events = await run_turns(LoopAgent(name="loop", sub_agents=[solo], max_iterations=3), "count")
    assert spoken(events) == [("solo", "one"), ("solo", "two"), ("solo", "three")]


async def test_an_agent_behind_parallel_agents_starts_its_own_count() -> None:
    def branch(name: str) -> BaseAgent:
        return agent(name, [call("look_up", key=name), text(f"{name} done")], tools=[look_up])

    last = agent("last", [call("look_up", key="z"), text("all done")], tools=[look_up])
    tree = SequentialAgent(
        name="tree", sub_agents=[ParallelAgent(name="both", sub_agents=[branch("a"), branch("b")]), last]
    )
    events = await run_turns(tree, "go")
    assert sorted(spoken(events)) == [("a", "a done"), ("b", "b done"), ("last", "all done")]


async def test_agents_may_share_one_model_and_transfer() -> None:
    shared = ScriptedModel(
        by_agent(
            {
                "front": call("transfer_to_agent", agent_name="back"),
                "back": [call("look_up", key="k"), text("from the back")],
            }
        )
    )
    back = Agent(name="back", model=shared, tools=[look_up], description="does the work")
    events = await run_turns(Agent(name="front", model=shared, sub_agents=[back]), "hi")
    assert spoken(events) == [("back", "from the back")]
    assert [agent_name(request) for request in shared.requests] == ["front", "back", "back"]
    assert sorted(tool_names(shared.requests[-1])) == ["look_up", "transfer_to_agent"]


# ADK's own AgentTool builds its runner in a way that ADK deprecates.
@pytest.mark.filterwarnings("ignore:The `plugins` argument is deprecated:DeprecationWarning")
async def test_an_agent_tool_has_a_turn_of_its_own() -> None:
    inner = agent("inner", [call("look_up", key="i"), lambda request: text(f"inner got {user_text(request)}")])
    inner.tools.append(look_up)
    outer = agent("outer", [call("inner", request="this"), text("outer done")], tools=[AgentTool(inner)])
    events = await run_turns(outer, "go")
    assert spoken(events) == [("outer", "outer done")]
    response = next(response for event in events for response in event.get_function_responses())
    assert response.response == {"result": "inner got this"}


async def test_an_instruction_among_the_contents_is_no_user_message() -> None:
    solo = agent(
        "solo",
        [call("look_up", key="a"), text("done")],
        tools=[look_up],
        static_instruction="Always the same.",
        instruction="Now this.",
    )
    events = await run_turns(solo, "go")
    assert spoken(events) == [("solo", "done")]


class EchoExecutor(BaseCodeExecutor):
    """Runs nothing; the output is the code."""

    def execute_code(self, invocation_context: Any, code_execution_input: CodeExecutionInput) -> CodeExecutionResult:
        return CodeExecutionResult(stdout=code_execution_input.code)


async def test_the_output_of_code_is_no_user_message() -> None:
    script = [text("```tool_code\nprint(1)\n```"), text("it printed")]
    events = await run_turns(agent("coder", script, code_executor=EchoExecutor()), "run it")
    assert spoken(events)[-1] == ("coder", "it printed")
