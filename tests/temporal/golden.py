"""Histories as they were written, one for each way that a session takes; kept in ``golden`` and replayed for ever.

Run as a program it plays all scenes on a server of its own and writes those that are missing::

    python -m tests.temporal.golden
"""

from __future__ import annotations

import asyncio
import json
import tempfile
from collections.abc import Awaitable, Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

from tests.support.play import FAST_RETRY, Play, PlayCall, PlayRunner, asks
from tests.support.temporal_server import TemporalServer, running_server

from perdure import (
    AgentSessionClient,
    Engine,
    InterruptKind,
    StepStatus,
    TemporalOptions,
    ToolEffect,
    WorkerOptions,
    open_engine,
)
from perdure.engine.temporal.engine import TemporalEngine
from perdure.engine.temporal.host import TAKE_ALONG
from perdure.session.runner import AgentSessionFlow

GOLDEN = Path(__file__).with_name("golden")
WRITE = ToolEffect.NON_IDEMPOTENT_WRITE


async def quick(call_id: str, attempt: int) -> object:
    """Takes long enough to need an activity of its own."""
    await asyncio.sleep(1.5 * TAKE_ALONG.total_seconds())
    return call_id


async def instant(call_id: str, attempt: int) -> object:
    return call_id


async def moody(call_id: str, attempt: int) -> object:
    if attempt == 1:
        raise ConnectionError("not yet")
    return call_id


async def asking(call_id: str, attempt: int) -> object:
    return call_id if attempt > 1 else asks()


async def endless(call_id: str, attempt: int) -> object:
    return await asyncio.Event().wait()


async def play(play: Play) -> None:
    """Does what the message says."""
    words = play.start.message.text.split()
    if play.start.leg > 1:
        words = words[words.index("leg") + 1 :]
    for number, word in enumerate(words):
        calls = {
            "read": {"read": PlayCall("read", quick)},
            "instant": {"instant": PlayCall("instant", instant)},
            "write": {"write": PlayCall("write", quick, WRITE)},
            "moody": {"moody": PlayCall("moody", moody, retry=FAST_RETRY)},
            "half": {"half": PlayCall("half", asking, WRITE)},
            "ask": {"ask": PlayCall("ask", quick, WRITE, InterruptKind.APPROVAL)},
            "par": {name: PlayCall(name, quick, effect) for name, effect in (("a", ToolEffect.READ), ("b", WRITE))},
            "endless": {"endless": PlayCall("endless", endless), "other": PlayCall("other", endless, WRITE)},
        }.get(word)
        if word == "slow":
            await asyncio.sleep(1.5 * TAKE_ALONG.total_seconds())
        if word == "told":
            await play.join(f"m{number}")
        await play.model(f"m{number}")
        if calls is not None:
            await play.tools(f"m{number}", {f"{number}.{name}": call for name, call in calls.items()})
        if word == "question":
            await play.ask(f"{number}.q")
        if word == "late":
            play.ask_later(f"{number}.later")
        if word == "leg":
            play.ask_next(f"{number}.next")
            return
        if word == "fail":
            raise RuntimeError("the play fails")
    play.say("done")


async def until(holds: Callable[[], Awaitable[bool]]) -> None:
    while not await holds():  # noqa: ASYNC110 - it is another task, or another system, that moves
        await asyncio.sleep(0.1)


async def running(client: AgentSessionClient, name: str, tool: str) -> bool:
    steps = (await client.read_step_history(name)).items
    return any((step.tool_name, step.status) == (tool, StepStatus.RUNNING) for step in steps)


async def nothing_pending(client: AgentSessionClient, name: str) -> bool:
    return not (await client.get_agent_snapshot(name)).pending_interrupts


