"""The live stream: whoever watches, from wherever, sees every event once and in order."""

from __future__ import annotations

import asyncio

from google.adk.agents.callback_context import CallbackContext
from google.adk.models.llm_request import LlmRequest

from perdure.client import AgentSessionClient
from perdure.errors import EventCursorExpired, SessionNotFound, UsageError
from perdure.session.model import PASSING_EVENTS, AgentEvent, AgentEventType
from perdure.session.runner import AgentSessionFlow
from perdure.testing.conformance.case import case
from perdure.testing.conformance.checks import holds, refused, same
from perdure.testing.conformance.recording import read_events
from perdure.testing.conformance.stage import PATIENCE, Stage
from perdure.testing.conformance.world import ASKED, READ, World
from perdure.testing.replies import call, reply, text, thought


def speaker(world: World) -> AgentSessionFlow:
    """Thinks, looks and says much; before it speaks it can be stopped."""

    async def stop(callback_context: CallbackContext, llm_request: LlmRequest) -> None:
        if len(llm_request.contents) > 1:
            await world.stop_at("speaking")

    def look() -> str:
        """Looks."""
        world.note("look")
        return "seen"

    script = [
        reply(thought("Let me think."), call("look")),
        reply(thought("I see."), text("This is a long answer in many pieces.", chunks=8)),
    ]
    return world.flow(world.agent(script, [look], before_model_callback=stop), {"look": READ})


async def _follow(client: AgentSessionClient, session_id: str, after: str | None = None) -> list[AgentEvent]:
    """Watches until the turn has ended."""
    seen: list[AgentEvent] = []
    stream = client.stream_events(session_id, after=after)
    async with asyncio.timeout(PATIENCE):
        async for event in stream:
            seen.append(event)
            if event.type is AgentEventType.TURN_COMPLETED:
                break
    await stream.aclose()
    return seen


async def _all(stage: Stage) -> list[AgentEvent]:
    """All that the store holds."""
    snapshot = await stage.idle()
    return await read_events(stage.client, stage.session(), snapshot.cursor)


def _lasting(events: list[AgentEvent]) -> list[str]:
    return [event.cursor for event in events if event.type not in PASSING_EVENTS]


def _in_order(events: list[AgentEvent]) -> None:
    cursors = [event.cursor for event in events]
    same("no event is doubled, and all are in order", cursors, sorted(set(cursors)))


@case("streams/live", "Who watches live sees what is stored, in the same order.", speaker)
async def live(stage: Stage) -> None:
    await stage.start(None)
    stage.world.open("speaking")
    watching = asyncio.create_task(_follow(stage.client, stage.session()))
    await stage.send("go")
    seen = await watching
    _in_order(seen)
    same("seen and stored", seen, (await _all(stage))[: len(seen)])
    said = "".join(event.text or "" for event in seen if event.type is AgentEventType.TEXT_DELTA)
    same("the words", said, "This is a long answer in many pieces.")


@case(
    "streams/reconnects",
    "A reader that comes back with its last cursor misses nothing and sees nothing twice.",
    speaker,
)
async def reconnects(stage: Stage) -> None:
    stage.world.open("speaking")
    await stage.start()
    seen: list[AgentEvent] = []
    while not seen or seen[-1].type is not AgentEventType.TURN_COMPLETED:
        stream = stage.client.stream_events(stage.session(), after=seen[-1].cursor if seen else None)
        seen.append(await asyncio.wait_for(anext(stream), PATIENCE))
        await stream.aclose()
    _in_order(seen)
    same("seen and stored", _lasting(seen), _lasting(await _all(stage)))


@case("streams/elsewhere", "A reader in another process sees the same.", speaker, served=False)
async def elsewhere(stage: Stage) -> None:
    stage.world.open("speaking")
    with stage.process() as worker:
        await stage.up(worker)
        await stage.start(None)
        watching = asyncio.create_task(_follow(stage.client, stage.session()))
        await stage.send("go")
        seen = await watching
    _in_order(seen)
    async with stage.elsewhere() as other:
        again = await _follow(other, stage.session())
    same("two readers", _lasting(again), _lasting(seen))
    said = "".join(event.text or "" for event in again if event.type is AgentEventType.TEXT_DELTA)
    same("the words", said, "This is a long answer in many pieces.")


