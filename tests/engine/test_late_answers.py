"""Questions that outlive the turn that asked them: their answers start turns."""

from __future__ import annotations

import asyncio
from datetime import timedelta

import pytest
from tests.engine.conftest import Stage, shape
from tests.support.play import Play, PlayRunner, Script

from perdure import (
    AgentEventType,
    AgentSessionClient,
    InterruptAlreadyResolved,
    InterruptExpired,
    InterruptStatus,
    InterruptWithdrawn,
    SessionClosed,
    SessionStatus,
    TurnStatus,
    UsageError,
)
from perdure.session.model import JsonObject, QuestionAnswer

SOON = timedelta(milliseconds=50)


def render(*, then: asyncio.Event | None = None, fail: bool = False, names: tuple[str, ...] = ("q1",)) -> Script:
    """The first turn asks and does not wait; later ones say what they were told."""

    async def script(play: Play) -> None:
        message = play.start.message
        if play.start.number > 1 or message.text != "render":
            play.say(f"got {[answer.value for answer in message.answers] or message.text}")
            return
        for name in names:
            play.ask_later(name)
        await play.model("m1", "rendering", then.wait() if then is not None else None)
        if fail:
            raise RuntimeError("no more")
        play.say("it is being rendered")

    return script


async def said(client: AgentSessionClient) -> list[str]:
    return [message.text for message in (await client.list_messages("s")).items]


async def test_a_question_stays_listed_while_the_session_is_idle_and_its_answer_starts_a_turn(stage: Stage) -> None:
    flow = stage.flow(render())
    async with stage.engine(flow) as engine, engine.worker():
        client = AgentSessionClient(engine, flow)
        first = await client.start_session("s", "render")
        snapshot = await client.wait("s", timeout=10)
        assert (snapshot.status, snapshot.turn and snapshot.turn.status) == (SessionStatus.IDLE, TurnStatus.COMPLETED)
        (asked,) = snapshot.pending_interrupts
        assert (asked.turn_id, asked.interrupt_id) == (first, f"{first}:q1")
        done = await client.answer_question("s", asked.interrupt_id, {"url": "u"}, resolved_by="ann")
        assert done.status is InterruptStatus.ANSWERED
        snapshot = await client.wait("s", timeout=10)
        assert snapshot.turn is not None
        assert (snapshot.status, snapshot.turn.number, snapshot.pending_interrupts) == (SessionStatus.IDLE, 2, ())
        assert (await said(client))[-1] == "got [{'url': 'u'}]"
        assert isinstance(flow.runner, PlayRunner)
        starts = flow.runner.starts
        answer = QuestionAnswer(
            question_id="q1", tool_name="ask_q1", value={"url": "u"}, interrupt_id=asked.interrupt_id
        )
        assert (starts[-1].turn_id, starts[-1].message.answers) == (snapshot.turn.turn_id, (answer,))
        lines = await shape(client, "s")
        assert lines[2] == "AwaitAnswer succeeded"
        resolved = await _resolved(client)
        assert (resolved["resolved_by"], resolved["response"]) == ("ann", {"url": "u"})


async def _resolved(client: AgentSessionClient) -> JsonObject:
    """The first answer (or other end of a question) that the stream tells of."""
    async for event in client.stream_events("s"):
        if event.type is AgentEventType.INTERRUPT_RESOLVED:
            return event.data
    raise AssertionError("a stream has no end")


async def test_the_answer_is_idempotent_and_final(stage: Stage) -> None:
    flow = stage.flow(render())
    async with stage.engine(flow) as engine, engine.worker():
        client = AgentSessionClient(engine, flow)
        first = await client.start_session("s", "render")
        await client.wait("s", timeout=10)
        name = f"{first}:q1"
        await asyncio.gather(*(client.answer_question("s", name, 1) for _ in range(8)))
        await client.wait("s", timeout=10)
        await client.answer_question("s", name, 1)
        with pytest.raises(InterruptAlreadyResolved):
            await client.answer_question("s", name, 2)
        snapshot = await client.wait("s", timeout=10)
        assert snapshot.turn is not None
        assert snapshot.turn.number == 2, "one turn came of it"


