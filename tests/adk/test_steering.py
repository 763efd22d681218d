"""Messages that join a running turn: what the model is asked, and that a crash at any write changes nothing of it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from copy import copy
from dataclasses import fields
from typing import Any

import pytest
from google.adk.agents import LlmAgent, ParallelAgent, SequentialAgent
from google.adk.agents.callback_context import CallbackContext
from google.adk.apps.app import App
from google.adk.models.llm_request import LlmRequest
from google.adk.models.llm_response import LlmResponse
from google.adk.plugins.base_plugin import BasePlugin
from google.adk.tools.agent_tool import AgentTool
from google.adk.tools.tool_context import ToolContext
from google.genai import types
from tests.adk.disk import Crash, Disk
from tests.adk.model import ScriptedModel, calls, says
from tests.adk.plain import request_form
from tests.adk.worlds import World

from perdure.errors import NonDeterminismError
from perdure.session.model import STEERED, ErrorInfo, JoinedMessage, TurnStatus, UserMessage
from perdure.session.runner import JOINED

WORDS = "rather the other one"


def steered(number: int = 1) -> JoinedMessage:
    return JoinedMessage(message_id=f"m-{number}", message=UserMessage(text=f"{WORDS} {number}", steers=True))


class Steered(World):
    """A world whose tool is told something while it runs, once."""

    disk: Disk | None = None

    def engine(self, disk: Disk | None = None, decide: Any = None) -> Any:
        self.disk = disk or Disk()
        return super().engine(self.disk, decide)


def told_by(world: Callable[[], Steered]) -> Callable[[], str]:
    def look() -> str:
        """Looks."""
        disk = world().disk
        assert disk is not None
        joined = [item["id"] for item in disk.messages] + [one.message_id for one in disk.steering]
        joined += [call.response for call in disk.model_calls]
        if not any("m-1" in one for one in joined):
            disk.steering += [steered(1), steered(2)]
        return "seen"

    return look


def alone() -> Steered:
    """One agent."""
    model = ScriptedModel(replies=[calls(("look", {})), says("done")])
    world = Steered(model, LlmAgent(name="a", model=model, tools=[told_by(lambda: world)]))
    return world


def then_another() -> Steered:
    """The second agent of a sequence reads what the first one was told."""
    model = ScriptedModel(replies=[calls(("look", {})), says("one")])
    second = ScriptedModel(replies=[says("two")])
    first = LlmAgent(name="a", model=model, tools=[told_by(lambda: world)])
    agent = SequentialAgent(name="both", sub_agents=[first, LlmAgent(name="b", model=second)])
    world = Steered(model, agent, others=(second,))
    return world


def behind_a_tool_agent() -> Steered:
    """An agent that is called as a tool does not take part in the conversation: its caller is told."""
    inner = ScriptedModel(replies=[calls(("look", {})), says("inside")])
    model = ScriptedModel(replies=[calls(("expert", {"request": "look"})), says("done")])
    expert = LlmAgent(name="expert", model=inner, description="Looks.", tools=[told_by(lambda: world)])
    world = Steered(model, LlmAgent(name="a", model=model, tools=[AgentTool(expert)]), others=(inner,))
    return world


def beside_another() -> Steered:
    """One of two branches is told; the other one has no further call to make."""
    model = ScriptedModel(replies=[calls(("look", {})), says("one")])
    other = ScriptedModel(replies=[says("two")])
    first = LlmAgent(name="a", model=model, tools=[told_by(lambda: world)])
    agent = ParallelAgent(name="both", sub_agents=[first, LlmAgent(name="b", model=other)])
    world = Steered(model, agent, others=(other,), branched=True)
    return world


SHAPES: dict[str, Callable[[], Steered]] = {
    shape.__name__: shape for shape in (alone, then_another, behind_a_tool_agent, beside_another)
}


def calls_in(disk: Disk) -> list[dict[str, Any]]:
    parts = [part for item in disk.messages for part in item["content"]["parts"]]
    return [part["function_call"] for part in parts if "function_call" in part]


def texts(request: LlmRequest) -> list[str]:
    return [part.text for content in request.contents for part in content.parts or [] if part.text]


@pytest.mark.parametrize("name", SHAPES)
async def test_j18_a_message_that_steers_is_in_the_next_request_and_in_all_that_follow(name: str) -> None:
    world = SHAPES[name]()
    await world.engine().turn("go")
    disk = world.disk
    assert disk is not None
    assert disk.status is TurnStatus.COMPLETED
    _, last = world.model.requests
    assert texts(last)[-2:] == [f"{WORDS} 1", f"{WORDS} 2"]
    assert WORDS not in str(request_form(world.model.requests[0]))
    said = [item for item in disk.messages if WORDS in str(item["content"])]
    assert [(item["author"], item["id"]) for item in said] == [("user", "m-1"), ("user", "m-2")]
    assert all(item["custom_metadata"] == {STEERED: True} for item in said)
    if name == "then_another":
        assert [one for one in texts(world.others[0].requests[0]) if WORDS in one] == [f"{WORDS} 1", f"{WORDS} 2"]
    if name == "behind_a_tool_agent":
        assert WORDS not in str([request_form(request) for request in world.others[0].requests])
    await world.engine(disk).turn("and now?")
    assert [one for one in texts(world.model.requests[-1]) if WORDS in one] == [f"{WORDS} 1", f"{WORDS} 2"]


@pytest.mark.parametrize("name", SHAPES)
async def test_a_crash_at_any_write_of_a_steered_turn_changes_nothing(name: str) -> None:
    undisturbed = SHAPES[name]()
    await undisturbed.engine().turn("go")
    expected = undisturbed.disk
    assert expected is not None
    for point in range(1, expected.writes + 1):
        disk = Disk(crash_at=point)
        first = SHAPES[name]()
        engine = first.engine(disk)
        engine.begin("go")
        try:
            await engine.go_on()
        except Crash:
            disk.reboot()
        else:
            assert first.branched
            assert disk.writes < point
            continue
        second = SHAPES[name]()
        await second.engine(disk).go_on()
        at = f"crash at write {point}"
        assert disk.status is TurnStatus.COMPLETED, at
        ids = [item["id"] for item in disk.messages]
        assert len(set(ids)) == len(ids), at
        whole = [(item["author"], item["content"]) for item in disk.messages]
        known = [(item["author"], item["content"]) for item in expected.messages]
        if first.branched:
            assert sorted(map(str, whole)) == sorted(map(str, known)), at
        else:
            assert whole == known, at
        for before, after in zip(undisturbed.models, second.models, strict=True):
            asked, again = ([request_form(one) for one in model.requests] for model in (before, after))
            assert again == asked[len(asked) - len(again) :], at


async def test_callbacks_and_plugins_see_what_a_user_says_in_the_middle() -> None:
    class Guard(BasePlugin):
        async def on_user_message_callback(self, *, user_message: types.Content, **given: Any) -> types.Content | None:
            said = (user_message.parts or [types.Part()])[0].text or ""
            seen.append(said)
            return types.Content(role="user", parts=[types.Part(text="***")]) if WORDS in said else None

    def before_model(callback_context: CallbackContext, llm_request: LlmRequest) -> LlmResponse | None:
        requests.append(texts(llm_request))
        return None

    seen: list[str] = []
    requests: list[list[str]] = []
    model = ScriptedModel(replies=[calls(("look", {})), says("done")])
    agent = LlmAgent(name="a", model=model, tools=[told_by(lambda: world)], before_model_callback=before_model)
    world = Steered(model, App(name="guarded", root_agent=agent, plugins=[Guard("guard")]))
    await world.engine().turn("go")
    assert seen == ["go", f"{WORDS} 1", f"{WORDS} 2"]
    assert requests == [["go"], ["go", "***", "***"]]
    assert texts(model.requests[-1]) == ["go", "***", "***"]


@pytest.mark.parametrize("options", [{"include_contents": "none"}, {"mode": "single_turn"}])
async def test_an_agent_that_does_not_take_part_in_the_conversation_takes_nothing_along(
    options: dict[str, Any],
) -> None:
    model = ScriptedModel(replies=[calls(("look", {})), says("one")])
    second = ScriptedModel(replies=[says("two")])
    first = LlmAgent(name="a", model=model, tools=[told_by(lambda: world)], **options)
    agent = SequentialAgent(name="both", sub_agents=[first, LlmAgent(name="b", model=second)])
    world = Steered(model, agent, others=(second,))
    await world.engine().turn("go")
    assert WORDS not in str([request_form(request) for request in model.requests])
    assert texts(second.requests[0])[-2:] == [f"{WORDS} 1", f"{WORDS} 2"]


async def crashed_behind_the_join() -> Disk:
    """The disk of a turn whose process died when messages had joined it and the model had not answered."""
    whole = SHAPES["alone"]()
    await whole.engine().turn("go")
    assert whole.disk is not None
    for point in range(1, whole.disk.writes + 1):
        disk = Disk(crash_at=point)
        engine = SHAPES["alone"]().engine(disk)
        engine.begin("go")
        with pytest.raises(Crash):
            await engine.go_on()
        disk.reboot()
        if disk.joined:
            return disk
    raise AssertionError("nothing joined")


async def test_what_joined_is_told_also_if_the_code_would_not_let_it_join_any_more() -> None:
    disk = await crashed_behind_the_join()
    model = ScriptedModel(replies=[says("done")] * 3)
    agent = LlmAgent(name="a", model=model, tools=[told_by(lambda: world)], include_contents="none")
    world = Steered(model, agent)
    await world.engine(disk).go_on()
    assert disk.status is TurnStatus.COMPLETED
    assert texts(model.requests[0])[-2:] == [f"{WORDS} 1", f"{WORDS} 2"]
    assert [item["id"] for item in disk.messages if WORDS in str(item["content"])] == ["m-1", "m-2"]


async def test_a_replay_that_does_not_come_to_where_messages_joined_stops() -> None:
    disk = await crashed_behind_the_join()

    def answer_it(callback_context: CallbackContext, llm_request: LlmRequest) -> LlmResponse | None:
        if len(llm_request.contents) == 1:
            return None
        return LlmResponse(content=types.Content(role="model", parts=[types.Part(text="by a callback")]))

    async def no_request(callback_context: CallbackContext) -> types.Content:
        return types.Content(role="model", parts=[types.Part(text="not at all")])

    model = ScriptedModel(replies=[])
    agent = LlmAgent(name="a", model=model, tools=[told_by(lambda: world)], before_model_callback=answer_it)
    world = Steered(model, agent)
    again = Disk(**{field.name: copy(getattr(disk, field.name)) for field in fields(disk)})
    await world.engine(again).go_on()
    assert [item["id"] for item in again.messages if WORDS in str(item["content"])] == ["m-1", "m-2"]
    # What is recorded of the turn is that message alone.
    disk.model_calls = [call for call in disk.model_calls if call.key.startswith(JOINED)]
    disk.requests, disk.records, disk.messages, disk.new_messages = {}, {}, [], []
    agent = LlmAgent(name="a", model=model, before_agent_callback=no_request)
    with pytest.raises(NonDeterminismError, match="a message that joined the turn") as caught:
        await Steered(model, agent).engine(disk).go_on()
    assert str(caught.value.step).startswith(JOINED)
    assert disk.status is not TurnStatus.FAILED


async def test_a_branch_with_an_open_call_hears_what_was_said_to_another_one() -> None:
    """ADK leaves out what comes between a call and its result."""

    async def wait_for_it() -> str:
        """Waits until the other branch was told."""
        while len(model.requests) < 2:  # noqa: ASYNC110 - it is the other branch that moves
            await asyncio.sleep(0)
        return "waited"

    model = ScriptedModel(replies=[calls(("look", {})), says("one")])
    other = ScriptedModel(replies=[calls(("wait_for_it", {})), calls(("wait_for_it", {})), says("two")])
    first = LlmAgent(name="a", model=model, tools=[told_by(lambda: world)])
    second = LlmAgent(name="b", model=other, tools=[wait_for_it])
    both = ParallelAgent(name="both", sub_agents=[first, second])
    world = Steered(model, both, others=(other,), branched=True)
    await world.engine().turn("go")
    for request in (model.requests[1], *other.requests[1:]):
        assert [one for one in texts(request) if WORDS in one] == [f"{WORDS} 1", f"{WORDS} 2"]
    assert WORDS not in str(request_form(other.requests[0]))


async def test_what_an_agent_with_a_task_is_told_belongs_to_its_task() -> None:
    """As what users say to it in a turn of its own (``Runner`` gives that the scope of the task)."""
    model = ScriptedModel(replies=[calls(("helper", {"request": "look"})), says("done")])
    inner = ScriptedModel(replies=[calls(("look", {})), calls(("finish_task", {"result": "seen"}))])
    helper = LlmAgent(name="helper", model=inner, mode="task", description="Looks.", tools=[told_by(lambda: world)])
    world = Steered(model, LlmAgent(name="a", model=model, sub_agents=[helper]), others=(inner,))
    await world.engine().turn("go")
    disk = world.disk
    assert disk is not None
    assert texts(inner.requests[-1])[-2:] == [f"{WORDS} 1", f"{WORDS} 2"]
    assert WORDS not in str([request_form(request) for request in model.requests])
    said = [item["isolation_scope"] for item in disk.messages if WORDS in str(item["content"])]
    (task,) = [call["id"] for call in calls_in(disk) if call["name"] == "helper"]
    assert said == [task, task]


async def test_a_turn_whose_callback_fails_when_messages_joined_leaves_them_in_the_history() -> None:
    def refuse(callback_context: CallbackContext, llm_request: LlmRequest) -> LlmResponse | None:
        if WORDS in str(texts(llm_request)):
            raise ValueError("no such words")
        return None

    model = ScriptedModel(replies=[calls(("look", {})), says("again")])
    agent = LlmAgent(name="a", model=model, tools=[told_by(lambda: world)], before_model_callback=refuse)
    world = Steered(model, agent)
    await world.engine().turn("go")
    disk = world.disk
    assert disk is not None
    assert disk.status is TurnStatus.FAILED
    said = [item["id"] for item in disk.messages if WORDS in str(item.get("content"))]
    assert said == ["m-1", "m-2"]


async def test_what_joined_a_turn_that_is_closed_is_told_to_the_next_one() -> None:
    model = ScriptedModel(replies=[says("unused")])
    world = Steered(model, LlmAgent(name="a", model=model))
    engine = world.engine()
    engine.begin("go")
    disk = engine.disk
    closing = engine.runner.closing_messages
    messages = closing(disk.start, [], [steered()], [], TurnStatus.FAILED, ErrorInfo(code="X", message="no"), 5)
    assert [message.text.splitlines()[0] for message in messages[:2]] == ["go", f"{WORDS} 1"]
    engine.disk.store(messages)
    again = closing(disk.start, disk.messages[:2], [steered()], [], TurnStatus.CANCELLED, None, 5)
    assert WORDS not in str([message.text for message in again]), "it is stored already"


async def test_a_branch_that_is_stopped_as_messages_join_says_them_all_the_same() -> None:
    """What left the queue is in no other place."""

    class Slow(BasePlugin):
        async def on_user_message_callback(self, *, user_message: types.Content, **given: Any) -> types.Content | None:
            if WORDS in str(user_message):
                joining.set()
                await asyncio.sleep(0.2)
            return None

    async def leave(tool_context: ToolContext) -> str:
        """Ends the loop around both branches."""
        await joining.wait()
        tool_context.actions.escalate = True
        return "left"

    joining = asyncio.Event()
    model = ScriptedModel(replies=[calls(("look", {})), says("never")])
    other = ScriptedModel(replies=[calls(("leave", {})), says("two")])
    first = LlmAgent(name="a", model=model, tools=[told_by(lambda: world)])
    second = LlmAgent(name="b", model=other, tools=[leave])
    both = ParallelAgent(name="both", sub_agents=[first, second])
    world = Steered(model, App(name="both", root_agent=both, plugins=[Slow("slow")]), others=(other,), branched=True)
    await world.engine().turn("go")
    disk = world.disk
    assert disk is not None
    said = [item["id"] for item in disk.messages if WORDS in str(item["content"])]
    assert said == ["m-1", "m-2"]