@case(
    "streams/over-a-crash",
    "A reader goes on over a worker's death; nothing that lasts is lost or doubled.",
    speaker,
    served=False,
)
async def over_a_crash(stage: Stage) -> None:
    await stage.start(None)
    watching = asyncio.create_task(_follow(stage.client, stage.session()))
    with stage.process() as doomed:
        await stage.up(doomed)
        await stage.send("go")
        await stage.reached("speaking")
        async with stage.worker():
            doomed.kill()
            stage.world.open("speaking")
            seen = await watching
            _in_order(seen)
            same("seen and stored", _lasting(seen), _lasting(await _all(stage)))


@case("streams/from-a-snapshot", "A snapshot's cursor is the moment from which to watch on.", speaker)
async def from_a_snapshot(stage: Stage) -> None:
    await stage.start()
    await stage.reached("speaking")
    snapshot = await stage.client.get_agent_snapshot(stage.session())
    watching = asyncio.create_task(_follow(stage.client, stage.session(), snapshot.cursor))
    stage.world.open("speaking")
    seen = await watching
    stored = [event for event in await _all(stage) if snapshot.cursor is None or event.cursor > snapshot.cursor]
    same("what came after it", _lasting(seen), _lasting(stored))
    holds("it is not the beginning", seen[0].type is not AgentEventType.TURN_STARTED)


@case("streams/wrong-cursors", "What is no cursor is refused; a session that is not there has no stream.", speaker)
async def wrong_cursors(stage: Stage) -> None:
    stage.world.open("speaking")
    await stage.start()
    await stage.idle()
    with refused(UsageError):
        await anext(stage.client.stream_events(stage.session(), after="no cursor"))
    with refused(SessionNotFound):
        await anext(stage.client.stream_events(stage.session("nowhere")))
    stage.forget("nowhere")


def small(world: World) -> AgentSessionFlow:
    """A stream that keeps little."""
    words = "many words " * 40
    return world.flow(world.agent(text(words, chunks=20)), event_stream_capacity_bytes=4096)


@case(
    "streams/capacity", "A stream keeps what fits; who comes too late is told, and can read on from the oldest.", small
)
async def capacity(stage: Stage) -> None:
    await stage.start()
    snapshot = await stage.idle()
    first = snapshot.cursor
    for _ in range(12):
        await stage.send("more")
        await stage.idle()
    with refused(EventCursorExpired):
        await anext(stage.client.stream_events(stage.session(), after=first))
    kept = await _all(stage)
    _in_order(kept)
    holds("the newest is kept", kept[-1].type is AgentEventType.TURN_COMPLETED)
    holds("the oldest is not", kept[0].type is not AgentEventType.TURN_STARTED or kept[0].data["number"] > 1)
    same("messages are all kept", len(await stage.messages()), 26)
    stage.leave_out("s")


def asker(world: World) -> AgentSessionFlow:
    """Waits for approval."""

    def pay() -> str:
        """Pays."""
        return "paid"

    return world.flow(world.agent([call("pay"), text("Done.")], [pay]), {"pay": ASKED})


@case(
    "streams/waits",
    "The stream tells of what is asked and answered, and of the turn that stands still meanwhile.",
    asker,
)
async def waits(stage: Stage) -> None:
    await stage.start()
    (asked,) = await stage.asked()
    seen = await stage.events_until(AgentEventType.TURN_SUSPENDED)
    holds("it is asked", AgentEventType.INTERRUPT_REQUESTED in [event.type for event in seen])
    await stage.decide(asked, True, resolved_by="ann")
    await stage.idle()
    after = await stage.events_until(AgentEventType.TURN_COMPLETED, after=seen[-1].cursor)
    resolved = [event for event in after if event.type is AgentEventType.INTERRUPT_RESOLVED]
    same("who answered", [event.data["resolved_by"] for event in resolved], ["ann"])
