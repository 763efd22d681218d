"""Which model the agent talks to: Gemini; or, only if asked for, a script that needs no key and no network."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from google.adk.models import BaseLlm

from perdure import UsageError
from perdure.testing import (
    ScriptedModel,
    by_message,
    call,
    failing,
    reply,
    text,
    tool_results,
    user_text,
)

if TYPE_CHECKING:
    from google.adk.models.llm_request import LlmRequest

    from perdure.testing import Reply, Script

MODEL = "gemini-2.5-flash"

NO_KEY = (
    f"There is no key for {MODEL}: set GOOGLE_API_KEY. To try the example without one, set SUPPORT_SCRIPTED=1; the "
    "answers then come from a script."
)

_CREDENTIALS = ("GOOGLE_API_KEY", "GEMINI_API_KEY", "GOOGLE_GENAI_USE_VERTEXAI", "GOOGLE_GENAI_USE_ENTERPRISE")


def choose_model(environment: Mapping[str, str]) -> str | BaseLlm:
    """Gemini if there is a key.  A script if ``SUPPORT_SCRIPTED`` is ``1``, key or not.

    With neither, the agent can be loaded and looked at, but its first answer is an error that says what is missing.
    """
    if environment.get("SUPPORT_SCRIPTED") == "1":
        return ScriptedModel(SCRIPT)
    if any(environment.get(name) for name in _CREDENTIALS):
        return MODEL
    return ScriptedModel(failing(UsageError(NO_KEY)))


def _orders(request: LlmRequest) -> list[dict[str, Any]]:
    found = [result.response for result in tool_results(request) if result.name == "search_orders"]
    return (found[-1] or {}).get("orders", []) if found else []


def _look_up(request: LlmRequest) -> Reply:
    customer = re.search(r"customer\s+(\w+)", user_text(request), re.IGNORECASE)
    return call("search_orders", customer_id=customer[1] if customer else "9")


def _refund_latest(request: LlmRequest) -> Reply:
    orders = _orders(request)
    return call("refund_order", order_id=orders[0]["order_id"]) if orders else text("I find no order of yours.")


def _check_latest(request: LlmRequest) -> Reply:
    orders = _orders(request)
    if not orders:
        return text("I find no order of yours.")
    latest = orders[0]
    return reply(
        call("check_stock", sku=latest["sku"]),
        call("get_shipping_status", order_id=latest["order_id"]),
    )


def _write_mail(request: LlmRequest) -> Reply:
    address = re.search(r"\S+@\S+\w", user_text(request))
    to = address[0] if address else "customer9@example.com"
    return call("send_email", to=to, subject="Your orders", body=f"You have {len(_orders(request))} orders with us.")


def _report(request: LlmRequest) -> Reply:
    sentences: list[str] = []
    for result in tool_results(request):
        response = result.response or {}
        if "error" in response:
            sentences.append(f"{result.name} did not work: {response['error']}")
        elif result.name != "search_orders":
            facts = ", ".join(f"{key.replace('_', ' ')} {value}" for key, value in response.items())
            sentences.append(f"{result.name}: {facts}")
    return text("; ".join(sentences) + ".")


SCRIPT: Script = by_message(
    {
        "refund": [_look_up, _refund_latest, _report],
        "mail": [_look_up, _write_mail, _report],
        "where": [_look_up, _check_latest, _report],
    },
    otherwise=text("I can tell where your order is, refund it, or send you a mail. Which customer are you?"),
)
"""Enough for a demo: it looks things up, then does what the message asks for."""