class Scenes:
    """Plays scenes with engines on one server."""

    def __init__(self, folder: Path, server: TemporalServer) -> None:
        self._store = f"sqlite:///{folder / 'golden.db'}"
        self._server = server

    def engine(self, *, deadline: timedelta | None = None, events_per_run: int = 4_000) -> Engine:
        flow = AgentSessionFlow("Play", PlayRunner(play), "Play", interrupt_deadline=deadline)
        return open_engine(
            self._server.address,
            store=self._store,
            flows=[flow],
            durability="process",
            options=WorkerOptions(drain_grace=timedelta(0)),
            temporal=TemporalOptions(prefix="golden", events_per_run=events_per_run),
        )

    async def a_turn(self, name: str) -> None:
        async with self.engine() as engine, engine.worker():
            await self._say(engine, name, "instant slow read slow write par moody")

    async def a_conversation(self, name: str) -> None:
        """Several turns, between which the session rests with its worker."""
        async with self.engine() as engine, engine.worker():
            client = await self._say(engine, name, "instant")
            for text in ("instant", "slow read", "ask", "instant"):
                await client.send_user_message(name, text)
                for asked in (await client.wait(name, timeout=30)).pending_interrupts:
                    await client.resolve_interrupt(name, asked.interrupt_id, approved=True)
                await client.wait(name, timeout=30)

    async def a_steered_turn(self, name: str) -> None:
        async with self.engine() as engine, engine.worker():
            client = AgentSessionClient(engine, "Play")
            await client.start_session(name, "read ask told read told")
            (asked,) = (await client.wait(name, timeout=30)).pending_interrupts
            for text in ("this", "and that"):
                await client.steer_user_message(name, text)
            await client.resolve_interrupt(name, asked.interrupt_id, approved=True)
            await client.wait(name, timeout=30)

    async def a_failure(self, name: str) -> None:
        async with self.engine() as engine, engine.worker():
            await self._say(engine, name, "read fail")

    async def answers(self, name: str) -> None:
        async with self.engine() as engine, engine.worker():
            client = await self._say(engine, name, "ask question")
            for _ in range(2):
                (asked,) = (await client.wait(name, timeout=30)).pending_interrupts
                if asked.kind.takes_value:
                    await client.answer_question(name, asked.interrupt_id, "yes")
                else:
                    await client.resolve_interrupt(name, asked.interrupt_id, approved=True)
            await client.wait(name, timeout=30)

    async def questions(self, name: str) -> None:
        """A call that asks in the middle, a question that the turn does not wait for, and a second leg."""
        async with self.engine() as engine, engine.worker():
            client = await self._say(engine, name, "half late leg read")
            for _ in range(3):
                asked = (await client.wait(name, timeout=30)).pending_interrupts[-1]
                if asked.kind.takes_value:
                    await client.answer_question(name, asked.interrupt_id, "yes")
                else:
                    await client.resolve_interrupt(name, asked.interrupt_id, approved=True)
            await client.wait(name, timeout=30)

    async def a_deadline(self, name: str) -> None:
        async with self.engine(deadline=timedelta(seconds=2)) as engine, engine.worker():
            client = await self._say(engine, name, "ask")
            await until(lambda: nothing_pending(client, name))

    async def a_cancel(self, name: str) -> None:
        async with self.engine() as engine, engine.worker():
            client = AgentSessionClient(engine, "Play")
            await client.start_session(name, "endless")
            await until(lambda: running(client, name, "endless"))
            await client.send_user_message(name, "read")
            await client.cancel_turn(name)
            await client.wait(name, timeout=30)

    async def a_new_worker(self, name: str) -> None:
        async with self.engine() as engine:
            client = AgentSessionClient(engine, "Play")
            async with engine.worker():
                await client.start_session(name, "read ask endless")
                (asked,) = (await client.wait(name, timeout=30)).pending_interrupts
                await client.resolve_interrupt(name, asked.interrupt_id, approved=True)
                await until(lambda: running(client, name, "endless"))
            async with engine.worker():
                await client.cancel_turn(name)
                await client.wait(name, timeout=30)

    async def a_long_one(self, name: str) -> None:
        async with self.engine(events_per_run=12) as engine, engine.worker():
            await self._say(engine, name, "read read read")

    async def _say(self, engine: Engine, name: str, text: str) -> AgentSessionClient:
        client = AgentSessionClient(engine, "Play")
        await client.start_session(name, text)
        await client.wait(name, timeout=30)
        return client


def scenes(stage: Scenes) -> dict[str, Callable[[str], Awaitable[None]]]:
    turns = ("a_turn", "a_conversation", "a_steered_turn", "a_failure", "answers", "questions")
    return {name: getattr(stage, name) for name in (*turns, "a_deadline", "a_cancel", "a_new_worker", "a_long_one")}


async def history_of(stage: Scenes, name: str) -> str:
    """The history of the last run of a scene's workflow, without what tells of the machine that it ran on."""
    async with stage.engine() as engine, engine.worker():
        assert isinstance(engine, TemporalEngine)
        assert engine._link is not None
        handle = engine._link.client.get_workflow_handle(engine._link.workflow_id(name))
        await handle.result()
        return json.dumps(without_place(json.loads((await handle.fetch_history()).to_json())), indent=1) + "\n"


def without_place(part: Any) -> Any:
    if isinstance(part, list):
        return [without_place(item) for item in part]
    if isinstance(part, dict):
        kept = {key: without_place(value) for key, value in part.items() if key not in ("stackTrace", "source")}
        return {key: "worker" if key == "identity" else value for key, value in kept.items()}
    return part


async def record() -> None:
    GOLDEN.mkdir(exist_ok=True)
    with running_server() as server, tempfile.TemporaryDirectory() as folder:
        stage = Scenes(Path(folder), server)
        for name, scene in scenes(stage).items():
            file = GOLDEN / f"format_1_{name}.json"
            if not file.exists():
                await scene(name)
                file.write_text(await history_of(stage, name), encoding="utf-8")
                print(f"{file.name}: {file.stat().st_size} bytes")


if __name__ == "__main__":
    asyncio.run(record())
