"""Field case 9: whoever declines a gated call has declined it, whatever kind of gate it is (static gates)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from google.adk.tools.base_tool import BaseTool
from google.adk.tools.function_tool import FunctionTool
from google.adk.tools.tool_context import ToolContext
from google.genai import types
from tests.field.support import READ, SESSION, Field, answer_all, answers_in, prompt, say, steps_of

from perdure import InterruptKind, SessionStatus, ToolEffect, ToolPolicy
from perdure.testing import call, text

MakeTool = Callable[[Field], Any]


def function(field: Field) -> Callable[[int], str]:
    def pay(amount: int) -> str:
        """Pays."""
        field.note("pay", amount)
        return "paid"

    return pay


def always(field: Field) -> FunctionTool:
    return FunctionTool(function(field), require_confirmation=True)


def above_ten(field: Field) -> FunctionTool:
    def gate(amount: int) -> bool:
        return amount > 10

    return FunctionTool(function(field), require_confirmation=gate)


def above_the_limit_in_the_state(field: Field) -> FunctionTool:
    """ADK gives the gate the tool context if the tool's function takes it."""

    def pay(amount: int, tool_context: ToolContext) -> str:
        """Pays."""
        field.note("pay", amount)
        return "paid"

    async def gate(amount: int, tool_context: ToolContext) -> bool:
        limit: int = tool_context.state["limit"]
        return amount > limit

    ask: Any = gate  # ADK waits for it, though its type does not say so
    return FunctionTool(pay, require_confirmation=ask)


class _PayTool(BaseTool):
    """A tool of one's own, with the gate that ADK offers to all tools."""

    def __init__(self, field: Field) -> None:
        super().__init__(name="pay", description="Pays.")
        self.field = field

    def _get_declaration(self) -> types.FunctionDeclaration:
        amount = types.Schema(type=types.Type.INTEGER)
        parameters = types.Schema(type=types.Type.OBJECT, properties={"amount": amount})
        return types.FunctionDeclaration(name=self.name, description=self.description, parameters=parameters)

    async def check_require_confirmation(self, args: dict[str, Any], tool_context: ToolContext) -> bool:
        return True

    async def run_async(self, *, args: dict[str, Any], tool_context: ToolContext) -> Any:
        self.field.note("pay", args["amount"])
        return "paid"


GATES = [always, above_ten, above_the_limit_in_the_state, _PayTool]
SCRIPT = [call("pay", amount=50), text("As you like.")]


@pytest.mark.parametrize("make_tool", GATES)
async def test_a_rejected_call_of_a_gated_tool_does_not_run(field: Field, make_tool: MakeTool) -> None:
    """Case 9.  Plain ADK enforces this for its static gates; here it holds for the gate by effect, too (below)."""
    async with field.working(field.flow(SCRIPT, [make_tool(field)], {"pay": READ})) as client:
        snapshot = await say(client, "pay 50", state={"limit": 10})
        assert snapshot.status is SessionStatus.WAITING
        (interrupt,) = snapshot.pending_interrupts
        assert interrupt.kind is InterruptKind.CONFIRMATION
        assert (interrupt.tool_name, interrupt.arguments, interrupt.agent_name) == ("pay", {"amount": 50}, "helper")
        assert len(field.requests) == 1
        snapshot = await answer_all(client, approved=False)
        assert snapshot.status is SessionStatus.IDLE
        assert field.world == []
        assert answers_in(field.requests[-1]) == {"pay": {"error": "This tool call is rejected."}}
        assert len(field.requests) == 2
        assert [f"{step.name.value} {step.status.value}" for step in await steps_of(client)] == [
            "AwaitUserMessage succeeded",
            "RunModel succeeded",
            "AwaitToolApproval rejected",
            "ResumeTurn succeeded",
            "RunModel succeeded",
            "AwaitUserMessage pending",
        ]


@pytest.mark.parametrize("make_tool", GATES)
async def test_an_approved_call_of_a_gated_tool_runs_once(field: Field, make_tool: MakeTool) -> None:
    async with field.working(field.flow(SCRIPT, [make_tool(field)], {"pay": READ})) as client:
        await say(client, "pay 50", state={"limit": 10})
        await answer_all(client)
        assert field.world == ["pay 50"]
        assert prompt(field.requests[-1]) == [
            "user says pay 50",
            "model calls pay",
            'user answers pay {"result": "paid"}',
        ], "no confirmation request, answer or placeholder is in the history"


@pytest.mark.parametrize("make_tool", [above_ten, above_the_limit_in_the_state])
async def test_a_gate_that_lets_the_call_through_asks_nobody(field: Field, make_tool: MakeTool) -> None:
    script = [call("pay", amount=5), text("Done.")]
    async with field.working(field.flow(script, [make_tool(field)], {"pay": READ})) as client:
        snapshot = await say(client, "pay 5", state={"limit": 10})
        assert (snapshot.status, field.world) == (SessionStatus.IDLE, ["pay 5"])


@pytest.mark.parametrize(
    ("policy", "kind"),
    [
        (ToolPolicy(ToolEffect.NON_IDEMPOTENT_WRITE), InterruptKind.APPROVAL),
        (ToolPolicy(ToolEffect.UNCLASSIFIED), InterruptKind.APPROVAL),
        (ToolPolicy(ToolEffect.READ, requires_approval=True), InterruptKind.APPROVAL),
    ],
)
async def test_a_call_rejected_by_its_policys_gate_does_not_run(
    field: Field, policy: ToolPolicy, kind: InterruptKind
) -> None:
    async with field.working(field.flow(SCRIPT, [function(field)], {"pay": policy})) as client:
        snapshot = await say(client, "pay 50")
        assert [interrupt.kind for interrupt in snapshot.pending_interrupts] == [kind]
        await answer_all(client, approved=False)
        assert field.world == []
        assert answers_in(field.requests[-1]) == {"pay": {"error": "This tool call is rejected."}}


async def test_a_tool_gated_twice_asks_once(field: Field) -> None:
    """ADK's gate and the effect's: one question, and ADK's kind of it, since the tool may read the answer."""
    flow = field.flow(SCRIPT, [always(field)], {"pay": ToolPolicy(ToolEffect.NON_IDEMPOTENT_WRITE)})
    async with field.working(flow) as client:
        snapshot = await say(client, "pay 50")
        assert [interrupt.kind for interrupt in snapshot.pending_interrupts] == [InterruptKind.CONFIRMATION]
        await answer_all(client)
        assert field.world == ["pay 50"]


async def test_the_next_call_of_a_rejected_tool_is_asked_anew(field: Field) -> None:
    """An answer is for one exact call."""
    script = [call("pay", amount=50), call("pay", amount=50), text("Done.")]
    async with field.working(field.flow(script, [always(field)], {"pay": READ})) as client:
        await say(client, "pay 50")
        first = (await client.get_agent_snapshot(SESSION)).pending_interrupts[0]
        snapshot = await answer_all(client, approved=False)
        (second,) = snapshot.pending_interrupts
        assert second.interrupt_id != first.interrupt_id
        await answer_all(client)
        assert field.world == ["pay 50"]
