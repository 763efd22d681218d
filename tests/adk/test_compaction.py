"""ADK's own compaction: summaries are made once, stored as ADK stores them, and later prompts are as on plain ADK."""

from __future__ import annotations

from copy import deepcopy
from typing import Any

import pytest
from google.adk.agents import LlmAgent
from google.adk.apps.app import App, EventsCompactionConfig
from google.adk.apps.base_events_summarizer import BaseEventsSummarizer
from google.adk.apps.llm_event_summarizer import LlmEventSummarizer
from google.adk.events.event import Event
from google.adk.events.event_actions import EventActions, EventCompaction
from google.adk.models.llm_request import LlmRequest
from google.adk.models.llm_response import LlmResponse
from google.genai import types
from google.genai.errors import ServerError
from tests.adk.comparing import assert_as_plain, assert_survives_crashes
from tests.adk.disk import Crash, Disk
from tests.adk.model import Flaky, ScriptedModel, calls, says
from tests.adk.plain import request_form, run_plain
from tests.adk.worlds import World, usage

from perdure.session.model import MessageRole, TurnStatus, UserMessage


class Chronicler(BaseEventsSummarizer):
    """A summarizer of the application: counts."""

    def __init__(self, log: list[str]) -> None:
        self._log = log

    async def maybe_summarize_events(self, *, events: list[Event]) -> Event | None:
        self._log.append(f"summarize {len(events)}")
        content = types.Content(role="model", parts=[types.Part(text=f"{len(events)} things happened")])
        compaction = EventCompaction(
            start_timestamp=events[0].timestamp, end_timestamp=events[-1].timestamp, compacted_content=content
        )
        return Event(author="user", actions=EventActions(compaction=compaction), invocation_id=Event.new_id())


def _reply(request: LlmRequest) -> LlmResponse:
    """Calls the tool at a question and answers at its result; writes a summary when asked for one."""
    last = request.contents[-1].parts or []
    if last and last[0].function_response:
        return says("it is here " * 20, usage_metadata=usage(50, 8))
    if last and "conversation history" in (last[0].text or ""):
        return says("summary", usage_metadata=usage(30, 3))
    return calls(("look", {"what": last[-1].text}), usage_metadata=usage(40, 5))


def talk(messages: int = 4, *, summarizer: Any = None, **triggers: int) -> World:
    """A few turns of a talk, each with a tool call and some state."""
    log: list[str] = []

    def look(what: str) -> str:
        """Looks."""
        log.append(f"look {what}")
        return f"{what} is here " * 10

    model = ScriptedModel(replies=[_reply] * 50)
    agent = LlmAgent(name="looker", model=model, instruction="Look.", tools=[look])
    if summarizer == "chronicler":
        summarizer = Chronicler(log)
    elif summarizer == "llm":
        summarizer = LlmEventSummarizer(llm=model)
    config = EventsCompactionConfig(summarizer=summarizer, **triggers)
    app = App(name="Flow", root_agent=agent, events_compaction_config=config)
    return World(model, app, log, messages=[UserMessage(text=f"thing {n}") for n in range(messages)])


def sliding() -> World:
    return talk(summarizer="llm", compaction_interval=2, overlap_size=1)


def sliding_by_default() -> World:
    """ADK makes a summarizer of the root agent's model."""
    return talk(compaction_interval=2, overlap_size=0)


def sliding_own() -> World:
    return talk(summarizer="chronicler", compaction_interval=1, overlap_size=1)


def by_tokens() -> World:
    """ADK compacts before a model call, in the middle of a turn, and after it."""
    return talk(summarizer="llm", token_threshold=45, event_retention_size=2)


def both() -> World:
    triggers = {"token_threshold": 45, "event_retention_size": 3, "compaction_interval": 3, "overlap_size": 1}
    return talk(summarizer="chronicler", **triggers)


WORLDS = [sliding, sliding_by_default, sliding_own, by_tokens, both]


@pytest.mark.parametrize("build", WORLDS)
async def test_compaction_is_as_on_plain_adk(build: Any) -> None:
    await assert_as_plain(build)


@pytest.mark.parametrize("build", WORLDS)
async def test_a_crash_at_any_write_changes_nothing(build: Any) -> None:
    assert await assert_survives_crashes(build) >= 5


@pytest.mark.parametrize("build", WORLDS)
async def test_each_kind_of_trigger_compacts_and_its_summaries_are_recorded(build: Any) -> None:
    world = build()
    engine = world.engine()
    summaries = 0
    for message in world.messages:
        await engine.turn(message)
        recorded = sum("summary" in call.key for call in engine.disk.model_calls)
        stored = sum("compacted_content" in new.item for new in engine.disk.new_messages)
        assert recorded == stored
        summaries += recorded
    assert summaries >= 2


