"""Writes the frozen store of today's schema version, from sessions that real agents had.

Run it when there is a new schema version; what is there already it leaves as it is::

    python -m tests.golden_store.record
"""

from __future__ import annotations

import asyncio
import itertools
import json
import shutil
import tempfile
from collections.abc import Mapping
from importlib.resources import files
from pathlib import Path

from tests.golden_store.cast import CHRONICLE, DESK, MANUAL, RENAMED, REVIEW, Cast
from tests.golden_store.frozen import Frozen, Line, lines_of
from tests.golden_store.reading import seen

from perdure import AgentSessionClient, AgentSessionFlow, AgentSnapshot, Engine, SessionStatus, open_engine
from perdure.store.base import NewFork
from perdure.store.opening import new_store
from perdure.store.postgres import schema as postgres
from perdure.store.sqlite import schema as sqlite

BEGINNING_MS = 1_735_689_600_000
"""2025-01-01, midnight."""


class Ticking:
    """A clock that goes on by a millisecond whenever somebody looks."""

    def __init__(self) -> None:
        self._moments = itertools.count(BEGINNING_MS)

    def now_ms(self) -> int:
        return next(self._moments)


class Counted:
    """Ids in order."""

    def __init__(self) -> None:
        self._numbers = itertools.count(1)

    def new_id(self) -> str:
        return f"{next(self._numbers):08x}-0000-4000-8000-000000000000"


class Recording:
    """Sessions in every state, in one SQLite file."""

    def __init__(self, path: Path) -> None:
        self.address = f"sqlite:///{path}"
        self.clock, self.ids = Ticking(), Counted()
        self.cast = Cast()

    def engine(self, *flows: AgentSessionFlow) -> Engine:
        return open_engine(self.address, flows=flows, durability="process", clock=self.clock, ids=self.ids)

    async def record(self) -> None:
        async with self.engine(*self.cast.flows()) as engine, engine.worker():
            await self._ended(engine)
            await self._waiting(engine)
        async with self.engine(self.cast.renamed("pay_out")) as engine, engine.worker():
            client = AgentSessionClient(engine, RENAMED)
            while (await client.wait("blocked")).status is not SessionStatus.BLOCKED:  # noqa: ASYNC110 - a worker looks
                await asyncio.sleep(0.01)
        async with self.engine() as engine:
            await self._left_in_the_inbox(engine)

    async def _ended(self, engine: Engine) -> None:
        state = {"kept": {"n": 1.5, "list": [1, None, True]}, "app:motto": "Durable \N{SNOWMAN}", "user:name": "Ann"}
        client = AgentSessionClient(engine, DESK)
        await client.start_session("talk", "Look it up.", state=state, state_delta={"user:name": "Anna"})
        await client.wait("talk")
        second = await client.send_user_message("talk", "hello", state_delta={"kept": 2}, request_id="r-2")
        await client.wait("talk")
        await engine.store.fork_session("talk", NewFork("fork", self.ids.new_id(), second), self.clock.now_ms())
        await self._say(client, "closed", "hello")
        await client.close_session("closed")
        await client.wait("closed")
        await self._say(client, "clouded", "Gaze.")
        await self._say(client, "failed", "fail")
        snapshot = await self._say(client, "rejected", "Pay.")
        (asked,) = snapshot.pending_interrupts
        await client.resolve_interrupt(
            "rejected", asked.interrupt_id, approved=False, message="Too much.", resolved_by="bob"
        )
        await client.wait("rejected")
        await self._say(client, "cancelled", "Pay.")
        await client.cancel_turn("cancelled")
        await client.wait("cancelled")

    async def _waiting(self, engine: Engine) -> None:
        desk = AgentSessionClient(engine, DESK)
        for name in ("approval", "answered", "cancelling", "closing"):
            await self._say(desk, name, "Pay, \0 or \x10.")
        await self._say(desk, "confirmation", "Wire.")
        await self._say(desk, "late", "Film.")
        chronicle = AgentSessionClient(engine, CHRONICLE)
        await self._say(chronicle, "compacted", "hello")
        for words in ("hello again", "Pay."):
            await chronicle.send_user_message("compacted", words)
            await chronicle.wait("compacted")
        await self._say(AgentSessionClient(engine, REVIEW), "review", "go")
        await self._say(AgentSessionClient(engine, RENAMED), "blocked", "Pay.")

    async def _left_in_the_inbox(self, engine: Engine) -> None:
        """What people did while no worker was there."""
        client = AgentSessionClient(engine, DESK)
        await client.start_session("queued", f"hello {MANUAL}")
        await client.send_user_message("queued", "Look.", state_delta={"later": True})
        await client.send_user_message("confirmation", "hello")
        (asked,) = (await client.get_agent_snapshot("answered")).pending_interrupts
        await client.resolve_interrupt("answered", asked.interrupt_id, approved=True, resolved_by="bob")
        await client.cancel_turn("cancelling")
        await client.close_session("closing")
        await client.start_session("idle", user_id="carl", state={"user:name": "Carl"})

    async def _say(self, client: AgentSessionClient, session_id: str, words: str) -> AgentSnapshot:
        await client.start_session(session_id, words)
        return await client.wait(session_id)


def interrupts_in(lines: list[Line]) -> Mapping[str, list[str]]:
    """The ids of all interrupts, by session."""
    names = {row["session_key"]: row["session_id"] for table, row in lines if table == "sessions"}
    found: dict[str, list[str]] = {}
    for table, row in lines:
        if table == "interrupts":
            found.setdefault(names[row["session_key"]], []).append(row["interrupt_id"])
    return found


async def write(frozen: Frozen) -> None:
    """Makes the folder."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "store.db"
        recording = Recording(path)
        await recording.record()
        store = new_store(recording.address, clock=recording.clock, ids=recording.ids)
        await store.open()
        await store.store_id()
        lines = list(lines_of(path))
        expected = await seen(store, interrupts_in(lines), recording.clock.now_ms())
        await store.close()
    assert not [table for table, _ in lines if table in ("workers", "worker_flows")], "a worker is left"
    assert not [row for table, row in lines if table == "sessions" and row["owner"]], "a session is owned"
    frozen.folder.mkdir()
    for name in ("sqlite", "postgres"):
        source = files(f"perdure.store.{name}").joinpath("schema.sql").read_text(encoding="utf-8")
        (frozen.folder / f"{name}.sql").write_text(source, encoding="utf-8")
    rows = "".join(json.dumps(line, ensure_ascii=False) + "\n" for line in lines)
    (frozen.folder / "rows.jsonl").write_text(rows, encoding="utf-8")
    text = json.dumps(expected, ensure_ascii=False, indent=1) + "\n"
    (frozen.folder / "expected.json").write_text(text, encoding="utf-8")


def main() -> None:
    assert sqlite.SCHEMA_VERSION == postgres.SCHEMA_VERSION, "the rows are those of both"
    frozen = Frozen(sqlite.SCHEMA_VERSION)
    if frozen.folder.exists():
        print(f"version {frozen.version} is frozen already, and stays as it is")
        return
    try:
        asyncio.run(write(frozen))
    except BaseException:
        shutil.rmtree(frozen.folder, ignore_errors=True)
        raise
    print(f"version {frozen.version} is frozen in {frozen.folder}")


if __name__ == "__main__":
    main()
