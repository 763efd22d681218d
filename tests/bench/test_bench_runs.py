"""The benchmark works and writes what it says: shapes only, since times in a test would mean nothing."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest
from bench.__main__ import main
from bench.measures import MEASURES
from bench.report import Row, Target
from bench.timing import in_turns
from click.testing import CliRunner
from tests.support.postgres import Server


def run(*arguments: str) -> str:
    result = CliRunner().invoke(main, arguments, catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.output


def test_a_quick_run_prints_a_table_and_writes_the_same_rows(tmp_path: Path) -> None:
    path = tmp_path / "new" / "result.json"
    output = run("--quick", "--only", "turn", "--only", "commits", "--only", "replay", "--json", str(path))
    document = json.loads(path.read_text(encoding="utf-8"))
    names = [row["name"] for row in document["measures"]]
    assert names == ["turn", "turn_process", "commits", "commits_shared", "replay"]
    assert all(name in output for name in names)
    for row in document["measures"]:
        assert row["ours"] > 0
        assert row["measured"] > 0
        assert isinstance(row["met"], bool)
        assert row["name"].startswith("commits") or row["raw"] > 0
    assert document["quick"] is True
    assert all(value > 0 for value in document["commit_ms"])


def test_the_durable_side_runs_on_postgresql(tmp_path: Path, postgres: Server) -> None:
    path = tmp_path / "result.json"
    address = f"postgresql://postgres@/postgres?host={postgres.folder}"
    run("--quick", "--only", "commits", "--json", str(path), "--store", address)
    document = json.loads(path.read_text(encoding="utf-8"))
    assert all(row["measured"] > 0 for row in document["measures"])
    schemas = postgres.run("SELECT nspname FROM pg_namespace WHERE nspname LIKE 'bench\\_%'")
    assert len(schemas) == 2
    for (schema,) in schemas:
        postgres.drop(schema)


def test_a_profile_charges_perdure_and_adk() -> None:
    output = run("profile", "turn", "--quick")
    assert "perdure" in output
    assert "ADK" in output
    assert "event loop" in output


def test_every_measure_is_listed_under_its_own_name() -> None:
    assert all(name == measure.name for name, measure in MEASURES.items())


@pytest.mark.parametrize(
    ("target", "value", "met"),
    [(Target(1.2), 1.2, True), (Target(1.2), 1.21, False), (Target(0.9, at_least=True), 0.9, True)],
)
def test_a_target_is_met_at_its_limit(target: Target, value: float, met: bool) -> None:
    row = Row("x", "what", "ms", value, None, value, target)
    assert row.met is met


def test_each_side_begins_a_round_as_often_as_the_others() -> None:
    order: list[str] = []

    async def note(name: str) -> None:
        order.append(name)

    asyncio.run(in_turns({"a": lambda _: note("a"), "b": lambda _: note("b")}, 2))
    assert order == ["a", "b", "b", "a"]
