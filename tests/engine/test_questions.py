"""Questions that the live invocation waits for: raised, shown, answered from any process, handed out, replayed."""

from __future__ import annotations

import asyncio
from datetime import timedelta

import pytest
from tests.engine.conftest import Stage, history, shape
from tests.support.play import Play, PlayCall, PlayRunner, Script

from perdure import (
    AgentEventType,
    AgentSessionClient,
    InterruptAlreadyResolved,
    InterruptExpired,
    InterruptKind,
    InterruptNotFound,
    InterruptStatus,
    InterruptWithdrawn,
    PayloadTooLarge,
    RequestConflict,
    SessionBlocked,
    SessionStatus,
    TurnStatus,
    UsageError,
    ValueNotStorable,
)
from perdure.session.model import JsonValue
from perdure.session.runner import Answer


async def asks_one(play: Play) -> None:
    await play.model("m1", "")
    (answer,) = await play.ask("q1", path="root/child")
    await play.model("m2", "")
    play.say(f"{answer.value}")


def asks_of_kind(kind: InterruptKind) -> Script:
    async def script(play: Play) -> None:
        (answer,) = await play.ask("q1", kind=kind)
        play.say(f"{answer.value}")

    return script


async def said(client: AgentSessionClient) -> list[str]:
    return [message.text for message in (await client.list_messages("s")).items]


async def test_a_question_is_shown_and_its_answer_reaches_the_invocation(stage: Stage) -> None:
    flow = stage.flow(asks_one)
    async with stage.engine(flow) as engine, engine.worker():
        client = AgentSessionClient(engine, flow)
        turn_id = await client.start_session("s", "go")
        snapshot = await client.wait("s", timeout=10)
        assert snapshot.status is SessionStatus.WAITING
        assert snapshot.turn is not None
        assert snapshot.turn.status is TurnStatus.WAITING
        (asked,) = snapshot.pending_interrupts
        assert (asked.interrupt_id, asked.kind, asked.status) == (
            f"{turn_id}:q1",
            InterruptKind.LONG_RUNNING,
            InterruptStatus.PENDING,
        )
        assert (asked.tool_name, asked.tool_call_id, asked.arguments) == ("ask_q1", "q1", {"id": "q1"})
        assert (asked.agent_name, asked.path, asked.hint) == ("player", "root/child", "what about q1?")
        answered = await client.answer_question("s", asked.interrupt_id, {"ok": True}, resolved_by="ann")
        assert (answered.status, answered.response, answered.resolved_by) == (
            InterruptStatus.ANSWERED,
            {"ok": True},
            "ann",
        )
        await client.wait("s", timeout=10)
        assert await said(client) == ["go", "{'ok': True}"]
        assert await shape(client, "s") == [
            "AwaitUserMessage succeeded",
            "RunModel succeeded",
            "AwaitAnswer succeeded",
            "ResumeTurn succeeded",
            "RunModel succeeded",
            "AwaitUserMessage pending",
        ]
        wait = (await history(client, "s"))[2]
        assert (wait.tool_name, wait.tool_call_id, wait.effect, wait.key) == ("ask_q1", "q1", None, "q1")
    assert isinstance(flow.runner, PlayRunner)
    assert flow.runner.opened == 1


async def test_the_stream_tells_of_questions_and_answers(stage: Stage) -> None:
    flow = stage.flow(asks_one)
    async with stage.engine(flow) as engine, engine.worker():
        client = AgentSessionClient(engine, flow)
        turn_id = await client.start_session("s", "go")
        await client.wait("s", timeout=10)
        await client.answer_question("s", f"{turn_id}:q1", "yes", resolved_by="ann")
        told: list[tuple[str, str | None, JsonValue]] = []
        async for event in client.stream_events("s"):
            if event.type in (AgentEventType.INTERRUPT_REQUESTED, AgentEventType.INTERRUPT_RESOLVED):
                told.append((event.data["status"], event.data["resolved_by"], event.data["response"]))
            if event.type is AgentEventType.TURN_COMPLETED:
                break
        assert told == [("pending", None, None), ("answered", "ann", {"result": "yes"})]


@pytest.mark.parametrize(
    ("given", "value"),
    [({}, {}), ({"a": [1]}, {"a": [1]}), ("text", {"result": "text"}), (0, {"result": 0}), (False, {"result": False})],
)
async def test_a_value_that_is_no_object_is_wrapped(stage: Stage, given: JsonValue, value: JsonValue) -> None:
    flow = stage.flow(asks_of_kind(InterruptKind.INPUT))
    async with stage.engine(flow) as engine, engine.worker():
        client = AgentSessionClient(engine, flow)
        await client.start_session("s", "go")
        (asked,) = (await client.wait("s", timeout=10)).pending_interrupts
        assert (await client.answer_question("s", asked.interrupt_id, given)).response == value
        await client.wait("s", timeout=10)
        assert (await said(client))[-1] == f"{value}"


