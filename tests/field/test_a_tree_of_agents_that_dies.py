"""Sequential(Parallel(A, B), C), where C runs an agent as a tool; its worker is killed at a durable write."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest
from google.adk.agents import ParallelAgent, SequentialAgent
from google.adk.tools.agent_tool import AgentTool
from google.adk.tools.tool_context import ToolContext
from tests.field.lives import GO_ON, Hold, life
from tests.field.support import IDEMPOTENT, READ, SESSION, Field, at_rest, durable, messages_of, steps_of

from perdure import AgentSessionFlow, SessionStatus
from perdure.session.model import JsonObject
from perdure.testing import DurableWrite, FaultPoint, Moment, call, reply, text


def tree(field: Field, hold: Hold) -> AgentSessionFlow:
    def look(what: str) -> str:
        """Looks."""
        field.note("look", what)
        return f"saw {what}"

    def write(what: str, tool_context: ToolContext) -> str:
        """Writes."""
        field.note("write", what, tool_context.agent_name)
        tool_context.state[f"wrote:{what}"] = tool_context.agent_name
        return f"wrote {what}"

    tools = [look, write]
    a = field.agent([call("look", what="a"), call("write", what="a"), text("A.")], tools, name="a", output_key="a")
    b = field.agent(
        [reply(call("look", what="b1"), call("write", what="b2")), text("B.")], tools, name="b", output_key="b"
    )
    helper = field.agent([call("write", what="h"), text("H.")], tools, name="helper", description="Helps.")
    c = field.agent(
        [call("helper", request="go"), text("C.")], [AgentTool(helper)], name="c", instruction="After {a} and {b}."
    )
    root = SequentialAgent(name="line", sub_agents=[ParallelAgent(name="both", sub_agents=[a, b]), c])
    return durable(root, {"look": READ, "write": IDEMPOTENT})


async def _undisturbed(folder: Path) -> tuple[list[JsonObject], JsonObject]:
    field = Field(folder)
    async with field.working(tree(field, GO_ON)) as client:
        await client.start_session(SESSION, "go")
        snapshot = await at_rest(client, SessionStatus.IDLE)
        return _events([m.framework_item for m in await messages_of(client)]), snapshot.state


def _events(items: list[JsonObject]) -> list[JsonObject]:
    """By branch, since which of two is first is chance; without what differs between two sessions."""
    names = ("author", "branch", "content", "actions")
    kept = [{key: value for key, value in item.items() if key in names} for item in items]
    for item in kept:
        for part in item["content"]["parts"]:
            for kind in ("function_call", "function_response"):
                part.get(kind, {}).pop("id", None)
    return sorted(kept, key=lambda item: item.get("branch") or "")


BEFORE, AFTER = Moment
MODEL, TOOL = DurableWrite.MODEL_RECORDED, DurableWrite.STEP_SETTLED


@pytest.mark.parametrize(
    ("write", "moment", "nth"),
    [
        *((MODEL, BEFORE, nth) for nth in (1, 2, 4)),
        *((MODEL, AFTER, nth) for nth in (1, 3, 4)),
        *((TOOL, BEFORE, nth) for nth in (1, 3, 4)),
        *((TOOL, AFTER, nth) for nth in (2, 4)),
        (DurableWrite.TURN_ENDED, BEFORE, 1),
    ],
)
async def test_after_a_kill_it_ends_as_if_nothing_had_happened(
    field: Field, tmp_path_factory: pytest.TempPathFactory, write: DurableWrite, moment: Moment, nth: int
) -> None:
    expected, state = await _undisturbed(tmp_path_factory.mktemp("undisturbed"))
    async with field.asking() as client:
        await client.start_session(SESSION, "go")
        with life(tree, field, fault=FaultPoint(write, moment), nth=nth) as child:
            assert await child.wait_exit_async() == -signal.SIGKILL, f"{write} was not reached {nth} times"
        steps = await steps_of(client)
        recorded = [step for step in steps if step.tool_name and step.status.settled]
    before = list(field.world)
    async with field.working(tree(field, GO_ON)) as client:
        snapshot = await at_rest(client, SessionStatus.IDLE)
        assert snapshot.error is None
        assert _events([m.framework_item for m in await messages_of(client)]) == expected
        assert snapshot.state == state
    for step in recorded:  # what has a record never runs again
        line = f"{step.tool_name} {(step.result or {})['result'].split()[-1]}"
        assert len([entry for entry in field.world if entry.startswith(line)]) == 1, (line, before, field.world)
