"""Tools that ask for a confirmation in their own body: the body runs again with the answer, or never again."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from google.adk.agents import LlmAgent
from google.adk.tools.base_tool import BaseTool
from google.adk.tools.bash_tool import BashToolPolicy, ExecuteBashTool
from google.adk.tools.function_tool import FunctionTool
from google.adk.tools.tool_context import ToolContext
from google.genai import types
from pydantic import BaseModel
from tests.adk.disk import Crash, Disk
from tests.adk.engine import Answerer, Engine, Rejected, Unanswered
from tests.adk.model import calls, says
from tests.adk.plain import comparable, request_form
from tests.adk.shapes import Cast
from tests.adk.waiting import conversation, run_plain_with_answers
from tests.adk.worlds import World

from perdure.errors import ToolExecutionError
from perdure.session.model import OUTCOME_UNKNOWN_TOOL_RESULT, InterruptKind, JsonObject, TurnStatus
from perdure.session.policy import ToolEffect, ToolPolicy
from perdure.session.runner import CallRequest, ToolAsked

ONCE = {"wire": ToolPolicy(ToolEffect.NON_IDEMPOTENT_WRITE, requires_approval=False)}


class Draft(BaseModel):
    """A state value that is no plain JSON."""

    words: str


def wiring(*, twice: bool = False, options: dict[str, Any] | None = None) -> World:
    """A tool that asks after partial work, beside one that looks at what it did."""
    cast = Cast()

    def wire(amount: int, tool_context: ToolContext) -> JsonObject:
        """Wires money."""
        said = tool_context.tool_confirmation
        cast.log.append(f"wire {amount} {said.payload if said else None}")
        tool_context.state["runs"] = tool_context.state.get("runs", 0) + 1
        if said is None or (twice and said.payload == {"round": 1}):
            tool_context.state["drafted"] = amount
            tool_context.request_confirmation(hint=f"wire {amount}?", payload={"round": 1 if said is None else 2})
            tool_context.actions.skip_summarization = True
            return {"status": "placeholder"}
        if not said.confirmed:
            return {"error": "This tool call is rejected."}
        return {"wired": amount, "drafted": tool_context.state["drafted"]}

    wanted = calls(("wire", {"amount": 5}), ("note", {"words": "beside"}))
    agent = cast.llm("clerk", wanted, says("wired"), tools=(wire,))
    return cast.world(agent, options=options or {})


def echo(request: CallRequest, asked: ToolAsked) -> Any:
    """A yes with the payload that came with the question."""
    return asked.payload


def engine_of(world: World, disk: Disk | None = None, answerer: Answerer = echo) -> Engine:
    engine = world.engine(disk)
    engine.answerer = answerer
    return engine


def responses(disk: Disk) -> dict[str, JsonObject]:
    parts = [part for message in disk.messages for part in message["content"]["parts"]]
    found = [part["function_response"] for part in parts if "function_response" in part]
    return {each["name"]: each["response"] for each in found}


async def test_a_confirmation_in_the_body_is_as_on_plain_adk() -> None:
    def reply(call: types.FunctionCall) -> JsonObject:
        return {"confirmed": True, "payload": {"round": 1}}

    plain = wiring()
    events, state = await run_plain_with_answers(plain, reply)
    durable = wiring()
    engine = engine_of(durable)
    await engine.turn("go")
    # Plain ADK stores the response of the tool beside the one that asks before the pause, and the other one after it;
    # and the state that the tool set when it asked comes with its placeholder.
    assert responses(engine.disk) == {"note": {"noted": "beside"}, "wire": {"wired": 5, "drafted": 5}}
    mine, theirs = comparable(conversation(engine.disk.messages)), comparable(events)
    assert [mine[0], mine[1], mine[-1]] == [theirs[0], theirs[1], theirs[-1]]
    assert engine.disk.state == state == {**state, "runs": 2, "drafted": 5}
    assert sorted(durable.log) == sorted(plain.log)
    assert [request_form(r)["contents"] for r in durable.model.requests] == [
        request_form(r)["contents"] for r in plain.model.requests
    ]
    (asked,) = [asked for _, asked in engine.disk.asks]
    assert (asked.kind, asked.hint, asked.payload) == (InterruptKind.CONFIRMATION, "wire 5?", {"round": 1})


@pytest.mark.parametrize("options", [{}, {"tool_policies": ONCE}])
@pytest.mark.parametrize("twice", [False, True])
async def test_a_crash_at_any_write_changes_nothing(options: dict[str, Any], twice: bool) -> None:
    expected = engine_of(wiring(twice=twice, options=options))
    await expected.turn("go")
    assert responses(expected.disk)["wire"] == {"wired": 5, "drafted": 5}
    assert expected.disk.state["runs"] == 3 if twice else 2
    unknown = 0
    for point in range(1, expected.disk.writes + 1):
        disk = Disk(crash_at=point)
        first = engine_of(wiring(twice=twice, options=options), disk)
        first.begin("go")
        with pytest.raises(Crash):
            await first.go_on()
        disk.reboot()
        second = engine_of(wiring(twice=twice, options=options), disk)
        assert await second.go_on()
        at = f"crash at write {point}"
        if options and responses(disk)["wire"] == {"error": OUTCOME_UNKNOWN_TOOL_RESULT}:
            unknown += 1  # it had its start mark, and may have run
            continue
        assert disk.messages == expected.disk.messages, at
        assert disk.state == expected.disk.state, at
    assert bool(unknown) is bool(options)


async def test_a_rejected_call_never_runs_again_and_keeps_what_it_did_to_the_state() -> None:
    """Case 9: also of a tool that asks only whether there is an answer."""
    world = wiring()
    engine = engine_of(world, answerer=lambda request, asked: Rejected("Too much."))
    await engine.turn("go")
    assert responses(engine.disk)["wire"] == {"error": "Too much."}
    assert [entry for entry in world.log if entry.startswith("wire")] == ["wire 5 None"]
    assert engine.disk.state["drafted"] == 5
    assert len(world.model.requests) == 2


@pytest.mark.parametrize("end", ["approved", "rejected"])
async def test_an_answer_may_come_to_another_worker(end: str) -> None:
    disk = Disk()
    first = engine_of(wiring(), disk, lambda request, asked: Unanswered())
    first.begin("go")
    assert not await first.go_on()
    for _ in range(2):  # restarts while nobody answers
        idle = wiring()
        assert not await engine_of(idle, disk, lambda request, asked: Unanswered()).go_on()
        assert idle.log == []
    world = wiring()
    last = engine_of(world, disk, echo if end == "approved" else lambda request, asked: Rejected())
    assert await last.go_on()
    assert disk.status is TurnStatus.COMPLETED
    assert disk.state["drafted"] == 5
    assert disk.state["runs"] == (2 if end == "approved" else 1)
    assert [entry for entry in world.log if entry.startswith("wire")] == (
        ["wire 5 {'round': 1}"] if end == "approved" else []
    )


async def test_a_tool_beside_sees_the_state_of_the_one_that_asked_after_a_restart_too() -> None:
    def build() -> World:
        cast = Cast()

        async def ask(tool_context: ToolContext) -> str:
            """Asks."""
            if tool_context.tool_confirmation is None:
                tool_context.state["asked"] = Draft(words="please")
                tool_context.request_confirmation()
            return "asked"

        def look(tool_context: ToolContext) -> str:
            """Looks."""
            return str(tool_context.state.get("asked"))

        wanted = calls(("ask", {}), ("look", {}))
        look_later = {"look": ToolPolicy(ToolEffect.READ, requires_approval=True)}
        agent = cast.llm("clerk", wanted, says("ok"), tools=(ask, look))
        return cast.world(agent, options={"tool_policies": look_later})

    disk = Disk()
    first = build().engine(disk, decide=lambda request: None)
    first.answerer = lambda request, asked: Unanswered()
    first.begin("go")
    assert not await first.go_on()
    second = build().engine(disk)
    second.answerer = lambda request, asked: Unanswered()
    assert not await second.go_on()
    third = build().engine(disk)
    assert await third.go_on()
    assert responses(disk)["look"] == {"result": "words='please'"}


async def test_a_tool_that_asks_and_raises_has_failed() -> None:
    cast = Cast()

    def ask(tool_context: ToolContext) -> str:
        """Asks."""
        cast.log.append("ask")
        tool_context.request_confirmation(hint="really?")
        raise ToolExecutionError("broken")

    world = cast.world(cast.llm("clerk", calls(("ask", {})), says("sorry"), tools=(ask,)))
    engine = engine_of(world)
    await engine.turn("go")
    assert responses(engine.disk) == {"ask": {"error": "The tool call failed: broken"}}
    assert (engine.disk.asks, cast.log) == ([], ["ask"])
    assert engine.disk.messages[2]["actions"]["requested_tool_confirmations"] == {}


async def test_a_run_that_fails_after_a_yes_is_tried_again_from_where_the_first_asked() -> None:
    cast = Cast()

    def ask(items: list[int], tool_context: ToolContext) -> list[int]:
        """Asks."""
        cast.log.append("ask")
        tool_context.state["runs"] = tool_context.state.get("runs", 0) + 1
        items.append(len(cast.log))
        if tool_context.tool_confirmation is None:
            tool_context.request_confirmation()
        elif len(cast.log) == 2:
            raise ValueError("try again")
        return items

    engine = engine_of(cast.world(cast.llm("clerk", calls(("ask", {"items": [0]})), says("ok"), tools=(ask,))))
    await engine.turn("go")
    assert responses(engine.disk) == {"ask": {"result": [0, 3]}}  # arguments that it changed are fresh each time
    assert engine.disk.state == {"runs": 2}


async def test_a_payload_that_cannot_be_stored_fails_the_call() -> None:
    cast = Cast()

    def ask(tool_context: ToolContext) -> str:
        """Asks."""
        tool_context.state["half"] = True
        tool_context.request_confirmation(payload=object())
        return "asked"

    engine = engine_of(cast.world(cast.llm("clerk", calls(("ask", {})), says("sorry"), tools=(ask,))))
    await engine.turn("go")
    assert "the payload of what tool 'ask' asks" in responses(engine.disk)["ask"]["error"]
    assert (engine.disk.state, engine.disk.error) == ({}, None)


async def test_callbacks_see_the_result_only_and_the_confirmation_with_it() -> None:
    world = wiring()
    assert isinstance(world.agent, LlmAgent)
    seen: list[Any] = []

    def after(tool: BaseTool, args: dict[str, Any], tool_context: ToolContext, tool_response: Any) -> None:
        if tool.name == "wire":
            seen.append((tool_response, tool_context.tool_confirmation))

    world.agent.after_tool_callback = after
    await engine_of(world).turn("go")
    ((response, confirmation),) = seen
    assert response["wired"] == 5
    assert confirmation.payload == {"round": 1}


async def test_bash_runs_after_a_yes_and_not_after_a_no(tmp_path: Path) -> None:
    def build() -> World:
        cast = Cast()
        tool = ExecuteBashTool(workspace=tmp_path, policy=BashToolPolicy(allowed_command_prefixes=("touch",)))
        commands = calls(("execute_bash", {"command": "touch yes"}), ("execute_bash", {"command": "rm -r /"}))
        return cast.world(cast.llm("shell", commands, says("done"), tools=(tool,)))

    no = engine_of(build(), answerer=lambda request, asked: Rejected())
    await no.turn("go")
    assert not (tmp_path / "yes").exists()
    assert len(no.disk.asks) == 1  # what the policy blocks is not asked for
    yes = engine_of(build())
    await yes.turn("go")
    assert (tmp_path / "yes").exists()
    (asked,) = [asked for _, asked in yes.disk.asks]
    assert asked.hint == "Please approve or reject the bash command: touch yes"


async def test_a_gate_and_a_question_in_the_body_are_asked_one_after_the_other() -> None:
    cast = Cast()

    def wire(tool_context: ToolContext) -> str:
        """Wires."""
        assert tool_context.tool_confirmation is not None
        if tool_context.tool_confirmation.payload != "second":
            tool_context.request_confirmation(hint="and now?")
        return "wired"

    gate = FunctionTool(wire, require_confirmation=True)
    engine = engine_of(cast.world(cast.llm("clerk", calls(("wire", {})), says("ok"), tools=(gate,))))
    engine.answerer = lambda request, asked: "second"
    await engine.turn("go")
    (request,) = engine.disk.requests.values()
    assert request.ask is InterruptKind.CONFIRMATION
    assert [asked.hint for _, asked in engine.disk.asks] == ["and now?"]
    assert responses(engine.disk) == {"wire": {"result": "wired"}}
