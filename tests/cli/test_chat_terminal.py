"""``perdure chat`` as a person uses it, on a terminal: leave at any point, come back, go on."""

from __future__ import annotations

from pathlib import Path

from tests.cli.conftest import Cli, Sessions
from tests.support.play_agent import HOLD
from tests.support.terminal import Terminal
from tests.support.threaded_agent import THREADED_AGENT

from perdure import SessionStatus, TurnStatus

BACK = "Left. Come back with: perdure chat agent.py\n"


def test_a_conversation(folder: Path) -> None:
    with Terminal("chat", "agent.py", cwd=folder) as terminal:
        terminal.expect("new session chat-Play (ctrl-C leaves at any point, and it stays)\n> ")
        terminal.write("refund it\n")
        terminal.expect("Let me look. \n→ find_order")
        terminal.expect("run it? y, n, or why not > ")
        terminal.write("y\n")
        terminal.expect("The refund: succeeded.\n> ")
        terminal.ctrl_d()
        terminal.expect(BACK)
        assert terminal.wait_exit() == 0


def test_typed_words_are_not_repeated(folder: Path) -> None:
    with Terminal("chat", "agent.py", cwd=folder) as terminal:
        terminal.expect("> ")
        terminal.write("hello\n")
        assert terminal.expect("You said: hello\n> ").count("hello") == 1
        terminal.ctrl_d()
        terminal.wait_exit()


def test_an_empty_answer_is_asked_again(folder: Path, sessions: Sessions) -> None:
    with Terminal("chat", "agent.py", cwd=folder) as terminal:
        terminal.expect("> ")
        terminal.write("refund it\n")
        terminal.expect("why not > ")
        terminal.write("\n")
        terminal.expect("why not > ")
        assert sessions.snapshot("chat-Play").status is SessionStatus.WAITING
        terminal.write("too much\n")
        terminal.expect("The refund: rejected.")


def test_ctrl_c_at_the_prompt_leaves_and_mends_the_terminal(folder: Path) -> None:
    with Terminal("chat", "agent.py", cwd=folder) as terminal:
        before = terminal.settings()
        terminal.expect("> ")
        terminal.write("half a line")
        terminal.expect("half a line")
        assert terminal.settings() != before  # the line editor is at work
        terminal.ctrl_c()
        terminal.expect(BACK)
        assert terminal.wait_exit() == 130
        assert terminal.settings() == before


def test_ctrl_c_in_the_middle_of_an_answer_and_back(folder: Path, sessions: Sessions) -> None:
    (folder / HOLD).touch()
    with Terminal("chat", "agent.py", cwd=folder) as terminal:
        terminal.expect("> ")
        terminal.write("slow\n")
        terminal.expect("Half an answer")
        terminal.ctrl_c()
        terminal.expect(BACK)
        assert terminal.wait_exit() == 130
    snapshot = sessions.snapshot("chat-Play")
    assert snapshot.turn is not None
    assert (snapshot.status, snapshot.turn.status) == (SessionStatus.RUNNING, TurnStatus.RUNNING)
    (folder / HOLD).unlink()
    with Terminal("chat", "agent.py", cwd=folder) as terminal:
        terminal.expect("session chat-Play goes on after 1 turn (")
        terminal.expect("(still at work)\n")
        terminal.expect("Half an answer, and the rest of it.\n> ")
        terminal.write("bye\n")
        terminal.expect("You said: bye")


def test_ctrl_c_at_a_question_and_back(folder: Path) -> None:
    with Terminal("chat", "agent.py", "--session", "two words", cwd=folder) as terminal:
        terminal.expect("> ")
        terminal.write("refund it\n")
        terminal.expect("why not > ")
        terminal.ctrl_c()
        terminal.expect("Left. Come back with: perdure chat agent.py --session 'two words'\n")
        assert terminal.wait_exit() == 130
    with Terminal("chat", "agent.py", "--session", "two words", cwd=folder) as terminal:
        terminal.expect('? refund_order  (approval)\n  id = "refund-1"\n')
        terminal.expect("why not > ")
        terminal.write("y\n")
        terminal.expect("The refund: succeeded.")


def test_a_kill_at_any_point_and_back(folder: Path) -> None:
    (folder / HOLD).touch()
    with Terminal("chat", "agent.py", cwd=folder) as terminal:
        terminal.expect("> ")
        terminal.write("work\n")
        terminal.expect("working")
        terminal.kill()
    (folder / HOLD).unlink()
    with Terminal("chat", "agent.py", cwd=folder) as terminal:
        terminal.expect("(attempt 2)")
        terminal.expect("It is done.\n> ")


def test_a_question_that_was_answered_elsewhere_meanwhile(folder: Path, cli: Cli) -> None:
    with Terminal("chat", "agent.py", cwd=folder) as terminal:
        terminal.expect("> ")
        terminal.write("refund it\n")
        terminal.expect("why not > ")
        cli.text("sessions", "approve", "chat-Play", "--by", "ann")
        terminal.write("no\n")
        terminal.expect("was approved by ann")
        terminal.expect("The refund: succeeded.\n> ")


def test_what_others_do_in_the_session_is_shown(folder: Path, cli: Cli) -> None:
    with Terminal("chat", "agent.py", cwd=folder) as terminal:
        terminal.expect("> ")
        terminal.write("hello\n")
        terminal.expect("You said: hello\n> ")
        cli.text("sessions", "send", "chat-Play", "from elsewhere", "--timeout", "60")
        terminal.write("bye\n")
        terminal.expect("You said: from elsewhere")
        terminal.expect("You said: bye")


def test_a_new_session_says_how_to_come_back_to_it(folder: Path) -> None:
    address = "sqlite:///other.db"
    with Terminal("chat", "agent.py", "--new", "--engine", address, cwd=folder) as terminal:
        terminal.expect("new session ")
        session_id = terminal.expect(" (")
        terminal.expect("> ")
        terminal.ctrl_d()
        terminal.expect(f"perdure chat agent.py --session {session_id} --engine {address}\n")


def test_a_tool_in_a_thread_cannot_hold_a_person_back(folder: Path) -> None:
    (folder / "threaded.py").write_text(THREADED_AGENT, encoding="utf-8")
    (folder / HOLD).touch()
    with Terminal("chat", "threaded.py", cwd=folder) as terminal:
        terminal.expect("> ")
        terminal.write("go\n")
        terminal.expect("working")
        terminal.ctrl_c()
        terminal.expect("Left.")
        assert terminal.wait_exit() == 130
    (folder / HOLD).unlink()
    with Terminal("chat", "threaded.py", cwd=folder) as terminal:
        terminal.expect("(attempt 2)")
        terminal.expect("It is done.\n> ")


def test_a_tool_that_blocks_everything_cannot_either(folder: Path) -> None:
    options = "perdure_options['sync_tools_in_threads'] = False"
    (folder / "blocking.py").write_text(THREADED_AGENT + options, encoding="utf-8")
    (folder / HOLD).touch()
    with Terminal("chat", "blocking.py", cwd=folder) as terminal:
        before = terminal.settings()
        terminal.expect("> ")
        terminal.write("go\n")
        terminal.expect("working")
        terminal.ctrl_c()
        terminal.expect("Left.")
        assert terminal.wait_exit() == 130
        assert terminal.settings() == before
