"""A tool may run agents of its own, with a runner of its own: that is inside of its step, as on plain ADK."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from typing import Any

from google.adk.agents import LlmAgent
from google.adk.agents.callback_context import CallbackContext
from google.adk.code_executors import UnsafeLocalCodeExecutor
from google.adk.models.llm_request import LlmRequest
from google.adk.models.llm_response import LlmResponse
from google.adk.runners import InMemoryRunner
from google.adk.tools.tool_context import ToolContext
from google.genai import types
from tests.adk.comparing import assert_as_plain, assert_survives_crashes
from tests.adk.model import ScriptedModel, calls, says
from tests.adk.test_toolsets import Shelf
from tests.adk.worlds import World


async def answer_of(agent: LlmAgent, question: str) -> str:
    """Runs an agent to its end, in a session of its own."""
    runner = InMemoryRunner(agent=agent, app_name="inner")
    session = await runner.session_service.create_session(app_name="inner", user_id="u")
    content = types.Content(role="user", parts=[types.Part(text=question)])
    words: list[str] = []
    async for event in runner.run_async(user_id="u", session_id=session.id, new_message=content):
        words += [part.text for part in (event.content.parts if event.content else None) or () if part.text]
    return " ".join(words)


def asking(**inner: Any) -> World:
    log: list[str] = []

    def dig(depth: int, tool_context: ToolContext) -> str:
        """Digs."""
        log.append(f"dig {depth}")
        if depth > 1:
            raise ValueError("too deep")
        return "gold"

    def mend(tool: Any, args: dict[str, Any], tool_context: ToolContext, error: Exception) -> dict[str, Any]:
        log.append(f"mend {error}")
        return {"mended": str(error)}

    replies = [calls(("dig", {"depth": 1}), ("dig", {"depth": 2})), says("Gold.")]
    digger = LlmAgent(
        name="digger",
        model=ScriptedModel(replies=replies),
        tools=[dig, Shelf(log)],
        on_tool_error_callback=mend,
        **inner,
    )

    async def ask(question: str, tool_context: ToolContext) -> str:
        """Asks another agent."""
        answer = await answer_of(digger, question)
        tool_context.state["answer"] = answer
        return answer

    model = ScriptedModel(replies=[calls(("ask", {"question": "where?"})), says("There.")])
    agent = LlmAgent(name="asker", model=model, instruction="Ask. {answer?}", tools=[ask])
    return World(model, agent, log)


async def test_a_tool_with_a_runner_of_its_own_is_as_on_plain_adk() -> None:
    await assert_as_plain(asking)
    await assert_survives_crashes(asking)


async def test_the_model_and_tool_calls_inside_are_no_steps() -> None:
    world = asking()
    engine = world.engine()
    await engine.turn("go")
    assert [request.tool_name for request in engine.disk.requests.values()] == ["ask"]
    assert len(engine.disk.model_calls) == 2
    assert sorted(world.log) == ["dig 1", "dig 2", "list at 0", "mend too deep"]


async def test_code_that_an_inner_agent_executes_is_no_step() -> None:
    def build() -> World:
        coder = LlmAgent(
            name="coder",
            model=ScriptedModel(replies=[says("```python\nprint(6 * 7)\n```"), says("42")]),
            code_executor=UnsafeLocalCodeExecutor(),
        )

        async def compute() -> str:
            """Computes."""
            return await answer_of(coder, "6 * 7?")

        model = ScriptedModel(replies=[calls(("compute", {})), says("42")])
        return World(model, LlmAgent(name="asker", model=model, tools=[compute]))

    await assert_as_plain(build)


async def test_a_model_that_asks_agents_of_its_own() -> None:
    class Committee(ScriptedModel):
        async def generate_content_async(
            self, llm_request: LlmRequest, stream: bool = False
        ) -> AsyncGenerator[LlmResponse, None]:
            answer = await answer_of(LlmAgent(name="member", model=ScriptedModel(replies=[says("Aye.")])), "well?")
            yield says(answer)

    def build() -> World:
        model = Committee()
        return World(model, LlmAgent(name="chair", model=model))

    engine = build().engine()
    await engine.turn("go")
    assert len(engine.disk.model_calls) == 1
    assert engine.disk.messages[-1]["content"]["parts"] == [{"text": "Aye."}]


async def test_a_callback_that_asks_an_agent_does_so_once() -> None:
    """A callback is part of the invocation: the model calls that it makes are recorded there."""

    def build() -> World:
        model = ScriptedModel(replies=[says("done")])
        judge = LlmAgent(name="judge", model=model.model_copy(update={"replies": [says("good")]}))
        log: list[str] = []

        async def after(callback_context: CallbackContext, llm_response: LlmResponse) -> None:
            log.append(await answer_of(judge, "is it good?"))

        return World(model, LlmAgent(name="worker", model=model, after_model_callback=after), log)

    world = build()
    engine = world.engine()
    await engine.turn("go")
    assert world.log == ["good"]
    assert len(engine.disk.model_calls) == 2
    await assert_survives_crashes(build)
