"""What the crash tests run: three small stories on real ADK, in a child process that can die at any durable write.

Everything that a story does to the world is a line in a file, so that a test can count it over all lives of the child:
``world.txt`` for tool bodies, ``requests.jsonl`` for model requests.
"""

from __future__ import annotations

import os
from datetime import timedelta
from pathlib import Path

from google.adk.agents import LlmAgent
from google.adk.tools.tool_context import ToolContext

from perdure import (
    AgentSessionClient,
    AgentSessionFlow,
    AgentSnapshot,
    RetryPolicy,
    SessionStatus,
    ToolEffect,
    ToolPolicy,
    WorkerOptions,
    faults,
    open_engine,
)
from perdure.adk import adk_agent_session_flow, idempotency_key_for_tool_call
from perdure.testing import ScriptedModel, call, reply, text

SESSION = "s"
APPROVAL, PARALLEL, CLOSING = "approval", "parallel", "closing"
STORIES = (APPROVAL, PARALLEL, CLOSING)


def build_flow(story: str, folder: Path) -> AgentSessionFlow:
    """The flow of a story; its tools write into ``folder``."""

    def note(line: str) -> None:
        with (folder / "world.txt").open("a") as world:
            world.write(f"{line}\n")
            world.flush()
            os.fsync(world.fileno())

    def look(order: str) -> dict[str, str]:
        """Looks an order up; fails the first time ever."""
        first = not (folder / "world.txt").exists()
        note(f"look {order}")
        if first:
            raise ConnectionError("the first look fails")
        return {"order": order, "status": "delivered"}

    def stock(item: str) -> int:
        """Counts an item."""
        note(f"stock {item}")
        return 3

    def refund(order: str, tool_context: ToolContext) -> str:
        """Refunds an order."""
        note(f"refund {order} {idempotency_key_for_tool_call(tool_context)}")
        tool_context.state["refunded"] = order
        return f"refunded {order}"

    def mail(to: str) -> str:
        """Sends a mail."""
        note(f"mail {to}")
        return "sent"

    scripts = {
        APPROVAL: [call("look", order="7"), call("mail", to="ann"), text("All done, as you asked.", chunks=4)],
        PARALLEL: [
            reply(call("look", order="7"), call("stock", item="tea"), call("refund", order="7")),
            text("All three are done.", chunks=4),
        ],
        CLOSING: [call("mail", to="ann"), text("never said")],
    }
    model = ScriptedModel(scripts[story], log=folder / "requests.jsonl")
    agent = LlmAgent(name="support", model=model, instruction="Help.", tools=[look, stock, refund, mail])
    quick = RetryPolicy(first_delay=timedelta(0))
    return adk_agent_session_flow(
        agent,
        flow_type="Crash",
        tool_policies={
            "look": ToolPolicy(ToolEffect.READ, retry=quick),
            "stock": ToolPolicy(ToolEffect.READ, retry=quick),
            "refund": ToolPolicy(ToolEffect.IDEMPOTENT_WRITE, retry=quick),
            "mail": ToolPolicy(ToolEffect.NON_IDEMPOTENT_WRITE),
        },
    )


def address_in(folder: Path) -> str:
    """Of the store: a SQLite file in the folder, unless the test has said otherwise."""
    said = folder / "address"
    return said.read_text() if said.exists() else f"sqlite:///{folder / 'crash.db'}"


async def play(story: str, folder: str) -> None:
    """Plays a story from wherever it stands to its end.  All that it asks for is idempotent, so it can be run again."""
    faults.arm_from_environment()
    await run_story(story, Path(folder))
    print("done", flush=True)


async def run_story(story: str, folder: Path) -> AgentSnapshot:
    flow = build_flow(story, folder)
    engine = open_engine(
        address_in(folder),
        flows=[flow],
        durability="process",
        options=WorkerOptions(drain_grace=timedelta(seconds=5)),
    )
    async with engine, engine.worker():
        client = AgentSessionClient(engine, flow)
        await client.start_session(SESSION, "Please help", state={"tenant": "t1"})
        while (snapshot := await client.wait(SESSION, timeout=30)).status is SessionStatus.WAITING:
            if story == CLOSING:
                await client.close_session(SESSION)
                await client.wait(SESSION, timeout=30)
                return await client.get_agent_snapshot(SESSION)
            for interrupt in snapshot.pending_interrupts:
                await client.resolve_interrupt(SESSION, interrupt.interrupt_id, approved=True)
        return snapshot
