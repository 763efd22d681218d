"""Tool calls as steps: keys, attempts, records, threads, and what the model sees of each outcome."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest
from google.adk.agents import LlmAgent
from google.adk.agents.run_config import RunConfig, ToolThreadPoolConfig
from google.adk.memory import InMemoryMemoryService
from google.adk.tools.base_tool import BaseTool
from google.adk.tools.exit_loop_tool import exit_loop
from google.adk.tools.function_tool import FunctionTool
from google.adk.tools.load_memory_tool import load_memory_tool
from google.adk.tools.tool_context import ToolContext
from google.genai import types
from tests.adk.disk import Crash, Disk
from tests.adk.engine import Engine
from tests.adk.model import ScriptedModel, calls, says
from tests.adk.worlds import World, failing, failing_with_callbacks, gated

from perdure.adk import IDEMPOTENCY_KEY_CUSTOM_METADATA_KEY, idempotency_key_for_tool_call
from perdure.errors import ToolExecutionError
from perdure.session.model import (
    OUTCOME_UNKNOWN_TOOL_RESULT,
    TOOL_CALL_NOT_RUN_ERROR_PREFIX,
    ErrorInfo,
    InterruptKind,
    JsonObject,
    RecordStatus,
)
from perdure.session.policy import ToolEffect, ToolPolicy
from perdure.session.runner import Approval, CallRecord, DriveBlocked, DriveFinished, ToolRaised


def world(*replies: Any, tools: list[Any], effect: ToolEffect = ToolEffect.READ, **options: Any) -> World:
    model = ScriptedModel(replies=[*replies, says("done")])
    agent = LlmAgent(name="worker", model=model, instruction="Work.", tools=tools)
    return World(model, agent, options={"default_tool_effect": effect, **options})


def responses(engine: Engine) -> list[JsonObject]:
    """What the model was told about its calls, in the order of the calls."""
    return [
        part["function_response"]["response"]
        for message in engine.disk.messages
        for part in message.get("content", {}).get("parts", [])
        if "function_response" in part
    ]


async def test_each_of_eight_parallel_calls_has_its_own_key_on_every_attempt() -> None:
    keys: dict[int, list[str]] = {}

    async def send(n: int, tool_context: ToolContext) -> int:
        """Sends."""
        await asyncio.sleep(0)
        key = tool_context.custom_metadata[IDEMPOTENCY_KEY_CUSTOM_METADATA_KEY]
        assert key == idempotency_key_for_tool_call(tool_context)
        tool_context.custom_metadata["shared"] = True
        keys.setdefault(n, []).append(key)
        if len(keys[n]) < 2:
            raise ConnectionError("again")
        return n

    engine = world(calls(*[("send", {"n": n}) for n in range(8)]), tools=[send]).engine()
    await engine.turn("go")
    assert responses(engine) == [{"result": n} for n in range(8)]
    assert all(first == second for first, second in keys.values())
    start = engine.disk.start
    assert start is not None
    assert {pair[0] for pair in keys.values()} == {f"s1/{start.turn_id}/{call_id}" for call_id in engine.disk.requests}


async def test_a_failed_attempt_is_taken_back_before_the_next_and_the_last_one_is_kept() -> None:
    tries: list[int] = []

    def work(always: bool, tool_context: ToolContext) -> str:
        """Works."""
        key = f"count {always}"
        tool_context.state[key] = tool_context.state.get(key, 0) + 1
        tool_context.state.setdefault("list", []).append(len(tries))
        tries.append(tool_context.state[key])
        if always or len(tries) < 3:
            raise ValueError("no")
        return "yes"

    engine = world(calls(("work", {"always": False})), calls(("work", {"always": True})), tools=[work]).engine()
    await engine.turn("go")
    assert tries == [1] * 6
    assert engine.disk.state == {"count False": 1, "count True": 1, "list": [2, 5]}
    assert responses(engine) == [{"result": "yes"}, {"error": "The tool call failed: no"}]


async def test_failures_are_answered_and_discard_no_sibling() -> None:
    trier = failing()
    engine = trier.engine()
    await engine.turn("go")
    assert responses(engine) == [
        {"error": "The tool call failed: zero"},
        {"fine": True},
        {"error": "The tool call failed: no 2"},
    ]
    assert trier.log.count("bad 0") == 3  # a read is tried three times
    assert trier.log.count("bad 2") == 1  # ToolExecutionError: once
    assert engine.disk.state == {"tried": 2, "good": True}


async def test_error_callbacks_run_once_for_each_call_and_may_answer() -> None:
    trier = failing_with_callbacks()
    engine = trier.engine()
    await engine.turn("go")
    assert responses(engine)[0] == {"error": "The tool call failed: zero"}
    assert responses(engine)[2] == {"handled": "no 2"}
    assert sorted(entry for entry in trier.log if entry.startswith("on_error")) == [
        "on_error bad 0 ValueError zero",
        "on_error bad 2 ToolExecutionError no 2",
    ]


async def test_an_error_callback_that_raises_fails_the_turn_with_its_own_error() -> None:
    def fail() -> None:
        """Fails."""
        raise ToolExecutionError("no")

    def callback(tool: BaseTool, args: dict[str, Any], tool_context: ToolContext, error: Exception) -> None:
        raise LookupError("callback broke")

    one = world(calls(("fail", {})), tools=[fail])
    assert isinstance(one.agent, LlmAgent)
    one.agent.on_tool_error_callback = callback
    engine = one.engine()
    await engine.turn("go")
    assert engine.disk.error is not None
    assert (engine.disk.error.code, engine.disk.error.message) == ("LookupError", "callback broke")


async def test_a_single_attempt_call_that_was_cut_off_is_unknown_and_never_runs_again() -> None:
    ran: list[str] = []

    def charge() -> str:
        """Charges."""
        ran.append("charge")
        return "charged"

    def build() -> World:
        return world(calls(("charge", {})), tools=[charge], effect=ToolEffect.NON_IDEMPOTENT_WRITE)

    disk = Disk(crash_at=5)  # approval, start mark, then the record
    engine = build().engine(disk)
    engine.begin("go")
    with pytest.raises(Crash):
        await engine.go_on()
    assert ran == ["charge"]
    disk.reboot()
    second = build().engine(disk)
    await second.go_on()
    assert ran == ["charge"]
    assert responses(second) == [{"error": OUTCOME_UNKNOWN_TOOL_RESULT}]


async def test_a_write_that_raises_is_unknown_and_its_callback_sees_the_exception() -> None:
    seen: list[str] = []

    def charge() -> None:
        """Charges."""
        raise ConnectionError("cut off")

    one = world(calls(("charge", {})), tools=[charge], effect=ToolEffect.UNCLASSIFIED, approvals="declared")
    assert isinstance(one.agent, LlmAgent)
    one.agent.on_tool_error_callback = lambda tool, args, tool_context, error: seen.append(repr(error))
    engine = one.engine()
    await engine.turn("go")
    assert responses(engine) == [{"error": OUTCOME_UNKNOWN_TOOL_RESULT}]
    assert seen == ["ConnectionError('cut off')"]


@pytest.mark.parametrize(("message", "seen"), [("Not today.", "Not today."), ("", "This tool call is rejected.")])
async def test_a_rejected_call_does_not_run(message: str, seen: str) -> None:
    clerk = gated()
    engine = clerk.engine(decide=lambda request: message)
    await engine.turn("go")
    assert responses(engine)[0] == {"error": seen}
    assert not any(entry.startswith("refund 1") for entry in clerk.log)
    assert clerk.log.count("is 500 large") == 1
    assert len(clerk.model.requests) == 3


async def test_an_approval_carries_its_payload_to_the_tool() -> None:
    clerk = gated()
    engine = clerk.engine(decide=lambda request: Approval({"limit": 400}))
    await engine.turn("go")
    assert "refund 1 500 {'limit': 400}" in clerk.log
    assert "refund 2 5 None" in clerk.log  # the small one was not asked for


async def test_who_is_asked() -> None:
    def plain() -> str:
        """Plain."""
        return "ok"

    def declared() -> str:
        """Declared."""
        return "ok"

    gate = FunctionTool(gate_body, require_confirmation=True)
    policies = {
        "declared": ToolPolicy(ToolEffect.READ, requires_approval=True),
        "gate_body": ToolPolicy(ToolEffect.READ, requires_approval=False),
    }

    async def asked(**options: Any) -> dict[str, InterruptKind | None]:
        wanted = calls(("plain", {}), ("declared", {}), ("gate_body", {}))
        engine = world(wanted, tools=[plain, declared, gate], tool_policies=policies, **options).engine()
        await engine.turn("go")
        return {request.tool_name: request.ask for request in engine.disk.requests.values()}

    by_policy = {"declared": InterruptKind.APPROVAL, "gate_body": InterruptKind.CONFIRMATION}
    assert await asked(effect=ToolEffect.UNCLASSIFIED) == {"plain": InterruptKind.APPROVAL, **by_policy}
    assert await asked(effect=ToolEffect.UNCLASSIFIED, approvals="declared") == {"plain": None, **by_policy}
    assert await asked(effect=ToolEffect.IDEMPOTENT_WRITE) == {"plain": None, **by_policy}


def gate_body() -> str:
    """Gated."""
    return "ok"


async def test_a_gate_that_raises_lets_nothing_through() -> None:
    ran: list[str] = []

    def charge(tool_context: ToolContext) -> str:
        """Charges."""
        ran.append("charge")
        return "charged"

    def broken(tool_context: ToolContext) -> bool:
        raise LookupError("gate broke")

    engine = world(calls(("charge", {})), tools=[FunctionTool(charge, require_confirmation=broken)]).engine()
    await engine.turn("go")
    assert ran == []
    assert responses(engine) == [{"error": "The tool call failed: gate broke"}]


async def test_a_call_without_its_arguments_is_answered_by_adk_and_is_no_step() -> None:
    def add(a: int, b: int) -> int:
        """Adds."""
        return a + b

    engine = world(calls(("add", {"a": 1})), tools=[add], effect=ToolEffect.UNCLASSIFIED).engine()
    await engine.turn("go")
    assert engine.disk.requests == {}
    assert "mandatory input parameters are not present" in responses(engine)[0]["error"]


async def test_a_tool_that_does_not_exist_is_answered_by_adk() -> None:
    engine = world(calls(("nothing", {}), ("gate_body", {})), tools=[gate_body]).engine()
    await engine.turn("go")
    assert "no tool with that name" in responses(engine)[0]["error"]
    assert responses(engine)[1] == {"result": "ok"}


async def test_a_control_tool_is_shown_and_is_no_step() -> None:
    engine = world(calls(("exit_loop", {}), ("gate_body", {})), tools=[exit_loop, gate_body]).engine()
    await engine.turn("go")
    assert engine.control_calls == ["exit_loop"]
    assert [request.tool_name for request in engine.disk.requests.values()] == ["gate_body"]
    assert engine.disk.messages[-1]["actions"]["escalate"] is True


@pytest.mark.parametrize("error", [SystemExit(3), asyncio.CancelledError(), GeneratorExit(), KeyError("k")])
async def test_whatever_a_tool_raises_is_a_failed_call(error: BaseException) -> None:
    async def fail() -> None:
        """Fails."""
        raise error

    engine = world(calls(("fail", {})), tools=[fail]).engine()
    await engine.turn("go")
    assert responses(engine)[0]["error"].startswith("The tool call failed: ")


async def test_sync_tools_run_in_threads_one_at_a_time() -> None:
    threads: set[str] = set()
    busy = threading.Lock()

    def block(n: int) -> int:
        """Blocks."""
        assert busy.acquire(blocking=False), "two tools of one turn ran at one time"
        threads.add(threading.current_thread().name)
        busy.release()
        return n

    engine = world(calls(*[("block", {"n": n}) for n in range(8)]), tools=[block]).engine()
    await engine.turn("go")
    assert responses(engine) == [{"result": n} for n in range(8)]
    assert all(name.startswith("perdure-tool") for name in threads)
    await engine.runner.close()


async def test_a_blocking_tool_does_not_stall_another_session() -> None:
    other_is_done = threading.Event()

    def block(wait: bool) -> str:
        """Blocks."""
        if wait:
            assert other_is_done.wait(60)
        return "ok"

    waiting = world(calls(("block", {"wait": True})), tools=[block])
    first = waiting.engine()
    turn = asyncio.ensure_future(first.turn("go"))
    other = world(calls(("block", {"wait": False})), tools=[block])
    await Engine(other.engine().runner, Disk(session_id="s2")).turn("go")
    assert not turn.done()
    other_is_done.set()
    await turn
    assert responses(first) == [{"result": "ok"}]


@pytest.mark.parametrize(
    ("options", "thread"),
    [
        ({"sync_tools_in_threads": False}, "MainThread"),
        ({"run_config": RunConfig(tool_thread_pool_config=ToolThreadPoolConfig())}, "adk_tool_executor"),
    ],
)
async def test_where_sync_tools_run_can_be_chosen(options: dict[str, Any], thread: str) -> None:
    threads: list[str] = []

    def where() -> None:
        """Says where."""
        threads.append(threading.current_thread().name)

    await world(calls(("where", {})), tools=[where], **options).engine().turn("go")
    assert [name.startswith(thread) for name in threads] == [True]


async def test_a_cancelled_attempt_is_over_only_when_its_thread_is_and_changes_nothing() -> None:
    began, go_on, ended = asyncio.Event(), threading.Event(), threading.Event()
    seen: list[ToolContext] = []
    loop = asyncio.get_running_loop()

    def work(tool_context: ToolContext) -> str:
        """Works."""
        seen.append(tool_context)
        tool_context.state["half"] = "done"
        loop.call_soon_threadsafe(began.set)
        assert go_on.wait(60)
        ended.set()
        return "late"

    engine = world(calls(("work", {})), tools=[work]).engine()
    engine.begin("go")
    live = await engine.open()
    blocked = await live.drive("step", ())
    assert isinstance(blocked, DriveBlocked)
    (request,) = blocked.calls
    attempt = asyncio.ensure_future(live.call_tool(request.call_id, 1, None))
    await began.wait()
    attempt.cancel()
    await asyncio.sleep(0)
    assert not attempt.done()
    go_on.set()
    with pytest.raises(asyncio.CancelledError):
        await attempt
    assert ended.is_set()
    assert "half" not in seen[0].session.state  # its siblings do not see it
    not_run = ErrorInfo(code="not_run", message=f"{TOOL_CALL_NOT_RUN_ERROR_PREFIX}: it took too long.")
    record = CallRecord(request.call_id, 2, RecordStatus.FAILED, None, not_run, 1)
    finished = await live.drive("step", (record,))
    assert isinstance(finished, DriveFinished)
    assert [message.state_delta for message in finished.progress.messages] == [{}, {}]
    assert f'"error":"{TOOL_CALL_NOT_RUN_ERROR_PREFIX}: it took too long."' in finished.progress.messages[0].item
    await live.close()


async def test_what_an_attempt_did_counts_only_with_the_record_of_that_attempt() -> None:
    def work(tool_context: ToolContext) -> str:
        """Works."""
        tool_context.state["half"] = "done"
        raise ConnectionError("cut off")

    engine = world(calls(("work", {})), tools=[work]).engine()
    engine.begin("go")
    live = await engine.open()
    blocked = await live.drive("step", ())
    assert isinstance(blocked, DriveBlocked)
    (request,) = blocked.calls
    assert isinstance(await live.call_tool(request.call_id, 1, None), ToolRaised)
    late = ErrorInfo(code="timeout", message="it took too long")
    record = CallRecord(request.call_id, 2, RecordStatus.FAILED, None, late, 1)
    finished = await live.drive("step", (record,))
    assert isinstance(finished, DriveFinished)
    assert [message.state_delta for message in finished.progress.messages] == [{}, {}]
    await live.close()


async def test_memory_can_be_searched() -> None:
    memory = InMemoryMemoryService()
    one = world(calls(("load_memory", {"query": "blue"})), tools=[load_memory_tool], effect=ToolEffect.UNCLASSIFIED)
    one.services = {"memory_service": memory}
    engine = one.engine()
    await engine.turn("my colour is blue")
    (request,) = engine.disk.requests.values()
    assert (request.effect, request.ask) == (ToolEffect.READ, None)
    assert responses(engine) == [{"result": {"memories": []}}]


class _Slotted(BaseTool):
    """A tool of a class of its own, with a gate of its own."""

    def __init__(self) -> None:
        super().__init__(name="own", description="Own.")
        self.gate_asked = 0
        self.ran_as: list[type] = []

    def _get_declaration(self) -> types.FunctionDeclaration:
        return types.FunctionDeclaration(name=self.name)

    async def check_require_confirmation(self, args: dict[str, Any], tool_context: ToolContext) -> bool:
        self.gate_asked += 1
        return True

    async def run_async(self, *, args: dict[str, Any], tool_context: ToolContext) -> Any:
        self.ran_as.append(type(self))
        return args


async def test_the_tool_itself_runs_and_is_not_changed() -> None:
    tool = _Slotted()
    before = dict(vars(tool))
    engine = world(calls(("own", {"x": 1})), tools=[tool]).engine()
    await engine.turn("go")
    assert tool.ran_as == [_Slotted]
    assert tool.gate_asked == 1
    assert set(vars(tool)) == set(before)
    assert [request.ask for request in engine.disk.requests.values()] == [InterruptKind.CONFIRMATION]


async def test_arguments_that_a_tool_changes_are_fresh_on_the_next_attempt() -> None:
    seen: list[Any] = []

    class Popping(BaseTool):
        def _get_declaration(self) -> types.FunctionDeclaration:
            return types.FunctionDeclaration(name=self.name)

        async def run_async(self, *, args: dict[str, Any], tool_context: ToolContext) -> Any:
            seen.append(args.pop("items"))
            if len(seen) < 2:
                raise ValueError("again")
            return "ok"

    engine = world(calls(("pop", {"items": [1]})), tools=[Popping(name="pop", description="Pops.")]).engine()
    await engine.turn("go")
    assert seen == [[1], [1]]
    assert [request.arguments for request in engine.disk.requests.values()] == [{"items": [1]}]


async def test_call_tool_says_what_a_tool_raised() -> None:
    def fail() -> None:
        """Fails."""
        raise ToolExecutionError("no stock")

    engine = world(calls(("fail", {})), tools=[fail]).engine()
    engine.begin("go")
    live = await engine.open()
    blocked = await live.drive("step", ())
    assert isinstance(blocked, DriveBlocked)
    outcome = await live.call_tool(blocked.calls[0].call_id, 1, None)
    assert isinstance(outcome, ToolRaised)
    assert (outcome.error.code, outcome.error.message, outcome.final) == ("ToolExecutionError", "no stock", True)
    await live.close()
