"""The order-support agent: looks up orders, checks stock and shipping, refunds, and writes e-mail.

It is an ordinary ADK agent.  What makes it durable stands beside it, in ``perdure_options``: what each tool does to the
world.
"""

from __future__ import annotations

import os
from typing import Any

from google.adk.agents import Agent

from perdure import ToolEffect, ToolPolicy

from .model import choose_model
from .tools import check_stock, get_shipping_status, refund_order, search_orders, send_email

root_agent = Agent(
    name="support",
    description="Helps customers of a small shop with their orders.",
    model=choose_model(os.environ),
    instruction=(
        "You help the customers of a small shop. Look an order up before you talk about it. Refund an order only if "
        "the customer asks for it, and only once. Never repeat a call whose outcome is unknown: look the order up "
        "instead. Send e-mail only if the customer wants one."
    ),
    tools=[search_orders, check_stock, get_shipping_status, refund_order, send_email],
)

perdure_options: dict[str, Any] = {
    "flow_type": "SupportAgent",
    "tool_policies": {
        "search_orders": ToolPolicy(ToolEffect.READ),
        "check_stock": ToolPolicy(ToolEffect.READ),
        "get_shipping_status": ToolPolicy(ToolEffect.READ),
        # Money moves at most once for each call, however often the call runs; and a person has to agree first.
        "refund_order": ToolPolicy(ToolEffect.IDEMPOTENT_WRITE, requires_approval=True),
        # send_email has no policy: perdure takes the worst for granted, asks first and runs it once.
    },
}
"""Keyword arguments for ``adk_agent_session_flow``."""