@pytest.mark.parametrize("build", [sliding, by_tokens])
async def test_a_summary_counts_as_a_model_call_and_is_a_message(build: Any) -> None:
    world = build()
    engine = world.engine()
    for message in world.messages:
        await engine.turn(message)
    summaries = [call for call in engine.disk.model_calls if "summary" in call.key]
    assert len(summaries) >= 1
    assert summaries[0].usage.model_calls == 1
    assert (summaries[0].usage.input_tokens, summaries[0].usage.output_tokens) == (30, 3)
    assert engine.disk.usage.model_calls == len(world.model.requests)
    stored = [message for message in engine.disk.new_messages if "compacted_content" in message.item]
    assert [(message.role, message.text) for message in stored] == [(MessageRole.ASSISTANT, "summary")] * len(stored)


async def test_a_summarizer_that_fails_leaves_the_history_as_it_is() -> None:
    def failing() -> World:
        world = sliding()
        assert isinstance(world.agent, App)
        config = world.agent.events_compaction_config
        assert config is not None
        broken = ScriptedModel(replies=[Flaky((ValueError("no"),) * 9)] * 9)
        config.summarizer = LlmEventSummarizer(llm=broken)
        return world

    await assert_as_plain(failing)
    await assert_survives_crashes(failing)


async def test_a_summarizer_whose_model_is_out_for_a_moment_is_asked_again() -> None:
    world = sliding()
    assert isinstance(world.agent, App)
    assert world.agent.events_compaction_config is not None
    error = ServerError(503, {"error": {"message": "overloaded", "status": "UNAVAILABLE"}})
    shaky = ScriptedModel(replies=[Flaky((error,) * 2, says("at last"))])
    world.agent.events_compaction_config.summarizer = LlmEventSummarizer(llm=shaky)
    engine = world.engine()
    for message in world.messages[:2]:
        await engine.turn(message)
    assert engine.disk.messages[-1]["actions"]["compaction"]["compacted_content"]["parts"] == [{"text": "at last"}]
    assert next(call.usage.model_calls for call in engine.disk.model_calls if "summary" in call.key) == 3


async def test_the_applications_own_configuration_is_left_alone() -> None:
    world = sliding_by_default()
    engine = world.engine()
    for message in world.messages:
        await engine.turn(message)
    assert isinstance(world.agent, App)
    assert world.agent.events_compaction_config is not None
    assert world.agent.events_compaction_config.summarizer is None


async def test_a_turn_after_a_crash_in_the_summary_prompts_as_plain_adk() -> None:
    """The crash comes when the answer is there and the summary is not."""
    plain = sliding()
    plain.messages.append(UserMessage(text="last"))
    await run_plain(plain.agent, plain.messages)
    disk = Disk()
    first = sliding()
    engine = first.engine(disk)
    for message in first.messages[:-1]:
        await engine.turn(message)
    disk.crash_at = disk.writes + 5  # two model calls, a tool and a step come before the summary's record
    engine.begin(first.messages[-1])
    with pytest.raises(Crash):
        await engine.go_on()
    assert not any("summary" in call.key for call in disk.model_calls)
    assert len(disk.model_calls) == 2
    disk.reboot()
    second = sliding()
    again = second.engine(disk)
    await again.go_on()
    assert disk.status is TurnStatus.COMPLETED
    await again.turn("last")
    assert request_form(second.model.requests[-1]) == request_form(plain.model.requests[-1])


async def test_a_long_session_is_read_as_its_summaries_and_its_tail() -> None:
    """Case 31: prompts do not grow with the session, and a cold start gives the same ones."""

    def long() -> World:
        world = talk(60, summarizer="chronicler", token_threshold=45, event_retention_size=4)
        world.model.replies *= 20
        return world

    plain, warm, cold = long(), long(), long()
    await run_plain(plain.agent, plain.messages)
    engine = warm.engine()
    for message in warm.messages:
        await engine.turn(message)
    lengths = [len(request.contents) for request in warm.model.requests]
    assert max(lengths) <= 8
    asked, asked_on_plain = (list(map(request_form, world.model.requests)) for world in (warm, plain))
    assert asked == asked_on_plain
    again = cold.engine(deepcopy(engine.disk))  # a process that has nothing in memory
    await again.turn("last")
    await engine.turn("last")
    asked_cold = list(map(request_form, cold.model.requests))
    assert asked_cold == list(map(request_form, warm.model.requests[-len(asked_cold) :]))
