"""What the agent can do.  Each tool is a plain function; the writes are real, in files of their own."""

from __future__ import annotations

import json
import os
from typing import Any

from google.adk.tools.tool_context import ToolContext

from perdure import ToolExecutionError
from perdure.adk import idempotency_key_for_tool_call

from .ledger import RefundRefused, open_ledger, refund


def search_orders(customer_id: str) -> dict[str, Any]:
    """Lists a customer's orders, the latest first.

    Args:
        customer_id: the customer's number, such as "9".
    """
    with open_ledger() as ledger:
        rows = ledger.execute(
            "SELECT order_id, sku, amount_cents, ordered_on,"
            "       EXISTS (SELECT 1 FROM refunds WHERE refunds.order_id = orders.order_id) AS refunded"
            "  FROM orders WHERE customer_id = ? ORDER BY ordered_on DESC",
            (customer_id,),
        ).fetchall()
    return {"orders": [{**row, "refunded": bool(row["refunded"])} for row in map(dict, rows)]}


def check_stock(sku: str) -> dict[str, Any]:
    """Says how many pieces of an article are in stock.

    Args:
        sku: the article, as in an order.
    """
    with open_ledger() as ledger:
        row = ledger.execute("SELECT pieces FROM stock WHERE sku = ?", (sku,)).fetchone()
    return {"sku": sku, "pieces": row["pieces"] if row else 0}


def get_shipping_status(order_id: str) -> dict[str, Any]:
    """Says where the parcel of an order is.

    Args:
        order_id: the number of the order.
    """
    with open_ledger() as ledger:
        row = ledger.execute("SELECT shipping FROM orders WHERE order_id = ?", (order_id,)).fetchone()
    if row is None:
        raise ToolExecutionError(f"there is no order {order_id}")
    return {"order_id": order_id, "shipping": row["shipping"]}


def refund_order(order_id: str, tool_context: ToolContext) -> dict[str, Any]:
    """Pays the full amount of an order back to the customer.

    Args:
        order_id: the number of the order.
    """
    try:
        return refund(order_id, idempotency_key_for_tool_call(tool_context))
    except RefundRefused as refusal:
        raise ToolExecutionError(str(refusal)) from None


def send_email(to: str, subject: str, body: str) -> dict[str, Any]:
    """Sends an e-mail.

    Args:
        to: the address.
        subject: one line.
        body: plain text.
    """
    with open(os.environ.get("SUPPORT_OUTBOX", "outbox.jsonl"), "a", encoding="utf-8") as outbox:
        outbox.write(json.dumps({"to": to, "subject": subject, "body": body}) + "\n")
    return {"status": "sent"}
