"""What a turn waits for is asked and answered in ADK's own way, from whatever process, and once."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from google.adk.agents import LlmAgent
from google.genai import types
from tests.durable_runner import agents
from tests.durable_runner.support import (
    CONFIRM,
    SESSION,
    USER,
    Talk,
    durable,
    one_is_queued,
    requests_in,
    responds,
    text_of,
)

from perdure import (
    InterruptAlreadyResolved,
    InterruptNotFound,
    InterruptWithdrawn,
    SessionStatus,
    ToolEffect,
    ToolPolicy,
    TurnStatus,
    UsageError,
)
from perdure.adk import DurableRunner, WrongCall
from perdure.testing import ScriptedModel, call, text

ASKED = {"pay": ToolPolicy(ToolEffect.NON_IDEMPOTENT_WRITE, requires_approval=True)}


def policed() -> LlmAgent:
    """A call that only its policy makes wait."""
    script = [call("pay", amount=500), text("It is paid.")]
    return LlmAgent(name="clerk", model=ScriptedModel(script), instruction="Pay.", tools=[agents.pay])


async def _asked(runner: DurableRunner) -> tuple[Talk, types.FunctionCall]:
    talk = Talk(runner)
    await talk.start()
    (request,) = requests_in(await talk.say("go"))
    return talk, request


async def test_an_approval_by_policy_is_asked_like_a_confirmation(tmp_path: Path) -> None:
    async with durable(policed(), tmp_path, tool_policies=ASKED) as runner:
        talk, request = await _asked(runner)
        asked = talk.yielded[0][-1]
        assert asked.long_running_tool_ids == {request.id}
        assert request.args is not None
        assert request.args["originalFunctionCall"]["args"] == {"amount": 500}
        assert request.args["toolConfirmation"]["confirmed"] is False
        assert text_of(await talk.approve()) == ["It is paid."]


async def test_declared_approvals_only_unless_told_otherwise(tmp_path: Path) -> None:
    """An unclassified tool runs without asking; `approvals="by_effect"` asks."""
    for approvals, asked in (({}, []), ({"approvals": "by_effect"}, [CONFIRM])):
        folder = tmp_path / str(len(asked))
        folder.mkdir()
        unclassified = {"default_tool_effect": ToolEffect.UNCLASSIFIED, **approvals}
        async with durable(policed(), folder, **unclassified) as runner:
            talk = Talk(runner)
            await talk.start()
            assert [request.name for request in requests_in(await talk.say("go"))] == asked


async def test_the_answer_may_come_in_another_process(tmp_path: Path) -> None:
    """The id that a run showed is enough, after any number of restarts; the payload reaches the tool."""
    seen: list[Any] = []

    def agent() -> LlmAgent:
        clerk = agents.gated()
        clerk.before_tool_callback = lambda tool, args, tool_context: seen.append(tool_context.tool_confirmation)
        return clerk

    async with durable(agent(), tmp_path) as runner:
        talk, _ = await _asked(runner)
    async with durable(agent(), tmp_path) as runner:
        again = Talk(runner, yielded=talk.yielded)
        assert text_of(await again.approve(payload={"by": "Bob"})) == ["It is paid."]
        events, state = await again.session()
        assert state["paid"] == 500
        assert not requests_in(events)


async def test_whoever_joins_a_waiting_turn_is_asked_the_same(tmp_path: Path) -> None:
    async with durable(agents.gated(), tmp_path) as runner:
        talk, request = await _asked(runner)
        turn_id = talk.yielded[0][0].invocation_id
    async with durable(agents.gated(), tmp_path, worker=False) as runner:
        joined = [e async for e in runner.run_async(user_id=USER, session_id=SESSION, invocation_id=turn_id)]
        assert [call.model_dump() for call in requests_in(joined)] == [request.model_dump()]
        assert joined[-1].id == talk.yielded[0][-1].id


async def test_one_of_two_calls_may_be_answered_before_the_other(tmp_path: Path) -> None:
    async with durable(agents.two_gated(), tmp_path) as runner:
        talk = Talk(runner)
        await talk.start()
        first, second = requests_in(await talk.say("go"))
        assert await talk.say(responds((second, {"confirmed": True}))) == [], "the other one is asked no second time"
        assert talk.failures == [None, None]
        snapshot = await (await runner.sessions()).get_agent_snapshot(SESSION)
        assert [one.arguments for one in snapshot.pending_interrupts] == [{"amount": 1}]
        events = await talk.say(responds((first, {"confirmed": False})))
        results = [response.response for event in events for response in event.get_function_responses()]
        assert results == [{"error": "This tool call is rejected."}, {"result": "paid 2"}]
        assert text_of(events) == ["Both are paid."]


async def test_case_07_an_answer_counts_once(tmp_path: Path) -> None:
    async with durable(agents.gated(), tmp_path) as runner:
        talk, request = await _asked(runner)
        yes, no = responds((request, {"confirmed": True})), responds((request, {"confirmed": False}))
        await talk.say(yes)
        events, _ = await talk.session()
        assert await talk.say(yes) == [], "the identical answer once more changes nothing"
        assert await talk.say(no) == []
        assert talk.failures[:3] == [None, None, None]
        assert isinstance(talk.failures[3], InterruptAlreadyResolved)
        assert (await talk.session())[0] == events


async def test_case_07_many_answers_at_once_go_on_once(tmp_path: Path) -> None:
    async with durable(agents.gated(), tmp_path) as runner:
        talk, request = await _asked(runner)
        talks = [Talk(runner) for _ in range(5)]
        await asyncio.gather(*(one.say(responds((request, {"confirmed": True}))) for one in talks))
        assert [one.failures for one in talks] == [[None]] * 5
        events, _ = await talk.session()
        responses = [response for event in events for response in event.get_function_responses()]
        assert [response.name for response in responses] == ["look", "pay", "look"]
        assert "It is paid." in [text for one in talks for text in text_of(one.yielded[0])]


async def test_nothing_is_answered_when_one_of_the_ids_is_unknown(tmp_path: Path) -> None:
    async with durable(agents.gated(), tmp_path) as runner:
        talk, request = await _asked(runner)
        unknown = types.FunctionCall(id="adk-e-1:nothing", name=CONFIRM)
        await talk.say(responds((request, {"confirmed": True}), (unknown, {"confirmed": True})))
        assert isinstance(talk.failures[-1], InterruptNotFound)
        snapshot = await (await runner.sessions()).get_agent_snapshot(SESSION)
        assert snapshot.status is SessionStatus.WAITING
        assert text_of(await talk.say(responds((request, {"confirmed": True})))) == ["It is paid."]


async def test_an_answer_to_a_cancelled_turn_is_refused(tmp_path: Path) -> None:
    async with durable(agents.gated(), tmp_path) as runner:
        talk, request = await _asked(runner)
        sessions = await runner.sessions()
        await sessions.cancel_turn(SESSION)
        await sessions.wait(SESSION)
        await talk.say(responds((request, {"confirmed": True})))
        assert isinstance(talk.failures[-1], InterruptWithdrawn)


ANSWER = types.Part(function_response=types.FunctionResponse(id="x"))


@pytest.mark.parametrize(
    "message",
    [
        types.Content(parts=[types.Part(text="yes"), ANSWER]),
        types.Content(parts=[types.Part(function_response=types.FunctionResponse(name=CONFIRM))]),
        types.Content(parts=[ANSWER, ANSWER]),
        types.Content(parts=[]),
        types.Content(parts=[types.Part(function_call=types.FunctionCall(name="pay"))]),
    ],
    ids=["text beside it", "no id", "twice the same", "nothing", "a call"],
)
async def test_a_message_that_adk_refuses_is_refused_and_changes_nothing(message: Any, tmp_path: Path) -> None:
    async with durable(agents.gated(), tmp_path) as runner:
        talk, _ = await _asked(runner)
        await talk.say(message)
        assert isinstance(talk.failures[-1], WrongCall)
        assert isinstance(talk.failures[-1], ValueError)
        assert (await (await runner.sessions()).get_agent_snapshot(SESSION)).queued_messages == 0


async def test_an_answer_that_is_no_confirmation_is_refused(tmp_path: Path) -> None:
    async with durable(agents.gated(), tmp_path) as runner:
        talk, request = await _asked(runner)
        await talk.say(responds((request, {"approved": "maybe"})))
        assert isinstance(talk.failures[-1], UsageError)
        # The web page of ADK wraps its answer.
        wrapped = {"response": '{"confirmed": true}'}
        assert text_of(await talk.say(responds((request, wrapped)))) == ["It is paid."]


async def test_words_to_a_turn_that_waits_are_queued(tmp_path: Path) -> None:
    """They begin a turn of their own when the waiting one has ended, here because somebody rejects."""
    async with durable(agents.gated(), tmp_path) as runner:
        talk, request = await _asked(runner)
        sessions = await runner.sessions()
        other = Talk(runner)
        said = asyncio.create_task(other.say("never mind"))
        await one_is_queued(sessions)
        await talk.say(responds((request, {"confirmed": False})))
        await said
        assert other.failures == [None]
        turn_ids = {event.invocation_id for event in other.yielded[0]}
        assert len(turn_ids) == 1
        assert turn_ids.isdisjoint(event.invocation_id for events in talk.yielded for event in events)


async def test_a_message_that_is_taken_back_while_it_is_queued_ends_its_run(tmp_path: Path) -> None:
    async with durable(agents.gated(), tmp_path) as runner:
        await _asked(runner)
        sessions = await runner.sessions()
        stop = asyncio.Event()
        queued = Talk(runner)
        said = asyncio.create_task(queued.say("never mind", abort_signal=stop))
        await one_is_queued(sessions)
        stop.set()
        assert [event.error_code for event in await said] == ["INVOCATION_ABORTED"]
        snapshot = await sessions.get_agent_snapshot(SESSION)
        assert snapshot.status is SessionStatus.WAITING, "the turn that was there first goes on waiting"
        assert snapshot.turn is not None
        assert snapshot.turn.status is TurnStatus.WAITING
