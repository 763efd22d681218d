"""``perdure chat`` with lines from a pipe: one message a line, and answers where something is asked."""

from __future__ import annotations

import getpass
import subprocess
from pathlib import Path

from tests.cli.conftest import Cli, Sessions
from tests.support.terminal import run_program

from perdure import SessionStatus


def chat(folder: Path, lines: str, *options: str, **variables: str) -> subprocess.CompletedProcess[str]:
    return run_program("chat", "agent.py", *options, cwd=folder, stdin=lines, **variables)


def test_each_line_is_a_message(folder: Path) -> None:
    done = chat(folder, "hello\n\n   \nbye\n")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == "new session chat-Play\nYou said: hello\nYou said: bye\n"


def test_the_last_line_needs_no_end(folder: Path) -> None:
    assert "You said: hello" in chat(folder, "hello").stdout


def test_the_same_command_goes_on_with_the_session(folder: Path) -> None:
    chat(folder, "hello\n")
    done = chat(folder, "bye\n")
    assert done.stdout == (
        "session chat-Play goes on after 1 turn\nplayer: hello\nplayer: You said: hello\nYou said: bye\n"
    )


def test_coming_back_shows_the_last_messages_only(folder: Path) -> None:
    chat(folder, "one\ntwo\nthree\nfour\n")
    shown = chat(folder, "").stdout.splitlines()
    assert shown[0] == "session chat-Play goes on after 4 turns"
    assert shown[1] == "player: two"
    assert shown[-1] == "player: You said: four"
    assert len(shown) == 7


def test_the_line_after_a_question_is_its_answer(folder: Path) -> None:
    done = chat(folder, "refund it\ny\nbye\n")
    assert done.returncode == 0
    assert done.stdout.splitlines() == [
        "new session chat-Play",
        "Let me look. ",
        '→ find_order(id="find-1")',
        "✓ find_order",
        "I would refund it.",
        "? refund_order  (approval)",
        '  id = "refund-1"',
        f"✓ refund_order approved by {getpass.getuser()}",
        '→ refund_order(id="refund-1")',
        "✓ refund_order",
        "The refund: succeeded.",
        "You said: bye",
    ]


def test_any_other_answer_is_the_reason_for_a_no(folder: Path, cli: Cli) -> None:
    assert "The refund: rejected." in chat(folder, "refund it\n\nnot today\n", "--session", "why").stdout
    (event,) = [
        one for one in cli.text("sessions", "events", "why").splitlines() if one.split()[3] == "interrupt_resolved"
    ]
    assert event.endswith("refund_order rejected")
    assert "The refund: rejected." in chat(folder, "refund it\nn\n", "--session", "no").stdout


def test_several_questions_are_asked_one_by_one(folder: Path) -> None:
    done = chat(folder, "two refunds\ny\nno\n")
    assert done.stdout.splitlines()[-1] in ("succeeded and rejected", "rejected and succeeded")


def test_without_an_answer_the_question_stays(folder: Path, sessions: Sessions) -> None:
    assert chat(folder, "refund it\n").returncode == 0
    assert sessions.snapshot("chat-Play").status is SessionStatus.WAITING
    done = chat(folder, "yes\n")
    assert "? refund_order  (approval)" in done.stdout
    assert "The refund: succeeded." in done.stdout


def test_a_question_answered_elsewhere_is_not_asked(folder: Path, cli: Cli) -> None:
    chat(folder, "refund it\n")
    cli.text("sessions", "approve", "chat-Play")
    done = chat(folder, "")
    assert "?" not in done.stdout
    assert "The refund: succeeded." in done.stdout


def test_the_exit_code_says_that_the_last_turn_failed(folder: Path) -> None:
    failed = chat(folder, "fail\n")
    assert failed.returncode == 1
    assert "the turn failed: No API key was provided [RuntimeError]" in failed.stdout
    assert chat(folder, "hello\n").returncode == 0