async def test_what_is_no_answer_is_refused_and_the_question_stays(stage: Stage) -> None:
    flow = stage.flow(asks_one)
    async with stage.engine(flow) as engine, engine.worker():
        client = AgentSessionClient(engine, flow)
        turn_id = await client.start_session("s", "go")
        await client.wait("s", timeout=10)
        name = f"{turn_id}:q1"
        with pytest.raises(UsageError, match="None, which is no answer"):
            await client.answer_question("s", name, None)
        with pytest.raises(ValueNotStorable):
            await client.answer_question("s", name, {"lock": asyncio.Lock()})
        with pytest.raises(PayloadTooLarge):
            await client.answer_question("s", name, "x" * (65 << 20))
        with pytest.raises(UsageError, match="answer_question"):
            await client.resolve_interrupt("s", name, approved=True)
        with pytest.raises(InterruptNotFound):
            await client.answer_question("s", f"{turn_id}:q9", 1)
        (asked,) = (await client.get_agent_snapshot("s")).pending_interrupts
        assert asked.status is InterruptStatus.PENDING
        await client.answer_question("s", name, "x")
        await client.wait("s", timeout=10)


async def test_a_question_is_answered_once(stage: Stage) -> None:
    """Field case 7: what comes late, twice or otherwise changes nothing, and says so."""
    runs: list[JsonValue] = []

    async def script(play: Play) -> None:
        (answer,) = await play.ask("ask", kind=InterruptKind.INPUT)

        async def use(call_id: str, attempt: int) -> object:
            runs.append(answer.value)
            return answer.value

        (record,) = await play.tools("use", {"use": PlayCall("use", use)})
        play.say(f"{record.outcome}")

    flow = stage.flow(script)
    async with stage.engine(flow) as engine, engine.worker():
        client = AgentSessionClient(engine, flow)
        turn_id = await client.start_session("s", "go")
        name = f"{turn_id}:ask"
        await client.wait("s", timeout=10)
        same = [client.answer_question("s", name, "yes", resolved_by=f"p{n}") for n in range(8)]
        answered = await asyncio.gather(*same)
        assert len({one.resolved_by for one in answered}) == 1, "one of them was first, for all"
        await client.wait("s", timeout=10)
        before = (await history(client, "s"), await said(client))
        with pytest.raises(InterruptAlreadyResolved):
            await client.answer_question("s", name, "TWICE")
        again = await client.answer_question("s", name, "yes", resolved_by="late")
        assert again.resolved_by == answered[0].resolved_by
        assert (await history(client, "s"), await said(client)) == before
        assert runs == [{"result": "yes"}]


async def test_a_request_id_makes_an_answer_repeatable(stage: Stage) -> None:
    flow = stage.flow(asks_one)
    async with stage.engine(flow) as engine, engine.worker():
        client = AgentSessionClient(engine, flow)
        turn_id = await client.start_session("s", "go")
        name = f"{turn_id}:q1"
        await client.wait("s", timeout=10)
        first = await client.answer_question("s", name, 1, request_id="r")
        assert await client.answer_question("s", name, 1, request_id="r") == first
        with pytest.raises(RequestConflict):
            await client.answer_question("s", name, 2, request_id="r")


async def test_a_group_goes_on_when_all_of_it_is_answered(stage: Stage) -> None:
    order: list[str] = []

    async def script(play: Play) -> None:
        answers: list[Answer] = await play.ask("q1", "q2")
        order.extend(answer.question_id for answer in sorted(answers, key=lambda one: one.sequence))
        play.say(" ".join(str(answer.value["result"]) for answer in answers))

    flow = stage.flow(script)
    async with stage.engine(flow) as engine, engine.worker():
        client = AgentSessionClient(engine, flow)
        turn_id = await client.start_session("s", "go")
        await client.wait("s", timeout=10)
        await client.answer_question("s", f"{turn_id}:q2", "two")
        snapshot = await client.wait("s", timeout=10)
        assert snapshot.status is SessionStatus.WAITING
        assert [one.tool_call_id for one in snapshot.pending_interrupts] == ["q1"]
        await client.answer_question("s", f"{turn_id}:q1", "one")
        await client.wait("s", timeout=10)
        assert (await said(client))[-1] == "one two"
        assert order == ["q2", "q1"], "in the order in which they were answered"


