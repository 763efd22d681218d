"""Nonsense in each argument of everything public: it works or is refused in clear words, and the session goes on."""

from __future__ import annotations

import enum
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import pytest
from google.adk.agents import LlmAgent
from google.adk.agents.callback_context import CallbackContext
from google.adk.events.event import Event
from google.adk.tools.long_running_tool import LongRunningFunctionTool
from google.adk.tools.tool_context import ToolContext
from google.genai import types
from pydantic import BaseModel
from tests.field.support import ASKED, PATIENCE, Field, durable
from tests.support.nonsense import arguments_of, fault_in_answer, nonsense

import perdure
import perdure.adk
from perdure import (
    AgentSessionClient,
    AgentSessionFlow,
    Engine,
    RetryPolicy,
    SessionNotFound,
    SessionStatus,
    TemporalOptions,
    TemporalTls,
    ToolEffect,
    ToolPolicy,
    TurnStatus,
    UsageError,
    WorkerOptions,
    open_engine,
)
from perdure.adk import (
    AdkAgentRunner,
    DurableRunner,
    DurableSessionService,
    adk_agent_session_flow,
    durable_step,
    idempotency_key_for_tool_call,
)
from perdure.engine.local import LocalEngine
from perdure.testing import ScriptedModel, call, running_engine, text

Given = Callable[[], Awaitable[Mapping[str, Any]]]
"""Makes the arguments of a call that works."""

RESULTS_ONLY = {"AgentSnapshot", "Page", "SessionForkResponse"}
"""Classes that perdure makes and nobody else does.  Shapes of pydantic check themselves."""


def answers(prompt: Any) -> Any:
    """A model that calls ``pay`` when it is asked to, and else answers in words."""
    said = [part for content in prompt.contents for part in content.parts or []]
    if said[-1].text in ("pay", "ask"):
        return call(said[-1].text)
    return text("Yes.")


def pay() -> str:
    """Pays."""
    return "paid"


def ask() -> None:
    """Asks a person."""


def an_agent() -> LlmAgent:
    return LlmAgent(name="helper", model=ScriptedModel(answers), tools=[pay, LongRunningFunctionTool(ask)])


def a_flow() -> AgentSessionFlow:
    return durable(an_agent(), {"pay": ASKED, "ask": ToolPolicy(ToolEffect.READ)})


async def faults_of(
    function: Callable[..., Any],
    given: Given,
    *,
    first_only: bool = False,
    after: Callable[[], Awaitable[None]] | None = None,
    but: tuple[str, ...] = (),
) -> list[str]:
    """All that is wrong with how a function takes nonsense.  ``but``: arguments that are not tried."""
    faults: list[str | None] = []
    for argument in arguments_of(function):
        if argument in but:
            continue
        for bad in nonsense():
            fault = await fault_in_answer(function, await given(), argument, bad, first_only=first_only)
            faults.append(fault)
        if after is not None:
            await after()
    return [fault for fault in faults if fault is not None]


async def nothing() -> Mapping[str, Any]:
    return {}


# ---------------------------------------------------------------- completeness

TRIED_HERE = {
    "AgentSessionClient", "AgentSessionFlow", "Engine", "RetryPolicy", "TemporalOptions", "TemporalTls",
    "ToolPolicy", "WorkerOptions", "open_engine",
    "AdkAgentRunner", "DurableRunner", "DurableSessionService", "adk_agent_session_flow", "durable_step",
    "idempotency_key_for_tool_call",
}  # fmt: skip


def test_everything_public_is_tried() -> None:
    """A new public name must be put into this test, unless it is data: an error, an enum, a shape, a constant."""
    for module in (perdure, perdure.adk):
        for name in module.__all__:
            thing = getattr(module, name)
            if isinstance(thing, type) and issubclass(thing, BaseException | enum.Enum | BaseModel):
                continue
            if isinstance(thing, str) or name in RESULTS_ONLY:
                continue
            assert name in TRIED_HERE, name


