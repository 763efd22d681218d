"""Every shape inside every other: as on plain ADK, and after a crash at any write as without one."""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncGenerator, Callable
from typing import Any

import pytest
from google.adk.agents import BaseAgent, LoopAgent, ParallelAgent, SequentialAgent
from google.adk.agents.invocation_context import InvocationContext
from google.adk.events.event import Event
from google.adk.tools.agent_tool import AgentTool
from google.adk.tools.exit_loop_tool import exit_loop
from tests.adk.disk import Crash, Disk
from tests.adk.model import calls, says
from tests.adk.plain import comparable, request_form, run_plain, unordered
from tests.adk.shapes import Cast, noting
from tests.adk.worlds import World

from perdure.session.model import JsonObject


def llm(cast: Cast) -> BaseAgent:
    return cast.llm("inner", noting("one", "two"), says("inner is done"), description="Inner.")


def sequence(cast: Cast) -> BaseAgent:
    return SequentialAgent(
        name="inner",
        description="Inner.",
        sub_agents=[cast.llm(f"i{n}", noting(f"{n}"), says(f"i{n}")) for n in (1, 2)],
    )


def loop(cast: Cast) -> BaseAgent:
    worker = cast.llm("worker", noting("w"), calls(("exit_loop", {})), tools=(exit_loop,))
    return LoopAgent(name="inner", description="Inner.", sub_agents=[worker], max_iterations=3)


def parallel(cast: Cast) -> BaseAgent:
    branches = [cast.llm(f"p{n}", noting(f"{n}"), says(f"p{n}")) for n in (1, 2)]
    return ParallelAgent(name="inner", description="Inner.", sub_agents=list(branches))


def transfer(cast: Cast) -> BaseAgent:
    child = cast.llm("child", noting("c"), says("the child is done"), description="Child.")
    to_child = calls(("transfer_to_agent", {"agent_name": "child"}))
    return cast.llm("inner", to_child, description="Inner.", sub_agents=[child])


def agent_tool(cast: Cast) -> BaseAgent:
    helper = cast.llm("helper", noting("h"), says("helped"), description="Helps.")
    return cast.llm(
        "inner", calls(("helper", {"request": "x"})), says("inner"), description="Inner.", tools=(AgentTool(helper),)
    )


def single_turn(cast: Cast) -> BaseAgent:
    helper = cast.llm("helper", noting("h"), says("helped"), description="Helps.", mode="single_turn")
    wanted = calls(("helper", {"request": "x"}))
    return cast.llm("inner", wanted, says("inner"), description="Inner.", sub_agents=[helper])


def task(cast: Cast) -> BaseAgent:
    worker = cast.llm(
        "tasked", noting("t"), calls(("finish_task", {"result": "tasked"})), description="Works.", mode="task"
    )
    return cast.llm("inner", calls(("tasked", {"request": "x"})), says("inner"), description="I.", sub_agents=[worker])


class Twice(BaseAgent):
    """Runs its only agent twice."""

    async def _run_async_impl(self, ctx: InvocationContext) -> AsyncGenerator[Event, None]:
        for _ in range(2):
            async for event in self.sub_agents[0].run_async(ctx):
                yield event


def custom(cast: Cast) -> BaseAgent:
    agent = cast.llm("again", noting("a"), says("once"), noting("b"), says("twice"))
    return Twice(name="inner", description="Inner.", sub_agents=[agent])


INNER: list[Callable[[Cast], BaseAgent]] = [
    llm,
    sequence,
    loop,
    parallel,
    transfer,
    agent_tool,
    single_turn,
    custom,
]


def in_sequence(cast: Cast, inner: BaseAgent) -> BaseAgent:
    return SequentialAgent(
        name="outer", sub_agents=[cast.llm("before", says("before")), inner, cast.llm("after", says("x"))]
    )


def in_loop(cast: Cast, inner: BaseAgent) -> BaseAgent:
    return LoopAgent(name="outer", sub_agents=[inner, cast.llm("after", says("x"))], max_iterations=1)


