"""The work that every measure runs: a scripted model, an agent, and the two sides that run it, raw ADK and perdure.

A turn is: user message, model call, tool call(s), model call with about 60 characters of text.  The model is instant
and has no state: it decides by the last content of its request, so a replay, another process and raw ADK get the same
answers.  Both sides run under the same ADK run configuration.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncGenerator, Callable, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Protocol, Self

from google.adk.agents import LlmAgent
from google.adk.agents.run_config import RunConfig
from google.adk.models.base_llm import BaseLlm
from google.adk.models.llm_request import LlmRequest
from google.adk.models.llm_response import LlmResponse
from google.adk.runners import Runner
from google.adk.sessions import InMemorySessionService
from google.genai import types

from bench.store import address_for
from perdure import AgentSessionClient, AgentSessionFlow, ToolEffect, ToolPolicy, TurnStatus, open_engine
from perdure.adk import adk_agent_session_flow
from perdure.store.opening import Durability

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


class ScriptedLlm(BaseLlm):
    """Answers by the last content of the request alone."""

    model: str = "scripted"

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
    name = next((name for name in ("refund", "hold") if text.startswith(name)), "lookup")
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


async def refund(order_id: str) -> dict[str, Any]:
    """Refunds an order.

    Args:
        order_id: the order's id.
    """
    return {"order_id": order_id, "status": "refunded"}


READS = ("lookup", "follow", "hold")
POLICIES = {name: ToolPolicy(ToolEffect.READ) for name in READS} | {
    "refund": ToolPolicy(ToolEffect.IDEMPOTENT_WRITE, requires_approval=True)
}


def orders_agent(tools: Sequence[Tool]) -> LlmAgent:
    return LlmAgent(name="orders", model=ScriptedLlm(), instruction=INSTRUCTION, tools=[*tools])


def orders_flow(tools: Sequence[Tool]) -> AgentSessionFlow:
    names = {tool.__name__ for tool in tools}
    return adk_agent_session_flow(
        orders_agent(tools),
        flow_type=FLOW_TYPE,
        tool_policies={name: policy for name, policy in POLICIES.items() if name in names},
        run_config=RunConfig(),
    )


def user_content(text: str) -> types.Content:
    return types.Content(role="user", parts=[types.Part(text=text)])


# ---------------------------------------------------------------- the two sides


class Side(Protocol):
    """Runs turns; what is measured is ``turn``."""

    async def open(self, session_id: str) -> None:
        """Creates an idle session."""
        ...

    async def turn(self, session_id: str, text: str) -> None:
        """Runs one turn to its end, as the caller of the library sees it."""
        ...


class RawSide:
    """Plain ADK with its sessions in memory."""

    def __init__(self, *tools: Tool) -> None:
        self._runner = Runner(
            app_name=FLOW_TYPE, agent=orders_agent(tools or (lookup,)), session_service=InMemorySessionService()
        )

    async def open(self, session_id: str) -> None:
        await self._runner.session_service.create_session(app_name=FLOW_TYPE, user_id=USER, session_id=session_id)

    async def turn(self, session_id: str, text: str) -> None:
        finished = False
        async for event in self._runner.run_async(
            user_id=USER, session_id=session_id, new_message=user_content(text), run_config=RunConfig()
        ):
            finished = event.is_final_response()
        assert finished


class DurableSide:
    """perdure on a store of its own, with a worker in this process unless ``worker`` is false."""

    def __init__(self, path: Path, *tools: Tool, durability: Durability = "power", worker: bool = True) -> None:
        flow = orders_flow(tools or (lookup,))
        self.engine = open_engine(address_for(path), flows=[flow], durability=durability)
        self.client = AgentSessionClient(self.engine, flow)
        self._worker = self.engine.worker() if worker else None

    async def __aenter__(self) -> Self:
        await self.engine.open()
        if self._worker is not None:
            await self._worker.__aenter__()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._worker is not None:
            await self._worker.__aexit__(kind, error, trace)
        await self.engine.close()

    async def open(self, session_id: str) -> None:
        await self.client.start_session(session_id, user_id=USER)

    async def turn(self, session_id: str, text: str) -> None:
        await self.client.send_user_message(session_id, text)
        await self.end_of_turn(session_id)

    async def end_of_turn(self, session_id: str) -> None:
        """Waits for the end of a turn that must succeed."""
        snapshot = await self.client.wait(session_id, timeout=120)
        assert snapshot.turn is not None
        assert snapshot.turn.status is TurnStatus.COMPLETED, snapshot

    async def ask(self, session_id: str, text: str) -> str:
        """Starts a turn that stops at an approval; returns the interrupt's id."""
        await self.client.start_session(session_id, text, user_id=USER)
        return await self.pending(session_id)

    async def pending(self, session_id: str) -> str:
        """Waits until a session waits for its one approval; returns the interrupt's id."""
        snapshot = await self.client.wait(session_id, timeout=120)
        (interrupt,) = snapshot.pending_interrupts
        return interrupt.interrupt_id

    async def approve(self, session_id: str, interrupt_id: str) -> None:
        """Answers the approval, and waits for the end of the turn."""
        await self.client.resolve_interrupt(session_id, interrupt_id, approved=True)
        await self.end_of_turn(session_id)


async def many(side: Side, session_ids: Sequence[str], turns: int) -> None:
    """Runs ``turns`` turns of each session, all sessions at once."""

    async def one(session_id: str) -> None:
        for number in range(turns):
            await side.turn(session_id, one_lookup(number))

    await asyncio.gather(*(one(session_id) for session_id in session_ids))