def test_every_method_is_tried() -> None:
    for kind, tried in ((AgentSessionClient, set(CLIENT)), (DurableSessionService, set(SERVICE))):
        assert public_methods(kind) <= tried, kind
    ours = {name for name in public_methods(DurableRunner) if name in vars(DurableRunner)}
    assert ours - {"sessions", "close", "run_live"} == set(RUNNER)


def public_methods(kind: type) -> set[str]:
    """Methods that take something."""
    methods = {name: value for name, value in vars(kind).items() if not name.startswith("_") and callable(value)}
    return {name for name, value in methods.items() if arguments_of(value)[1:]}


# ---------------------------------------------------------------- the client


@dataclass
class Desk:
    """A client with a worker, that makes sessions in the state that a call needs."""

    client: AgentSessionClient
    made: int = 0
    last: str = field(default="")

    async def new(self) -> str:
        self.made += 1
        self.last = f"s{self.made}"
        await self.client.start_session(self.last, "hello")
        await self.client.wait(self.last, timeout=PATIENCE)
        return self.last

    async def idle(self) -> Mapping[str, Any]:
        return {"session_id": await self.new()}

    async def fresh(self) -> Mapping[str, Any]:
        self.made += 1
        self.last = f"s{self.made}"
        return {"session_id": self.last, "message": "hello"}

    async def talk(self) -> Mapping[str, Any]:
        return {"session_id": await self.new(), "text": "hello"}

    async def asked(self, tool: str = "pay") -> str:
        await self.client.send_user_message(await self.new(), tool)
        (interrupt,) = (await self.client.wait(self.last, timeout=PATIENCE)).pending_interrupts
        return interrupt.interrupt_id

    async def resolving(self) -> Mapping[str, Any]:
        interrupt_id = await self.asked()
        return {"session_id": self.last, "interrupt_id": interrupt_id, "approved": True}

    async def answering(self) -> Mapping[str, Any]:
        interrupt_id = await self.asked("ask")
        return {"session_id": self.last, "interrupt_id": interrupt_id, "answer": "yes"}

    async def resuming(self) -> Mapping[str, Any]:
        interrupt_id = await self.asked()
        return {"session_id": self.last, "resume_map": {interrupt_id: True}}

    async def nothing(self) -> Mapping[str, Any]:
        return {}

    async def works(self) -> None:
        """The last session still does what it is told, whatever it waits for."""
        try:
            snapshot = await self.client.get_agent_snapshot(self.last)
        except SessionNotFound:
            return
        if snapshot.status is SessionStatus.CLOSED:
            return
        for interrupt in snapshot.pending_interrupts:
            await self.client.resume(self.last, {interrupt.interrupt_id: True})
        turn_id = await self.client.send_user_message(self.last, "and now?")
        snapshot = await self.client.wait(self.last, timeout=PATIENCE)
        assert snapshot.turn is not None
        assert (snapshot.turn.turn_id, snapshot.turn.status) == (turn_id, TurnStatus.COMPLETED), snapshot


CLIENT: dict[str, Callable[[Desk], Given]] = {
    "start_session": lambda desk: desk.fresh,
    "send_user_message": lambda desk: desk.talk,
    "steer_user_message": lambda desk: desk.talk,
    "resolve_interrupt": lambda desk: desk.resolving,
    "answer_question": lambda desk: desk.answering,
    "resume": lambda desk: desk.resuming,
    "cancel_turn": lambda desk: desk.idle,
    "close_session": lambda desk: desk.idle,
    "delete_session": lambda desk: desk.idle,
    "get_agent_snapshot": lambda desk: desk.idle,
    "wait": lambda desk: desk.idle,
    "list_messages": lambda desk: desk.idle,
    "read_step_history": lambda desk: desk.idle,
    "list_sessions": lambda desk: desk.nothing,
    "stream_events": lambda desk: desk.idle,
}


