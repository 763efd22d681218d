"""What a session leaves in Temporal's history: ids and small facts, as much for the last turn as for the first."""

from __future__ import annotations

import asyncio

from temporalio.client import WorkflowExecutionStatus
from tests.support.play import Play, PlayCall
from tests.temporal.conftest import BRIEFLY, Playhouse, events_of, workflow_of

from perdure import AgentSessionClient, Engine, SessionStatus, TurnStatus
from perdure.engine.temporal.host import TAKE_ALONG
from perdure.engine.temporal.wire import POKE, REPORT

SECRET = "the customer's secret"
BIG = SECRET * 50_000


async def big(call_id: str, attempt: int) -> object:
    return BIG


async def small(call_id: str, attempt: int) -> object:
    """Takes long enough to need an activity of its own."""
    await asyncio.sleep(1.5 * TAKE_ALONG.total_seconds())
    return "x"


async def slow(call_id: str, attempt: int) -> object:
    """Lets a turn take longer than the second that Temporal's server leaves between two runs of a workflow."""
    await asyncio.sleep(0.3)
    return "x"


async def test_j17_nothing_that_a_user_a_model_or_a_tool_said_goes_into_the_history(house: Playhouse) -> None:
    async def script(play: Play) -> None:
        await play.model("m1", BIG)
        await play.tools("m1", {"c1": PlayCall("look", big), "c2": PlayCall("look", big)})
        play.say(BIG)
        raise RuntimeError(BIG)

    flow = house.flow(script)
    async with house.engine(flow, options=BRIEFLY) as engine, engine.worker():
        client = AgentSessionClient(engine, flow)
        await client.start_session("s", f"hello, this is {SECRET}")
        snapshot = await client.wait("s", timeout=30)
        assert snapshot.error is not None
        assert SECRET in snapshot.error.message
        handle = workflow_of(engine, "s")
        await handle.result()
        history = await handle.fetch_history()
    assert SECRET not in history.to_json()
    assert sum(event.ByteSize() for event in history.events) < 10_000


async def test_a_history_grows_with_the_calls_and_in_step_with_them(house: Playhouse) -> None:
    """5, then 10 calls, one after the other and at once: each of them costs the same, however many there are."""
    sizes: dict[str, tuple[int, int]] = {}

    async def script(play: Play) -> None:
        shape, count = play.start.message.text.split()
        if shape == "at-once":
            await play.model("m")
            await play.tools("m", {f"c{n}": PlayCall("look", small) for n in range(int(count))})
            return
        for n in range(int(count)):
            await play.model(f"m{n}")
            await play.tools(f"m{n}", {f"c{n}": PlayCall("look", small)})

    flow = house.flow(script)
    async with house.engine(flow, options=BRIEFLY) as engine, engine.worker():
        client = AgentSessionClient(engine, flow)
        await client.start_session("s")
        for text in ("in-turn 5", "in-turn 10", "at-once 5", "at-once 10"):
            await client.send_user_message("s", text)
            snapshot = await client.wait("s", timeout=60)
            assert snapshot.turn is not None
            assert snapshot.turn.status is TurnStatus.COMPLETED
            handle = workflow_of(engine, "s")
            await handle.result()
            events = (await handle.fetch_history()).events
            sizes[text] = (len(events), sum(event.ByteSize() for event in events))
    for shape, most in (("in-turn", 12), ("at-once", 7)):
        (few_events, few_bytes), (many_events, many_bytes) = sizes[f"{shape} 5"], sizes[f"{shape} 10"]
        assert (many_events - few_events) / 5 <= most, "events for one call and what belongs to it"
        assert (many_bytes - few_bytes) / 5 < 3_000, "bytes likewise"


async def test_a_long_history_is_cut_at_quiet_points_and_the_session_does_not_notice(house: Playhouse) -> None:
    async def script(play: Play) -> None:
        for n in range(5):
            await play.model(f"m{n}")
            await play.tools(f"m{n}", {f"c{n}": PlayCall("look", slow)})
        await play.ask("q")
        play.say("done")

    flow = house.flow(script)
    async with house.engine(flow, options=BRIEFLY, events_per_run=10) as engine, engine.worker():
        client = AgentSessionClient(engine, flow)
        await client.start_session("s", "hello")
        for number in (1, 2):
            snapshot = await client.wait("s", timeout=30)
            (asked,) = snapshot.pending_interrupts
            await client.answer_question("s", asked.interrupt_id, "yes")
            if number == 1:
                await client.send_user_message("s", "once more")
        assert (await client.wait("s", timeout=30)).status is SessionStatus.IDLE
        handle = workflow_of(engine, "s")
        await handle.result()
        assert (await handle.describe()).status is WorkflowExecutionStatus.COMPLETED
        runs, adoptions, run_id = 0, 0, (await handle.describe()).run_id
        while run_id:
            events = await events_of(engine, "s", run_id)
            assert len(events) < 60
            runs += 1
            ordered = [event.activity_task_scheduled_event_attributes.activity_type.name for event in events]
            adoptions += ordered.count("Adopt")
            run_id = events[0].workflow_execution_started_event_attributes.continued_execution_run_id
    assert runs >= 3
    assert adoptions <= 3, "what begins another run leaves the session where it is"


async def test_a_message_to_a_session_that_a_worker_keeps_is_not_signalled(house: Playhouse) -> None:
    """It hears of it from the store: nothing is adopted or looked at, and the workflow is told what came of it."""

    async def script(play: Play) -> None:
        await play.model("m")
        play.say("done")

    flow = house.flow(script)
    async with house.engine(flow) as engine, engine.worker():
        client = AgentSessionClient(engine, flow)
        await client.start_session("s", "hello")
        await client.wait("s", timeout=60)
        for _ in range(5):
            await client.send_user_message("s", "and")
            await client.wait("s", timeout=60)
        while REPORT not in (signals := await signals_to(engine)):  # noqa: ASYNC110 - Temporal tells nobody
            await asyncio.sleep(0.01)
        events = await events_of(engine, "s")
    ordered = [event.activity_task_scheduled_event_attributes.activity_type.name for event in events]
    assert (signals.count(POKE), ordered.count("Adopt"), ordered.count("Look")) == (1, 1, 0)


async def signals_to(engine: Engine) -> list[str]:
    """The names of the signals in the history of a session."""
    events = await events_of(engine, "s")
    return [event.workflow_execution_signaled_event_attributes.signal_name for event in events]
