"""``python -m perdure.testing.conformance``."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner
from tests.conformance.conftest import sessions_in

from perdure.testing import WorkerChild
from perdure.testing.conformance import AREAS, cases
from perdure.testing.conformance.__main__ import main


def test_the_list_shows_every_case_with_its_promise() -> None:
    shown = CliRunner().invoke(main, ["--engine", "sqlite:///s.db", "--list"])
    assert shown.exit_code == 0
    assert [line.split()[0] for line in shown.output.splitlines()] == [case.name for case in cases()]


@pytest.mark.parametrize("arguments", [[], ["--engine", "sqlite:///s.db", "--only", "nothing"]])
def test_wrong_arguments_are_refused(arguments: list[str]) -> None:
    shown = CliRunner().invoke(main, arguments)
    assert shown.exit_code == 2
    assert "Error" in shown.output


def run(*arguments: str) -> tuple[int, list[str]]:
    code = f"from perdure.testing.conformance.__main__ import main; main({list(arguments)!r})"
    with WorkerChild.running(code) as child:
        return child.wait_exit(), child.lines


def test_a_run_prints_a_table_and_ends_well(tmp_path: Path) -> None:
    status, lines = run(
        "--engine", sessions_in(tmp_path), "--only", "sessions/one-turn", "--only", "usage/failed-requests"
    )
    assert status == 0, lines
    assert lines[0] == "2 cases over local+sqlite"
    assert {line.split()[1] for line in lines if line.startswith("ok ")} == {
        "sessions/one-turn",
        "usage/failed-requests",
    }
    assert lines[-1] == "2 passed, 0 failed"


def test_a_failure_names_the_case_the_step_and_the_field(tmp_path: Path) -> None:
    opener = "tests.conformance.wrong:drops_records"
    status, lines = run("--engine", sessions_in(tmp_path), "--opener", opener, "--only", "sessions/one-turn")
    assert status == 1
    assert "FAIL" in "".join(lines)
    assert any("sessions.s.steps[2] (CallTool look).result: missing" in line for line in lines)


def test_cases_that_restart_servers_need_a_command_for_it(tmp_path: Path) -> None:
    status, lines = run("--engine", sessions_in(tmp_path), "--only", "workers/servers-restart")
    assert (status, lines[-1]) == (
        0,
        "0 passed, 0 failed, 1 left out: they restart the servers, which needs --restart",
    )
    restarted = tmp_path / "restarted"
    arguments = ("--only", "workers/servers-restart", "--restart", f"touch {restarted}")
    status, lines = run("--engine", sessions_in(tmp_path), *arguments)
    assert (status, lines[-1]) == (0, "1 passed, 0 failed")
    assert restarted.exists()


def test_every_area_has_cases() -> None:
    assert {case.area for case in cases()} == set(AREAS)
