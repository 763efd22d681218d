"""The live stream: in order, whole, and the same for every reader, whenever and wherever it joins."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable

import pytest
from google.adk.tools.function_tool import FunctionTool
from tests.field.lives import GO_ON, Hold, life
from tests.field.support import (
    PATIENCE,
    READ,
    SESSION,
    Field,
    answer_all,
    at_rest,
    events_until,
    messages_of,
    say,
    steps_of,
)

from perdure import AgentEvent, AgentEventType, AgentSessionClient, AgentSessionFlow, SessionStatus
from perdure.session.model import PASSING_EVENTS
from perdure.testing import Gate, Script, call, failing, reply, text, thought

STORY = "Once upon a time there was a teapot."
Kind = AgentEventType


def look() -> str:
    """Looks."""
    return "seen"


def telling(field: Field, script: Script) -> AgentSessionFlow:
    return field.flow(script, [look], {"look": READ})


def deltas(events: Iterable[AgentEvent], kind: AgentEventType = Kind.TEXT_DELTA) -> list[AgentEvent]:
    return [event for event in events if event.type is kind]


def spoken(events: Iterable[AgentEvent]) -> str:
    return "".join(event.text or "" for event in deltas(events))


async def whole_stream(client: AgentSessionClient) -> list[AgentEvent]:
    """What the store holds in the end."""
    return await events_until(client, Kind.TURN_COMPLETED)


# ---------------------------------------------------------------- one reader


async def test_events_come_in_the_order_of_what_they_tell(field: Field) -> None:
    script = [reply(thought("Hm, let me see.", chunks=2), call("look")), text(STORY, chunks=4)]
    async with field.working(telling(field, script)) as client:
        await say(client, "go")
        events = await whole_stream(client)
        assert [event.type for event in events] == [
            Kind.TURN_STARTED,
            Kind.MESSAGE,
            Kind.REASONING_DELTA,
            Kind.REASONING_DELTA,
            Kind.FRAMEWORK_EVENT,
            Kind.MESSAGE,
            Kind.TOOL_CALL_STARTED,
            Kind.TOOL_CALL_FINISHED,
            Kind.MESSAGE,
            *[Kind.TEXT_DELTA] * 4,
            Kind.MESSAGE,
            Kind.TURN_COMPLETED,
        ]
        assert [event.cursor for event in events] == sorted({event.cursor for event in events})
        first, second = [step for step in await steps_of(client) if step.name.value == "RunModel"]
        reasoning = deltas(events, Kind.REASONING_DELTA)
        assert "".join(event.text or "" for event in reasoning) == "Hm, let me see."
        assert {(event.step_execution_id, event.attempt) for event in reasoning} == {(first.step_id, 1)}
        assert spoken(events) == STORY
        assert {(event.step_execution_id, event.attempt) for event in deltas(events)} == {(second.step_id, 1)}
        assert {event.turn_id for event in events} == {first.turn_id}
        shown = [event for event in events if event.type is Kind.MESSAGE]
        stored = await messages_of(client)
        assert [(e.data["index"], e.data["framework_item"]) for e in shown] == [
            (m.index, m.framework_item) for m in stored
        ]
        started, finished = events[6], events[7]
        asked: dict[str, object] = {"tool_name": "look", "tool_call_id": stored[1].tool_call_id, "arguments": {}}
        assert (started.data, finished.data) == (asked, {**asked, "status": "succeeded"})


async def test_a_model_retry_streams_under_the_next_attempt_number(field: Field) -> None:
    script = failing(503, times=1, after_chunks=2, then=text(STORY, chunks=4))
    async with field.working(telling(field, script)) as client:
        await say(client, "go")
        found = deltas(await whole_stream(client))
        assert [event.attempt for event in found] == [1, 1, 2, 2, 2, 2]
        assert len({event.step_execution_id for event in found}) == 1
        assert "".join(event.text or "" for event in found if event.attempt == 2) == STORY


async def test_a_message_in_the_stream_is_the_message_in_the_log_also_for_later_readers(field: Field) -> None:
    """The stream tells of interrupts with the whole interrupt, and of turns with the whole turn."""
    tools = [FunctionTool(look, require_confirmation=True)]
    async with field.working(field.flow([call("look"), text("Done.")], tools, {"look": READ})) as client:
        snapshot = await say(client, "go")
        (interrupt,) = snapshot.pending_interrupts
        events = await events_until(client, Kind.TURN_SUSPENDED)
        (requested,) = [event for event in events if event.type is Kind.INTERRUPT_REQUESTED]
        assert requested.data == interrupt.model_dump(mode="json")
        assert events[-1].data["status"] == "waiting"
        snapshot = await answer_all(client)
        assert snapshot.turn is not None
        events = await whole_stream(client)
        assert events[-1].data == snapshot.turn.model_dump(mode="json")


# ---------------------------------------------------------------- late, again, elsewhere


async def test_a_reader_that_joins_in_the_middle_of_a_sentence_gets_all_of_it(field: Field) -> None:
    gate = Gate()
    async with field.working(telling(field, text(STORY, chunks=6).held(gate, after_chunks=3))) as client:
        early = asyncio.create_task(events_until(client, Kind.TURN_COMPLETED)) if await start(client) else None
        await gate.wait_arrived()
        late = asyncio.create_task(events_until(client, Kind.TURN_COMPLETED))
        seen = await three_deltas(client)
        gate.open()
        assert early is not None
        assert spoken(await early) == spoken(await late) == STORY
        assert await early == await late == await whole_stream(client)
        rest = await events_until(client, Kind.TURN_COMPLETED, after=seen[-1].cursor)
        assert [*seen, *rest] == await early


async def start(client: AgentSessionClient) -> bool:
    await client.start_session(SESSION, "go")
    return True


async def three_deltas(client: AgentSessionClient) -> list[AgentEvent]:
    """A reader that leaves after the third delta."""
    events: list[AgentEvent] = []
    async with asyncio.timeout(PATIENCE):
        async for event in client.stream_events(SESSION):
            events.append(event)
            if len(deltas(events)) == 3:
                break
    return events


async def test_every_cursor_leads_to_exactly_the_rest(field: Field) -> None:
    script = [reply(text("Let me see. ", chunks=3), call("look")), text(STORY, chunks=4)]
    async with field.working(telling(field, script)) as client:
        await say(client, "go")
        events = await whole_stream(client)
        for number, event in enumerate(events[:-1]):
            rest = await events_until(client, Kind.TURN_COMPLETED, after=event.cursor)
            assert rest == events[number + 1 :]


async def test_a_reader_that_reconnects_after_each_event_misses_nothing(field: Field) -> None:
    """While the turn runs: each reconnect is at another moment of it."""
    script = [reply(text("Let me see. ", chunks=9), call("look")), text(STORY, chunks=9)]
    async with field.working(telling(field, script)) as client:
        await client.start_session(SESSION, "go")
        events: list[AgentEvent] = []
        async with asyncio.timeout(PATIENCE):
            while not events or events[-1].type is not Kind.TURN_COMPLETED:
                stream = client.stream_events(SESSION, after=events[-1].cursor if events else None)
                events.append(await anext(stream))
                await aclose(stream)
        assert events == await whole_stream(client)
        assert spoken(events) == f"Let me see. {STORY}"


async def aclose(stream: AsyncIterator[AgentEvent]) -> None:
    await stream.aclose()  # type: ignore[attr-defined]  # it is an async generator


async def test_readers_come_and_go_and_change_nothing(field: Field) -> None:
    async with field.working(telling(field, text(STORY, chunks=20))) as client:
        await client.start_session(SESSION, "go")
        for _ in range(30):
            stream = client.stream_events(SESSION)
            await anext(stream)
            await aclose(stream)
        await client.wait(SESSION, timeout=PATIENCE)
        assert spoken(await whole_stream(client)) == STORY


def slow_story(field: Field, hold: Hold) -> AgentSessionFlow:
    """The first life's tool stops after the file ``go`` is asked for; the model then streams many deltas."""

    async def wait_here() -> str:
        """Waits."""
        await hold.here("wait_here")
        return "seen"

    script = [reply(text("Let me see. ", chunks=5), call("wait_here")), text(STORY, chunks=9)]
    return field.flow(script, [wait_here], {"wait_here": READ})


