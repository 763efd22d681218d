"""Function nodes as calls: their policies, keys, limits, retries, threads, and what is refused."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest
from google.adk.agents.context import Context
from google.adk.workflow import START, JoinNode, RetryConfig, Workflow, node
from tests.adk.disk import Crash, Disk
from tests.adk.model import ScriptedModel
from tests.adk.workflow_worlds import QUICK
from tests.adk.worlds import World

from perdure.adk import IDEMPOTENCY_KEY_CUSTOM_METADATA_KEY, adk_agent_session_flow, idempotency_key_for_tool_call
from perdure.errors import UsageError
from perdure.session.model import RecordStatus, TurnStatus
from perdure.session.policy import RetryPolicy, ToolEffect, ToolPolicy


def world(*edges: Any, **options: Any) -> World:
    return World(ScriptedModel(), Workflow(name="flow", edges=list(edges)), options=options)


async def test_a_node_is_a_call_under_its_path_with_its_policy_and_key() -> None:
    keys: list[Any] = []

    def pay(node_input: Any, ctx: Context) -> str:
        keys.append((idempotency_key_for_tool_call(ctx), ctx.custom_metadata[IDEMPOTENCY_KEY_CUSTOM_METADATA_KEY]))
        return "paid"

    def look(node_input: str) -> str:
        return node_input

    policy = ToolPolicy(ToolEffect.NON_IDEMPOTENT_WRITE)
    engine = world((START, pay, look), node_policies={"pay": policy}).engine()
    await engine.turn("go")
    first, second = engine.disk.requests.values()
    assert (first.call_id, first.tool_name, first.path, first.agent_name) == (
        "flow@1/pay@1#1",
        "pay",
        "flow/pay",
        "flow",
    )
    assert (first.effect, first.retry.max_attempts, first.arguments) == (
        ToolEffect.NON_IDEMPOTENT_WRITE,
        1,
        {"node_input": "go"},
    )
    assert first.ask is not None, "as a tool of this effect would be"
    assert (second.effect, second.ask, second.arguments) == (
        ToolEffect.IDEMPOTENT_WRITE,
        None,
        {"node_input": "paid"},
    )
    key = "s1/e-00000000-0000-4000-a000-000000000001/flow@1/pay@1#1"
    assert keys == [(key, key)]
    assert engine.disk.results[first.call_id] == "paid"


async def test_a_rejected_node_does_not_run_and_hands_on_an_error() -> None:
    log: list[str] = []

    def pay(node_input: Any) -> str:
        log.append("pay")
        return "paid"

    def close(node_input: Any) -> str:
        return str(node_input)

    policy = ToolPolicy(ToolEffect.READ, requires_approval=True)
    engine = world((START, pay, close), node_policies={"pay": policy}).engine(decide=lambda request: "too much")
    await engine.turn("go")
    assert log == []
    assert engine.disk.messages[-1]["output"] == "{'error': 'too much'}"


async def test_a_single_attempt_node_whose_worker_died_fails_its_workflow_and_is_not_retried() -> None:
    log: list[str] = []

    @node(retry_config=QUICK)
    def pay(node_input: Any) -> str:
        log.append("pay")
        return "paid"

    options = {"node_policies": {"pay": ToolPolicy(ToolEffect.UNCLASSIFIED, requires_approval=False)}}
    disk = Disk(crash_at=3)  # the start mark is written, the record is not
    engine = world((START, pay), **options).engine(disk)
    engine.begin("go")
    with pytest.raises(Crash):
        await engine.go_on()
    disk.reboot()
    await world((START, pay), **options).engine(disk).go_on()
    assert log == ["pay"]
    assert [record.status for record in disk.records.values()] == [RecordStatus.OUTCOME_UNKNOWN]
    assert disk.status is TurnStatus.FAILED


async def test_retries_of_a_policy_come_on_top_and_take_back_what_the_failed_try_did() -> None:
    log: list[Any] = []

    def shaky(node_input: dict[str, Any], ctx: Context) -> str:
        log.append((dict(node_input), ctx.state.get("tried")))
        node_input["spoiled"] = True
        ctx.state["tried"] = True
        if len(log) < 3:
            raise ConnectionError("no")
        return "at last"

    def begin(node_input: Any) -> dict[str, Any]:
        return {"n": 1}

    policy = ToolPolicy(ToolEffect.READ, retry=RetryPolicy(max_attempts=3))
    engine = world((START, begin, shaky), node_policies={"shaky": policy}).engine()
    await engine.turn("go")
    assert log == [({"n": 1}, None)] * 3
    assert engine.disk.error is None


async def test_a_node_out_of_time_fails_as_on_plain_adk_and_is_tried_again_by_it() -> None:
    log: list[int] = []

    @node(timeout=0.01, retry_config=RetryConfig(max_attempts=2, initial_delay=0.0, jitter=0.0))
    async def slow(node_input: Any, ctx: Context) -> str:
        log.append(ctx.attempt_count)
        if ctx.attempt_count == 1:
            await asyncio.Event().wait()
        return "quick now"

    disk = Disk()
    await world((START, slow)).engine(disk).turn("go")
    assert (log, disk.error) == ([1, 2], None)
    failed = next(message for message in disk.messages if message.get("error_code"))
    assert failed["error_code"] == "NodeTimeoutError"
    assert list(disk.requests) == ["flow@1/slow@1#1", "flow@1/slow@1#2"]


async def test_a_workflow_out_of_time_is_cut_off_in_every_replay_where_it_was() -> None:
    async def never(node_input: Any) -> None:
        await asyncio.Event().wait()

    def after(node_input: Any) -> str:
        return "after"

    def build() -> World:
        inner = Workflow(name="inner", edges=[(START, never)], timeout=0.05, retry_config=QUICK.model_copy())
        inner.retry_config = RetryConfig(max_attempts=2, initial_delay=0.0, jitter=0.0)
        return world((START, inner, after))

    disk = Disk()
    await build().engine(disk).turn("go")
    assert disk.error is not None
    assert disk.error.code == "NodeTimeoutError"
    assert [call.key for call in disk.model_calls] == ["/flow@1@1/inner@1@1|timeout#1", "/flow@1@1/inner@1@1|timeout#2"]
    for point in range(1, disk.writes + 1):
        broken = Disk(crash_at=point)
        engine = build().engine(broken)
        engine.begin("go")
        with pytest.raises(Crash):
            await engine.go_on()
        broken.reboot()
        await build().engine(broken).go_on()
        assert broken.error == disk.error, point
        assert len(broken.model_calls) == 2, point


async def test_a_synchronous_node_runs_in_a_thread_and_a_blocking_one_lets_others_go_on() -> None:
    inside, go_on = threading.Event(), threading.Event()

    def block(node_input: Any) -> str:
        inside.set()
        assert go_on.wait(10)
        return threading.current_thread().name

    async def release(node_input: Any) -> str:
        while not inside.is_set():  # noqa: ASYNC110 - it is set by a thread
            await asyncio.sleep(0)
        go_on.set()
        return "released"

    join = JoinNode(name="join")
    engine = world((START, (block, release)), ((block, release), join)).engine()
    await engine.turn("go")
    assert engine.disk.messages[-1]["output"] == {"block": "perdure-tool", "release": "released"}


async def test_a_node_that_starts_others_cannot_run_at_most_once() -> None:
    @node
    def child(node_input: Any) -> str:
        return "child"

    @node(rerun_on_resume=True)
    async def scope(node_input: Any, ctx: Context) -> str:
        return str(await ctx.run_node(child, 1))

    policy = ToolPolicy(ToolEffect.NON_IDEMPOTENT_WRITE, requires_approval=False)
    engine = world((START, scope), node_policies={"scope": policy}).engine()
    await engine.turn("go")
    assert engine.disk.error is not None
    assert "give the effect to the nodes that it starts" in engine.disk.error.message


async def test_a_value_without_a_form_fails_the_node_and_names_it() -> None:
    def bad(node_input: Any) -> Any:
        return threading.Lock()

    engine = world((START, bad)).engine()
    await engine.turn("go")
    assert engine.disk.error is not None
    assert "what node 'bad' gave" in engine.disk.error.message


def test_policies_of_nodes_are_checked() -> None:
    def known(node_input: Any) -> str:
        return "known"

    flow = Workflow(name="flow", edges=[(START, known)])
    with pytest.raises(UsageError, match=r"node_policies names 'other'.*known: known"):
        adk_agent_session_flow(flow, flow_type="F", node_policies={"other": ToolPolicy(ToolEffect.READ)})
    with pytest.raises(UsageError, match=r"node_policies\['known'\] is 1; it must be a ToolPolicy"):
        adk_agent_session_flow(flow, flow_type="F", node_policies={"known": 1})  # type: ignore[dict-item]  # that is the test
