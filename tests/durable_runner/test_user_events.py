"""Events whose author is ``user``: the turn's opening message is the runner's own, all others are yielded."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any

import pytest
from google.adk.agents import BaseAgent, LlmAgent, SequentialAgent
from google.adk.agents.invocation_context import InvocationContext
from google.adk.events.event import Event
from tests.durable_runner.support import Build, Talk, comparable, durable, plain, words

from perdure.testing import ScriptedModel, call, text


class Quoting(BaseAgent):
    """Says something in the user's name, as an agent that fetches mail or a transcript does."""

    async def _run_async_impl(self, ctx: InvocationContext) -> AsyncGenerator[Event, None]:
        yield Event(invocation_id=ctx.invocation_id, author="user", branch=ctx.branch, content=words("go"))
        yield Event(invocation_id=ctx.invocation_id, author=self.name, branch=ctx.branch, content=words("So it says."))


def quoting() -> BaseAgent:
    return Quoting(name="quoting")


def quoting_in_a_sequence() -> BaseAgent:
    talker = LlmAgent(name="talker", model=ScriptedModel([text("I read it.")]))
    return SequentialAgent(name="steps", sub_agents=[Quoting(name="quoting"), talker])


def delegating() -> BaseAgent:
    """The response that closes a task has the user as its author."""
    task = LlmAgent(
        name="tasker", description="Does it.", mode="task", model=ScriptedModel([call("finish_task", result="done")])
    )
    script: list[Any] = [call("tasker", request="do it"), text("It is done.")]
    return LlmAgent(name="boss", model=ScriptedModel(script), sub_agents=[task])


@pytest.mark.parametrize("build", [quoting, quoting_in_a_sequence, delegating], ids=lambda build: build.__name__)
async def test_what_an_agent_says_as_the_user_is_yielded(build: Build, tmp_path: Path) -> None:
    expected = Talk(plain(build()))
    await expected.start()
    await expected.say("go")
    assert any(event.author == "user" for event in expected.yielded[0])
    async with durable(build(), tmp_path) as runner:
        talk = Talk(runner)
        await talk.start()
        await talk.say("go")
        assert talk.failures == expected.failures == [None]
        assert _without_scopes(comparable(talk.yielded[0])) == _without_scopes(comparable(expected.yielded[0]))


def _without_scopes(events: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Without the places of a task, which are made of the id of the call that delegates."""
    return [
        {key: value for key, value in event.items() if key not in ("branch", "isolation_scope", "node_info")}
        for event in events
    ]
