"""Two workflows for the crash tests: one that asks twice, and one with branches, a scope and an agent."""

from __future__ import annotations

import os
from datetime import timedelta
from pathlib import Path
from typing import Any

from google.adk.agents import LlmAgent
from google.adk.agents.context import Context
from google.adk.events.event import Event
from google.adk.workflow import START, JoinNode, Workflow, node
from tests.support.nodes import event, request

from perdure import (
    AgentSessionClient,
    AgentSessionFlow,
    AgentSnapshot,
    SessionStatus,
    ToolEffect,
    ToolPolicy,
    WorkerOptions,
    faults,
    open_engine,
)
from perdure.adk import adk_agent_session_flow, durable_step
from perdure.testing import ScriptedModel, text

SESSION = "s"
ASKING, BRANCHES = "asking", "branches"
STORIES = (ASKING, BRANCHES)


def build_flow(story: str, folder: Path) -> AgentSessionFlow:
    """The flow of a story; its nodes write into ``folder``."""

    def note(line: str) -> None:
        with (folder / "world.txt").open("a") as world:
            world.write(f"{line}\n")
            world.flush()
            os.fsync(world.fileno())

    model = ScriptedModel([text("Said.")] * 9, log=folder / "requests.jsonl")
    root = _asking(note, model) if story == ASKING else _branches(note, model)
    return adk_agent_session_flow(
        root, flow_type="Crash", node_policies={"begin": ToolPolicy(ToolEffect.READ)} if story == ASKING else None
    )


def _asking(note: Any, model: ScriptedModel) -> Workflow:
    def begin(node_input: Any, ctx: Context) -> str:
        note("begin")
        ctx.state["temp:kept"] = "kept"
        return "begun"

    @node(rerun_on_resume=True)
    async def ask(node_input: Any, ctx: Context) -> Any:
        await durable_step(ctx, "ticket", lambda: note("ticket"))
        answer = ctx.resume_inputs.get("word")
        if answer is None or answer["word"] != "ok":
            return request(interrupt_id="word", message="Say ok")
        return answer["word"]

    def close(node_input: str, ctx: Context) -> Event:
        note(f"close {node_input}")
        return event(output=[node_input, ctx.state.get("temp:kept")], state={"closed": True})

    writer = LlmAgent(name="writer", model=model, instruction="Write.")
    return Workflow(name="asking", edges=[(START, begin, writer, ask, close)])


def _branches(note: Any, model: ScriptedModel) -> Workflow:
    @node
    def work(node_input: int) -> int:
        note(f"work {node_input}")
        return node_input + 1

    @node(rerun_on_resume=True)
    async def manage(node_input: Any, ctx: Context) -> int:
        return int(await ctx.run_node(work, await ctx.run_node(work, 1)))

    def look(node_input: Any, ctx: Context) -> str:
        note("look")
        ctx.state["looked"] = True
        return "seen"

    def total(node_input: dict[str, Any]) -> list[str]:
        note("total")
        return [f"{name}={value}" for name, value in sorted(node_input.items())]

    writer, join = LlmAgent(name="writer", model=model, instruction="Write."), JoinNode(name="join")
    nodes = (manage, look, writer)
    return Workflow(name="branches", edges=[(START, nodes), (nodes, join), (join, total)])


async def play(story: str, folder: str) -> None:
    """Plays a story from wherever it stands to its end."""
    faults.arm_from_environment()
    await run_story(story, Path(folder))
    print("done", flush=True)


async def run_story(story: str, folder: Path) -> AgentSnapshot:
    flow = build_flow(story, folder)
    engine = open_engine(
        f"sqlite:///{folder / 'crash.db'}",
        flows=[flow],
        durability="process",
        options=WorkerOptions(drain_grace=timedelta(seconds=5)),
    )
    async with engine, engine.worker():
        client = AgentSessionClient(engine, flow)
        await client.start_session(SESSION, "go")
        while (snapshot := await client.wait(SESSION, timeout=30)).status is SessionStatus.WAITING:
            for interrupt in snapshot.pending_interrupts:
                again = interrupt.interrupt_id.endswith(":2")
                await client.answer_question(SESSION, interrupt.interrupt_id, {"word": "ok" if again else "bad"})
        return snapshot
