"""What every measure and every contender runs: a scripted model, an agent with a few tools, and the messages they know.

A turn is: user message, model call, tool call(s), model call with about 60 characters of text.  The model is instant
and has no state: it decides by the last content of its request, so a replay, another process and raw ADK get the same
answers.  Nothing here needs more than google-adk: the peers' own environments import it, too.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncGenerator, Callable, Sequence
from typing import Any

from google.adk.agents import LlmAgent
from google.adk.models.base_llm import BaseLlm
from google.adk.models.llm_request import LlmRequest
from google.adk.models.llm_response import LlmResponse
from google.genai import types

FLOW_TYPE = "BenchOrders"
USER = "u"
INSTRUCTION = "You help with orders. Use lookup to read an order before answering."
PARALLEL_CALLS = 8

Tool = Callable[..., Any]
"""What ADK takes for a tool: any async function whose parameters it can describe."""


# ---------------------------------------------------------------- the model


def one_lookup(number: int) -> str:
    """A user message that makes the model call ``lookup`` once."""
    return f"where is order #{number}?"


def parallel_lookups(number: int) -> str:
    """A user message that makes the model call ``lookup`` eight times in one response."""
    return f"parallel: where are the orders of #{number}?"


def chain(length: int) -> str:
    """A user message that makes the model call ``follow`` ``length`` times in a row, and then ``refund``."""
    return f"follow #{length}"


def refund_order(number: int) -> str:
    """A user message that makes the model call ``refund`` once."""
    return f"refund #{number}"


def hold_order(number: int) -> str:
    """A user message that makes the model call ``hold`` once."""
    return f"hold #{number}"


def audit(pages: int, characters: int) -> str:
    """A user message of some length that makes the model call ``read_page`` ``pages`` times in a row."""
    return f"audit #{pages} ".ljust(characters, ".")


def scan_order(number: int) -> str:
    """A user message that makes the model call ``scan`` once."""
    return f"scan #{number}"


class ScriptedLlm(BaseLlm):
    """Answers by the last content of the request alone."""

    model: str = "scripted"

    @classmethod
    def supported_models(cls) -> list[str]:
        """For contenders that look models up by name."""
        return ["scripted"]

    async def generate_content_async(
        self, llm_request: LlmRequest, stream: bool = False
    ) -> AsyncGenerator[LlmResponse, None]:
        yield LlmResponse(content=types.Content(role="model", parts=_answer(llm_request.contents[-1])))


def _answer(last: types.Content) -> list[types.Part]:
    parts = last.parts or []
    replies = [part.function_response.response or {} for part in parts if part.function_response]
    assert not any("error" in reply for reply in replies), replies
    if not replies:
        return _calls_for(parts[0].text or "" if parts else "")
    if replies[-1].get("pages_left"):
        return [_call("read_page", left=replies[-1]["pages_left"])]
    left = replies[-1].get("left")
    if left is None:
        return [types.Part(text=f"Your order is shipped and will reach you in 3 days ({len(replies)} found).")]
    return [_call("follow", order_id="1", left=left)] if left > 0 else [_call("refund", order_id="1")]


def _calls_for(text: str) -> list[types.Part]:
    match = re.search(r"#(\d+)", text)
    number = match[1] if match else "0"
    if text.startswith("parallel"):
        return [_call("lookup", order_id=f"{number}-{place}") for place in range(PARALLEL_CALLS)]
    if text.startswith("follow"):
        return [_call("follow", order_id="1", left=int(number))]
    if text.startswith("audit"):
        return [_call("read_page", left=int(number))]
    name = next((name for name in ("refund", "hold", "scan") if text.startswith(name)), "lookup")
    return [_call(name, order_id=number)]


def _call(name: str, **args: object) -> types.Part:
    return types.Part(function_call=types.FunctionCall(name=name, args=args))


# ---------------------------------------------------------------- the agent


async def lookup(order_id: str) -> dict[str, Any]:
    """Reads an order.

    Args:
        order_id: the order's id.
    """
    return {"order_id": order_id, "status": "shipped", "eta_days": 3}


async def follow(order_id: str, left: int) -> dict[str, Any]:
    """Reads the next stop of an order's way.

    Args:
        order_id: the order's id.
        left: how many stops are left.
    """
    return {"order_id": order_id, "left": left - 1}


PAGE_CHARACTERS = 5_000
PAGE_SECONDS = 0.03
SCAN_CHARACTERS = 5_000_000


async def read_page(left: int) -> dict[str, Any]:
    """Reads a page of 5 KB; that takes a moment, as in life.

    Args:
        left: how many pages are left, this one counted.
    """
    await asyncio.sleep(PAGE_SECONDS)
    return {"pages_left": left - 1, "text": "p" * PAGE_CHARACTERS}


async def scan(order_id: str) -> dict[str, Any]:
    """Reads the scan of an order, 5 MB of it.

    Args:
        order_id: the order's id.
    """
    return {"order_id": order_id, "scan": "s" * SCAN_CHARACTERS}


async def refund(order_id: str) -> dict[str, Any]:
    """Refunds an order.

    Args:
        order_id: the order's id.
    """
    return {"order_id": order_id, "status": "refunded"}


def orders_agent(tools: Sequence[Tool]) -> LlmAgent:
    return LlmAgent(name="orders", model=ScriptedLlm(), instruction=INSTRUCTION, tools=[*tools])


def user_content(text: str) -> types.Content:
    return types.Content(role="user", parts=[types.Part(text=text)])