async def test_an_answer_while_the_turn_still_runs_is_queued(stage: Stage) -> None:
    gate = asyncio.Event()
    flow = stage.flow(render(then=gate))
    async with stage.engine(flow) as engine, engine.worker():
        client = AgentSessionClient(engine, flow)
        first = await client.start_session("s", "render")
        await client.send_user_message("s", "before")
        # The question is stored when the turn next stops to wait, or ends.
        gate.set()
        await client.wait("s", timeout=10)
        await client.answer_question("s", f"{first}:q1", 1)
        await client.wait("s", timeout=10)
        assert await said(client) == [
            "render",
            "it is being rendered",
            "before",
            "got before",
            "",
            "got [{'result': 1}]",
        ]


async def test_an_answer_to_a_running_turn_waits_for_its_end(stage: Stage) -> None:
    async def script(play: Play) -> None:
        if play.start.number == 1:
            play.ask_later("late")
            (answer,) = await play.ask("live")
            play.say(f"live {answer.value['result']}")
        else:
            play.say(f"late {play.start.message.answers[0].value['result']}")

    flow = stage.flow(script)
    async with stage.engine(flow) as engine, engine.worker():
        client = AgentSessionClient(engine, flow)
        first = await client.start_session("s", "go")
        snapshot = await client.wait("s", timeout=10)
        assert [one.tool_call_id for one in snapshot.pending_interrupts] == ["live", "late"]
        await client.answer_question("s", f"{first}:late", 1)
        snapshot = await client.wait("s", timeout=10)
        assert (snapshot.status, snapshot.queued_messages) == (SessionStatus.WAITING, 1)
        await client.answer_question("s", f"{first}:live", 2)
        await client.wait("s", timeout=10)
        assert [text for text in await said(client) if text] == ["go", "live 2", "late 1"]


async def test_resume_starts_one_turn_with_all_answers(stage: Stage) -> None:
    flow = stage.flow(render(names=("q1", "q2")))
    async with stage.engine(flow) as engine, engine.worker():
        client = AgentSessionClient(engine, flow)
        first = await client.start_session("s", "render")
        await client.wait("s", timeout=10)
        with pytest.raises(UsageError, match="q1"):
            await client.resume("s", {f"{first}:q2": 2})
        await client.resume("s", {f"{first}:q2": 2, f"{first}:q1": 1})
        snapshot = await client.wait("s", timeout=10)
        assert snapshot.turn is not None
        assert snapshot.turn.number == 2
        assert (await said(client))[-1] == "got [{'result': 2}, {'result': 1}]"


@pytest.mark.parametrize("served", [True, False], ids=["with a worker", "without one"])
async def test_close_withdraws_what_outlived_its_turn(stage: Stage, served: bool) -> None:
    flow = stage.flow(render())
    async with stage.engine(flow) as engine, engine.worker():
        client = AgentSessionClient(engine, flow)
        first = await client.start_session("s", "render")
        await client.wait("s", timeout=10)
        if served:
            await client.close_session("s")
            await client.wait("s", timeout=10)
    async with stage.engine() as engine:
        client = AgentSessionClient(engine)
        if not served:
            await client.close_session("s")
        snapshot = await client.get_agent_snapshot("s")
        assert (snapshot.status, snapshot.pending_interrupts) == (SessionStatus.CLOSED, ())
        with pytest.raises(InterruptWithdrawn):
            await client.answer_question("s", f"{first}:q1", 1)
        assert "AwaitAnswer withdrawn" in await shape(client, "s")
        assert (await _resolved(client))["status"] == "withdrawn"


@pytest.mark.parametrize("how", ["fail", "cancel"])
async def test_a_turn_that_ends_badly_withdraws_what_it_asked(stage: Stage, how: str) -> None:
    async def script(play: Play) -> None:
        if play.start.number > 1:
            return
        play.ask_later("late")
        await play.ask("live")
        raise RuntimeError("no more")

    flow = stage.flow(script)
    async with stage.engine(flow) as engine, engine.worker():
        client = AgentSessionClient(engine, flow)
        first = await client.start_session("s", "go")
        await client.wait("s", timeout=10)
        if how == "cancel":
            await client.cancel_turn("s")
        else:
            await client.answer_question("s", f"{first}:live", 1)
        snapshot = await client.wait("s", timeout=10)
        assert (snapshot.status, snapshot.pending_interrupts) == (SessionStatus.IDLE, ())
        with pytest.raises(InterruptWithdrawn):
            await client.answer_question("s", f"{first}:late", 1)