def test_a_missing_key_is_hinted_at(folder: Path) -> None:
    hint = "hint: the agent uses Gemini, and GOOGLE_API_KEY is not set"
    assert hint in chat(folder, "fail\n").stdout
    assert hint not in chat(folder, "fail\n", GOOGLE_API_KEY="secret").stdout
    assert hint not in chat(folder, "hello\n", "--new").stdout


def test_coming_back_says_that_the_last_turn_failed(folder: Path) -> None:
    chat(folder, "fail\n")
    assert "the last turn failed: No API key was provided [RuntimeError]\n" in chat(folder, "").stdout


def test_new_sessions_have_ids_of_their_own(folder: Path, cli: Cli) -> None:
    chat(folder, "hello\n")
    first, second = chat(folder, "hello\n", "--new"), chat(folder, "hello\n", "--new")
    assert first.stdout != second.stdout
    assert first.stdout.startswith("new session chat-Play-")
    assert len(cli.json("sessions", "list")["items"]) == 3


def test_a_session_that_nobody_speaks_in_is_not_made(folder: Path, cli: Cli) -> None:
    chat(folder, "")
    assert cli.text("sessions", "list") == "no sessions\n"


def test_a_closed_session_takes_no_more(folder: Path, cli: Cli) -> None:
    chat(folder, "hello\n")
    cli.text("sessions", "close", "chat-Play")
    done = chat(folder, "hello\n")
    assert done.returncode == 4
    assert "begin another one with --new" in done.stderr


def test_a_session_of_another_agent_is_refused(folder: Path) -> None:
    chat(folder, "hello\n", "--session", "mine")
    done = chat(folder, "hello\n", "--session", "mine", "--flow-type", "Other")
    assert done.returncode == 2
    assert "is of the flow 'Play', and this agent is 'Other'" in done.stderr


def test_code_that_does_not_fit_any_more_is_said(folder: Path) -> None:
    chat(folder, "refund it\n")
    agent = folder / "agent.py"
    code = agent.read_text(encoding="utf-8")
    agent.write_text(
        code.replace('PlayCall("find_order"', 'PlayCall("search"').replace(
            "PlayRunner(script)", "PlayRunner(script, '2')"
        ),
        encoding="utf-8",
    )
    done = chat(folder, "y\n")
    assert done.returncode == 5
    assert "error: session 'chat-Play' is blocked" in done.stderr
    agent.write_text(code, encoding="utf-8")
    assert "The refund: succeeded." in chat(folder, "y\n").stdout


def test_no_colours_go_into_a_pipe(folder: Path) -> None:
    assert "\x1b" not in chat(folder, "refund it\ny\n", FORCE_COLOR="1").stdout


def test_a_question_is_answered_with_a_line(folder: Path) -> None:
    done = chat(folder, "question\nnull\nthe blue one\nbye\n")
    assert done.stdout.splitlines()[1:] == [
        "? ask_pick-1  (long_running)  in shop/picker",
        "  what about pick-1?",
        '  id = "pick-1"',
        *[line for line in done.stdout.splitlines() if "is None, which is no answer" in line],
        "? ask_pick-1  (long_running)  in shop/picker",
        "  what about pick-1?",
        '  id = "pick-1"',
        f"✓ ask_pick-1 answered by {getpass.getuser()}",
        "You picked {'result': 'the blue one'}.",
        "You said: bye",
    ]


def test_a_sign_in_is_answered_with_its_response_or_a_no(folder: Path) -> None:
    done = chat(folder, 'sign in\n{"code": "c"}\nsign in\nnot now\n')
    lines = done.stdout.splitlines()
    assert "Signed in: {'approved': True, 'payload': {'code': 'c'}, 'message': None}." in lines
    assert "Signed in: {'approved': False, 'payload': None, 'message': 'not now'}." in lines


def test_what_outlives_its_turn_is_shown_once_with_the_command_that_answers_it(folder: Path) -> None:
    done = chat(folder, "render\nbye\n")
    shown = [line for line in done.stdout.splitlines() if line.startswith("  answer:")]
    assert shown == ["  answer:  perdure sessions answer chat-Play 'your answer'"]
