"""A waiting turn whose code has changed is refused with what was expected and found; restored code goes on."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
from google.adk.agents import LlmAgent
from google.adk.tools.tool_context import ToolContext
from tests.adk.disk import Crash, Disk
from tests.adk.model import ScriptedModel, calls, says
from tests.adk.worlds import World

from perdure.errors import NonDeterminismError
from perdure.session.model import TurnStatus
from perdure.session.policy import ToolEffect
from perdure.session.runner import Approval


def check(order: str) -> str:
    """Checks."""
    return "fine"


def pay(order: str, tool_context: ToolContext) -> str:
    """Pays."""
    tool_context.state["paid"] = order
    return "paid"


def _renamed(order: str) -> str:
    """Pays."""
    return "paid"


def _stricter(order: str, account: str) -> str:
    """Pays."""
    return "paid"


def world(pay_tool: Callable[..., Any] = pay, name: str = "pay", **agent: Any) -> World:
    pay_tool.__name__ = name
    replies = [calls(("check", {"order": "1"})), calls(("pay", {"order": "1"})), says("done")]
    model = ScriptedModel(replies=replies)
    options: dict[str, Any] = {"instruction": "Pay.", "tools": [check, pay_tool], **agent}
    return World(
        model, LlmAgent(name="payer", model=model, **options), options={"default_tool_effect": ToolEffect.READ}
    )


async def _waiting() -> Disk:
    """A turn that waits for the approval of ``pay``."""
    disk = Disk()
    original = world()
    original.options = {"default_tool_effect": ToolEffect.UNCLASSIFIED}
    engine = original.engine(disk, decide=lambda request: None)
    engine.decide = lambda request: Approval() if request.tool_name == "check" else None
    engine.begin("go")
    assert not await engine.go_on()
    return disk


async def _refused(changed: World, disk: Disk) -> NonDeterminismError:
    engine = changed.engine(disk)
    live = await engine.open()
    with pytest.raises(NonDeterminismError) as by_drive:
        await live.drive("check", ())
    with pytest.raises(NonDeterminismError):
        await live.call_tool(list(disk.requests)[-1], 1, None)
    await live.close()
    assert changed.model.requests == []
    return by_drive.value


async def _goes_on(disk: Disk) -> None:
    engine = world().engine(disk)
    assert await engine.go_on()
    assert disk.status is TurnStatus.COMPLETED
    assert disk.state == {"paid": "1"}


async def test_a_renamed_tool() -> None:
    disk = await _waiting()
    error = await _refused(world(_renamed, "pay_now"), disk)
    assert error.facts["step"] == list(disk.requests)[-1]
    assert "pay" in str(error.facts["expected"])
    await _goes_on(disk)


async def test_a_new_required_parameter() -> None:
    disk = await _waiting()
    error = await _refused(world(_stricter), disk)
    assert "account" in str(error.facts["found"])
    await _goes_on(disk)


async def test_a_new_required_parameter_of_a_call_that_has_its_record_is_no_matter() -> None:
    disk = await _waiting()

    def stricter_check(order: str, how: str) -> str:
        """Checks."""
        return "fine"

    stricter_check.__name__ = "check"
    engine = world(tools=[stricter_check, pay]).engine(disk)
    assert await engine.go_on()


async def test_a_changed_instruction_is_no_matter() -> None:
    disk = await _waiting()
    assert await world(instruction="Pay, please.").engine(disk).go_on()
    assert disk.status is TurnStatus.COMPLETED


async def test_other_arguments() -> None:
    disk = await _waiting()

    def rewrite(tool: Any, args: dict[str, Any], tool_context: ToolContext) -> None:
        args["order"] = "2"

    error = await _refused(world(before_tool_callback=rewrite), disk)
    assert "'2'" in str(error.facts["found"])
    await _goes_on(disk)


async def test_a_callback_that_now_answers_the_call() -> None:
    disk = await _waiting()

    def answer(tool: Any, args: dict[str, Any], tool_context: ToolContext) -> Any:
        return {"answered": True} if tool.name == "pay" else None

    error = await _refused(world(before_tool_callback=answer), disk)
    assert "callback" in str(error.facts["found"])
    await _goes_on(disk)


async def test_a_callback_that_now_answers_for_the_model() -> None:
    disk = await _waiting()

    def answer(**_: Any) -> Any:
        return says("no model")

    error = await _refused(world(before_model_callback=answer), disk)
    assert "end of the invocation" in str(error.facts["found"])
    await _goes_on(disk)


async def test_an_agent_that_now_makes_another_call_first() -> None:
    disk = await _waiting()
    changed = world()
    assert isinstance(changed.agent, LlmAgent)
    changed.agent.name = "other"
    error = await _refused(changed, disk)
    assert "other" in str(error.facts["found"])
    await _goes_on(disk)


async def test_user_code_cannot_swallow_it() -> None:
    disk = await _waiting()
    swallowed: list[BaseException] = []

    def swallow(**given: Any) -> Any:
        swallowed.append(given["error"])
        return {"swallowed": True}

    await _refused(world(_renamed, "pay_now", on_tool_error_callback=swallow), disk)
    assert swallowed == []


@dataclass
class Found:
    """What a tool finds."""

    order: str


async def test_a_class_that_is_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    def find(order: str) -> Found:
        """Finds."""
        return Found(order)

    def build() -> World:
        model = ScriptedModel(replies=[calls(("find", {"order": "1"})), says("done")])
        return World(model, LlmAgent(name="finder", model=model, tools=[find]))

    disk = Disk(crash_at=4)
    engine = build().engine(disk)
    engine.begin("go")
    with pytest.raises(Crash):
        await engine.go_on()
    disk.reboot()
    with monkeypatch.context() as gone:
        gone.delattr("tests.adk.test_code_changes.Found")
        live = await build().engine(disk).open()
        with pytest.raises(NonDeterminismError, match="Found"):
            await live.drive("step", ())
        await live.close()
    assert await build().engine(disk).go_on()
    assert disk.messages[2]["content"]["parts"][0]["function_response"]["response"] == {"result": {"order": "1"}}