@pytest.mark.parametrize("method", CLIENT)
async def test_a_method_of_the_client(field: Field, method: str) -> None:
    async with field.working(a_flow()) as client:
        desk = Desk(client)
        function = getattr(client, method)
        assert await faults_of(function, CLIENT[method](desk), first_only=True, after=desk.works) == []


# ---------------------------------------------------------------- what an application makes


async def test_what_makes_a_client(field: Field) -> None:
    async with field.engine(a_flow()) as engine:

        async def given() -> Mapping[str, Any]:
            return {"engine": engine}

        assert await faults_of(AgentSessionClient, given) == []


async def test_policies_and_options() -> None:
    async def policy() -> Mapping[str, Any]:
        return {"effect": ToolEffect.READ}

    assert await faults_of(ToolPolicy, policy) == []
    assert await faults_of(RetryPolicy, nothing) == []
    assert await faults_of(WorkerOptions, nothing) == []
    assert await faults_of(TemporalOptions, nothing) == []
    assert await faults_of(TemporalTls, nothing) == []


async def test_an_engine(field: Field) -> None:
    async def given() -> Mapping[str, Any]:
        return {"address": field.address}

    assert await faults_of(open_engine, given) == []
    with pytest.raises(UsageError, match=r"one of flows is 3; it must be what adk_agent_session_flow"):
        open_engine(field.address, flows=[3])  # type: ignore[list-item]  # that is the test
    async with field.engine(a_flow()) as engine:
        assert isinstance(engine, LocalEngine | Engine)

        async def working(flows: Any) -> None:
            async with engine.worker(flows):
                pass

        async def watching() -> Mapping[str, Any]:
            return {"session_id": "s"}

        async def leaving() -> Mapping[str, Any]:
            return {"session_id": "s", "subscription": engine.subscribe("s")}

        assert await faults_of(working, nothing) == []
        assert await faults_of(engine.subscribe, watching) == []
        assert await faults_of(engine.unsubscribe, leaving) == []
        for bad in nonsense()[1:]:
            assert await fault_in_answer(engine.serve, {}, "ready", bad) is None


async def test_a_flow() -> None:
    runner = AdkAgentRunner(an_agent(), flow_type="Field")

    async def of_agent() -> Mapping[str, Any]:
        return {"agent": an_agent(), "flow_type": "Field"}

    async def by_hand() -> Mapping[str, Any]:
        return {"flow_type": "Field", "runner": runner, "app_name": "Field"}

    assert await faults_of(adk_agent_session_flow, of_agent) == []
    assert await faults_of(AdkAgentRunner, of_agent) == []
    assert await faults_of(AgentSessionFlow, by_hand) == []


async def test_what_a_tool_or_a_callback_may_call() -> None:
    faults: list[str] = []

    async def before(callback_context: CallbackContext) -> None:
        async def given() -> Mapping[str, Any]:
            return {"context": callback_context, "name": "step", "fn": lambda: 1}

        faults.extend(await faults_of(durable_step, given))

    async def tool(tool_context: ToolContext) -> str:
        """Looks."""

        async def given() -> Mapping[str, Any]:
            return {"tool_context": tool_context}

        faults.extend(await faults_of(idempotency_key_for_tool_call, given))
        return "seen"

    model = ScriptedModel([call("tool"), text("Done.")])
    agent = LlmAgent(name="helper", model=model, tools=[tool], before_agent_callback=before)
    async with running_engine(durable(agent, {"tool": ToolPolicy(ToolEffect.READ)})) as running:
        await running.sessions.start_session("s", "go")
        snapshot = await running.sessions.wait("s", timeout=PATIENCE)
        assert snapshot.turn is not None
        assert (snapshot.turn.status, faults) == (TurnStatus.COMPLETED, [])


# ---------------------------------------------------------------- ADK's interfaces

APP, USER = "app", "ann"
HELLO = types.UserContent("hello")

