"""How errors leave the program: a line or JSON on stderr, and the exit code of the error table.  Never a traceback."""

from __future__ import annotations

import json
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import click
import pytest
from tests.cli.conftest import Cli, Sessions
from tests.support.terminal import environment, run_program, start_program

from perdure import PerdureError
from perdure.cli.base import Command, command
from perdure.cli.root import perdure
from perdure.errors import ERROR_TABLE


def subclasses(kind: type[PerdureError]) -> list[type[PerdureError]]:
    return [kind, *(below for child in kind.__subclasses__() for below in subclasses(child))]


@pytest.mark.parametrize("kind", subclasses(PerdureError), ids=lambda kind: kind.__name__)
def test_every_error_has_its_exit_code(cli: Cli, kind: type[PerdureError], monkeypatch: pytest.MonkeyPatch) -> None:
    @command("break")
    def broken() -> None:
        raise kind("it broke", where=Path("here"))

    monkeypatch.setitem(perdure.commands, "break", broken)
    done = cli.run("break")
    assert done.exit_code == ERROR_TABLE[kind.code].exit_code
    assert done.stderr == f"error: it broke [{kind.code}]\n"
    assert done.stdout == ""


def test_a_missing_session_is_said_in_words_or_in_json(cli: Cli, sessions: Sessions) -> None:
    sessions.talk("talk")
    done = cli.run("sessions", "show", "nobody")
    assert (done.exit_code, done.stdout) == (3, "")
    assert done.stderr.startswith("error: session 'nobody' does not exist")
    done = cli.run("sessions", "show", "nobody", "--json")
    assert (done.exit_code, done.stdout) == (3, "")
    error = json.loads(done.stderr)["error"]
    assert (error["code"], error["facts"]) == ("session_not_found", {"session_id": "nobody"})


ON_ONE_SESSION = ("show", "messages", "history", "events", "approve", "reject", "cancel", "close")


@pytest.mark.parametrize("name", ON_ONE_SESSION)
def test_every_command_misses_a_missing_session(cli: Cli, sessions: Sessions, name: str) -> None:
    sessions.talk("talk")
    assert cli.run("sessions", name, "nobody").exit_code == 3


def test_reading_makes_no_store(cli: Cli, folder: Path) -> None:
    done = cli.run("sessions", "list")
    assert done.exit_code == 8
    assert "there is no perdure.db" in done.stderr
    assert not (folder / "perdure.db").exists()


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("sessions", "list", "--engine", "mongodb://localhost"), "is no address of an engine's store"),
        (("sessions", "list", "--limit", "0"), "--limit"),
        (("sessions", "list", "--after", "nonsense"), "nonsense"),
        (("sessions", "events", "talk", "--after", "nonsense"), "nonsense"),
        (("sessions", "list", "--status", "sleepy"), "sleepy"),
        (("sessions", "send", "talk", ""), "an empty message"),
        (("sessions", "send", "talk"), "TEXT"),
        (("chat", "agent.py", "--new", "--session", "x"), "exclude each other"),
        (("serve", "agent.py", "agent.py", "--flow-type", "X"), "--flow-type names one agent"),
        (("serve",), "TARGET"),
        (("serve", "agent.py", "agent.py"), "two flows have the flow_type 'Play'"),
        (("nonsense",), "nonsense"),
        (("serve", "agent.py", "--drain-grace", "nan"), "no number of seconds"),
        (("serve", "agent.py", "--drain-grace", "inf"), "--drain-grace"),
        (("serve", "agent.py", "--drain-grace", "1e300"), "--drain-grace"),
        (("sessions", "send", "talk", "hello", "--timeout", "nan"), "no number of seconds"),
        (("sessions", "send", "talk", "hello", "--timeout", "inf"), "--timeout"),
        (("serve", "absent.py", "--engine", "mongodb://localhost"), "is no address of an engine's store"),
        (("serve", "absent.py", "--engine", "temporal://localhost/default"), "say with --store"),
        (("chat", "absent.py", "--engine", "temporal://host:x/default", "--store", "sqlite:///a.db"), "no address of"),
        (("chat", "absent.py", "--store", "sqlite:///a.db"), "--store belongs to"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else None,
)
def test_a_wrong_call_is_a_usage_error(cli: Cli, sessions: Sessions, arguments: tuple[str, ...], words: str) -> None:
    sessions.talk("talk")
    done = cli.run(*arguments)
    assert done.exit_code == 2
    assert words in done.stderr
    assert "Traceback" not in done.stderr


