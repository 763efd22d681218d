"""An agent that is run as a tool can wait for a person as a whole, before any of it runs."""

from __future__ import annotations

from typing import Any

import pytest
from google.adk.agents import ParallelAgent
from google.adk.tools.agent_tool import AgentTool
from google.adk.tools.base_tool import BaseTool
from google.adk.tools.tool_context import ToolContext
from tests.adk.disk import Crash, Disk
from tests.adk.model import calls, says
from tests.adk.plain import request_form
from tests.adk.shapes import Cast, noting
from tests.adk.worlds import World

from perdure.errors import NonDeterminismError
from perdure.session.model import DEFAULT_REJECTION_MESSAGE, ErrorInfo, InterruptKind, TurnStatus
from perdure.session.policy import ToolEffect, ToolPolicy
from perdure.session.runner import Answer, Question, QuestionWait

ASKED = {"helper": ToolPolicy(ToolEffect.READ, requires_approval=True)}


def asking(tool: type[AgentTool] = AgentTool, **options: Any) -> World:
    """A branch whose agent tool waits for a person, while the other branch goes on."""
    cast = Cast()
    helper = cast.llm("helper", noting("helped"), says("help"), description="Helps.")
    boss = cast.llm(
        "boss",
        calls(("helper", {"request": "x"}), ("note", {"words": "beside"})),
        says("boss is done"),
        tools=(tool(helper),),
    )
    other = cast.llm("other", noting("o1"), noting("o2"), says("other is done"))
    return cast.world(ParallelAgent(name="both", sub_agents=[boss, other]), branched=True, options=options)


async def test_it_asks_and_the_other_branch_finishes() -> None:
    world = asking(tool_policies=ASKED)
    engine = world.engine()
    engine.answer = lambda question: None
    engine.begin("go")
    assert not await engine.go_on()
    (question,) = engine.disk.questions.values()
    assert question == Question(
        question_id=question.question_id,
        kind=InterruptKind.APPROVAL,
        group=question.group,
        wait=QuestionWait.LIVE,
        tool_name="helper",
        arguments={"request": "x"},
        agent_name="boss",
        path="both/boss",
    )
    assert sorted(world.log) == ["note beside", "note o1", "note o2"]
    texts = [part.get("text") for item in engine.disk.messages for part in item["content"]["parts"]]
    assert "other is done" in texts
    for _ in range(2):  # the code fits, and the question is not asked anew
        again = asking(tool_policies=ASKED)
        rebuilt = again.engine(engine.disk)
        live = await rebuilt.open()
        await live.replayed()
        await live.close()
        assert again.log == []
    last = asking(tool_policies=ASKED)
    assert await last.engine(engine.disk).go_on()
    assert last.log == ["note helped"]
    assert engine.disk.status is TurnStatus.COMPLETED


@pytest.mark.parametrize(
    ("answer", "seen"),
    [
        ({"approved": False}, DEFAULT_REJECTION_MESSAGE),
        ({"approved": False, "message": "not today"}, "not today"),
    ],
)
async def test_rejected(answer: dict[str, Any], seen: str) -> None:
    world = asking(tool_policies=ASKED)
    engine = world.engine()
    engine.answer = lambda question: answer
    await engine.turn("go")
    assert engine.disk.status is TurnStatus.COMPLETED
    assert "note helped" not in world.log
    assert _response(world, "helper") == {"error": seen}


async def test_nobody_answered_in_time() -> None:
    world = asking(tool_policies=ASKED)
    engine = world.engine()
    engine.answer = lambda question: None
    engine.begin("go")
    assert not await engine.go_on()
    (question,) = engine.disk.questions.values()
    error = ErrorInfo(code="expired", message="nobody answered")
    disk = engine.disk
    disk.answers[question.question_id] = Answer(question.question_id, disk.sequence(), None, error, disk.now_ms())
    last = asking(tool_policies=ASKED)
    assert await last.engine(disk).go_on()
    assert last.log == []
    assert _response(last, "helper") == {"error": "nobody answered"}


async def test_without_a_policy_it_just_runs() -> None:
    world = asking(default_tool_effect=ToolEffect.READ)
    engine = world.engine()
    await engine.turn("go")
    assert engine.disk.questions == {}
    assert "note helped" in world.log


class Careful(AgentTool):
    """An agent tool with a gate of its own."""

    async def check_require_confirmation(self, args: dict[str, Any], tool_context: ToolContext) -> bool:
        return True


async def test_its_own_gate() -> None:
    world = asking(Careful)
    engine = world.engine()
    await engine.turn("go")
    (question,) = engine.disk.questions.values()
    assert question.kind is InterruptKind.CONFIRMATION
    assert "'helper' wants to be confirmed" in question.hint
    assert "note helped" in world.log


async def test_a_crash_at_any_write_changes_nothing() -> None:
    world = asking(tool_policies=ASKED)
    engine = world.engine()
    await engine.turn("go")
    expected = engine.disk
    for point in range(1, expected.writes + 1):
        disk = Disk(crash_at=point)
        first = asking(tool_policies=ASKED).engine(disk)
        first.begin("go")
        with pytest.raises(Crash):
            await first.go_on()
        disk.reboot()
        assert await asking(tool_policies=ASKED).engine(disk).go_on()
        assert {item["id"] for item in disk.messages} == {item["id"] for item in expected.messages}, point
        assert len(disk.messages) == len(expected.messages), point
        assert disk.state == expected.state, point
        assert list(disk.questions) == list(expected.questions), point


async def test_code_that_no_longer_asks_is_noticed() -> None:
    engine = asking(tool_policies=ASKED).engine()
    engine.answer = lambda question: None
    engine.begin("go")
    assert not await engine.go_on()

    def answers(tool: BaseTool, args: dict[str, Any], tool_context: ToolContext) -> Any:
        return {"answered": True} if tool.name == "helper" else None

    changed = asking(tool_policies=ASKED)
    changed.agent.sub_agents[0].before_tool_callback = answers  # type: ignore[union-attr]  # the boss
    live = await changed.engine(engine.disk).open()
    with pytest.raises(NonDeterminismError, match="a question of 'helper'"):
        await live.replayed()
    await live.close()


def _response(world: World, name: str) -> Any:
    for item in request_form(world.models[1].requests[-1])["contents"]:
        for part in item["parts"]:
            if part.get("function_response", {}).get("name") == name:
                return part["function_response"]["response"]
    raise AssertionError(f"no response of {name}")
