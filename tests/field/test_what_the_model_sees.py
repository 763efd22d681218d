"""The function response that the model gets for each status of a call's record (design: "What the model sees")."""

from __future__ import annotations

from typing import Any

import pytest
from tests.field.support import ASKED, AT_ONCE, IDEMPOTENT, ONCE, READ, Field, answer_all, answers_in, call_steps, say

from perdure import (
    OUTCOME_UNKNOWN_TOOL_RESULT,
    TOOL_CALL_NOT_RUN_ERROR_PREFIX,
    RecordStatus,
    ToolEffect,
    ToolExecutionError,
    ToolPolicy,
)
from perdure.testing import call, text


def gives(value: Any) -> Any:
    def tool() -> Any:
        """Gives a value."""
        return value

    return tool


def breaks(error: Exception) -> Any:
    def tool() -> Any:
        """Fails."""
        raise error

    return tool


SCRIPT = [call("tool"), text("Done.")]

SEEN = [
    pytest.param(gives({"order": "7"}), READ, RecordStatus.SUCCEEDED, {"order": "7"}, id="a dict as it is"),
    pytest.param(gives({}), READ, RecordStatus.SUCCEEDED, {}, id="an empty dict as it is"),
    pytest.param(gives("sent"), ONCE, RecordStatus.SUCCEEDED, {"result": "sent"}, id="a bare value wrapped"),
    pytest.param(gives([1, 2]), READ, RecordStatus.SUCCEEDED, {"result": [1, 2]}, id="a list wrapped"),
    pytest.param(gives(None), READ, RecordStatus.SUCCEEDED, {"result": None}, id="nothing wrapped"),
    pytest.param(
        breaks(ToolExecutionError("no such order")),
        ONCE,
        RecordStatus.FAILED,
        {"error": "The tool call failed: no such order"},
        id="what the tool says of its failure",
    ),
    pytest.param(
        breaks(ConnectionError("line down")),
        READ,
        RecordStatus.FAILED,
        {"error": "The tool call failed: line down"},
        id="the last failure of a read",
    ),
    pytest.param(
        breaks(ConnectionError("line down")),
        IDEMPOTENT,
        RecordStatus.OUTCOME_UNKNOWN,
        {"error": OUTCOME_UNKNOWN_TOOL_RESULT},
        id="unknown after the last try of a write",
    ),
    pytest.param(
        breaks(ConnectionError("line down")),
        ONCE,
        RecordStatus.OUTCOME_UNKNOWN,
        {"error": OUTCOME_UNKNOWN_TOOL_RESULT},
        id="unknown after the one try of a write",
    ),
    pytest.param(
        breaks(ConnectionError("line down")),
        ToolPolicy(ToolEffect.UNCLASSIFIED, requires_approval=False),
        RecordStatus.OUTCOME_UNKNOWN,
        {"error": OUTCOME_UNKNOWN_TOOL_RESULT},
        id="unknown for an unclassified tool",
    ),
]


@pytest.mark.parametrize(("tool", "policy", "status", "response"), SEEN)
async def test_the_model_sees_the_record(
    field: Field, tool: Any, policy: ToolPolicy, status: RecordStatus, response: dict[str, Any]
) -> None:
    """Plain ADK lets every exception of a tool end the run; the model never hears of it."""
    async with field.working(field.flow(SCRIPT, [tool], {"tool": policy})) as client:
        await say(client, "go")
        assert answers_in(field.requests[-1]) == {"tool": response}
        step = (await call_steps(client))["tool"]
        assert step.status.value == status.value
        assert step.result == (response if status is RecordStatus.SUCCEEDED else None)
        assert (step.error is None) == (status is RecordStatus.SUCCEEDED)


async def test_a_rejected_call_gives_the_words_of_whoever_rejected(field: Field) -> None:
    async with field.working(field.flow(SCRIPT, [gives(1)], {"tool": ASKED})) as client:
        await say(client, "go")
        await answer_all(client, approved=False, message="Not on a Sunday.")
        assert answers_in(field.requests[-1]) == {"tool": {"error": "Not on a Sunday."}}


async def test_a_rejected_call_without_words_gives_those_of_adk(field: Field) -> None:
    async with field.working(field.flow(SCRIPT, [gives(1)], {"tool": ASKED})) as client:
        await say(client, "go")
        await answer_all(client, approved=False)
        assert answers_in(field.requests[-1]) == {"tool": {"error": "This tool call is rejected."}}


async def test_a_call_that_never_ran_says_so(field: Field) -> None:
    """A call whose approval ran out of time: nothing happened, and the model may ask again."""
    from datetime import timedelta

    flow = field.flow(SCRIPT, [gives(1)], {"tool": ASKED}, interrupt_deadline=timedelta(milliseconds=30))
    async with field.working(flow) as client:
        await client.start_session("s", "go")
        async for event in client.stream_events("s"):
            if event.type.value == "turn_completed":
                break
        (response,) = answers_in(field.requests[-1]).values()
        assert response["error"].startswith(TOOL_CALL_NOT_RUN_ERROR_PREFIX)


async def test_a_read_that_works_at_the_third_try_is_a_success(field: Field) -> None:
    tries: list[int] = []

    def tool() -> str:
        """Works at the third try."""
        tries.append(1)
        if len(tries) < 3:
            raise ConnectionError("line down")
        return "ok"

    policy = ToolPolicy(ToolEffect.READ, retry=AT_ONCE)
    async with field.working(field.flow(SCRIPT, [tool], {"tool": policy})) as client:
        await say(client, "go")
        assert answers_in(field.requests[-1]) == {"tool": {"result": "ok"}}
        assert (await call_steps(client))["tool"].attempts == 3