def not_a_database(path: Path) -> None:
    path.write_text("my diary\n" * 1000, encoding="utf-8")


def somebody_elses(path: Path) -> None:
    with closing(sqlite3.connect(path)) as database:
        database.execute("CREATE TABLE notes (text TEXT)")


@pytest.mark.parametrize("make", [not_a_database, somebody_elses])
def test_a_file_of_another_program_is_left_alone(cli: Cli, folder: Path, make: Callable[[Path], None]) -> None:
    make(folder / "perdure.db")
    before = (folder / "perdure.db").read_bytes()
    done = cli.run("sessions", "list", "--json")
    assert done.exit_code == 8
    assert json.loads(done.stderr)["error"]["code"] == "store_not_ours"
    assert (folder / "perdure.db").read_bytes() == before


def test_ctrl_c_ends_with_130(folder: Path, sessions: Sessions) -> None:
    sessions.talk("talk", "hello")
    with start_program("sessions", "events", "talk", "--follow", "--json", cwd=folder) as program:
        assert program.stdout is not None
        while '"turn_completed"' not in program.stdout.readline():
            pass
        program.send_signal(signal.SIGINT)
        _, errors = program.communicate()
    assert (program.returncode, errors) == (130, "")


def test_whoever_stops_reading_sees_no_traceback(folder: Path, sessions: Sessions) -> None:
    sessions.talk("talk", "hello")
    with start_program("sessions", "events", "talk", "--follow", "--json", cwd=folder) as program:
        assert program.stdout is not None
        program.stdout.readline()
        program.stdout.close()
        assert program.stderr is not None
        assert run_program("sessions", "send", "talk", "hello", cwd=folder).returncode == 0
        sessions.talk("talk")
        assert "Traceback" not in program.stderr.read()
        program.wait()


def test_reading_and_answering_load_no_agent_framework(folder: Path, sessions: Sessions) -> None:
    sessions.talk("talk", "refund it")
    code = (
        "import sys; from perdure.cli.root import perdure\n"
        "for arguments in (['list'], ['show', 'talk'], ['messages', 'talk'], ['history', 'talk'], ['events', 'talk'],\n"
        "                  ['send', 'talk', 'x'], ['approve', 'talk'], ['cancel', 'talk'], ['close', 'talk'],\n"
        "                  ['delete', 'talk', '--yes']):\n"
        "    perdure(['sessions', *arguments], standalone_mode=False)\n"
        "print(sorted(name for name in sys.modules if name.startswith(('google.adk', 'google.genai'))))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=folder, env=environment(), capture_output=True, text=True, check=True
    )
    assert done.stdout.splitlines()[-1] == "[]"


def commands(group: click.Group) -> list[click.Command]:
    return [
        found
        for name in group.commands
        for below in [group.commands[name]]
        for found in (commands(below) if isinstance(below, click.Group) else [below])
    ]


def test_every_command_reports_errors_this_way() -> None:
    assert [found for found in commands(perdure) if not isinstance(found, Command)] == []


def test_every_help_text_has_examples(cli: Cli) -> None:
    helps = {found.name: found.help or "" for found in commands(perdure)}
    assert [name for name, text in helps.items() if "Examples:" not in text] == []
    for arguments in ([], ["sessions"], ["sessions", "events"], ["chat"], ["serve"], ["demo"]):
        assert "Examples:" in cli.text(*arguments, "--help")


def test_the_version_is_told(cli: Cli) -> None:
    assert cli.text("--version").startswith("perdure ")
