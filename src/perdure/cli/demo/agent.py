"""The demo's agent, as a user of perdure would write it: an ordinary ADK agent, and a line for each tool's effect.

Only its model is not real: it plays a script, so that the demo needs no key and no network.
"""

from __future__ import annotations

import asyncio
import os

from google.adk.agents import LlmAgent
from google.adk.tools.tool_context import ToolContext

from perdure.adk import adk_agent_session_flow, idempotency_key_for_tool_call
from perdure.cli.demo.scene import FLOW_TYPE, PAID, Scene
from perdure.session.policy import ToolEffect, ToolPolicy
from perdure.session.runner import AgentSessionFlow
from perdure.testing import ScriptedModel, call, reply, text

SCRIPT = [
    reply(text("I look up the order."), call("find_order", order_id="1042")),
    reply(
        text("Two things to check, at the same time."),
        call("shipping_status", order_id="1042"),
        call("return_policy", item="kettle"),
    ),
    reply(text("It may be returned."), call("refund_order", order_id="1042", amount="49.90")),
    text("Refund 1 over 49.90 is paid. I am sorry about the kettle."),
]

POLICIES = {
    "find_order": ToolPolicy(ToolEffect.READ),
    "shipping_status": ToolPolicy(ToolEffect.READ),
    "return_policy": ToolPolicy(ToolEffect.READ),
    "refund_order": ToolPolicy(ToolEffect.IDEMPOTENT_WRITE, requires_approval=True),
}


def order_support(scene: Scene, *, bank_hangs: bool) -> AgentSessionFlow:
    """The agent, made durable.

    Args:
        bank_hangs: refunds are paid, but the call never returns.
    """
    ledger = scene.ledger

    def find_order(order_id: str) -> dict[str, str]:
        """Looks up an order."""
        ledger.note_run("find_order", os.getpid())
        return ledger.order(order_id)

    def shipping_status(order_id: str) -> dict[str, str]:
        """Tells where an order is."""
        ledger.note_run("shipping_status", os.getpid())
        return {"order_id": order_id, "status": "delivered"}

    def return_policy(item: str) -> dict[str, str]:
        """Tells whether an item may be returned."""
        ledger.note_run("return_policy", os.getpid())
        return {"item": item, "returns": "within 30 days"}

    async def refund_order(order_id: str, amount: str, tool_context: ToolContext) -> dict[str, str]:
        """Pays an order's money back."""
        ledger.note_run("refund_order", os.getpid())
        refund_id = ledger.pay_refund(idempotency_key_for_tool_call(tool_context), order_id, amount)
        if bank_hangs:
            print(PAID, flush=True)
            await asyncio.Event().wait()
        return {"refund_id": str(refund_id), "amount": amount}

    agent = LlmAgent(
        name="order_support",
        model=ScriptedModel(SCRIPT, log=scene.request_log),
        instruction="You help customers with their orders.",
        tools=[find_order, shipping_status, return_policy, refund_order],
    )
    return adk_agent_session_flow(agent, flow_type=FLOW_TYPE, tool_policies=POLICIES)
