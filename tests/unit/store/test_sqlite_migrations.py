"""Databases that earlier code wrote open, keep everything, and go on."""

from __future__ import annotations

import re
import sqlite3
from pathlib import Path

import pytest
from tests.support.play import Play, PlayCall, PlayRunner

from perdure import AgentSessionClient, InterruptKind, InterruptStatus, SessionStatus, ToolEffect, open_engine
from perdure.session.runner import AgentSessionFlow
from perdure.store.sqlite.schema import Database, prepare, released_schema

SCHEMA_1 = Path(__file__).parents[2] / "data" / "schema_1.sql"


async def lookup(call_id: str, attempt: int) -> object:
    return {"found": call_id}


def played(runs: list[object]) -> AgentSessionFlow:
    """The agent that wrote the database."""

    async def script(play: Play) -> None:
        turn = play.start.number

        async def refund(call_id: str, attempt: int) -> object:
            approval = play.approvals[call_id]
            runs.append(None if approval is None else approval.payload)
            return "refunded"

        await play.model(f"m{turn}.1", "let me look")
        await play.tools(f"m{turn}.1", {f"read-{turn}": PlayCall("lookup", lookup)})
        await play.model(f"m{turn}.2", "I would refund it")
        if turn == 2:
            call = PlayCall("refund", refund, ToolEffect.NON_IDEMPOTENT_WRITE, InterruptKind.APPROVAL)
            (record,) = await play.tools(f"m{turn}.2", {"pay-2": call})
            play.say(f"refund {record.status.value}")
        else:
            play.say("done")

    return AgentSessionFlow("Play", PlayRunner(script), "Play")


@pytest.fixture
def old(tmp_path: Path) -> Path:
    path = tmp_path / "old.db"
    connection = sqlite3.connect(path)
    connection.executescript(SCHEMA_1.read_text(encoding="utf-8"))
    connection.close()
    return path


def rows_of(path: Path) -> dict[str, list[dict[str, object]]]:
    """All that a database holds, by table."""
    connection = sqlite3.connect(path)
    connection.row_factory = sqlite3.Row
    tables = [name for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
    found = {name: [dict(row) for row in connection.execute(f"SELECT * FROM {name}")] for name in tables}
    connection.close()
    return found


def shape_of(path: Path) -> list[tuple[str, str]]:
    connection = sqlite3.connect(path)
    rows = connection.execute("SELECT name, sql FROM sqlite_master WHERE sql IS NOT NULL ORDER BY name").fetchall()
    connection.close()
    return [(name, re.sub(r"\s+", " ", re.sub("--.*", "", text))) for name, text in rows]


def test_a_database_of_schema_1_keeps_every_row(old: Path) -> None:
    before = rows_of(old)
    prepare(Database(old), released_schema(), 0)
    after = rows_of(old)
    assert before.keys() <= after.keys()
    for table, rows in before.items():
        kept = [{name: row[name] for name in columns} for row, columns in zip(after[table], rows, strict=True)]
        assert kept == rows, table
    assert {row["leg"] for table in ("turns", "calls", "model_calls", "interrupts") for row in after[table]} == {1}


def test_a_database_of_schema_1_becomes_what_a_new_one_is(old: Path, tmp_path: Path) -> None:
    prepare(Database(old), released_schema(), 0)
    prepare(Database(tmp_path / "new.db"), released_schema(), 0)
    assert shape_of(old) == shape_of(tmp_path / "new.db")


async def test_what_waited_in_a_database_of_schema_1_is_answered_and_goes_on(old: Path) -> None:
    runs: list[object] = []
    flow = played(runs)
    async with open_engine(f"sqlite:///{old}", flows=[flow]) as engine:
        client = AgentSessionClient(engine, flow)
        snapshot = await client.get_agent_snapshot("asked")
        assert (snapshot.status, snapshot.queued_messages) == (SessionStatus.WAITING, 1)
        assert snapshot.state == {"tenant": "t1", "turn": 1, "app:price": 1, "user:name": "ann"}
        (asked,) = snapshot.pending_interrupts
        assert (asked.tool_name, asked.arguments, asked.path) == ("refund", {"id": "pay-2"}, "")
        await client.resolve_interrupt("asked", asked.interrupt_id, approved=True, payload={"n": 2})
        async with engine.worker():
            for session_id in ("asked", "answered"):
                snapshot = await client.wait(session_id, timeout=10)
                assert (snapshot.status, snapshot.pending_interrupts) == (SessionStatus.IDLE, ())
                texts = [message.text for message in (await client.list_messages(session_id)).items]
                assert "refund succeeded" in texts
                interrupt = await engine.store.read_interrupt(session_id, await _name(client, session_id))
                assert interrupt.status is InterruptStatus.APPROVED
            assert texts[:2] == ["one", "done"]
    assert sorted(map(str, runs)) == ["{'n': 1}", "{'n': 2}"]
    assert isinstance(flow.runner, PlayRunner)
    assert "m2.1" not in flow.runner.model_calls, "what had a record was not made again"


async def _name(client: AgentSessionClient, session_id: str) -> str:
    steps = (await client.read_step_history(session_id)).items
    return f"{next(step.turn_id for step in steps if step.key == 'pay-2')}:pay-2"