async def test_other_branches_go_on_while_a_question_waits(stage: Stage) -> None:
    async def look(call_id: str, attempt: int) -> object:
        return "found"

    async def script(play: Play) -> None:
        async def asking() -> None:
            (answer,) = await play.ask("q1")
            play.say(f"asked {answer.value['result']}")

        async def looking() -> None:
            await play.tools("look", {"c1": PlayCall("look", look)})
            play.say("looked")

        await play.together(asking(), looking())

    flow = stage.flow(script)
    async with stage.engine(flow) as engine, engine.worker():
        client = AgentSessionClient(engine, flow)
        turn_id = await client.start_session("s", "go")
        assert (await client.wait("s", timeout=10)).status is SessionStatus.WAITING
        assert await said(client) == ["go", "looked"]
        await client.answer_question("s", f"{turn_id}:q1", "it")
        await client.wait("s", timeout=10)
        assert await said(client) == ["go", "looked", "asked it"]


@pytest.mark.parametrize("kind", [InterruptKind.CREDENTIAL, InterruptKind.APPROVAL, InterruptKind.CONFIRMATION])
@pytest.mark.parametrize("approved", [True, False])
async def test_a_question_that_takes_yes_or_no_gets_one(stage: Stage, kind: InterruptKind, approved: bool) -> None:
    flow = stage.flow(asks_of_kind(kind))
    async with stage.engine(flow) as engine, engine.worker():
        client = AgentSessionClient(engine, flow)
        await client.start_session("s", "go")
        (asked,) = (await client.wait("s", timeout=10)).pending_interrupts
        with pytest.raises(UsageError, match="resolve_interrupt"):
            await client.answer_question("s", asked.interrupt_id, "yes")
        done = await client.resolve_interrupt(
            "s", asked.interrupt_id, approved=approved, payload={"token": 1}, message="m"
        )
        assert done.status is (InterruptStatus.APPROVED if approved else InterruptStatus.REJECTED)
        await client.wait("s", timeout=10)
        assert (await said(client))[-1] == str({"approved": approved, "payload": {"token": 1}, "message": "m"})
        name = "AwaitAnswer" if kind is InterruptKind.CREDENTIAL else "AwaitToolApproval"
        assert f"{name} {'succeeded' if approved else 'rejected'}" in await shape(client, "s")


async def test_a_long_running_call_that_had_to_be_approved_asks_under_an_id_of_its_own(stage: Stage) -> None:
    async def start(call_id: str, attempt: int) -> object:
        return None

    async def script(play: Play) -> None:
        await play.tools("m1", {"c1": PlayCall("render", start, ask=InterruptKind.APPROVAL)})
        (answer,) = await play.ask("c1", group="m1")
        play.say(f"{answer.value}")

    flow = stage.flow(script)
    async with stage.engine(flow) as engine, engine.worker():
        client = AgentSessionClient(engine, flow)
        turn_id = await client.start_session("s", "go")
        (first,) = (await client.wait("s", timeout=10)).pending_interrupts
        await client.resolve_interrupt("s", first.interrupt_id, approved=True)
        (second,) = (await client.wait("s", timeout=10)).pending_interrupts
        assert (first.interrupt_id, second.interrupt_id) == (f"{turn_id}:c1", f"{turn_id}:c1:2")
        # A new owner replays: the call is answered from its record although its group has an open question.
    second_flow = stage.flow(script)
    async with stage.engine(second_flow) as engine, engine.worker():
        client = AgentSessionClient(engine, second_flow)
        await client.answer_question("s", second.interrupt_id, {"url": "u"})
        await client.wait("s", timeout=10)
        assert (await said(client))[-1] == "{'url': 'u'}"


@pytest.mark.parametrize("answered_first", [True, False])
async def test_a_waiting_session_is_answered_after_a_restart(stage: Stage, answered_first: bool) -> None:
    first = stage.flow(asks_one)
    async with stage.engine(first) as engine, engine.worker():
        client = AgentSessionClient(engine, first)
        turn_id = await client.start_session("s", "go")
        await client.wait("s", timeout=10)

    async def answer() -> None:
        async with stage.engine() as engine:  # no flows: it can still answer
            await AgentSessionClient(engine).answer_question("s", f"{turn_id}:q1", 7)

    if answered_first:
        await answer()
    second = stage.flow(asks_one)
    async with stage.engine(second) as engine, engine.worker():
        if not answered_first:
            await answer()
        snapshot = await AgentSessionClient(engine, second).wait("s", timeout=10)
        assert snapshot.status is SessionStatus.IDLE
        assert await said(AgentSessionClient(engine, second)) == ["go", "{'result': 7}"]
    assert isinstance(second.runner, PlayRunner)
    assert second.runner.model_calls == ["m2"]


