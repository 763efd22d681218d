"""A long-running call beside a gated one through a durable runner: both are asked at once, either is answered first."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from google.adk.agents import LlmAgent
from google.adk.tools.function_tool import FunctionTool
from google.adk.tools.long_running_tool import LongRunningFunctionTool
from google.genai import types
from tests.durable_runner.support import CONFIRM, Talk, durable, requests_in, responds, text_of

from perdure.testing import ScriptedModel, call, reply, text

runs: list[str] = []


def render(scene: str) -> None:
    """Renders; the picture comes later."""
    runs.append(f"render {scene}")


def pay(amount: int) -> dict[str, int]:
    """Pays."""
    runs.append(f"pay {amount}")
    return {"paid": amount}


def clerk() -> LlmAgent:
    script = [reply(call("pay", amount=5), call("render", scene="one")), text("All is done.")]
    tools: list[Any] = [FunctionTool(pay, require_confirmation=True), LongRunningFunctionTool(render)]
    return LlmAgent(name="clerk", model=ScriptedModel(script), instruction="Do.", tools=tools)


def _asked(talk: Talk) -> tuple[types.FunctionCall, types.FunctionCall]:
    (confirm,), (rendering,) = requests_in(talk.yielded[0], CONFIRM), requests_in(talk.yielded[0], "render")
    return confirm, rendering


@pytest.mark.parametrize("restart", [False, True])
@pytest.mark.parametrize("result_first", [False, True])
async def test_either_is_answered_first(tmp_path: Path, result_first: bool, restart: bool) -> None:
    runs.clear()
    async with durable(clerk(), tmp_path) as runner:
        talk = Talk(runner)
        await talk.start()
        await talk.say("go")
        confirm, rendering = _asked(talk)
        answers: list[Any] = [(confirm, {"confirmed": True}), (rendering, {"image": 1})]
        if result_first:
            answers.reverse()
        await talk.say(responds(answers[0]))
        assert talk.failures == [None, None]
        if not restart:
            assert text_of(await talk.say(responds(answers[1]))) == ["All is done."]
    if restart:
        async with durable(clerk(), tmp_path) as runner:
            again = Talk(runner)
            assert text_of(await again.say(responds(answers[1]))) == ["All is done."]
            assert again.failures == [None]
    assert sorted(runs) == ["pay 5", "render one"]


async def test_both_are_answered_in_one_message(tmp_path: Path) -> None:
    runs.clear()
    async with durable(clerk(), tmp_path) as runner:
        talk = Talk(runner)
        await talk.start()
        await talk.say("go")
        confirm, rendering = _asked(talk)
        events = await talk.say(responds((rendering, {"image": 1}), (confirm, {"confirmed": True})))
        assert text_of(events) == ["All is done."]
    assert sorted(runs) == ["pay 5", "render one"]
