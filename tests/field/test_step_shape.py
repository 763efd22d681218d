"""The steps of a turn, as ``read_step_history`` tells them, on real ADK (design, section 4)."""

from __future__ import annotations

from google.adk.tools.function_tool import FunctionTool
from tests.field.support import ONCE, PATIENCE, READ, SESSION, Field, answer_all, say, steps_of

from perdure import AgentSessionClient, StepName, StepStatus
from perdure.testing import call, reply, text


def look() -> str:
    """Looks."""
    return "seen"


def mail() -> str:
    """Mails."""
    return "sent"


async def shape(client: AgentSessionClient) -> list[str]:
    return [f"{step.name.value} {step.status.value}" for step in await steps_of(client)]


async def test_a_turn_that_reads_once_and_answers(field: Field) -> None:
    async with field.working(field.flow([call("look"), text("Done.")], [look], {"look": READ})) as client:
        snapshot = await say(client, "go")
        steps = await steps_of(client)
        assert [(step.name, step.status) for step in steps] == [
            (StepName.AWAIT_USER_MESSAGE, StepStatus.SUCCEEDED),
            (StepName.RUN_MODEL, StepStatus.SUCCEEDED),
            (StepName.CALL_TOOL, StepStatus.SUCCEEDED),
            (StepName.RESUME_TURN, StepStatus.SUCCEEDED),
            (StepName.RUN_MODEL, StepStatus.SUCCEEDED),
            (StepName.AWAIT_USER_MESSAGE, StepStatus.PENDING),
        ]
        assert snapshot.turn is not None
        assert [step.turn_id for step in steps] == [snapshot.turn.turn_id] * 5 + [None]
        assert [step.attempts for step in steps] == [1] * 5 + [0]
        first, tool, second = steps[1], steps[2], steps[4]
        assert (first.key, second.key) == ("helper@1||helper|1", "helper@1||helper|2")
        assert (tool.tool_name, tool.key, tool.effect, tool.result) == (
            "look",
            tool.tool_call_id,
            "read",
            {"result": "seen"},
        )
        for step in steps[:5]:
            assert step.started_at is not None
            assert step.settled_at is not None
            assert step.started_at <= step.settled_at
        assert steps[5].settled_at is None


async def test_parallel_calls_are_a_step_each_and_resume_once(field: Field) -> None:
    script = [reply(call("look"), call("mail"), call("look")), text("Done.")]
    async with field.working(field.flow(script, [look, mail], {"look": READ, "mail": ONCE})) as client:
        await say(client, "go")
        assert await shape(client) == [
            "AwaitUserMessage succeeded",
            "RunModel succeeded",
            "CallTool succeeded",
            "CallSingleAttemptTool succeeded",
            "CallTool succeeded",
            "ResumeTurn succeeded",
            "RunModel succeeded",
            "AwaitUserMessage pending",
        ]


async def test_an_approved_call_has_its_wait_before_its_step(field: Field) -> None:
    tools = [FunctionTool(look, require_confirmation=True)]
    async with field.working(field.flow([call("look"), text("Done.")], tools, {"look": READ})) as client:
        await say(client, "go")
        assert await shape(client) == [
            "AwaitUserMessage succeeded",
            "RunModel succeeded",
            "AwaitToolApproval pending",
        ]
        await answer_all(client)
        assert await shape(client) == [
            "AwaitUserMessage succeeded",
            "RunModel succeeded",
            "AwaitToolApproval succeeded",
            "CallTool succeeded",
            "ResumeTurn succeeded",
            "RunModel succeeded",
            "AwaitUserMessage pending",
        ]


async def test_the_next_turn_goes_on_where_the_last_one_ended(field: Field) -> None:
    async with field.working(field.flow(text("Yes."))) as client:
        first = await client.start_session(SESSION, "one")
        second = await client.send_user_message(SESSION, "two")
        await client.wait(SESSION, timeout=PATIENCE)
        steps = await steps_of(client)
        assert [f"{step.name.value} {step.turn_id}" for step in steps] == [
            f"AwaitUserMessage {first}",
            f"RunModel {first}",
            f"AwaitUserMessage {second}",
            f"RunModel {second}",
            "AwaitUserMessage None",
        ]
        assert len({step.step_id for step in steps}) == len(steps)


async def test_a_session_without_a_message_waits_for_one(field: Field) -> None:
    async with field.asking() as client:
        await client.start_session(SESSION)
        assert await shape(client) == ["AwaitUserMessage pending"]
