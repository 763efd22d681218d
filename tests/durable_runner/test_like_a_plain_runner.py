"""The same agent on a plain runner and on a durable one: what is yielded, what is stored, the state, what is raised."""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
from google.adk.agents import RunConfig
from tests.durable_runner import agents
from tests.durable_runner.support import (
    SSE,
    Build,
    Talk,
    as_stored,
    comparable,
    durable,
    plain,
    without_waits,
)

Script = Callable[[Talk], Awaitable[None]]
NONE = RunConfig()
UNGATED: list[Build] = [
    agents.talker,
    agents.worker,
    agents.guarded,
    agents.with_plugin,
    agents.resumable,
    agents.failing_model,
    agents.failing_callback,
]
GATED: list[Build] = [agents.gated, agents.two_gated]


async def _two_turns(talk: Talk) -> None:
    await talk.start({"tenant": "t1", "app:motd": "hi", "user:name": "Ann", "temp:x": 1})
    await talk.say("go", state_delta={"mood": "calm"})
    await talk.say("go on", yield_user_message=True)


async def _with_approval(talk: Talk) -> None:
    await talk.start()
    await talk.say("go")
    await talk.approve(payload={"by": "Bob"})


async def _with_rejection(talk: Talk) -> None:
    await talk.start()
    await talk.say("go")
    await talk.approve(False)


@pytest.mark.parametrize("config", [NONE, SSE], ids=["whole", "streaming"])
@pytest.mark.parametrize("build", UNGATED, ids=lambda build: build.__name__)
async def test_two_turns(build: Build, config: RunConfig, tmp_path: Path) -> None:
    expected = Talk(plain(build()), config)
    await _two_turns(expected)
    async with durable(build(), tmp_path) as runner:
        talk = Talk(runner, config)
        await _two_turns(talk)
        for ours, plain_ones in zip(talk.yielded, expected.yielded, strict=True):
            assert comparable(ours) == comparable(plain_ones)
        assert [_said(error) for error in talk.failures] == [_said(error) for error in expected.failures]
        events, state = await talk.session()
    plain_events, plain_state = await expected.session()
    assert state == {key: value for key, value in plain_state.items() if not key.startswith("temp:")}
    stored = [event for event in plain_events if event.content or event.error_code or event.actions.state_delta]
    told = [event for event in events if not _is_note(event.content)]
    assert comparable(told) == comparable(stored)


@pytest.mark.parametrize("config", [NONE, SSE], ids=["whole", "streaming"])
@pytest.mark.parametrize("talk_of", [_with_approval, _with_rejection], ids=["approved", "rejected"])
@pytest.mark.parametrize("build", GATED, ids=lambda build: build.__name__)
async def test_a_call_that_waits(build: Build, talk_of: Script, config: RunConfig, tmp_path: Path) -> None:
    expected = Talk(plain(build()), config)
    await talk_of(expected)
    assert len(expected.yielded[0]) > len(without_waits(expected.yielded[0])), "plain ADK yields a placeholder"
    async with durable(build(), tmp_path) as runner:
        talk = Talk(runner, config)
        await talk_of(talk)
        for ours, plain_ones in zip(talk.yielded, expected.yielded, strict=True):
            assert comparable(ours) == comparable(without_waits(plain_ones))
        events, state = await talk.session()
    plain_events, plain_state = await expected.session()
    assert comparable(events) == comparable(as_stored(plain_events))
    assert state == {key: value for key, value in plain_state.items() if not key.startswith("temp:")}


def _said(error: Exception | None) -> tuple[type, str] | None:
    return None if error is None else (type(error), str(error))


def _is_note(content: object) -> bool:
    return "Note: the work on the request above failed" in str(content)


@pytest.mark.parametrize("stops", [False, True], ids=["counts", "answers first"])
async def test_case_28_a_plugin_sees_and_says_what_it_does_on_plain_adk(stops: bool, tmp_path: Path) -> None:
    theirs: list[str] = []
    expected = Talk(plain(agents.screened(theirs, stops=stops)), SSE)
    await _two_turns(expected)
    ours: list[str] = []
    async with durable(agents.screened(ours, stops=stops), tmp_path) as runner:
        talk = Talk(runner, SSE)
        await _two_turns(talk)
        for events, plain_events in zip(talk.yielded, expected.yielded, strict=True):
            assert comparable(events) == comparable(plain_events)
        assert comparable((await talk.session())[0]) == comparable((await expected.session())[0])
    assert Counter(ours) == Counter(theirs)
    assert theirs.count("before_model_callback") == (0 if stops else 6)
