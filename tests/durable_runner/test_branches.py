"""Sessions that are rewound, and events that are appended from outside."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from google.adk.agents import LlmAgent
from google.adk.artifacts import InMemoryArtifactService
from google.adk.events.event import Event
from google.adk.events.event_actions import EventActions
from google.adk.runners import Runner
from google.adk.tools.tool_context import ToolContext
from google.genai import types
from tests.durable_runner import agents
from tests.durable_runner.support import (
    APP,
    SESSION,
    USER,
    Talk,
    comparable,
    durable,
    plain,
    requests_in,
    responds,
    text_of,
)

from perdure import Conflict, InterruptNotFound, SessionClosed, TurnNotFound, ValueNotStorable
from perdure.adk import DurableRunner, NoSuchSession
from perdure.testing import ScriptedModel, by_turn, call, text

pytestmark = pytest.mark.usefixtures("every_store")


def setter() -> LlmAgent:
    """Sets one key and saves one artifact in each turn."""

    async def keep(key: str, value: str, tool_context: ToolContext) -> str:
        """Keeps."""
        tool_context.state[key] = value
        await tool_context.save_artifact("notes.txt", types.Part(text=value))
        return "kept"

    script = by_turn(
        [call("keep", key="k1", value="v1"), text("One.")],
        [call("keep", key="k2", value="v2"), text("Two.")],
        [text("Three.")],
    )
    return LlmAgent(name="keeper", model=ScriptedModel(script), instruction="Keep.", tools=[keep])


async def _session_of(runner: Runner, session_id: str) -> Any:
    session = await runner.session_service.get_session(app_name=APP, user_id=USER, session_id=session_id)
    assert session is not None
    return session


async def _two_turns(runner: DurableRunner) -> list[str]:
    """The ids of two turns."""
    talk = Talk(runner)
    await talk.start({"tenant": "t1"})
    await talk.say("go")
    await talk.say("go on")
    assert talk.failures == [None, None]
    return [events[0].invocation_id for events in talk.yielded]


async def test_case_04_rewinding_keeps_the_state_that_the_session_was_created_with(tmp_path: Path) -> None:
    artifacts = InMemoryArtifactService()
    async with durable(setter(), tmp_path, artifact_service=artifacts) as runner:
        first, second = await _two_turns(runner)
        before = await _session_of(runner, SESSION)
        fork = await runner.rewind_async(user_id=USER, session_id=SESSION, rewind_before_invocation_id=second)
        assert fork.session_id != SESSION
        assert fork.turn_id == first
        branch = await _session_of(runner, fork.session_id)
        assert branch.state == {"tenant": "t1", "k1": "v1"}
        assert branch.events == before.events[:4]
        scope: dict[str, Any] = {"app_name": APP, "user_id": USER, "filename": "notes.txt"}
        saved = await artifacts.load_artifact(**scope, session_id=fork.session_id)
        assert saved == types.Part(text="v1")
        assert await artifacts.list_versions(**scope, session_id=fork.session_id) == [0]
        assert await _session_of(runner, SESSION) == before, "the session itself is as it was"


async def test_both_go_on_from_where_they_stand(tmp_path: Path) -> None:
    async with durable(setter(), tmp_path, artifact_service=InMemoryArtifactService()) as runner:
        _, second = await _two_turns(runner)
        fork = await runner.rewind_async(user_id=USER, session_id=SESSION, rewind_before_invocation_id=second)
    async with durable(setter(), tmp_path, artifact_service=InMemoryArtifactService()) as runner:
        branch, talk = Talk(runner), Talk(runner)
        assert text_of(await branch.say("otherwise", session_id=fork.session_id)) == ["Two."]
        assert text_of(await talk.say("and now?")) == ["Three."]
        assert branch.failures == talk.failures == [None]
        assert (await _session_of(runner, fork.session_id)).state == {"tenant": "t1", "k1": "v1", "k2": "v2"}
        sessions = await runner.sessions()
        snapshot = await sessions.get_agent_snapshot(fork.session_id)
        assert snapshot.turn is not None
        assert snapshot.turn.number == 2
        assert snapshot.usage.model_calls == 4


async def test_rewinding_before_the_first_turn_leaves_what_the_session_was_created_with(tmp_path: Path) -> None:
    async with durable(setter(), tmp_path, artifact_service=InMemoryArtifactService()) as runner:
        first, _ = await _two_turns(runner)
        fork = await runner.rewind_async(user_id=USER, session_id=SESSION, rewind_before_invocation_id=first)
        assert fork.turn_id is None
        branch = await _session_of(runner, fork.session_id)
        assert (branch.events, branch.state) == ([], {"tenant": "t1"})


async def test_case_20_what_waits_is_not_carried_over(tmp_path: Path) -> None:
    """Nor can an answer be used in the other session."""
    async with durable(agents.gated(), tmp_path) as runner:
        talk = Talk(runner)
        await talk.start()
        (request,) = requests_in(await talk.say("go"))
        turn_id = talk.yielded[0][0].invocation_id
        fork = await runner.rewind_async(user_id=USER, session_id=SESSION, rewind_before_invocation_id=turn_id)
        branch = Talk(runner)
        await branch.say(responds((request, {"confirmed": True})), session_id=fork.session_id)
        assert isinstance(branch.failures[0], InterruptNotFound)
        assert (await _session_of(runner, fork.session_id)).events == []
        assert text_of(await talk.approve()) == ["It is paid."]


async def test_only_a_turn_of_the_session_can_be_rewound(tmp_path: Path) -> None:
    async with durable(setter(), tmp_path, artifact_service=InMemoryArtifactService()) as runner:
        await _two_turns(runner)
        with pytest.raises(TurnNotFound):
            await runner.rewind_async(user_id=USER, session_id=SESSION, rewind_before_invocation_id="e-none")
        with pytest.raises(NoSuchSession):
            await runner.rewind_async(user_id="bob", session_id=SESSION, rewind_before_invocation_id="e-none")
        listed = await runner.session_service.list_sessions(app_name=APP)
        assert [one.id for one in listed.sessions] == [SESSION]


# ---------------------------------------------------------------- appended events


def _setting(**state: Any) -> Event:
    return Event(invocation_id="p-1", author="user", actions=EventActions(state_delta=state))


async def _append(runner: Runner, *events: Event) -> Any:
    session = await _session_of(runner, SESSION)
    for event in events:
        await runner.session_service.append_event(session, event)
    return session


async def test_an_event_is_appended_as_adk_appends_it(tmp_path: Path) -> None:
    """State from outside, a history that is restored, then a turn that sees both."""

    def restored() -> list[Event]:
        said = types.Content(role="model", parts=[types.Part(text="Welcome back.")])
        return [
            _setting(**{"mood": "calm", "app:motd": "hi", "user:name": "Ann", "temp:x": 1}),
            Event(invocation_id="e-old", author="talker", content=said),
            Event(invocation_id="e-old", author="talker", content=said, partial=True),
        ]

    expected = Talk(plain(agents.talker()))
    await expected.start({"tenant": "t1"})
    await _append(expected.runner, *restored())
    await expected.say("go")
    async with durable(agents.talker(), tmp_path) as runner:
        talk = Talk(runner)
        await talk.start({"tenant": "t1"})
        session = await _append(runner, *restored())
        assert session.state == (await _session_of(runner, SESSION)).state | {"temp:x": 1}
        await talk.say("go")
        assert talk.failures == [None]
        assert comparable((await talk.session())[0]) == comparable((await expected.session())[0])
        assert (await talk.session())[1] == (await expected.session())[1]
        sessions = await runner.sessions()
        messages = (await sessions.list_messages(SESSION)).items
        assert len({message.turn_id for message in messages}) == 3
        snapshot = await sessions.get_agent_snapshot(SESSION)
        assert snapshot.turn is not None
        assert snapshot.turn.number == 3


async def test_a_turn_that_waits_takes_no_event_beside_it(tmp_path: Path) -> None:
    async with durable(agents.gated(), tmp_path) as runner:
        talk = Talk(runner)
        await talk.start()
        await talk.say("go")
        before = await talk.session()
        with pytest.raises(Conflict):
            await _append(runner, _setting(mood="calm"))
        assert await talk.session() == before
        await talk.approve()
        await _append(runner, _setting(mood="calm"))
        assert (await talk.session())[1]["mood"] == "calm"


async def test_what_cannot_be_appended(tmp_path: Path) -> None:
    async with durable(agents.talker(), tmp_path) as runner:
        await Talk(runner).start()
        with pytest.raises(ValueNotStorable, match="cart"):
            await _append(runner, _setting(cart=object()))
        await _append(runner, Event(author="user"))
        assert (await _session_of(runner, SESSION)).events == []
        session = await _session_of(runner, SESSION)
        await (await runner.sessions()).close_session(SESSION)
        with pytest.raises(SessionClosed):
            await runner.session_service.append_event(session, _setting(mood="calm"))
        await (await runner.sessions()).delete_session(SESSION)
        with pytest.raises(NoSuchSession):
            await runner.session_service.append_event(session, _setting(mood="calm"))
