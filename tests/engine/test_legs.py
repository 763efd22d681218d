"""Turns of several legs: an invocation ends with questions open, and the next one begins when all are answered."""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace
from datetime import timedelta

import pytest
from tests.engine.conftest import Stage, history, shape
from tests.support.play import Play, PlayCall, PlayRunner

from perdure import (
    AgentEventType,
    AgentSessionClient,
    InterruptAlreadyResolved,
    InterruptKind,
    InterruptWithdrawn,
    SessionStatus,
    ToolEffect,
    TurnStatus,
    UsageError,
)
from perdure.session.runner import AgentSessionFlow, AnsweredQuestion, TurnStart


async def look(call_id: str, attempt: int) -> object:
    return f"looked {attempt}"


async def two_legs(play: Play) -> None:
    """Each leg makes the same model call and the same tool call; the second one tells what it began with."""
    leg = play.start.leg
    await play.model("m1", "")
    await play.tools("m1", {"c1": PlayCall("look", look)})
    if leg == 1:
        state(play, {"k": 1, "app:shared": 1})
        play.say("what now?")
        play.carry = json.dumps({"temp:x": 1})
        play.ask_next("q1", "q2", path="flow/review")
        return
    answers = {asked.question.question_id: asked.answer.value for asked in play.start.answers if asked.answer}
    play.say(f"{json.dumps(answers)} {play.start.carry}")


def state(play: Play, delta: dict[str, object]) -> None:
    play.say("state")
    play._messages[-1] = replace(play._messages[-1], state_delta=delta)


def runner_of(flow: AgentSessionFlow) -> PlayRunner:
    assert isinstance(flow.runner, PlayRunner)
    return flow.runner


async def said(client: AgentSessionClient) -> list[str]:
    return [message.text for message in (await client.list_messages("s")).items]


FRONTIER = [
    "AwaitUserMessage succeeded",
    "RunModel succeeded",
    "CallTool succeeded",
    "ResumeTurn succeeded",
    "RunModel succeeded",
    "AwaitAnswer pending",
    "AwaitAnswer pending",
]


async def test_a_turn_is_suspended_at_its_frontier_and_goes_on_when_all_of_it_is_answered(stage: Stage) -> None:
    flow = stage.flow(two_legs)
    async with stage.engine(flow) as engine, engine.worker():
        client = AgentSessionClient(engine, flow)
        turn_id = await client.start_session("s", "go")
        snapshot = await client.wait("s", timeout=10)
        assert snapshot.turn is not None
        assert (snapshot.status, snapshot.turn.status) == (SessionStatus.WAITING, TurnStatus.WAITING)
        assert [(one.tool_call_id, one.path) for one in snapshot.pending_interrupts] == [
            ("q1", "flow/review"),
            ("q2", "flow/review"),
        ]
        assert await shape(client, "s") == FRONTIER
        await client.answer_question("s", f"{turn_id}:q2", "two")
        snapshot = await client.wait("s", timeout=10)
        assert (snapshot.status, len(snapshot.pending_interrupts)) == (SessionStatus.WAITING, 1)
        await client.answer_question("s", f"{turn_id}:q1", "one")
        snapshot = await client.wait("s", timeout=10)
        assert snapshot.turn is not None
        assert (snapshot.turn.turn_id, snapshot.turn.number, snapshot.turn.status) == (turn_id, 1, TurnStatus.COMPLETED)
        assert snapshot.usage.model_calls == snapshot.turn.usage.model_calls == 2, "each leg has a journal of its own"
        assert await said(client) == [
            "go",
            "state",
            "what now?",
            '{"q1": {"result": "one"}, "q2": {"result": "two"}} {"temp:x": 1}',
        ]
        steps = await history(client, "s")
        assert len({step.step_id for step in steps}) == len(steps)
        assert await shape(client, "s") == [
            *FRONTIER[:5],
            "AwaitAnswer succeeded",
            "AwaitAnswer succeeded",
            "ResumeTurn succeeded",
            "RunModel succeeded",
            "CallTool succeeded",
            "ResumeTurn succeeded",
            "RunModel succeeded",
            "AwaitUserMessage pending",
        ]


