"""Field case 24: payloads of megabytes go through the store and never through Temporal."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from google.adk.agents import LlmAgent
from tests.support.temporal_server import TemporalServer
from tests.temporal.conftest import BRIEFLY, Playhouse, events_of, workflow_of

from perdure import AgentSessionClient, ImageInput, SessionStatus, ToolEffect, ToolPolicy, TurnStatus, open_engine
from perdure.adk import adk_agent_session_flow
from perdure.session.runner import AgentSessionFlow
from perdure.testing import ScriptedModel, by_message, call, text

IMAGE = b"\x89PNG\r\n\x1a\n" + bytes(range(256)) * 12_000
"""3 MB."""


def scan() -> dict[str, Any]:
    """Returns an image of 5 MB, as base64."""
    return {"mime_type": "image/png", "data": "iVBORw0K" * 625_000}


def viewer() -> AgentSessionFlow:
    script = by_message(
        {"scan it": [call("scan"), text("Scanned.")], "look at this": text("Nice."), "hello": text("Hi.")}
    )
    agent = LlmAgent(name="viewer", model=ScriptedModel(script), tools=[scan])
    return adk_agent_session_flow(agent, flow_type="Viewer", tool_policies={"scan": ToolPolicy(ToolEffect.READ)})


async def _say(client: AgentSessionClient, message: str, *images: ImageInput) -> None:
    await client.send_user_message("s", message, images=images)
    snapshot = await client.wait("s", timeout=60)
    assert snapshot.turn is not None
    assert (snapshot.status, snapshot.turn.status) == (SessionStatus.IDLE, TurnStatus.COMPLETED), snapshot.error


async def test_an_image_of_5_mb_from_a_tool_and_one_of_3_mb_from_a_user(house: Playhouse) -> None:
    flow = viewer()
    async with house.engine(flow, options=BRIEFLY) as engine, engine.worker():
        client = AgentSessionClient(engine, flow)
        await client.start_session("s")
        for message, images in (
            ("scan it", ()),
            ("look at this", (ImageInput(data=IMAGE, mime_type="image/png"),)),
            ("hello", ()),
        ):
            await _say(client, message, *images)
            await workflow_of(engine, "s").result()
            assert sum(event.ByteSize() for event in await events_of(engine, "s")) < 20_000
        (step,) = [step for step in (await client.read_step_history("s")).items if step.tool_name == "scan"]
        assert step.attempts == 1


def size_of(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.glob("big.db*"))


@pytest.mark.parametrize("where", ["local", "temporal"])
async def test_a_later_turn_costs_no_megabytes(tmp_path: Path, temporal_server: TemporalServer, where: str) -> None:
    flow, store = viewer(), f"sqlite:///{tmp_path / 'big.db'}"

    async def turns(*messages: str) -> int:
        if where == "local":
            engine = open_engine(store, flows=[flow])
        else:
            engine = open_engine(f"{temporal_server.address}?prefix=case24", store=store, flows=[flow])
        async with engine, engine.worker():
            client = AgentSessionClient(engine, flow)
            await client.start_session("s")
            for message in messages:
                await _say(client, message)
        return size_of(tmp_path)

    before = await turns("scan it")
    assert before > 5_000_000
    assert await turns("hello", "hello", "hello") - before < 300_000
