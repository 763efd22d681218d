"""Confirmations: what a tool asks through ADK, before it runs or in the middle of its run."""

from __future__ import annotations

from google.adk.tools.function_tool import FunctionTool
from google.adk.tools.tool_context import ToolContext

from perdure.session.model import InterruptKind, JsonObject
from perdure.session.runner import AgentSessionFlow
from perdure.testing.conformance.case import case
from perdure.testing.conformance.checks import same
from perdure.testing.conformance.stage import Stage
from perdure.testing.conformance.world import ONCE, READ, World
from perdure.testing.replies import call, text


def amended(world: World) -> AgentSessionFlow:
    """Asks through ADK's own confirmation, and uses what came with the yes."""

    def pay(amount: int, tool_context: ToolContext) -> JsonObject:
        """Pays."""
        said = tool_context.tool_confirmation
        payload = None if said is None else said.payload
        world.note("pay", amount, payload)
        return {"asked": amount, "payload": payload}

    tools = [FunctionTool(pay, require_confirmation=True)]
    return world.flow(world.agent([call("pay", amount=5), text("Done.")], tools), {"pay": READ})


@case("confirmations/payload", "What comes with a yes reaches the tool.", amended)
async def payload(stage: Stage) -> None:
    await stage.start()
    (asked,) = await stage.asked()
    same("the kind", asked.kind, InterruptKind.CONFIRMATION)
    await stage.decide(asked, True, payload={"amount": 3, "why": ["ä", None, 1.5]})
    await stage.idle()
    same("the ledger", stage.world.ledger, ["pay 5 {'amount': 3, 'why': ['ä', None, 1.5]}"])


def doubtful(world: World) -> AgentSessionFlow:
    """A write that asks in the middle of its run."""

    def book(days: int, tool_context: ToolContext) -> JsonObject:
        """Books, once somebody has said how many days."""
        said = tool_context.tool_confirmation
        world.note("book", days, "asks" if said is None else said.payload)
        if said is None:
            tool_context.state["asked"] = days
            tool_context.request_confirmation(hint="How many days?", payload={"days": days})
            return {"status": "somebody is asked"}
        return {"booked": said.payload}

    return world.flow(world.agent([call("book", days=3), text("Done.")], [book]), {"book": ONCE})


@case("confirmations/in-the-middle", "A tool that asks in its run is run once more for a yes.", doubtful)
async def in_the_middle(stage: Stage) -> None:
    await stage.start()
    (asked,) = await stage.asked()
    same(
        "what is asked",
        (asked.kind, asked.hint, asked.payload),
        (InterruptKind.CONFIRMATION, "How many days?", {"days": 3}),
    )
    await stage.decide(asked, True, payload={"days": 2})
    await stage.completed()
    same("the ledger", stage.world.ledger, ["book 3 asks", "book 3 {'days': 2}"])


@case("confirmations/in-the-middle-rejected", "For a no, a tool that asked in its run is not run again.", doubtful)
async def in_the_middle_rejected(stage: Stage) -> None:
    await stage.start()
    (asked,) = await stage.asked()
    await stage.decide(asked, False)
    await stage.idle()
    same("the ledger", stage.world.ledger, ["book 3 asks"])


@case(
    "confirmations/in-the-middle-after-a-restart",
    "What a tool asked in its run outlives its worker.",
    doubtful,
    served=False,
)
async def in_the_middle_after_a_restart(stage: Stage) -> None:
    with stage.process() as first:
        await stage.up(first)
        await stage.start()
        (asked,) = await stage.asked()
        first.kill()
    await stage.decide(asked, True, payload={"days": 1})
    async with stage.worker():
        await stage.completed()
    same("the ledger", stage.world.ledger, ["book 3 asks", "book 3 {'days': 1}"])
