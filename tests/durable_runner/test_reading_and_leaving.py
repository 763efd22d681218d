"""Who reads a run may leave, join, queue up or stop it; the turn itself is the session's."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncGenerator
from contextlib import aclosing
from pathlib import Path
from typing import Any

import pytest
from google.adk.agents import LlmAgent
from google.adk.events.event import Event
from google.genai import types
from tests.durable_runner import agents
from tests.durable_runner.support import (
    APP,
    SESSION,
    SSE,
    USER,
    Talk,
    address_in,
    durable,
    one_is_queued,
    plain,
    text_of,
    words,
)
from tests.field.lives import GO_ON, Hold, life
from tests.field.support import READ, Field, until
from tests.field.support import SESSION as FIELD_SESSION

from perdure import (
    AgentSessionClient,
    AgentSessionFlow,
    AgentSnapshot,
    SessionBlocked,
    SessionClosed,
    SessionStatus,
    TurnNotFound,
)
from perdure.adk import DurableRunner, NoSuchSession, RecordedError, WrongCall
from perdure.testing import Gate, ScriptedModel, by_turn, call, reply, text


def held(gate: Gate) -> LlmAgent:
    """Tells a story that stops in the middle until the gate opens; then, in the next turn, another one."""
    script = by_turn([text("Once upon a time.", chunks=4).held(gate, after_chunks=2)], [text("The end.")])
    return LlmAgent(name="teller", model=ScriptedModel(script), instruction="Tell.")


async def test_a_reader_that_leaves_does_not_stop_the_turn(tmp_path: Path) -> None:
    gate = Gate()
    async with durable(held(gate), tmp_path) as runner:
        talk = Talk(runner)
        await talk.start()
        call: dict[str, Any] = {"user_id": USER, "session_id": SESSION}
        async with aclosing(runner.run_async(**call, new_message=words("go"), run_config=SSE)) as run:
            first = await anext(run)
            assert first.partial
        gate.open()
        await (await runner.sessions()).wait(SESSION)
        assert text_of((await talk.session())[0]) == ["go", "Once upon a time."]


async def test_a_cancelled_reader_does_not_stop_the_turn(tmp_path: Path) -> None:
    gate = Gate()
    async with durable(held(gate), tmp_path) as runner:
        talk = Talk(runner)
        await talk.start()
        said = asyncio.create_task(talk.say("go"))
        await gate.wait_arrived()
        said.cancel()
        with pytest.raises(asyncio.CancelledError):
            await said
        gate.open()
        await (await runner.sessions()).wait(SESSION)
        assert text_of((await talk.session())[0]) == ["go", "Once upon a time."]


async def test_a_turn_may_be_joined_while_it_runs(tmp_path: Path) -> None:
    gate = Gate()
    async with durable(held(gate), tmp_path) as runner:
        talk = Talk(runner)
        await talk.start()
        said = asyncio.create_task(talk.say("go"))
        await gate.wait_arrived()
        snapshot = await _begun(await runner.sessions())
        assert snapshot.turn is not None
        joined = runner.run_async(user_id=USER, session_id=SESSION, invocation_id=snapshot.turn.turn_id)
        reader = asyncio.create_task(_all(joined))
        gate.open()
        assert text_of(await reader) == text_of(await said) == ["Once upon a time."]
        again = runner.run_async(user_id=USER, session_id=SESSION, invocation_id=snapshot.turn.turn_id)
        assert await _all(again) == [], "it has ended, and nothing more comes of it"


async def _begun(sessions: AgentSessionClient) -> AgentSnapshot:
    """The session once its turn is on disk, for which the turn itself does not wait."""

    async def begun() -> bool:
        return (await sessions.get_agent_snapshot(SESSION)).turn is not None

    await until(begun)
    return await sessions.get_agent_snapshot(SESSION)


async def _all(run: AsyncGenerator[Event, None]) -> list[Event]:
    return [event async for event in run]


async def test_a_second_run_waits_for_its_turn_and_sees_only_its_own(tmp_path: Path) -> None:
    gate = Gate()
    async with durable(held(gate), tmp_path) as runner:
        first, second = Talk(runner, SSE), Talk(runner, SSE)
        await first.start()
        one = asyncio.create_task(first.say("go"))
        await gate.wait_arrived()
        two = asyncio.create_task(second.say("and then?"))
        sessions = await runner.sessions()
        await one_is_queued(sessions)
        gate.open()
        assert text_of(await one) == ["Once upon a time."]
        assert text_of(await two) == ["The end."]
        assert text_of((await first.session())[0]) == ["go", "Once upon a time.", "and then?", "The end."]


async def test_an_abort_signal_cancels_the_turn(tmp_path: Path) -> None:
    """As on plain ADK the run ends with an event that says so, and no exception."""
    gate, stop = Gate(), asyncio.Event()
    async with durable(held(gate), tmp_path) as runner:
        talk = Talk(runner)
        await talk.start()
        said = asyncio.create_task(talk.say("go", abort_signal=stop))
        await gate.wait_arrived()
        stop.set()
        events = await said
        assert talk.failures == [None]
        plain_events = await _aborted_on_plain_adk()
        assert [(e.author, e.error_code, e.error_message, e.content) for e in events] == plain_events
        snapshot = await (await runner.sessions()).wait(SESSION)
        assert snapshot.status is SessionStatus.IDLE
        assert text_of(await talk.say("and then?")) == ["The end."]


async def _aborted_on_plain_adk() -> list[object]:
    gate, stop = Gate(), asyncio.Event()
    talk = Talk(plain(held(gate)))
    await talk.start()
    said = asyncio.create_task(talk.say("go", abort_signal=stop))
    await gate.wait_arrived()
    stop.set()
    return [(e.author, e.error_code, e.error_message, e.content) for e in await said]


async def test_a_call_that_an_abort_cut_off_has_its_result(tmp_path: Path) -> None:
    entered, stop = asyncio.Event(), asyncio.Event()

    async def hang() -> str:
        """Hangs."""
        entered.set()
        await asyncio.Event().wait()
        return ""

    agent = LlmAgent(name="a", model=ScriptedModel([call("hang"), text("never")]), instruction="Go.", tools=[hang])
    async with durable(agent, tmp_path) as runner:
        talk = Talk(runner)
        await talk.start()
        said = asyncio.create_task(talk.say("go", abort_signal=stop))
        await entered.wait()
        stop.set()
        *_, result, last = await said
        assert [response.name for response in result.get_function_responses()] == ["hang"]
        assert last.error_code == "INVOCATION_ABORTED"


async def test_what_a_turn_failed_with_is_raised_wherever_it_is_read(tmp_path: Path) -> None:
    expected = Talk(plain(agents.failing_model()))
    await expected.start()
    await expected.say("go")
    async with durable(agents.failing_model(), tmp_path) as runner:
        talk = Talk(runner)
        await talk.start()
        (failed, *_) = await talk.say("go")
    async with durable(agents.failing_model(), tmp_path, worker=False) as runner:
        with pytest.raises(Exception, match="400") as raised:
            await _all(runner.run_async(user_id=USER, session_id=SESSION, invocation_id=failed.invocation_id))
    for error in (talk.failures[0], raised.value):
        assert type(error) is type(expected.failures[0])
        assert vars(error).get("code") == vars(expected.failures[0]).get("code") == 400


async def test_an_exception_of_a_class_that_cannot_be_found_keeps_its_words(tmp_path: Path) -> None:
    class Local(Exception):
        pass

    def refuse(callback_context: object, llm_request: object) -> None:
        raise Local("not today")

    agent = LlmAgent(name="a", model=ScriptedModel([text("hm")]), instruction="Go.", before_model_callback=refuse)
    async with durable(agent, tmp_path) as runner:
        talk = Talk(runner)
        await talk.start()
        await talk.say("go")
        (error,) = talk.failures
        assert isinstance(error, RecordedError)
        assert (str(error), error.type_name) == ("not today", "Local")


async def test_what_is_not_there(tmp_path: Path) -> None:
    async with durable(agents.talker(), tmp_path) as runner:
        talk = Talk(runner)
        await talk.say("go")
        assert isinstance(talk.failures[-1], NoSuchSession)
        assert isinstance(talk.failures[-1], ValueError), "ADK's class"
        await talk.start()
        await talk.say("go", user_id="bob")
        assert isinstance(talk.failures[-1], NoSuchSession), "of another user"
        wrong: list[tuple[dict[str, Any], type[Exception]]] = [
            ({"invocation_id": "e-nothing"}, TurnNotFound),
            ({}, WrongCall),
            ({"state_delta": {"a": 1}}, WrongCall),
        ]
        for given, error in wrong:
            with pytest.raises(error):
                await _all(runner.run_async(user_id=USER, session_id=SESSION, **given))


async def test_a_closed_session_takes_no_message(tmp_path: Path) -> None:
    async with durable(agents.talker(), tmp_path) as runner:
        talk = Talk(runner)
        await talk.start()
        sessions = await runner.sessions()
        await sessions.close_session(SESSION)
        await talk.say("go")
        assert isinstance(talk.failures[-1], SessionClosed)


async def test_a_session_that_is_closed_meanwhile_ends_the_run(tmp_path: Path) -> None:
    async with durable(agents.gated(), tmp_path) as runner:
        talk, queued = Talk(runner), Talk(runner)
        await talk.start()
        await talk.say("go")
        said = asyncio.create_task(queued.say("and then?"))
        sessions = await runner.sessions()
        await one_is_queued(sessions)
        await sessions.close_session(SESSION)
        assert [event.error_code for event in await said] == ["INVOCATION_ABORTED"]


async def test_a_session_that_the_code_does_not_fit_is_an_error(tmp_path: Path) -> None:
    async with durable(agents.gated(), tmp_path) as runner:
        talk = Talk(runner)
        await talk.start()
        await talk.say("go")
    async with durable(agents.talker(), tmp_path) as runner:
        talk = Talk(runner)
        sessions = await runner.sessions()

        async def blocked() -> bool:
            return (await sessions.get_agent_snapshot(SESSION)).status is SessionStatus.BLOCKED

        await until(blocked)
        await talk.say("and then?")
        assert isinstance(talk.failures[-1], SessionBlocked)
        assert (await sessions.get_agent_snapshot(SESSION)).queued_messages == 0


async def test_auto_create_session(tmp_path: Path) -> None:
    async with durable(agents.talker(), tmp_path, auto_create_session=True) as runner:
        talks = [Talk(runner) for _ in range(3)]
        await asyncio.gather(*(talk.say("go") for talk in talks[:1]))
        assert text_of(talks[0].yielded[0]) == ["Who is it?", "Hello Ann."]


async def test_a_message_of_every_kind_reaches_the_model_as_it_is(tmp_path: Path) -> None:
    image = types.Part(inline_data=types.Blob(data=b"\xff\x00picture", mime_type="image/png"))
    link = types.Part(file_data=types.FileData(file_uri="gs://bucket/file.pdf", mime_type="application/pdf"))
    message = types.UserContent(parts=[image, types.Part(text="What is it?"), link, types.Part(text="Say.")])
    model = ScriptedModel([text("A teapot.")])
    agent = LlmAgent(name="a", model=model, instruction="Look.")
    async with durable(agent, tmp_path) as runner:
        talk = Talk(runner)
        await talk.start()
        (event, *_) = await talk.say(message, yield_user_message=True)
        assert event.content == types.Content(role="user", parts=message.parts)
    (request,) = model.requests
    assert request.contents[0].parts == message.parts


# ---------------------------------------------------------------- the turn runs in another process


def _agent(field: Field) -> LlmAgent:
    return field.agent([call("look", what="x"), text("Seen.", chunks=2)], [agents.look])


def _served(field: Field, hold: Hold) -> AgentSessionFlow:
    return field.flow([call("look", what="x"), text("Seen.", chunks=2)], [agents.look], {"look": READ})


async def test_a_process_that_only_reads_gets_the_events_of_another(tmp_path: Path) -> None:
    """`worker=False`: the child runs the turn; partial events come over, too."""
    field = Field(tmp_path)
    with life(_served, field):
        runner = DurableRunner(agent=_agent(field), flow_type="Field", engine=field.address, worker=False)
        async with runner:
            await runner.session_service.create_session(app_name="Field", user_id=USER, session_id=FIELD_SESSION)
            talk = Talk(runner, SSE)
            events = [
                event
                async for event in runner.run_async(
                    user_id=USER, session_id=FIELD_SESSION, new_message=words("go"), run_config=SSE
                )
            ]
    assert talk.yielded == []
    assert [bool(event.partial) for event in events] == [True, False, False, True, True, False]
    assert text_of(events) == ["Seen."]


def _dying(field: Field, hold: Hold) -> AgentSessionFlow:
    """The first life's tool never comes back; the second one's does."""

    async def wait_here() -> str:
        """Waits."""
        await hold.here("wait_here")
        return "seen"

    script = [reply(text("Let me see. ", chunks=3), call("wait_here")), text("There it is.", chunks=2)]
    return field.flow(script, [wait_here], {"wait_here": READ})


async def test_a_run_goes_on_over_the_death_of_the_worker(tmp_path: Path) -> None:
    """Each event comes once, also those that the replay makes again."""
    field = Field(tmp_path)
    runner = DurableRunner(agent=_agent(field), flow_type="Field", engine=field.address, worker=False)
    async with runner:
        await runner.session_service.create_session(app_name="Field", user_id=USER, session_id=FIELD_SESSION)
        call: dict[str, Any] = {"user_id": USER, "session_id": FIELD_SESSION, "run_config": SSE}
        with life(_dying, field) as child:
            run = asyncio.create_task(_all(runner.run_async(**call, new_message=words("go"))))
            await child.wait_for_async("in wait_here")
            child.kill()
        async with field.working(_dying(field, GO_ON)):
            events = await run
    assert text_of(events) == ["Let me see. ", "There it is."]
    assert [bool(event.partial) for event in events] == [True, True, True, True, False, False, True, True, False]
    assert len({event.id for event in events if not event.partial}) == 3


@pytest.mark.usefixtures("every_store")
def test_run_without_an_event_loop(tmp_path: Path) -> None:
    """Scripts have no loop of their own: each call has one, also of the session service."""
    runner = DurableRunner(agent=agents.gated(), app_name=APP, engine=address_in(tmp_path))
    asyncio.run(runner.session_service.create_session(app_name=APP, user_id=USER, session_id=SESSION))
    events = list(runner.run(user_id=USER, session_id=SESSION, new_message=words("go")))
    assert [call.name for event in events for call in event.get_function_calls()][-1] == "adk_request_confirmation"
    asyncio.run(runner.close())
    assert not [thread.name for thread in threading.enumerate() if thread.name.startswith("perdure")]


async def test_run_debug(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    async with durable(agents.talker(), tmp_path) as runner:
        events = await runner.run_debug(["Hello", "Again"])
        assert text_of(events) == ["Who is it?", "Hello Ann.", "Again."]
    assert "talker > " in capsys.readouterr().out