async def test_a_leg_begins_with_the_state_and_the_messages_before_it(stage: Stage) -> None:
    seen: list[object] = []

    async def script(play: Play) -> None:
        seen.append((await play._log.load_state(), [item["text"] for item in await play._log.load_history()]))
        await two_legs(play)

    flow = stage.flow(script)
    async with stage.engine(flow) as engine, engine.worker():
        client = AgentSessionClient(engine, flow)
        await client.start_session("s", state={"k": 0, "j": 0})
        turn_id = await client.send_user_message("s", "go")
        await client.wait("s", timeout=10)
        # Another session changes what is shared, while this one waits.
        await client.start_session("other", state={"app:shared": 2})
        await client.resume("s", {f"{turn_id}:q1": 1, f"{turn_id}:q2": 2})
        await client.wait("s", timeout=10)
        assert await engine.store.read_turn_state("s", 1) == {"k": 0, "j": 0}
        assert await engine.store.read_turn_state("s", 1, 2) == {"k": 1, "j": 0, "app:shared": 2}
        assert await engine.store.read_turn_state("s", 2) == {"k": 1, "j": 0, "app:shared": 2}
    assert seen == [
        ({"k": 0, "j": 0}, []),
        ({"k": 1, "j": 0, "app:shared": 2}, ["go", "state", "what now?"]),
    ]
    starts = runner_of(flow).starts
    assert [(start.leg, start.leg_length, start.history_length) for start in starts] == [(1, 0, 0), (2, 3, 0)]


async def test_resume_answers_the_whole_frontier_or_nothing(stage: Stage) -> None:
    async def script(play: Play) -> None:
        if play.start.leg == 1:
            play.ask_next("q1")
            play.ask_next("ok", kind=InterruptKind.CREDENTIAL)
        else:
            play.say(json.dumps([asked.answer.value for asked in play.start.answers if asked.answer]))

    flow = stage.flow(script)
    async with stage.engine(flow) as engine, engine.worker():
        client = AgentSessionClient(engine, flow)
        turn_id = await client.start_session("s", "go")
        await client.wait("s", timeout=10)
        one, ok = f"{turn_id}:q1", f"{turn_id}:ok"
        refused: list[tuple[dict[str, object], str]] = [
            ({}, "empty"),
            ({one: 1}, "also asks"),
            ({one: None, ok: True}, "is None"),
            ({one: 1, ok: "yes"}, "takes a bool"),
            ({one: 1, ok: {"approved": "yes"}}, "takes a bool"),
            ({one: 1, ok: {"approved": True, "other": 1}}, "takes a bool"),
        ]
        for resume_map, why in refused:
            with pytest.raises(UsageError, match=why):
                await client.resume("s", resume_map)
        assert len((await client.get_agent_snapshot("s")).pending_interrupts) == 2, "nothing of it was stored"
        full = {one: 1, ok: {"approved": True, "payload": {"token": "t"}}}
        done = await client.resume("s", full, resolved_by="ann")
        assert [(one.tool_call_id, one.resolved_by) for one in done] == [("q1", "ann"), ("ok", "ann")]
        await client.wait("s", timeout=10)
        said_so = [{"result": 1}, {"approved": True, "payload": {"token": "t"}, "message": None}]
        assert (await said(client))[-1] == json.dumps(said_so)
        assert await client.resume("s", full, resolved_by="ben") == done, "the identical answers again"
        with pytest.raises(InterruptAlreadyResolved):
            await client.resume("s", {**full, one: 2})


async def test_a_leg_may_ask_again_under_the_same_id(stage: Stage) -> None:
    async def script(play: Play) -> None:
        if play.start.leg < 4:
            play.ask_next("review")
        play.say(f"leg {play.start.leg}")

    flow = stage.flow(script)
    async with stage.engine(flow) as engine, engine.worker():
        client = AgentSessionClient(engine, flow)
        await client.start_session("s", "go")
        names: list[str] = []
        while (snapshot := await client.wait("s", timeout=10)).status is SessionStatus.WAITING:
            (asked,) = snapshot.pending_interrupts
            names.append(asked.interrupt_id.split(":", 1)[1])
            await client.answer_question("s", asked.interrupt_id, len(names))
        assert names == ["review", "review:2", "review:3"]
        assert (await said(client))[-1] == "leg 4"


