"""A tool that asks a person in the middle of its run: approved, rejected, expired, taken over, asked again."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from datetime import timedelta

import pytest
from tests.engine.conftest import Stage, history, shape
from tests.support.play import Play, PlayCall, Script, asks
from tests.support.troupe import crews_of, until

from perdure import (
    AgentEventType,
    AgentSessionClient,
    InterruptKind,
    InterruptStatus,
    InterruptWithdrawn,
    SessionStatus,
    StepName,
    ToolEffect,
    TurnStatus,
    UsageError,
)
from perdure.session.runner import Approval, RecordedCall

WRITE = ToolEffect.NON_IDEMPOTENT_WRITE


def delete_all(
    runs: list[str | None],
    *,
    effect: ToolEffect = WRITE,
    kind: InterruptKind = InterruptKind.CONFIRMATION,
    questions: int = 1,
    gate: Callable[[], asyncio.Event] | None = None,
) -> Script:
    """A call whose body asks as often as it is told, and notes what it got with each run."""

    async def script(play: Play) -> None:
        async def body(call_id: str, attempt: int) -> object:
            approval = play.approvals[call_id]
            runs.append(None if approval is None else str(approval.payload))
            if gate is not None and approval is not None:
                await gate().wait()
            if len(runs) <= questions:
                return asks(kind, hint=f"question {len(runs)}", payload={"n": len(runs)}, outcome=f'"run {len(runs)}"')
            return "deleted"

        await play.model("m1", "")
        (record,) = await play.tools("m1", {"c1": PlayCall("delete", body, effect)})
        play.say(f"{record.status.value} {record.outcome}")

    return script


@pytest.mark.parametrize("effect", [ToolEffect.READ, ToolEffect.IDEMPOTENT_WRITE, WRITE, ToolEffect.UNCLASSIFIED])
async def test_an_approved_tool_runs_again_with_the_answer(stage: Stage, effect: ToolEffect) -> None:
    runs: list[str | None] = []
    flow = stage.flow(delete_all(runs, effect=effect))
    async with stage.engine(flow) as engine, engine.worker():
        client = AgentSessionClient(engine, flow)
        await client.start_session("s", "go")
        snapshot = await client.wait("s", timeout=10)
        assert snapshot.status is SessionStatus.WAITING
        (interrupt,) = snapshot.pending_interrupts
        assert (interrupt.kind, interrupt.hint, interrupt.payload) == (
            InterruptKind.CONFIRMATION,
            "question 1",
            {"n": 1},
        )
        assert (interrupt.tool_name, interrupt.arguments, runs) == ("delete", {"id": "c1"}, [None])
        await client.resolve_interrupt("s", interrupt.interrupt_id, approved=True, payload="sure")
        await client.wait("s", timeout=10)
        assert runs == [None, "sure"]
        (call,) = [step for step in await history(client, "s") if step.effect and step.name.value.startswith("Call")]
        assert (call.status.value, call.attempts, call.result) == ("succeeded", 2, "deleted")
        assert (await shape(client, "s"))[2:4] == [f"{call.name.value} succeeded", "AwaitToolApproval succeeded"]


async def test_a_rejected_tool_never_runs_again(stage: Stage) -> None:
    runs: list[str | None] = []
    flow = stage.flow(delete_all(runs))
    async with stage.engine(flow) as engine, engine.worker():
        client = AgentSessionClient(engine, flow)
        await client.start_session("s", "go")
        (interrupt,) = (await client.wait("s", timeout=10)).pending_interrupts
        await client.resolve_interrupt("s", interrupt.interrupt_id, approved=False, message="not today")
        await client.wait("s", timeout=10)
        assert runs == [None], "the body never runs again"
        # What the asking run did to the session is part of the record.
        assert (await client.list_messages("s")).items[-1].text == 'rejected "run 1"'
        call = next(step for step in await history(client, "s") if step.name is StepName.CALL_SINGLE_ATTEMPT_TOOL)
        assert call.error is not None
        assert (call.status.value, call.attempts, call.error.message) == ("rejected", 1, "not today")


async def test_asking_costs_no_attempt(stage: Stage) -> None:
    """A read with three attempts fails twice and asks three times, and is given up after its third failure."""
    said: list[str] = []

    async def script(play: Play) -> None:
        plan = iter(["fail", "ask", "ask", "fail", "ask", "fail"])

        async def body(call_id: str, attempt: int) -> object:
            said.append(f"{attempt}")
            if next(plan) == "ask":
                return asks()
            raise ConnectionError("try again")

        (record,) = await play.tools("g", {"c1": PlayCall("flaky", body)})
        play.say(record.status.value)

    flow = stage.flow(script)
    async with stage.engine(flow) as engine, engine.worker():
        client = AgentSessionClient(engine, flow)
        await client.start_session("s", "go")
        seen: list[str] = []
        while (snapshot := await client.wait("s", timeout=10)).status is SessionStatus.WAITING:
            (interrupt,) = snapshot.pending_interrupts
            seen.append(interrupt.interrupt_id.split(":", 1)[1])
            await client.resolve_interrupt("s", interrupt.interrupt_id, approved=True)
        assert said == ["1", "2", "3", "4", "5", "6"]
        assert seen == ["c1", "c1:2", "c1:3"], "each question has an id of its own"
        assert (await client.list_messages("s")).items[-1].text == "failed"


async def test_a_tool_that_had_to_be_approved_may_ask_too(stage: Stage) -> None:
    got: list[Approval | None] = []

    async def script(play: Play) -> None:
        async def body(call_id: str, attempt: int) -> object:
            got.append(play.approvals[call_id])
            return "done" if len(got) > 1 else asks(InterruptKind.CREDENTIAL, payload={"scheme": "oauth2"})

        await play.tools("g", {"c1": PlayCall("send", body, WRITE, InterruptKind.APPROVAL)})

    flow = stage.flow(script)
    async with stage.engine(flow) as engine, engine.worker():
        client = AgentSessionClient(engine, flow)
        await client.start_session("s", "go")
        (first,) = (await client.wait("s", timeout=10)).pending_interrupts
        await client.resolve_interrupt("s", first.interrupt_id, approved=True)
        (second,) = (await client.wait("s", timeout=10)).pending_interrupts
        assert (second.kind, second.payload) == (InterruptKind.CREDENTIAL, {"scheme": "oauth2"})
        with pytest.raises(UsageError, match="resolve_interrupt"):
            await client.answer_question("s", second.interrupt_id, {"token": "t"})
        await client.resolve_interrupt("s", second.interrupt_id, approved=True, payload={"token": "t"})
        await client.wait("s", timeout=10)
        assert got == [
            Approval(None, InterruptKind.APPROVAL, None),
            Approval({"token": "t"}, InterruptKind.CREDENTIAL, '"asked"'),
        ]
        waits = [line for line in await shape(client, "s") if line.startswith("Await")]
        assert waits[1:3] == ["AwaitToolApproval succeeded", "AwaitAnswer succeeded"]


@pytest.mark.parametrize("answered_first", [False, True])
async def test_a_new_owner_knows_what_was_asked(stage: Stage, answered_first: bool) -> None:
    runs: list[str | None] = []
    got: list[Approval | None] = []
    first = stage.flow(delete_all(runs))
    async with stage.engine(first) as engine, engine.worker():
        client = AgentSessionClient(engine, first)
        turn_id = await client.start_session("s", "go")
        (interrupt,) = (await client.wait("s", timeout=10)).pending_interrupts

    async def answer() -> None:
        async with stage.engine() as engine:
            await AgentSessionClient(engine).resolve_interrupt("s", interrupt.interrupt_id, approved=True, payload=7)

    if answered_first:
        await answer()

    async def script(play: Play) -> None:
        async def body(call_id: str, attempt: int) -> object:
            got.append(play.approvals[call_id])
            return attempt

        await play.model("m1", "")
        await play.tools("m1", {"c1": PlayCall("delete", body, WRITE)})

    second = stage.flow(script)
    async with stage.engine(second) as engine, engine.worker():
        client = AgentSessionClient(engine, second)
        assert turn_id is not None
        if not answered_first:
            (recorded,) = (await engine.store.read_recorded_turn("s", turn_id)).calls
            assert (recorded.approval, recorded.record) == (None, None)
            await answer()
        await client.wait("s", timeout=10)
        (recorded,) = (await engine.store.read_recorded_turn("s", turn_id)).calls
    asked = Approval(7, InterruptKind.CONFIRMATION, '"run 1"')
    assert got == [asked]
    assert isinstance(recorded, RecordedCall)
    assert recorded.approval == asked


async def test_a_single_attempt_that_dies_after_it_was_let_through_is_not_run_a_third_time(stage: Stage) -> None:
    """J2: started at most once each time that it was let through."""
    runs: list[str | None] = []
    gate = asyncio.Event()
    flow = stage.flow(delete_all(runs, gate=lambda: gate))
    async with stage.engine(flow) as engine:
        client = AgentSessionClient(engine, flow)
        async with engine.worker():
            await client.start_session("s", "go")
            (interrupt,) = (await client.wait("s", timeout=10)).pending_interrupts
            await client.resolve_interrupt("s", interrupt.interrupt_id, approved=True, payload="yes")
            async for event in client.stream_events("s"):
                if event.type is AgentEventType.TOOL_CALL_STARTED and event.attempt == 2:
                    break
            await until(lambda: len(runs) == 2, "the second run")
            (actor,) = crews_of(engine)[0]._actors.values()
            # The worker's hold is lost in the middle of the second run.
            for task in tuple(crews_of(engine)[0]._tasks):
                task.cancel()
            await engine.store.free_unheld(actor.lease.worker_id, (), 0)
            crews_of(engine)[0]._vacancy()
            snapshot = await client.wait("s", timeout=10)
            assert snapshot.status is SessionStatus.IDLE
    assert runs == [None, "yes"]
    async with stage.engine() as engine:
        call = next(s for s in await history(AgentSessionClient(engine), "s") if s.tool_name and s.effect and s.error)
    assert (call.status.value, call.attempts) == ("outcome_unknown", 2)


async def test_an_unanswered_confirmation_expires(stage: Stage) -> None:
    runs: list[str | None] = []
    flow = stage.flow(delete_all(runs), deadline=timedelta(milliseconds=50))
    async with stage.engine(flow) as engine, engine.worker():
        client = AgentSessionClient(engine, flow)
        await client.start_session("s", "go")
        async for event in client.stream_events("s"):
            if event.type is AgentEventType.TURN_COMPLETED:
                break
        assert (await client.list_messages("s")).items[-1].text == 'failed "run 1"'
        assert runs == [None]
        call = next(step for step in await history(client, "s") if step.name is StepName.CALL_SINGLE_ATTEMPT_TOOL)
        assert call.error is not None
        assert call.error.message.startswith("The tool was not run to its end")


async def test_cancel_withdraws_the_question_and_says_that_the_tool_was_not_run_to_its_end(stage: Stage) -> None:
    flow = stage.flow(delete_all([]))
    async with stage.engine(flow) as engine, engine.worker():
        client = AgentSessionClient(engine, flow)
        await client.start_session("s", "go")
        (interrupt,) = (await client.wait("s", timeout=10)).pending_interrupts
        await client.cancel_turn("s")
        snapshot = await client.wait("s", timeout=10)
        assert snapshot.turn is not None
        assert (snapshot.turn.status, snapshot.pending_interrupts) == (TurnStatus.CANCELLED, ())
        with pytest.raises(InterruptWithdrawn):
            await client.resolve_interrupt("s", interrupt.interrupt_id, approved=True)
        call = next(step for step in await history(client, "s") if step.name is StepName.CALL_SINGLE_ATTEMPT_TOOL)
        assert call.error is not None
        assert (call.status.value, call.error.message) == (
            "failed",
            "The tool was not run to its end: the turn ended first",
        )


async def test_a_question_that_cannot_be_stored_fails_the_call(stage: Stage) -> None:
    async def script(play: Play) -> None:
        async def body(call_id: str, attempt: int) -> object:
            return asks(payload=object())

        (record,) = await play.tools("g", {"c1": PlayCall("odd", body)})
        play.say(f"{record.status.value} {record.error.code if record.error else None}")

    flow = stage.flow(script)
    async with stage.engine(flow) as engine, engine.worker():
        client = AgentSessionClient(engine, flow)
        await client.start_session("s", "go")
        assert (await client.wait("s", timeout=10)).status is SessionStatus.IDLE
        assert (await client.list_messages("s")).items[-1].text == "failed value_not_storable"


async def test_the_other_branches_go_on_while_a_tool_waits(stage: Stage) -> None:
    async def script(play: Play) -> None:
        async def asking(call_id: str, attempt: int) -> object:
            return "yes" if play.approvals[call_id] else asks()

        async def plain(call_id: str, attempt: int) -> object:
            return "plain"

        async def branch(name: str, body: Callable[[str, int], Awaitable[object]]) -> None:
            await play.tools(name, {f"{name}-1": PlayCall(name, body)})
            play.say(name)

        await play.together(branch("asking", asking), branch("plain", plain))

    flow = stage.flow(script)
    async with stage.engine(flow) as engine, engine.worker():
        client = AgentSessionClient(engine, flow)
        await client.start_session("s", "go")
        snapshot = await client.wait("s", timeout=10)
        assert snapshot.status is SessionStatus.WAITING
        assert [message.text for message in (await client.list_messages("s")).items] == ["go", "plain"]
        (interrupt,) = snapshot.pending_interrupts
        done = await client.resolve_interrupt("s", interrupt.interrupt_id, approved=True)
        assert done.status is InterruptStatus.APPROVED
        await client.wait("s", timeout=10)
        assert [message.text for message in (await client.list_messages("s")).items] == ["go", "plain", "asking"]
