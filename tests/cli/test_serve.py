"""``perdure serve``: says when it is ready, drains at the first signal and stops at the second."""

from __future__ import annotations

import signal
import subprocess
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

import pytest
from tests.cli.conftest import Cli, Sessions
from tests.support.play_agent import HOLD
from tests.support.terminal import start_program
from tests.support.threaded_agent import THREADED_AGENT

from perdure import SessionStatus


@contextmanager
def serving(*targets: str, cwd: Path) -> Generator[subprocess.Popen[str], None, None]:
    """A worker that is ready; killed at the end if it is still there."""
    with start_program("serve", *targets, cwd=cwd) as program:
        try:
            assert program.stdout is not None
            line = program.stdout.readline()
            assert line.startswith("serving "), line + program.communicate()[1]
            yield program
        finally:
            program.kill()


def wait_for(program: subprocess.Popen[str], words: str) -> None:
    assert program.stderr is not None
    for line in program.stderr:
        if words in line:
            return
    raise AssertionError(f"the worker ended without saying {words!r}")


def last_line(cli: Cli, session_id: str) -> str:
    return cli.text("sessions", "messages", session_id).splitlines()[-1]


def test_it_says_what_it_serves_and_where(folder: Path) -> None:
    (folder / "other.py").write_text(
        "from agent import AgentSessionFlow, PlayRunner, script\n"
        "flow = AgentSessionFlow('Also', PlayRunner(script), 'Also')",
        encoding="utf-8",
    )
    with start_program("serve", "agent.py", "other", "--engine", "sqlite:///here.db", cwd=folder) as program:
        assert program.stdout is not None
        assert program.stdout.readline() == f"serving Also, Play on sqlite:///here.db (process {program.pid})\n"
        program.terminate()
        program.communicate()


def test_it_works_on_what_others_send(folder: Path, cli: Cli, sessions: Sessions) -> None:
    sessions.talk("talk")
    with serving("agent.py", cwd=folder):
        assert "You said: hello" in cli.text("sessions", "send", "talk", "hello", "--timeout", "60")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_an_idle_worker_ends_at_once(folder: Path, number: signal.Signals) -> None:
    with serving("agent.py", cwd=folder) as worker:
        worker.send_signal(number)
        output, errors = worker.communicate()
    assert (worker.returncode, output) == (0, "")
    assert errors == "draining for up to 30 s; a second signal stops at once\n"


def test_a_running_tool_finishes_before_the_worker_ends(folder: Path, cli: Cli, sessions: Sessions) -> None:
    sessions.talk("talk")
    (folder / HOLD).touch()
    with serving("agent.py", cwd=folder) as worker:
        cli.text("sessions", "send", "talk", "work")
        wait_for(worker, "working")
        worker.terminate()
        wait_for(worker, "draining")
        (folder / HOLD).unlink()
        worker.communicate()
    assert worker.returncode == 0
    step = cli.json("sessions", "history", "talk")["items"][2]
    assert (step["tool_name"], step["status"], step["attempts"]) == ("work", "succeeded", 1)
    assert sessions.snapshot("talk").status is SessionStatus.RUNNING  # the rest is for the next worker
    sessions.talk("talk")
    assert last_line(cli, "talk") == "player: It is done."


def test_the_second_signal_cuts_it_short(folder: Path, cli: Cli, sessions: Sessions) -> None:
    sessions.talk("talk")
    (folder / HOLD).touch()
    with serving("agent.py", cwd=folder) as worker:
        cli.text("sessions", "send", "talk", "work")
        wait_for(worker, "working")
        worker.terminate()
        wait_for(worker, "draining")
        worker.send_signal(signal.SIGINT)
        worker.communicate()
    assert worker.returncode == 128 + signal.SIGINT
    (folder / HOLD).unlink()
    sessions.talk("talk")
    step = cli.json("sessions", "history", "talk")["items"][2]
    assert (step["status"], step["attempts"]) == ("succeeded", 2)


def test_a_tool_in_a_thread_cannot_keep_a_stopped_worker(folder: Path, cli: Cli) -> None:
    (folder / "threaded.py").write_text(THREADED_AGENT, encoding="utf-8")
    (folder / HOLD).touch()
    with start_program("chat", "threaded.py", cwd=folder) as chat:
        assert chat.stdin is not None
        chat.stdin.write("go\n")
        chat.stdin.flush()
        wait_for(chat, "working")
        chat.kill()
    with serving("threaded.py", cwd=folder) as worker:
        wait_for(worker, "working")
        worker.terminate()
        wait_for(worker, "draining")
        worker.terminate()
        worker.communicate()
    assert worker.returncode == 128 + signal.SIGTERM
    (folder / HOLD).unlink()
    with serving("threaded.py", cwd=folder):
        assert "It is done." in cli.text("sessions", "send", "chat-threaded", "again", "--timeout", "60")
    assert cli.json("sessions", "history", "chat-threaded")["items"][2]["attempts"] == 3