async def test_a_frontier_is_answered_after_a_restart(stage: Stage) -> None:
    first = stage.flow(two_legs)
    async with stage.engine(first) as engine, engine.worker():
        client = AgentSessionClient(engine, first)
        turn_id = await client.start_session("s", "go")
        await client.wait("s", timeout=10)
    async with stage.engine() as engine:
        client = AgentSessionClient(engine)
        await client.answer_question("s", f"{turn_id}:q1", "one")
        snapshot = await client.get_agent_snapshot("s")
        assert snapshot.status is SessionStatus.WAITING, "nothing can go on before the other answer"
        await client.answer_question("s", f"{turn_id}:q2", "two")
        assert (await client.get_agent_snapshot("s")).status is SessionStatus.RUNNING, "and nobody drives it yet"
    second = stage.flow(two_legs)
    async with stage.engine(second) as engine, engine.worker():
        client = AgentSessionClient(engine, second)
        await client.wait("s", timeout=10)
        assert (await said(client))[-1] == '{"q1": {"result": "one"}, "q2": {"result": "two"}} {"temp:x": 1}'
    assert runner_of(second).opened == 1, "the first leg is not replayed"


async def test_code_may_change_at_a_frontier(stage: Stage) -> None:
    """The next leg is an invocation of its own: it needs nothing of the code that asked."""
    first = stage.flow(two_legs)
    async with stage.engine(first) as engine, engine.worker():
        client = AgentSessionClient(engine, first)
        turn_id = await client.start_session("s", "go")
        await client.wait("s", timeout=10)

    async def other(play: Play) -> None:
        play.say(f"other code, {len(play.start.answers)} answers")

    second = stage.flow(other, definition="other")
    async with stage.engine(second) as engine, engine.worker():
        client = AgentSessionClient(engine, second)
        await client.resume("s", {f"{turn_id}:q1": 1, f"{turn_id}:q2": 2})
        await client.wait("s", timeout=10)
        assert (await said(client))[-1] == "other code, 2 answers"


async def test_a_new_owner_in_the_middle_of_a_leg_reads_only_that_leg(stage: Stage) -> None:
    async def script(play: Play) -> None:
        await play.model("m", "")
        await play.tools("m", {"c": PlayCall("look", look)})
        play.say(f"leg {play.start.leg}")
        if play.start.leg == 1:
            play.carry = '{"n":1}'
            play.ask_next("q1")
        elif play.start.leg == 2:
            (answer,) = await play.ask("live")
            (asked,) = play.start.answers
            play.say(f"{answer.value} {asked.answer.value if asked.answer else None} {play.start.carry}")

    first = stage.flow(script)
    async with stage.engine(first) as engine, engine.worker():
        client = AgentSessionClient(engine, first)
        turn_id = await client.start_session("s", "go")
        assert turn_id is not None
        await client.wait("s", timeout=10)
        await client.answer_question("s", f"{turn_id}:q1", 1)
        await client.wait("s", timeout=10)
        recorded = await engine.store.read_recorded_turn("s", turn_id)
        assert [call.key for call in recorded.model_calls] == ["m"]
        assert [call.request.call_id for call in recorded.calls] == ["c"]
        assert [one.question.question_id for one in recorded.questions] == ["live"]
        assert recorded.stored_messages == 3
    second = stage.flow(script)
    async with stage.engine(second) as engine, engine.worker():
        client = AgentSessionClient(engine, second)
        await client.answer_question("s", f"{turn_id}:live", 2)
        await client.wait("s", timeout=10)
        assert await said(client) == ["go", "leg 1", "leg 2", "{'result': 2} {'result': 1} {\"n\":1}"]
    runner = runner_of(second)
    assert (runner.opened, runner.model_calls) == (1, [])
    (start,) = runner.starts
    assert isinstance(start, TurnStart)
    assert (start.leg, start.leg_length, start.carry) == (2, 2, '{"n":1}')
    assert [isinstance(asked, AnsweredQuestion) for asked in start.answers] == [True]