def long_story(field: Field, hold: Hold) -> AgentSessionFlow:
    return telling(field, [reply(text("Let me see. ", chunks=9), call("look")), text(STORY * 3, chunks=40)])


async def test_a_reader_in_another_process_gets_the_same_stream(field: Field) -> None:
    """The worker is a child; two readers here, one of which reconnects all the time."""
    async with field.asking() as client, field.asking() as other:
        with life(long_story, field) as child:
            await child.wait_for_async("ready")
            await client.start_session(SESSION, "go")
            steady = asyncio.create_task(events_until(client, Kind.TURN_COMPLETED))
            events: list[AgentEvent] = []
            async with asyncio.timeout(PATIENCE):
                while not events or events[-1].type is not Kind.TURN_COMPLETED:
                    stream = other.stream_events(SESSION, after=events[-1].cursor if events else None)
                    events.append(await anext(stream))
                    await aclose(stream)
            assert events == await steady == await whole_stream(client)
            assert spoken(events) == "Let me see. " + STORY * 3


async def test_a_reader_follows_over_the_death_of_the_worker(field: Field) -> None:
    """What the dead worker showed stays, what the next one shows comes behind it; nothing but deltas may be missing."""
    async with field.asking() as client:
        with life(slow_story, field) as child:
            await client.start_session(SESSION, "go")
            reader = asyncio.create_task(events_until(client, Kind.TURN_COMPLETED))
            await child.wait_for_async("in wait_here")
            child.kill()
        async with field.working(slow_story(field, GO_ON)) as worker:
            snapshot = await at_rest(worker, SessionStatus.IDLE)
            events = await reader
            assert events == await whole_stream(worker)
        assert snapshot.turn is not None
        kinds = [event.type for event in events if event.type not in PASSING_EVENTS]
        assert kinds == [
            Kind.TURN_STARTED,
            Kind.MESSAGE,
            Kind.MESSAGE,
            Kind.TOOL_CALL_STARTED,
            Kind.TOOL_CALL_STARTED,
            Kind.TOOL_CALL_FINISHED,
            Kind.MESSAGE,
            Kind.MESSAGE,
            Kind.TURN_COMPLETED,
        ]
        assert [event.attempt for event in events if event.type is Kind.TOOL_CALL_STARTED] == [1, 2]
        assert [event.cursor for event in events] == sorted({event.cursor for event in events})
        assert spoken(events) == f"Let me see. {STORY}", "a recorded model call does not stream again"