RUNNER: dict[str, dict[str, Any]] = {
    "run_async": {"user_id": USER, "session_id": "s1", "new_message": HELLO},
    "run": {"user_id": USER, "session_id": "s1", "new_message": HELLO},
    "run_debug": {"user_messages": "hello", "user_id": USER, "session_id": "s1", "quiet": True},
    "rewind_async": {"user_id": USER, "session_id": "s1"},
}


@pytest.mark.parametrize("method", RUNNER)
async def test_a_method_of_the_runner(field: Field, method: str) -> None:
    async with DurableRunner(agent=an_agent(), app_name=APP, engine=field.address, auto_create_session=True) as runner:
        first = [event async for event in runner.run_async(user_id=USER, session_id="s1", new_message=HELLO)]

        async def given() -> Mapping[str, Any]:
            extra = {"rewind_before_invocation_id": first[0].invocation_id} if method == "rewind_async" else {}
            return RUNNER[method] | extra

        assert await faults_of(getattr(runner, method), given, but=("invocation_id",)) == []
        for bad in nonsense()[1:]:
            arguments = {"user_id": USER, "session_id": "s1"}
            if method == "run_async":
                assert await fault_in_answer(runner.run_async, arguments, "invocation_id", bad) is None
        assert len([event async for event in runner.run_async(user_id=USER, session_id="s1", new_message=HELLO)]) == 1


async def test_what_makes_a_runner(field: Field) -> None:
    async def given() -> Mapping[str, Any]:
        return {"agent": an_agent(), "app_name": APP, "engine": field.address}

    assert await faults_of(DurableRunner, given) == []
    options = arguments_of(adk_agent_session_flow)
    for option in options:
        for bad in nonsense():
            if option not in ("agent", "flow_type"):
                assert await fault_in_answer(DurableRunner, await given(), option, bad) is None


async def test_an_option_that_is_none_is_named_with_the_one_that_was_meant(field: Field) -> None:
    with pytest.raises(TypeError, match="'tool_polices'; did you mean 'tool_policies'"):
        DurableRunner(agent=an_agent(), app_name=APP, engine=field.address, tool_polices={})  # type: ignore[call-arg]  # that is the test
    with pytest.raises(TypeError, match="'colour'; the options of a flow are tool_policies, "):
        DurableRunner(agent=an_agent(), app_name=APP, engine=field.address, colour="red")  # type: ignore[call-arg]  # that is the test
    with pytest.raises(TypeError, match="tool_polices"):
        adk_agent_session_flow(an_agent(), flow_type="Field", tool_polices={})  # type: ignore[call-arg]  # that is the test


SERVICE: dict[str, dict[str, Any]] = {
    "create_session": {"app_name": APP, "user_id": USER},
    "get_session": {"app_name": APP, "user_id": USER, "session_id": "s1"},
    "list_sessions": {"app_name": APP},
    "delete_session": {"app_name": APP, "user_id": USER, "session_id": "other"},
    "get_user_state": {"app_name": APP, "user_id": USER},
    "append_event": {"event": Event(author="user", content=HELLO)},
    "flow_type_of": {"app_name": APP},
    "snapshot": {"app_name": APP, "user_id": USER, "session_id": "s1"},
}


@pytest.mark.parametrize("method", SERVICE)
async def test_a_method_of_the_session_service(field: Field, method: str) -> None:
    async with DurableSessionService(field.address) as service:
        session = await service.create_session(app_name=APP, user_id=USER, session_id="s1")

        async def given() -> Mapping[str, Any]:
            extra = {"session": session} if method == "append_event" else {}
            return SERVICE[method] | extra

        assert await faults_of(getattr(service, method), given) == []
        assert await service.get_session(app_name=APP, user_id=USER, session_id="s1") is not None


async def test_what_makes_a_session_service(field: Field) -> None:
    async def given() -> Mapping[str, Any]:
        return {"engine": field.address}

    assert await faults_of(DurableSessionService, given) == []