async def test_calls_of_an_invocation_that_ended_are_settled_before_the_next_leg(stage: Stage) -> None:
    running, finish = asyncio.Event(), asyncio.Event()

    async def slow(call_id: str, attempt: int) -> object:
        running.set()
        await finish.wait()
        return "written"

    async def script(play: Play) -> None:
        if play.start.leg == 2:
            play.say("next")
            return
        play._busy += 1  # a part of the script that nobody waits for
        left = asyncio.create_task(play.tools("m", {"w": PlayCall("w", slow, ToolEffect.NON_IDEMPOTENT_WRITE)}))
        await play.ask("live")
        play.ask_next("next")
        left.cancel()

    flow = stage.flow(script)
    async with stage.engine(flow) as engine, engine.worker():
        client = AgentSessionClient(engine, flow)
        turn_id = await client.start_session("s", "go")
        await running.wait()
        await client.answer_question("s", f"{turn_id}:live", 1)
        async for event in client.stream_events("s"):
            if event.type is AgentEventType.INTERRUPT_REQUESTED and event.data["tool_call_id"] == "next":
                break
        assert (await client.get_agent_snapshot("s")).status is SessionStatus.RUNNING, "a write runs"
        finish.set()
        snapshot = await client.wait("s", timeout=10)
        assert snapshot.status is SessionStatus.WAITING
        (asked,) = snapshot.pending_interrupts
        await client.answer_question("s", asked.interrupt_id, 1)
        await client.wait("s", timeout=10)
        assert (await said(client))[-1] == "next"
        assert "CallSingleAttemptTool succeeded" in await shape(client, "s")


async def test_an_expired_frontier_goes_on_with_errors(stage: Stage) -> None:
    async def script(play: Play) -> None:
        if play.start.leg == 1:
            play.ask_next("q1", "q2")
        else:
            play.say(
                " ".join(asked.answer.error.code for asked in play.start.answers if asked.answer and asked.answer.error)
            )

    flow = stage.flow(script, deadline=timedelta(milliseconds=50))
    async with stage.engine(flow) as engine, engine.worker():
        client = AgentSessionClient(engine, flow)
        await client.start_session("s", "go")
        async for event in client.stream_events("s"):
            if event.type is AgentEventType.TURN_COMPLETED:
                break
        assert (await said(client))[-1] == "expired expired"


@pytest.mark.parametrize("leg", [1, 2])
async def test_cancel_at_a_frontier_withdraws_it_and_tells_of_all_calls(stage: Stage, leg: int) -> None:
    async def script(play: Play) -> None:
        name = f"c{play.start.leg}"
        await play.tools(name, {name: PlayCall("look", look)})
        play.ask_next("q1")

    flow = stage.flow(script)
    async with stage.engine(flow) as engine, engine.worker():
        client = AgentSessionClient(engine, flow)
        turn_id = await client.start_session("s", "go")
        await client.wait("s", timeout=10)
        if leg == 2:
            await client.answer_question("s", f"{turn_id}:q1", 1)
            await client.wait("s", timeout=10)
        await client.cancel_turn("s")
        snapshot = await client.wait("s", timeout=10)
        assert snapshot.turn is not None
        assert (snapshot.turn.status, snapshot.pending_interrupts) == (TurnStatus.CANCELLED, ())
        calls = json.loads((await said(client))[-1])["calls"]
        assert calls == {f"c{number}": "succeeded" for number in range(1, leg + 1)}
        with pytest.raises(InterruptWithdrawn):
            await client.answer_question("s", f"{turn_id}:q1{'' if leg == 1 else ':2'}", 1)


async def test_a_late_question_beside_a_frontier_starts_a_turn_of_its_own(stage: Stage) -> None:
    async def script(play: Play) -> None:
        if play.start.number == 2:
            play.say(f"late {play.start.message.answers[0].value['result']}")
        elif play.start.leg == 1:
            play.ask_later("late")
            play.ask_next("next")
        else:
            play.say("next leg")

    flow = stage.flow(script)
    async with stage.engine(flow) as engine, engine.worker():
        client = AgentSessionClient(engine, flow)
        turn_id = await client.start_session("s", "go")
        await client.wait("s", timeout=10)
        await client.resume("s", {f"{turn_id}:late": 1, f"{turn_id}:next": 2})
        await client.wait("s", timeout=10)
        assert [text for text in await said(client) if text] == ["go", "next leg", "late 1"]