async def test_answers_are_replayed(stage: Stage) -> None:
    """A turn that is taken over after an answer gets it from the journal."""

    async def script(play: Play) -> None:
        (one,) = await play.ask("q1", group="one")
        (two,) = await play.ask("q2", group="two")
        play.say(f"{one.value['result']} {two.value['result']}")

    first = stage.flow(script)
    async with stage.engine(first) as engine, engine.worker():
        client = AgentSessionClient(engine, first)
        turn_id = await client.start_session("s", "go")
        await client.wait("s", timeout=10)
        await client.answer_question("s", f"{turn_id}:q1", "one")
        await client.wait("s", timeout=10)
        assert turn_id is not None
        recorded = await engine.store.read_recorded_turn("s", turn_id)
        assert [(one.question.question_id, one.answer is not None) for one in recorded.questions] == [
            ("q1", True),
            ("q2", False),
        ]
    second = stage.flow(script)
    async with stage.engine(second) as engine, engine.worker():
        client = AgentSessionClient(engine, second)
        await client.answer_question("s", f"{turn_id}:q2", "two")
        await client.wait("s", timeout=10)
        assert await said(client) == ["go", "one two"]


async def test_an_unanswered_question_expires_and_the_invocation_hears_of_it(stage: Stage) -> None:
    answers: list[Answer] = []

    async def script(play: Play) -> None:
        answers.extend(await play.ask("q1"))

    flow = stage.flow(script, deadline=timedelta(milliseconds=50))
    async with stage.engine(flow) as engine, engine.worker():
        client = AgentSessionClient(engine, flow)
        turn_id = await client.start_session("s", "go")
        async for event in client.stream_events("s"):
            if event.type is AgentEventType.TURN_COMPLETED:
                break
        with pytest.raises(InterruptExpired):
            await client.answer_question("s", f"{turn_id}:q1", 1)
        assert "AwaitAnswer expired" in await shape(client, "s")
    (answer,) = answers
    assert answer.error is not None
    assert (answer.error.code, answer.value) == ("expired", {"error": answer.error.message})


@pytest.mark.parametrize("how", ["cancel", "close", "fail"])
async def test_the_end_of_a_turn_withdraws_its_questions(stage: Stage, how: str) -> None:
    go_on = asyncio.Event()

    async def script(play: Play) -> None:
        async def failing() -> None:
            await go_on.wait()
            raise RuntimeError("no more")

        async def asking() -> None:
            await play.ask("q1")

        if how == "fail":
            await play.together(asking(), failing())
        else:
            await asking()

    flow = stage.flow(script)
    async with stage.engine(flow) as engine, engine.worker():
        client = AgentSessionClient(engine, flow)
        turn_id = await client.start_session("s", "go")
        if how == "fail":
            go_on.set()
        else:
            await client.wait("s", timeout=10)
            await (client.cancel_turn("s") if how == "cancel" else client.close_session("s"))
        snapshot = await client.wait("s", timeout=10)
        assert snapshot.pending_interrupts == ()
        if how != "fail":
            with pytest.raises(InterruptWithdrawn):
                await client.answer_question("s", f"{turn_id}:q1", 1)
            assert "AwaitAnswer withdrawn" in await shape(client, "s")


async def test_a_blocked_session_keeps_its_question(stage: Stage) -> None:
    first = stage.flow(asks_one)
    async with stage.engine(first) as engine, engine.worker():
        client = AgentSessionClient(engine, first)
        turn_id = await client.start_session("s", "go")
        await client.wait("s", timeout=10)

    async def other(play: Play) -> None:
        await play.model("m1", "")
        await play.ask("q2")

    changed = stage.flow(other, definition="other")
    async with stage.engine(changed) as engine, engine.worker():
        client = AgentSessionClient(engine, changed)
        async for event in client.stream_events("s"):
            if event.type is AgentEventType.SESSION_BLOCKED:
                break
        snapshot = await client.wait("s", timeout=10)
        assert snapshot.status is SessionStatus.BLOCKED
        assert [one.tool_call_id for one in snapshot.pending_interrupts] == ["q1"]
        with pytest.raises(SessionBlocked):
            await client.answer_question("s", f"{turn_id}:q1", 1)
    again = stage.flow(asks_one)
    async with stage.engine(again) as engine, engine.worker():
        client = AgentSessionClient(engine, again)
        while (await client.wait("s", timeout=10)).status is SessionStatus.BLOCKED:
            pass  # the code that fits is being checked
        await client.answer_question("s", f"{turn_id}:q1", 1)
        await client.wait("s", timeout=10)
        assert (await said(client))[-1] == "{'result': 1}"
