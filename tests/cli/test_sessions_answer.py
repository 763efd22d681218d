"""``perdure sessions answer | resume`` and sign-ins: what is no plain yes or no, from a process that does no work."""

from __future__ import annotations

import json

from tests.cli.conftest import Cli, Sessions

from perdure import Interrupt, InterruptStatus, SessionStatus


def messages(cli: Cli) -> list[str]:
    return [line for line in cli.text("sessions", "messages", "talk").splitlines() if line]


def test_a_question_is_shown_with_the_command_that_answers_it(cli: Cli, sessions: Sessions) -> None:
    sessions.talk("talk", "question")
    shown = cli.text("sessions", "show", "talk").splitlines()
    assert shown[-4:] == [
        "? ask_pick-1  (long_running)  in shop/picker",
        "  what about pick-1?",
        '  id = "pick-1"',
        "  answer:  perdure sessions answer talk 'your answer'",
    ]


def test_an_answer_is_text_or_json(cli: Cli, sessions: Sessions) -> None:
    given = {
        "the blue one": {"result": "the blue one"},
        '{"colour": "blue"}': {"colour": "blue"},
        "7": {"result": 7},
        "NaN": {"result": "NaN"},
    }
    for words, value in given.items():
        sessions.talk("talk", "question")
        done = cli.json("sessions", "answer", "talk", words, "--by", "ann")
        interrupt = Interrupt.model_validate(done["interrupt"])
        assert (interrupt.status, interrupt.response, interrupt.resolved_by) == (InterruptStatus.ANSWERED, value, "ann")
        sessions.talk("talk")
        assert messages(cli)[-1] == f"player: You picked {value}."


def test_text_stays_text_if_it_is_said(cli: Cli, sessions: Sessions) -> None:
    sessions.talk("talk", "question")
    assert cli.text("sessions", "answer", "talk", "7", "--text") == "answered: ask_pick-1\n"
    sessions.talk("talk")
    assert messages(cli)[-1] == "player: You picked {'result': '7'}."


def test_an_answer_is_read_from_stdin(cli: Cli, sessions: Sessions) -> None:
    sessions.talk("talk", "question")
    assert cli.run("sessions", "answer", "talk", "-", stdin="two\nlines\n").exit_code == 0
    sessions.talk("talk")
    assert messages(cli)[-1] == r"player: You picked {'result': 'two\nlines'}."


def test_null_is_refused(cli: Cli, sessions: Sessions) -> None:
    sessions.talk("talk", "question")
    done = cli.run("sessions", "answer", "talk", "null")
    assert done.exit_code == 2
    assert "no answer" in done.stderr


def test_what_takes_another_kind_of_answer_says_so(cli: Cli, sessions: Sessions) -> None:
    asked = sessions.talk("talk", "question").pending_interrupts[0]
    done = cli.run("sessions", "approve", "talk")
    assert (done.exit_code, "perdure sessions answer" in done.stderr) == (3, True)
    done = cli.run("sessions", "approve", "talk", asked.interrupt_id)
    assert (done.exit_code, "answer_question" in done.stderr) == (2, True)


def test_a_sign_in_is_approved_with_its_response(cli: Cli, sessions: Sessions) -> None:
    sessions.talk("talk", "sign in")
    assert cli.text("sessions", "show", "talk").splitlines()[-2:] == [
        "  approve: perdure sessions approve talk --payload '{...}'",
        "  reject:  perdure sessions reject talk --message 'why not'",
    ]
    cli.text("sessions", "approve", "talk", "--payload", '{"code": "c"}')
    sessions.talk("talk")
    assert messages(cli)[-1].startswith("player: Signed in: {'approved': True, 'payload': {'code': 'c'}")


def test_resume_answers_everything_at_once(cli: Cli, sessions: Sessions) -> None:
    asked = sessions.talk("talk", "form").pending_interrupts
    names = [one.interrupt_id for one in asked]
    done = cli.run("sessions", "resume", "talk", json.dumps({names[0]: "ann"}))
    assert (done.exit_code, names[1] in done.stderr) == (2, True)
    assert cli.run("sessions", "resume", "talk", "[]").exit_code == 2
    assert cli.run("sessions", "resume", "talk", "{").exit_code == 2
    text = cli.run("sessions", "resume", "talk", "-", stdin=json.dumps({names[0]: "ann", names[1]: 7})).stdout
    assert text == "answered: ask_name\nanswered: ask_size\n"
    assert sessions.talk("talk").status is SessionStatus.IDLE
    assert messages(cli)[-1] == "player: Thanks: [{'result': 'ann'}, {'result': 7}]."


def test_one_of_several_questions_has_to_be_named(cli: Cli, sessions: Sessions) -> None:
    asked = sessions.talk("talk", "form").pending_interrupts
    done = cli.run("sessions", "answer", "talk", "ann")
    assert (done.exit_code, asked[0].interrupt_id in done.stderr) == (2, True)
    shown = cli.text("sessions", "show", "talk")
    assert f"answer:  perdure sessions answer talk 'your answer' --to {asked[0].interrupt_id}" in shown
    cli.text("sessions", "answer", "talk", "ann", "--to", asked[0].interrupt_id)
    assert len(sessions.snapshot("talk").pending_interrupts) == 1


def test_a_late_answer_starts_a_turn(cli: Cli, sessions: Sessions) -> None:
    snapshot = sessions.talk("talk", "render")
    assert (snapshot.status, len(snapshot.pending_interrupts)) == (SessionStatus.IDLE, 1)
    done = cli.json("sessions", "answer", "talk", '{"url": "u"}')
    assert done["snapshot"]["queued_messages"] == 1
    sessions.talk("talk")
    assert messages(cli)[-1] == "player: Rendered: {'url': 'u'}."
