"""Trees of agents through a durable runner: what comes out, and approvals in several branches at once."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from google.adk.agents import BaseAgent, LlmAgent, LoopAgent, ParallelAgent, RunConfig, SequentialAgent
from google.adk.events.event import Event
from google.adk.tools.agent_tool import AgentTool
from google.adk.tools.exit_loop_tool import exit_loop
from google.adk.tools.function_tool import FunctionTool
from google.genai import types
from tests.durable_runner.agents import look
from tests.durable_runner.support import (
    SESSION,
    SSE,
    Build,
    Talk,
    comparable,
    durable,
    plain,
    requests_in,
    responds,
    text_of,
)

from perdure import SessionStatus
from perdure.testing import ScriptedModel, call, text

NONE = RunConfig()


def _agent(name: str, *script: Any, tools: tuple[Any, ...] = ()) -> LlmAgent:
    return LlmAgent(name=name, model=ScriptedModel(list(script)), instruction=f"Be {name}.", tools=list(tools))


def one_after_the_other() -> BaseAgent:
    """Three agents, the second with a tool: each yields before the next begins."""
    steps: list[BaseAgent] = [
        _agent("first", text("I begin.", chunks=2)),
        _agent("second", call("look", what="order 7"), text("I looked.", chunks=3), tools=(look,)),
        _agent("third", text("I end.", chunks=2)),
    ]
    return SequentialAgent(name="steps", sub_agents=steps)


def round_and_round() -> BaseAgent:
    """A loop that its second agent leaves."""
    writer = _agent("writer", text("A draft.", chunks=2))
    critic = _agent("critic", call("exit_loop"), tools=(exit_loop,))
    return LoopAgent(name="loop", sub_agents=[writer, critic], max_iterations=3)


def handing_over() -> BaseAgent:
    """An agent that hands over to another."""
    expert = _agent("expert", text("I know.", chunks=2))
    root = _agent("desk", call("transfer_to_agent", agent_name="expert"))
    root.sub_agents = [expert]
    expert.parent_agent = root
    return root


def agent_as_a_tool() -> BaseAgent:
    """What the agent below says is its caller's business."""
    inner = _agent("inner", call("look", what="order 7"), text("It is there.", chunks=3), tools=(look,))
    return _agent("outer", call("inner", request="where?"), text("Found.", chunks=2), tools=(AgentTool(inner),))


@pytest.mark.parametrize("config", [NONE, SSE], ids=["whole", "streaming"])
@pytest.mark.parametrize(
    "build", [one_after_the_other, round_and_round, handing_over, agent_as_a_tool], ids=lambda build: build.__name__
)
async def test_a_tree_yields_what_it_yields_on_plain_adk(build: Build, config: RunConfig, tmp_path: Path) -> None:
    expected = Talk(plain(build()), config)
    await expected.start()
    await expected.say("go")
    async with durable(build(), tmp_path) as runner:
        talk = Talk(runner, config)
        await talk.start()
        await talk.say("go")
        assert talk.failures == expected.failures == [None]
        assert comparable(talk.yielded[0]) == comparable(expected.yielded[0])
        events, state = await talk.session()
    plain_events, plain_state = await expected.session()
    assert comparable(events) == comparable([e for e in plain_events if e.content or e.actions.state_delta])
    assert state == {key: value for key, value in plain_state.items() if not key.startswith("temp:")}


# ---------------------------------------------------------------- approvals in branches


def both(done: list[str]) -> BaseAgent:
    """Two branches, each with a call that waits."""

    def pay() -> str:
        """Pays."""
        done.append("pay")
        return "paid"

    def ship() -> str:
        """Ships."""
        done.append("ship")
        return "shipped"

    branches: list[BaseAgent] = [
        _agent("payer", call("pay"), text("It is paid."), tools=(FunctionTool(pay, require_confirmation=True),)),
        _agent("shipper", call("ship"), text("It is shipped."), tools=(FunctionTool(ship, require_confirmation=True),)),
    ]
    return ParallelAgent(name="both", sub_agents=branches)


def _asked_for(request: types.FunctionCall) -> str:
    """The tool that a request asks to confirm."""
    assert request.args is not None
    name: str = request.args["originalFunctionCall"]["name"]
    return name


@pytest.mark.parametrize("first", ["pay", "ship"])
async def test_case_03_both_approvals_in_one_message_count(first: str, tmp_path: Path) -> None:
    done: list[str] = []
    async with durable(both(done), tmp_path) as runner:
        talk = Talk(runner)
        await talk.start()
        requests = requests_in(await talk.say("go"))
        assert sorted(map(_asked_for, requests)) == ["pay", "ship"]
        requests.sort(key=lambda request: _asked_for(request) != first)
        events = await talk.say(responds(*((request, {"confirmed": True}) for request in requests)))
        assert talk.failures == [None, None]
        assert sorted(done) == ["pay", "ship"]
        assert sorted(text_of(events)) == ["It is paid.", "It is shipped."]
        snapshot = await (await runner.sessions()).get_agent_snapshot(SESSION)
        assert snapshot.status is SessionStatus.IDLE
        assert snapshot.pending_interrupts == ()


async def test_requests_of_branches_say_where_they_come_from(tmp_path: Path) -> None:
    """As on plain ADK: one event for each branch, by the agent that asks, in its branch."""
    expected = Talk(plain(both([])))
    await expected.start()
    await expected.say("go")
    async with durable(both([]), tmp_path) as runner:
        talk = Talk(runner)
        await talk.start()
        await talk.say("go")

    def asking(events: list[Event]) -> list[tuple[str, str | None, int]]:
        return sorted((e.author, e.branch, len(requests_in([e]))) for e in events if requests_in([e]))

    assert asking(talk.yielded[0]) == asking(expected.yielded[0])
    assert len(asking(talk.yielded[0])) == 2


async def test_one_branch_goes_on_while_the_other_waits(tmp_path: Path) -> None:
    done: list[str] = []
    async with durable(both(done), tmp_path) as runner:
        talk = Talk(runner)
        await talk.start()
        pay, ship = sorted(requests_in(await talk.say("go")), key=_asked_for)
        assert text_of(await talk.say(responds((pay, {"confirmed": True})))) == ["It is paid."]
        assert done == ["pay"]
    async with durable(both(done), tmp_path) as runner:
        later = Talk(runner)
        assert text_of(await later.say(responds((ship, {"confirmed": True})))) == ["It is shipped."]
        assert done == ["pay", "ship"]


async def test_case_14_the_agent_after_the_one_that_waited_runs(tmp_path: Path) -> None:
    """Also when the app is not resumable: a wait goes on where it stopped."""

    def build() -> BaseAgent:
        planner = _agent(
            "planner",
            call("look", what="plan"),
            text("It is planned."),
            tools=(FunctionTool(look, require_confirmation=True),),
        )
        return SequentialAgent(name="steps", sub_agents=[planner, _agent("executor", text("It is done."))])

    async with durable(build(), tmp_path) as runner:
        talk = Talk(runner)
        await talk.start()
        await talk.say("go")
    async with durable(build(), tmp_path) as runner:
        again = Talk(runner, yielded=talk.yielded)
        assert text_of(await again.approve()) == ["It is planned.", "It is done."]
