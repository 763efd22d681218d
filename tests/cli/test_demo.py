"""``perdure demo``: the story ends with one refund, says so, and leaves nothing behind."""

from __future__ import annotations

import os
import re
from pathlib import Path

import psutil
import pytest
from click.testing import CliRunner
from tests.support.terminal import run_program

from perdure.cli.demo import story
from perdure.cli.demo.ledger import Ledger
from perdure.cli.root import perdure


def test_the_story(tmp_path: Path) -> None:
    temporary = tmp_path / "tmp"
    temporary.mkdir()
    done = run_program("demo", cwd=tmp_path, TMPDIR=str(temporary))
    assert (done.returncode, done.stderr) == (0, "")
    text = done.stdout
    assert text.endswith("refunds in the ledger: 1\n")
    first, second = re.findall(r"worker [AB].* \(process (\d+)\)", text)
    assert first != second
    rows = [re.split(r" {2,}", line.strip()) for line in text.partition("── what ran")[2].splitlines()]
    assert ["RunModel", "1", "asked the model", "replayed"] in rows
    assert ["CallTool", "shipping_status", "1", "ran the tool", "replayed"] in rows
    assert ["CallTool", "refund_order", "2", "killed midway", "ran again, same key"] in rows
    assert ["RunModel", "1", "asked the model"] in rows
    assert "requests to the model: 4 (3 by A, 1 by B)" in text
    assert "find_order began: 1 in A, 0 in B" in text
    assert "refund_order began: 1 in A, 1 in B" in text
    assert [path for path in temporary.iterdir() if path.name.startswith("perdure-demo")] == []
    assert not psutil.pid_exists(int(first))
    assert not psutil.pid_exists(int(second))


def test_two_refunds_would_be_told(monkeypatch: pytest.MonkeyPatch) -> None:
    def two(_: Ledger) -> int:
        return 2

    monkeypatch.setattr(Ledger, "count_refunds", two)
    done = CliRunner(catch_exceptions=False).invoke(perdure, ["demo"])
    assert done.exit_code == 1
    assert done.stdout.endswith("refunds in the ledger: 2\n")


def test_a_worker_that_fails_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(story, "WORKER", "perdure.cli.demo.worker:no_such_function")
    done = CliRunner(catch_exceptions=False).invoke(perdure, ["demo"])
    assert done.exit_code == 1
    assert "the demo came to no end" in done.stderr


def test_the_ledger_pays_once_for_each_key(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path / "ledger.db")
    ledger.create()
    assert [ledger.pay_refund(key, "1042", "49.90") for key in ("a", "b", "a")] == [1, 2, 1]
    assert ledger.count_refunds() == 2
    assert ledger.order("1042")["item"] == "kettle"
    assert ledger.order("1") == {}
    ledger.note_run("refund_order", os.getpid())
    assert ledger.tool_runs() == {("refund_order", os.getpid()): 1}
