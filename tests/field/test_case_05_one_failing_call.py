"""Field case 5: one of two parallel calls fails.

The rule, the same live and after a crash: every call gets its answer, a failed one as an error, and the model goes on.
"""

from __future__ import annotations

import asyncio

import pytest
from tests.field.lives import GO_ON, Hold, life
from tests.field.support import PATIENCE, READ, SESSION, Field, answers_in, say, step_settled, turn_of

from perdure import AgentSessionFlow, ToolExecutionError, TurnStatus
from perdure.testing import call, reply, text

SCRIPT = [reply(call("good"), call("bad")), text("One of two.")]
ANSWERS = {"good": {"result": "good"}, "bad": {"error": "The tool call failed: bad luck"}}


def good_and_bad(field: Field, hold: Hold) -> AgentSessionFlow:
    async def good() -> str:
        """Takes its time."""
        await hold.here("good")
        field.note("good")
        return "good"

    def bad() -> str:
        """Fails at once."""
        field.note("bad")
        raise ToolExecutionError("bad luck")

    return field.flow(SCRIPT, [good, bad], {"good": READ, "bad": READ})


@pytest.mark.parametrize("error", [ToolExecutionError("bad luck"), RuntimeError("bad luck")])
async def test_a_failing_call_neither_stops_nor_loses_its_slower_sibling(field: Field, error: Exception) -> None:
    """Case 5.  Plain ADK cancels the good call, stores no result, and the run raises."""
    bad_is_over = asyncio.Event()

    async def good() -> str:
        """Ends only after the other one failed for the last time."""
        await bad_is_over.wait()
        field.note("good")
        return "good"

    async def bad() -> str:
        """Fails at once."""
        field.note("bad")
        if isinstance(error, ToolExecutionError) or field.world.count("bad") == 3:
            asyncio.get_running_loop().call_soon(bad_is_over.set)
        raise error

    async with field.working(field.flow(SCRIPT, [good, bad], {"good": READ, "bad": READ})) as client:
        snapshot = await say(client, "go")
        assert turn_of(snapshot).status is TurnStatus.COMPLETED
        assert field.world.count("good") == 1
        assert answers_in(field.requests[-1]) == ANSWERS
        assert len(field.requests) == 2


async def test_after_a_crash_only_the_call_without_an_answer_runs(field: Field) -> None:
    """Case 5.  On plain ADK a resume drops the failed call without a retry and without a word to the model."""
    async with field.asking() as client:
        with life(good_and_bad, field) as child:
            await client.start_session(SESSION, "go")
            await child.wait_for_async("in good")
            await step_settled(client, "bad")
            child.kill()
    async with field.working(good_and_bad(field, GO_ON)) as client:
        snapshot = await client.wait(SESSION, timeout=PATIENCE)
        assert turn_of(snapshot).status is TurnStatus.COMPLETED
        assert field.world == ["bad", "good"]
        assert answers_in(field.requests[-1]) == ANSWERS
        assert len(field.requests) == 2
