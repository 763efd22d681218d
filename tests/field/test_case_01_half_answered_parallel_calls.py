"""Field case 1: of two parallel calls one has its answer on disk when the process dies."""

from __future__ import annotations

from tests.field.lives import GO_ON, Hold, life
from tests.field.support import PATIENCE, READ, SESSION, Field, answers_in, prompt, step_settled

from perdure import AgentSessionFlow, SessionStatus
from perdure.testing import call, reply, text


def two_calls(field: Field, hold: Hold) -> AgentSessionFlow:
    def a() -> str:
        """Does A."""
        field.note("a")
        return "A"

    async def b() -> str:
        """Does B."""
        await hold.here("b")
        field.note("b")
        return "B"

    return field.flow([reply(call("a"), call("b")), text("Both done.")], [a, b], {"a": READ, "b": READ})


async def test_the_call_without_an_answer_runs_after_the_crash_and_the_answered_one_does_not(field: Field) -> None:
    """Case 1.  Plain ADK never runs the second tool, and its next prompt holds only the first call."""
    async with field.asking() as client:
        with life(two_calls, field) as child:
            await client.start_session(SESSION, "go")
            await child.wait_for_async("in b")
            await step_settled(client, "a")
            child.kill()
    async with field.working(two_calls(field, GO_ON)) as client:
        snapshot = await client.wait(SESSION, timeout=PATIENCE)
        assert snapshot.status is SessionStatus.IDLE
        assert field.world == ["a", "b"]
        assert snapshot.usage.model_calls == 2
        assert [prompt(request) for request in field.requests] == [
            ["user says go"],
            [
                "user says go",
                "model calls a",
                "model calls b",
                'user answers a {"result": "A"}',
                'user answers b {"result": "B"}',
            ],
        ]
        assert answers_in(field.requests[1]) == {"a": {"result": "A"}, "b": {"result": "B"}}
