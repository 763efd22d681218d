"""Code executors: an execution is a step, recorded once, and everything else is as on plain ADK."""

from __future__ import annotations

import threading
from typing import Any

import pytest
from google.adk.agents import LlmAgent
from google.adk.agents.invocation_context import InvocationContext
from google.adk.artifacts import InMemoryArtifactService
from google.adk.code_executors import BaseCodeExecutor, UnsafeLocalCodeExecutor
from google.adk.code_executors.code_execution_utils import CodeExecutionInput, CodeExecutionResult, File
from pydantic import Field, PrivateAttr
from tests.adk.comparing import assert_as_plain, assert_survives_crashes
from tests.adk.disk import Crash, Disk
from tests.adk.model import ScriptedModel, says
from tests.adk.worlds import World

from perdure.adk import seams
from perdure.errors import FrameworkDrift, UsageError
from perdure.session.model import OUTCOME_UNKNOWN_TOOL_RESULT, ImageInput, TurnStatus, UserMessage
from perdure.session.policy import ToolEffect


class Notebook(BaseCodeExecutor):
    """Runs nothing: it answers from a list, and notes what it was given."""

    answers: list[Any] = Field(default_factory=list)
    _log: list[str] = PrivateAttr(default_factory=lambda: list[str]())

    def execute_code(
        self, invocation_context: InvocationContext, code_execution_input: CodeExecutionInput
    ) -> CodeExecutionResult:
        code = code_execution_input.code.strip().splitlines()[-1]
        files = [file.name for file in code_execution_input.input_files]
        self._log.append(f"execute {code} {files} {code_execution_input.execution_id}")
        assert threading.current_thread() is not threading.main_thread()
        state = invocation_context.session.state
        state["runs"] = state.get("runs", 0) + 1
        answer = self.answers[state["runs"] - 1]
        if isinstance(answer, Exception):
            raise answer
        assert isinstance(answer, CodeExecutionResult)
        return answer


def coder(*replies: str, executor: BaseCodeExecutor, **more: Any) -> World:
    model = ScriptedModel(replies=[says(reply) for reply in replies])
    agent = LlmAgent(name="coder", model=model, instruction="Code. {runs?}", code_executor=executor)
    world = World(model, agent, services={"artifact_service": InMemoryArtifactService()}, **more)
    if isinstance(executor, Notebook):
        executor._log = world.log
    return world


def code(text: str) -> str:
    return f"Let me see.\n```python\n{text}\n```"


def local() -> World:
    return coder(code("print(6 * 7)"), "42", executor=UnsafeLocalCodeExecutor())


def failing_code() -> World:
    """Code that fails until ADK does not let the model try again."""
    return coder(*[code("1 / 0")] * 3, executor=UnsafeLocalCodeExecutor(error_retry_attempts=2))


def with_files() -> World:
    """Output files become artifacts."""
    plot = File("plot.png", b"\x89PNG", "image/png")
    answers = [CodeExecutionResult(stdout="drawn", output_files=[plot]), CodeExecutionResult(stdout="again")]
    return coder(code("draw()"), code("again()"), "drawn", executor=Notebook(answers=answers, stateful=True))


def data_file() -> World:
    """ADK explores a data file by code of its own before the first model call."""
    answers = [CodeExecutionResult(stdout="2 rows"), CodeExecutionResult(stdout="3")]
    world = coder(
        "unused", "unused", code("len(data)"), "3", executor=Notebook(answers=answers, optimize_data_file=True)
    )
    world.messages = [UserMessage(text="count", images=(ImageInput(data=b"a,b\n1,2\n", mime_type="text/csv"),))]
    return world


WORLDS = [local, failing_code, with_files, data_file]


@pytest.mark.parametrize("build", WORLDS)
async def test_an_agent_that_executes_code_is_as_on_plain_adk(build: Any) -> None:
    await assert_as_plain(build)


ARTIFACT_RECORDS = {with_files: 4}
"""The write that tells of an artifact which is saved by then."""


@pytest.mark.parametrize("build", WORLDS)
async def test_a_crash_at_any_write_changes_nothing(build: Any) -> None:
    def repeatable() -> World:
        world: World = build()
        world.options["code_execution_effect"] = ToolEffect.READ
        return world

    assert await assert_survives_crashes(repeatable, between=ARTIFACT_RECORDS.get(build)) >= 4


async def test_an_execution_is_a_step_that_asks_nobody() -> None:
    world = local()
    engine = world.engine()
    await engine.turn("go")
    (request,) = engine.disk.requests.values()
    assert (request.tool_name, request.arguments, request.agent_name) == (
        "code_executor",
        {"code": "print(6 * 7)"},
        "coder",
    )
    assert (request.effect, request.ask) == (ToolEffect.NON_IDEMPOTENT_WRITE, None)
    assert request.group in engine.disk.model_calls[0].key


async def test_a_crash_in_the_middle_of_an_execution_leaves_its_outcome_unknown() -> None:
    answers = [CodeExecutionResult(stdout="sent"), CodeExecutionResult(stdout="checked")]
    disk = Disk()

    def build() -> World:
        return coder(code("send()"), code("check()"), "done", executor=Notebook(answers=answers))

    first = build()
    engine = first.engine(disk)
    engine.begin("go")
    disk.crash_at = 4  # model call, its messages, the start mark; the record is lost
    with pytest.raises(Crash):
        await engine.go_on()
    assert first.log == ["execute send() [] None"]
    disk.reboot()
    second = build()
    await second.engine(disk).go_on()
    assert disk.status is TurnStatus.COMPLETED
    assert not any("send" in entry for entry in second.log)
    result = disk.messages[2]["content"]["parts"][0]["code_execution_result"]
    assert (result["outcome"], OUTCOME_UNKNOWN_TOOL_RESULT in result["output"]) == ("OUTCOME_FAILED", True)


async def test_an_executor_that_raises_does_not_fail_the_turn() -> None:
    world = coder(code("send()"), "sorry", executor=Notebook(answers=[ConnectionError("no sandbox")]))
    world.options["code_execution_effect"] = ToolEffect.READ
    answers = [ConnectionError("no sandbox")] * 3
    world.agent.code_executor.answers = answers  # type: ignore[union-attr]  # it is an LlmAgent with an executor
    engine = world.engine()
    await engine.turn("go")
    assert engine.disk.status is TurnStatus.COMPLETED
    output = engine.disk.messages[2]["content"]["parts"][0]["code_execution_result"]["output"]
    assert output == "The code execution failed: no sandbox"


def test_the_effect_of_code_is_checked() -> None:
    world = local()
    world.options["code_execution_effect"] = "read"
    with pytest.raises(UsageError, match="code_execution_effect"):
        world.engine()


def test_code_execution_that_adk_runs_otherwise_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    def other_source(module: object) -> str:
        return "loop.run_in_executor("

    monkeypatch.setattr("inspect.getsource", other_source)
    seams.check_seams.cache_clear()
    with pytest.raises(FrameworkDrift, match="_code_execution"):
        seams.check_seams()
    monkeypatch.undo()
    seams.check_seams()