def in_parallel(cast: Cast, inner: BaseAgent) -> BaseAgent:
    return ParallelAgent(name="outer", sub_agents=[inner, cast.llm("beside", noting("b1"), noting("b2"), says("x"))])


def in_agent_tool(cast: Cast, inner: BaseAgent) -> BaseAgent:
    wanted = calls(("inner", {"request": "x"}), ("note", {"words": "beside"}))
    return cast.llm("outer", wanted, says("outer is done"), tools=(AgentTool(inner),))


def in_transfer(cast: Cast, inner: BaseAgent) -> BaseAgent:
    return cast.llm("outer", calls(("transfer_to_agent", {"agent_name": "inner"})), sub_agents=[inner])


def in_custom(cast: Cast, inner: BaseAgent) -> BaseAgent:
    class Around(BaseAgent):
        async def _run_async_impl(self, ctx: InvocationContext) -> AsyncGenerator[Event, None]:
            async for event in self.sub_agents[0].run_async(ctx):
                yield event
            yield Event(
                invocation_id=ctx.invocation_id, author=self.name, branch=ctx.branch, content=says("so").content
            )

    return Around(name="outer", sub_agents=[inner])


OUTER: list[Callable[[Cast, BaseAgent], BaseAgent]] = [
    in_sequence,
    in_loop,
    in_parallel,
    in_agent_tool,
    in_transfer,
    in_custom,
]

PAIRS = [pytest.param(outer, inner, id=f"{inner.__name__} {outer.__name__}") for outer in OUTER for inner in INNER]
# A coordinator of tasks works on plain ADK at the root and in an agent tool only; elsewhere plain ADK never ends.
PAIRS.append(pytest.param(in_agent_tool, task, id="task in_agent_tool"))


def _world(outer: Callable[[Cast, BaseAgent], BaseAgent], inner: Callable[[Cast], BaseAgent]) -> World:
    cast = Cast()
    return cast.world(outer(cast, inner(cast)))


@pytest.mark.parametrize(("outer", "inner"), PAIRS)
async def test_a_shape_in_another_is_as_on_plain_adk(outer: Any, inner: Any) -> None:
    plain, durable = _world(outer, inner), _world(outer, inner)
    events, state, failure = await run_plain(plain.agent, plain.messages)
    engine = durable.engine()
    await engine.turn("go")
    assert (engine.disk.error, failure) == (None, None)
    assert len(events) > 2
    assert comparable(_by_branch(engine.disk.messages)) == comparable(_by_branch(events))
    assert engine.disk.state == state
    assert Counter(durable.log) == Counter(plain.log)
    assert _asked(durable) == _asked(plain)


@pytest.mark.parametrize(("outer", "inner"), PAIRS)
async def test_a_crash_at_any_write_changes_nothing(outer: Any, inner: Any) -> None:
    engine = _world(outer, inner).engine()
    await engine.turn("go")
    expected = engine.disk
    for point in range(1, expected.writes + 1):
        disk = Disk(crash_at=point)
        first = _world(outer, inner).engine(disk)
        first.begin("go")
        with pytest.raises(Crash):
            await first.go_on()
        disk.reboot()
        recorded = set(disk.records)
        second = _world(outer, inner)
        recovered = second.engine(disk)
        await recovered.go_on()
        at = f"crash at write {point}"
        assert _by_branch(disk.messages) == _by_branch(expected.messages), at
        assert disk.state == expected.state, at
        assert not recorded & set(recovered.ran), at
        assert len(disk.model_calls) == len(expected.model_calls), at


def _by_branch(items: list[JsonObject]) -> list[JsonObject]:
    """Which of two branches is first, and when, is chance."""
    kept = [{name: value for name, value in item.items() if name != "timestamp"} for item in items]
    return sorted(kept, key=lambda item: item.get("branch") or "")


def _asked(world: World) -> dict[str, Any]:
    return {model.model: unordered(list(map(request_form, model.requests))) for model in world.models}