def dying_in_the_model(field: Field, hold: Hold) -> AgentSessionFlow:
    """The first life stops in the middle of the answer."""
    story = text(STORY, chunks=6)
    return telling(field, story.held(_Says(), after_chunks=3) if hold.holds else story)


class _Says(Gate):
    """A gate that never opens, and says that somebody has come to it."""

    async def pass_through(self) -> None:
        print("in the model", flush=True)
        await super().pass_through()


async def test_a_model_call_that_died_streams_again_under_a_higher_attempt_number(field: Field) -> None:
    """A reader can tell the second telling from the first, and throw the first away."""
    async with field.asking() as client:
        with life(dying_in_the_model, field) as child:
            await client.start_session(SESSION, "go")
            await child.wait_for_async("in the model")
            seen = await three_deltas(client)
            child.kill()
        async with field.working(dying_in_the_model(field, GO_ON)) as worker:
            await at_rest(worker, SessionStatus.IDLE)
            events = await whole_stream(worker)
    assert events[: len(seen)] == seen
    found = deltas(events)
    assert len({event.step_execution_id for event in found}) == 1
    first, second = sorted({event.attempt or 0 for event in found})
    assert first == 1
    assert spoken(event for event in found if event.attempt == second) == STORY


@pytest.mark.parametrize("capacity", [2_000])
async def test_a_reader_that_was_away_too_long_is_told_so(field: Field, capacity: int) -> None:
    """The stream is for watching and has a budget; the messages are the record."""
    from perdure import EventCursorExpired

    flow = field.flow(text(STORY, chunks=9), event_stream_capacity_bytes=capacity)
    async with field.working(flow) as client:
        await client.start_session(SESSION, "go")
        first = await anext(client.stream_events(SESSION))
        await client.wait(SESSION, timeout=PATIENCE)
        for _ in range(3):
            await say(client, "go")
        with pytest.raises(EventCursorExpired) as refusal:
            await anext(client.stream_events(SESSION, after=first.cursor))
        oldest = await anext(client.stream_events(SESSION))
        assert refusal.value.facts["oldest"] == oldest.cursor
        assert len(await messages_of(client)) == 8
