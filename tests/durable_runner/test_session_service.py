"""The session service over the store, compared with ADK's own in memory."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from google.adk.errors.already_exists_error import AlreadyExistsError
from google.adk.memory import InMemoryMemoryService
from google.adk.sessions import BaseSessionService, InMemorySessionService
from google.adk.sessions.base_session_service import GetSessionConfig
from tests.durable_runner import agents
from tests.durable_runner.support import APP, SESSION, USER, Talk, address_in, comparable, durable, plain

from perdure import SessionAlreadyExists, UsageError, ValueNotStorable
from perdure.adk import DurableSessionService, SessionIdTaken

pytestmark = pytest.mark.usefixtures("every_store")

STATE = {"tenant": "t1", "app:motd": "hi", "user:name": "Ann", "temp:x": 1, "deep": {"a": [1, None]}}


async def _exercise(service: BaseSessionService) -> list[Any]:
    """What ADK's interface gives back in a life of some sessions."""
    first = await service.create_session(app_name=APP, user_id=USER, state=dict(STATE), session_id=f" {SESSION} ")
    second = await service.create_session(app_name=APP, user_id=USER)
    other = await service.create_session(app_name=APP, user_id="bob", session_id="s3")
    elsewhere = await service.create_session(app_name="another", user_id=USER, session_id="s4")
    got = await service.get_session(app_name=APP, user_id=USER, session_id=SESSION)
    assert got is not None
    seen: list[Any] = [
        (first.id, first.app_name, first.user_id, first.state, first.events),
        (second.state, len(second.id) == 36),
        (other.state, elsewhere.state),
        (got.id, got.state, got.events),
        await service.get_session(app_name=APP, user_id="bob", session_id=SESSION),
        await service.get_session(app_name="another", user_id=USER, session_id=SESSION),
        await service.get_session(app_name=APP, user_id=USER, session_id="none"),
        await service.get_user_state(app_name=APP, user_id=USER),
        await service.get_user_state(app_name=APP, user_id="nobody"),
    ]
    with pytest.raises(AlreadyExistsError):
        await service.create_session(app_name=APP, user_id=USER, session_id=SESSION)
    for user_id in (USER, "bob", "nobody", None):
        listed = await service.list_sessions(app_name=APP, user_id=user_id)
        seen.append(sorted((one.user_id, "second" if one.id == second.id else one.id) for one in listed.sessions))
    await service.delete_session(app_name=APP, user_id="bob", session_id=SESSION)  # not bob's
    await service.delete_session(app_name=APP, user_id=USER, session_id="none")
    seen.append(await service.get_session(app_name=APP, user_id=USER, session_id=SESSION) is not None)
    await service.delete_session(app_name=APP, user_id=USER, session_id=SESSION)
    seen.append(await service.get_session(app_name=APP, user_id=USER, session_id=SESSION))
    return seen


async def test_it_does_what_adk_does(tmp_path: Path) -> None:
    expected = await _exercise(InMemorySessionService())
    async with DurableSessionService(address_in(tmp_path)) as service:
        assert await _exercise(service) == expected


async def test_an_id_is_taken_for_everybody(tmp_path: Path) -> None:
    async with DurableSessionService(address_in(tmp_path)) as service:
        await service.create_session(app_name=APP, user_id=USER, session_id=SESSION)
        with pytest.raises(SessionIdTaken) as taken:
            await service.create_session(app_name=APP, user_id="bob", session_id=SESSION)
        assert isinstance(taken.value, AlreadyExistsError)
        assert isinstance(taken.value, SessionAlreadyExists)


async def test_what_cannot_be_is_refused(tmp_path: Path) -> None:
    async with DurableSessionService(address_in(tmp_path)) as service:
        with pytest.raises(ValueNotStorable, match="cart"):
            await service.create_session(app_name=APP, user_id=USER, state={"cart": object()})
        with pytest.raises(UsageError):
            await service.create_session(app_name=APP, user_id=USER, session_id="a\nb")
        assert (await service.list_sessions(app_name=APP)).sessions == []


@pytest.mark.parametrize(
    "config",
    [
        GetSessionConfig(num_recent_events=0),
        GetSessionConfig(num_recent_events=3),
        GetSessionConfig(num_recent_events=99),
        GetSessionConfig(),
    ],
    ids=str,
)
async def test_recent_events(config: GetSessionConfig, tmp_path: Path) -> None:
    expected = Talk(plain(agents.worker()))
    await expected.start()
    await expected.say("go")
    scope: dict[str, Any] = {"app_name": APP, "user_id": USER, "session_id": SESSION, "config": config}
    theirs = await expected.runner.session_service.get_session(**scope)
    async with durable(agents.worker(), tmp_path) as runner:
        talk = Talk(runner)
        await talk.start()
        await talk.say("go")
        ours = await runner.session_service.get_session(**scope)
    assert ours is not None
    assert theirs is not None
    assert comparable(ours.events) == comparable(theirs.events)


async def test_events_after_a_moment(tmp_path: Path) -> None:
    async with durable(agents.worker(), tmp_path) as runner:
        talk = Talk(runner)
        await talk.start()
        await talk.say("go")
        events, _ = await talk.session()
        later = await runner.session_service.get_session(
            app_name=APP,
            user_id=USER,
            session_id=SESSION,
            config=GetSessionConfig(after_timestamp=events[2].timestamp, num_recent_events=2),
        )
        assert later is not None
        assert later.events == events[-2:]


async def test_the_last_changed_session_is_the_last_of_the_list(tmp_path: Path) -> None:
    async with durable(agents.talker(), tmp_path) as runner:
        service = runner.session_service
        for session_id in (SESSION, "s2"):
            await service.create_session(app_name=APP, user_id=USER, session_id=session_id)
        await Talk(runner).say("go")
        listed = (await service.list_sessions(app_name=APP, user_id=USER)).sessions
        assert [one.id for one in listed] == ["s2", SESSION]
        assert [one.last_update_time for one in listed] == sorted(one.last_update_time for one in listed)


async def test_a_process_without_the_agent_reads_and_prepares_sessions(tmp_path: Path) -> None:
    """Nothing but the address: the state that it gives a session is what the agent sees."""
    async with DurableSessionService(address_in(tmp_path), flow_types={APP: "Support"}) as service:
        await service.create_session(app_name=APP, user_id=USER, session_id=SESSION, state={"app:motd": "hi", "a": 1})
        async with durable(agents.talker(), tmp_path, flow_type="Support") as runner:
            await Talk(runner).say("go")
        session = await service.get_session(app_name=APP, user_id=USER, session_id=SESSION)
        assert session is not None
        assert session.state == {"app:motd": "hi", "a": 1}
        assert [event.author for event in session.events] == ["user", "talker"]


async def test_a_memory_service_takes_a_durable_session(tmp_path: Path) -> None:
    memory = InMemoryMemoryService()
    async with durable(agents.talker(), tmp_path, memory_service=memory) as runner:
        talk = Talk(runner)
        await talk.start()
        await talk.say("go")
        session = await runner.session_service.get_session(app_name=APP, user_id=USER, session_id=SESSION)
        assert session is not None
        await memory.add_session_to_memory(session)
        found = await memory.search_memory(app_name=APP, user_id=USER, query="Ann")
        assert len(found.memories) == 1