async def test_another_turn_that_ends_badly_leaves_it(stage: Stage) -> None:
    async def script(play: Play) -> None:
        if play.start.number == 1:
            play.ask_later("q1")
        elif not play.start.message.answers:
            raise RuntimeError("no more")

    flow = stage.flow(script)
    async with stage.engine(flow) as engine, engine.worker():
        client = AgentSessionClient(engine, flow)
        await client.start_session("s", "go")
        await client.wait("s", timeout=10)
        await client.send_user_message("s", "fail")
        snapshot = await client.wait("s", timeout=10)
        assert snapshot.turn is not None
        assert snapshot.turn.status is TurnStatus.FAILED
        (asked,) = snapshot.pending_interrupts
        await client.answer_question("s", asked.interrupt_id, 1)
        snapshot = await client.wait("s", timeout=10)
        assert snapshot.turn is not None
        assert (snapshot.turn.number, snapshot.turn.status) == (3, TurnStatus.COMPLETED)


async def test_its_deadline_passes_while_the_session_is_idle(stage: Stage) -> None:
    flow = stage.flow(render(), deadline=SOON)
    async with stage.engine(flow) as engine, engine.worker():
        client = AgentSessionClient(engine, flow)
        first = await client.start_session("s", "render")
        assert (await _resolved(client))["status"] == "expired"
        snapshot = await client.get_agent_snapshot("s")
        assert snapshot.turn is not None
        assert (snapshot.status, snapshot.turn.number, snapshot.pending_interrupts) == (SessionStatus.IDLE, 1, ())
        with pytest.raises(InterruptExpired):
            await client.answer_question("s", f"{first}:q1", 1)
        assert "AwaitAnswer expired" in await shape(client, "s")


async def test_its_deadline_passed_while_no_worker_was_up(stage: Stage) -> None:
    flow = stage.flow(render(), deadline=SOON)
    async with stage.engine(flow) as engine, engine.worker():
        client = AgentSessionClient(engine, flow)
        await client.start_session("s", "render")
        await client.wait("s", timeout=10)
    again = stage.flow(render(), deadline=SOON)
    async with stage.engine(again) as engine, engine.worker():
        client = AgentSessionClient(engine, again)
        await _resolved(client)
        assert (await client.get_agent_snapshot("s")).pending_interrupts == ()


async def test_an_answer_to_a_session_that_is_closing_is_refused(stage: Stage) -> None:
    flow = stage.flow(render())
    async with stage.engine(flow) as engine:
        client = AgentSessionClient(engine, flow)
        async with engine.worker():
            first = await client.start_session("s", "render")
            await client.wait("s", timeout=10)
        await client.send_user_message("s", "more")
        await client.close_session("s")  # nobody is there to carry it out
        with pytest.raises(SessionClosed):
            await client.answer_question("s", f"{first}:q1", 1)


async def test_a_replay_does_not_ask_again(stage: Stage) -> None:
    """The live turn may report the question once more; it is one, also when it was answered meanwhile."""

    async def script(play: Play) -> None:
        if play.start.number == 1:
            play.ask_later("late")
            await play.ask("live")

    first = stage.flow(script)
    async with stage.engine(first) as engine, engine.worker():
        client = AgentSessionClient(engine, first)
        turn_id = await client.start_session("s", "go")
        await client.wait("s", timeout=10)
        await client.answer_question("s", f"{turn_id}:late", 1)
        await client.wait("s", timeout=10)
    second = stage.flow(script)
    async with stage.engine(second) as engine, engine.worker():
        client = AgentSessionClient(engine, second)
        await client.answer_question("s", f"{turn_id}:live", 1)
        snapshot = await client.wait("s", timeout=10)
        assert snapshot.turn is not None
        assert (snapshot.turn.number, snapshot.pending_interrupts) == (2, ())
        assert [line for line in await shape(client, "s") if line.startswith("AwaitAnswer")] == [
            "AwaitAnswer succeeded",
            "AwaitAnswer succeeded",
        ]
