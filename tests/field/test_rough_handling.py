"""What tools, models and callers do that nobody planned for: each is a plain failure of one call or one turn."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import AsyncGenerator, Awaitable, Callable
from typing import Any

import pytest
from google.adk.agents import LlmAgent
from google.adk.models import BaseLlm
from google.adk.models.llm_request import LlmRequest
from google.adk.models.llm_response import LlmResponse
from google.adk.tools.tool_context import ToolContext

from perdure import (
    AgentSessionFlow,
    FlowNotFound,
    SessionStatus,
    StepRecord,
    ToolEffect,
    ToolPolicy,
    TurnStatus,
    UsageError,
    open_engine,
)
from perdure.adk import adk_agent_session_flow
from perdure.client import AgentSessionClient
from perdure.testing import ScriptedModel, call, read_step_history, running_engine, text


def flow_of(tool: Callable[..., Any]) -> AgentSessionFlow:
    model = ScriptedModel([call("tool"), text("done")])
    agent = LlmAgent(name="rough", model=model, tools=[tool])
    return adk_agent_session_flow(
        agent, flow_type="Rough", tool_policies={"tool": ToolPolicy(ToolEffect.NON_IDEMPOTENT_WRITE, False)}
    )


async def step_of(tool: Callable[..., Any]) -> StepRecord:
    """The tool step of a turn that went on to its end."""
    async with running_engine(flow_of(tool)) as running:
        await running.sessions.start_session("s", "go")
        snapshot = await running.sessions.wait("s", timeout=30)
        assert snapshot.turn is not None
        assert (snapshot.status, snapshot.turn.status) == (SessionStatus.IDLE, TurnStatus.COMPLETED)
        (step,) = [step for step in await read_step_history(running.sessions, "s") if step.tool_name]
        return step


@pytest.mark.parametrize(
    "raised", [StopIteration("end"), SystemExit(3), KeyboardInterrupt(), StopAsyncIteration()], ids=repr
)
async def test_whatever_a_sync_tool_raises_is_the_failure_of_its_call(raised: BaseException) -> None:
    def tool() -> str:
        """Raises."""
        raise raised

    step = await step_of(tool)
    assert step.status.value == "outcome_unknown"
    assert step.error is not None
    assert type(raised).__name__ in step.error.message


@pytest.mark.parametrize("raised", [SystemExit(3), KeyboardInterrupt()], ids=repr)
async def test_an_async_tool_does_not_end_its_worker(raised: BaseException) -> None:
    async def tool() -> str:
        """Raises."""
        raise raised

    assert (await step_of(tool)).status.value == "outcome_unknown"


async def test_a_result_with_keys_that_are_no_text_fails_its_call_and_not_the_turn() -> None:
    def tool() -> dict[Any, str]:
        """Counts."""
        return {1: "one"}

    step = await step_of(tool)
    assert step.error is not None
    assert step.error.code == "value_not_storable"
    assert "tool" in step.error.message


@pytest.mark.parametrize("value", [float("nan"), float("inf"), "\ud800"], ids=ascii)
async def test_a_state_value_without_a_form_fails_its_call_and_names_the_key(value: object) -> None:
    def tool(tool_context: ToolContext) -> str:
        """Sets."""
        tool_context.state["n"] = value
        return "set"

    step = await step_of(tool)
    assert step.error is not None
    assert step.error.code == "value_not_storable"
    assert "'n'" in step.error.message


class LeavingModel(BaseLlm):
    """A model whose client library ends the program."""

    model: str = "leaving"

    async def generate_content_async(
        self, llm_request: LlmRequest, stream: bool = False
    ) -> AsyncGenerator[LlmResponse, None]:
        if llm_request.contents:
            raise SystemExit(7)
        yield LlmResponse()


async def test_a_model_that_exits_fails_its_turn() -> None:
    flow = adk_agent_session_flow(LlmAgent(name="rough", model=LeavingModel()), flow_type="Rough")
    async with running_engine(flow) as running:
        await running.sessions.start_session("s", "go")
        snapshot = await running.sessions.wait("s", timeout=30)
        assert snapshot.turn is not None
        assert snapshot.turn.status is TurnStatus.FAILED
        assert "SystemExit" in str(snapshot.turn.error)


def test_a_tool_that_never_returns_does_not_keep_the_program_from_ending() -> None:
    program = """
import asyncio, threading
from google.adk.agents import LlmAgent
from perdure import ToolEffect, ToolPolicy
from perdure.adk import adk_agent_session_flow
from perdure.testing import ScriptedModel, call, running_engine, text
began = threading.Event()
def tool() -> str:
    "Hangs."
    began.set()
    threading.Event().wait()
agent = LlmAgent(name="rough", model=ScriptedModel([call("tool"), text("done")]), tools=[tool])
flow = adk_agent_session_flow(agent, flow_type="Rough", tool_policies={"tool": ToolPolicy(ToolEffect.READ)})
async def main():
    async with running_engine(flow) as running:
        await running.sessions.start_session("s", "go")
        await asyncio.to_thread(began.wait)
        await running.sessions.cancel_turn("s")
        print((await running.sessions.wait("s")).turn.status.value)
asyncio.run(main())
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120, check=False)
    assert (done.returncode, done.stdout) == (0, "cancelled\n")


@pytest.mark.parametrize("bad", [5, None, "", "  ", "a\nb", "\ud800", "x" * 300], ids=ascii)
async def test_a_wrong_session_id_is_a_usage_error(bad: Any) -> None:
    async with running_engine() as running:
        sessions = AgentSessionClient(running.engine, "Rough")
        with pytest.raises(UsageError, match="session"):
            await sessions.start_session(bad)


async def test_wrong_arguments_are_usage_errors_that_name_the_argument() -> None:
    async with running_engine() as running:
        sessions = AgentSessionClient(running.engine, "Rough")
        bad: Any = 5
        surrogate = "\ud800"
        starts: dict[str, Callable[[], Awaitable[object]]] = {
            "message": lambda: sessions.start_session("s", bad),
            "user_id": lambda: sessions.start_session("s", "hi", user_id=surrogate),
            "request_id": lambda: sessions.start_session("s", "hi", request_id=surrogate),
            "state": lambda: sessions.start_session("s", "hi", state=bad),
            "state_delta": lambda: sessions.start_session("s", "hi", state_delta={surrogate: 1}),
        }
        for name, start in starts.items():
            with pytest.raises(UsageError, match=name):
                await start()
        with pytest.raises(UsageError, match="session_id"):
            await sessions.get_agent_snapshot(surrogate)
        with pytest.raises(UsageError, match="cursor"):
            await sessions.list_messages("s", after="²")


async def test_a_flow_type_that_the_engine_does_not_have_is_named() -> None:
    def tool() -> str:
        """Nothing."""
        return ""

    async with running_engine(flow_of(tool), worker=False) as running:
        with pytest.raises(FlowNotFound, match="Rough"):
            AgentSessionClient(running.engine, "Rogh")


@pytest.mark.parametrize("address", ["sqlite:///.", "sqlite:///", "mysql://x", "sqlite:///:memory:"])
def test_an_address_without_a_file_is_a_usage_error(address: str) -> None:
    with pytest.raises(UsageError, match="sqlite:///FILE"):
        open_engine(address)
