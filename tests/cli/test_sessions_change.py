"""``perdure sessions send | steer | approve | reject | cancel | close | delete``: from a process that does no work."""

from __future__ import annotations

import getpass
import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.cli.conftest import Cli, Sessions
from tests.support.terminal import run_program, start_program

from perdure import AgentSnapshot, Interrupt, InterruptStatus, SessionStatus, TurnStatus


@pytest.fixture
def worker(folder: Path) -> Iterator[None]:
    """Another process that works on the sessions."""
    with start_program("serve", "agent.py", cwd=folder) as program:
        try:
            assert program.stdout is not None
            assert program.stdout.readline().startswith("serving Play")
            yield
        finally:
            program.kill()


def only(snapshot: AgentSnapshot) -> Interrupt:
    (interrupt,) = snapshot.pending_interrupts
    return interrupt


def test_send_stores_the_message_and_says_which_turn_it_starts(cli: Cli, sessions: Sessions) -> None:
    sessions.talk("talk")
    turn_id = cli.text("sessions", "send", "talk", "hello").strip()
    assert sessions.snapshot("talk").queued_messages == 1
    sent = cli.json("sessions", "send", "talk", "and again")
    assert sent["turn_id"] not in ("", turn_id)
    assert AgentSnapshot.model_validate(sent["snapshot"]).queued_messages == 2


def test_steer_stores_what_a_turn_or_the_next_one_sees(cli: Cli, sessions: Sessions) -> None:
    sessions.talk("talk")
    message_id = cli.run("sessions", "steer", "talk", "-", stdin="rather the blue one").output.strip()
    again = cli.json("sessions", "steer", "talk", "hello", "--request-id", "r1")
    assert cli.json("sessions", "steer", "talk", "hello", "--request-id", "r1")["message_id"] == again["message_id"]
    assert again["message_id"] not in ("", message_id)
    assert sessions.snapshot("talk").queued_messages == 2
    cli.text("sessions", "cancel", "talk", "--turn", message_id)
    sessions.talk("talk")  # a worker takes it up
    assert "player: hello" in cli.text("sessions", "messages", "talk")
    assert "blue" not in cli.text("sessions", "messages", "talk")
    assert cli.run("sessions", "steer", "talk", "").exit_code == 2


def test_send_reads_a_long_message_from_stdin(cli: Cli, sessions: Sessions) -> None:
    sessions.talk("talk")
    assert cli.run("sessions", "send", "talk", "-", stdin="first line\nsecond line\n").exit_code == 0
    sessions.talk("talk")  # a worker takes it up
    assert "player: first line\nsecond line" in cli.text("sessions", "messages", "talk")


def test_the_same_request_is_done_once(cli: Cli, sessions: Sessions) -> None:
    sessions.talk("talk")
    first = cli.json("sessions", "send", "talk", "hello", "--request-id", "mail-1")
    again = cli.json("sessions", "send", "talk", "hello", "--request-id", "mail-1")
    assert again["turn_id"] == first["turn_id"]
    assert again["snapshot"]["queued_messages"] == 1
    assert cli.run("sessions", "send", "talk", "other", "--request-id", "mail-1").exit_code == 4


@pytest.mark.usefixtures("worker")
def test_send_and_wait_shows_the_answer(cli: Cli, sessions: Sessions) -> None:
    sessions.talk("talk", "an earlier message")
    text = cli.text("sessions", "send", "talk", "hello", "--wait")
    assert "You said: hello" in text
    assert "earlier" not in text
    waited = cli.json("sessions", "send", "talk", "bye", "--wait")
    assert waited["snapshot"]["status"] == "idle"
    assert waited["snapshot"]["turn"]["turn_id"] == waited["turn_id"]


@pytest.mark.usefixtures("worker")
def test_send_and_wait_ends_with_the_question_and_its_answers(cli: Cli, sessions: Sessions) -> None:
    sessions.talk("talk")
    text = cli.text("sessions", "send", "talk", "refund it", "--wait")
    assert text.splitlines()[-4:] == [
        "? refund_order  (approval)",
        '  id = "refund-1"',
        "  approve: perdure sessions approve talk",
        "  reject:  perdure sessions reject talk --message 'why not'",
    ]
    done = cli.text("sessions", "approve", "talk", "--wait")
    assert '→ refund_order(id="refund-1")\n✓ refund_order\nThe refund: succeeded.\n' in done


@pytest.mark.usefixtures("worker")
def test_the_exit_code_says_that_the_turn_failed(cli: Cli, sessions: Sessions) -> None:
    sessions.talk("talk")
    done = cli.run("sessions", "send", "talk", "fail", "--wait")
    assert done.exit_code == 1
    assert "the turn failed: No API key was provided [RuntimeError]" in done.stdout
    done = cli.run("sessions", "send", "talk", "fail", "--wait", "--json")
    assert done.exit_code == 1
    assert json.loads(done.stdout)["snapshot"]["turn"]["error"]["code"] == "RuntimeError"


@pytest.mark.parametrize("options", [(), ("--json",)], ids=["text", "json"])
def test_waiting_ends_with_its_time(cli: Cli, sessions: Sessions, options: tuple[str, ...]) -> None:
    sessions.talk("talk")
    done = cli.run("sessions", "send", "talk", "nobody is there to answer", "--timeout", "0.01", *options)
    assert done.exit_code == 6
    assert "no worker is alive for Play; waiting for one" in done.stderr
    assert "did not come to rest within 0.01 s" in done.stderr or "is still running after 0.01 s" in done.stderr
    assert sessions.snapshot("talk").queued_messages == 1


def test_approve_needs_no_id_when_one_thing_is_asked(cli: Cli, sessions: Sessions) -> None:
    asked = only(sessions.talk("talk", "refund it"))
    answer = cli.json("sessions", "approve", "talk", "--payload", '{"amount": 20}', "--by", "ann")
    interrupt = Interrupt.model_validate(answer["interrupt"])
    assert (interrupt.interrupt_id, interrupt.status) == (asked.interrupt_id, InterruptStatus.APPROVED)
    assert interrupt.resolved_by == "ann"
    assert interrupt.response["payload"] == {"amount": 20}
    assert answer["snapshot"]["pending_interrupts"] == []
    sessions.talk("talk")
    assert "The refund: succeeded." in cli.text("sessions", "messages", "talk")
    events = [json.loads(line) for line in cli.text("sessions", "events", "talk", "--json").splitlines()]
    (told,) = [event["data"] for event in events if event["type"] == "interrupt_resolved"]
    assert (told["status"], told["resolved_by"]) == ("approved", "ann")


def test_who_answers_is_the_user_of_the_machine_unless_said(cli: Cli, sessions: Sessions) -> None:
    sessions.talk("talk", "refund it")
    assert cli.json("sessions", "approve", "talk")["interrupt"]["resolved_by"] == getpass.getuser()


def test_reject_tells_the_agent_why(cli: Cli, sessions: Sessions) -> None:
    sessions.talk("talk", "refund it")
    answer = cli.json("sessions", "reject", "talk", "--message", "too much")
    assert Interrupt.model_validate(answer["interrupt"]).response["message"] == "too much"
    sessions.talk("talk")
    assert "The refund: rejected." in cli.text("sessions", "messages", "talk")
    step = cli.json("sessions", "history", "talk")["items"][5]
    assert (step["name"], step["status"]) == ("AwaitToolApproval", "rejected")


def test_several_questions_are_answered_by_id(cli: Cli, sessions: Sessions) -> None:
    first, second = sessions.talk("talk", "two refunds").pending_interrupts
    refused = cli.run("sessions", "approve", "talk")
    assert refused.exit_code == 2
    assert first.interrupt_id in refused.stderr
    assert second.interrupt_id in refused.stderr
    assert cli.text("sessions", "approve", "talk", second.interrupt_id) == "approved: refund_order\n"
    assert cli.text("sessions", "reject", "talk") == "rejected: refund_order\n"  # one is left
    sessions.talk("talk")
    assert "rejected and succeeded" in cli.text("sessions", "messages", "talk")


def test_an_answer_is_final(cli: Cli, sessions: Sessions) -> None:
    asked = only(sessions.talk("talk", "refund it"))
    answer = cli.json("sessions", "approve", "talk", asked.interrupt_id)
    again = cli.json("sessions", "approve", "talk", asked.interrupt_id, "--by", "bob")
    assert again["interrupt"] == answer["interrupt"]
    assert cli.run("sessions", "reject", "talk", asked.interrupt_id).exit_code == 4
    assert cli.run("sessions", "approve", "talk", "no-such-id").exit_code == 3
    assert cli.run("sessions", "approve", "talk").exit_code == 3


def test_a_payload_must_be_json(cli: Cli, sessions: Sessions) -> None:
    sessions.talk("talk", "refund it")
    done = cli.run("sessions", "approve", "talk", "--payload", "20 euros")
    assert done.exit_code == 2
    assert "--payload is no JSON" in done.stderr


def test_cancel_ends_a_turn_that_waits(cli: Cli, sessions: Sessions) -> None:
    sessions.talk("talk", "refund it")
    assert cli.text("sessions", "cancel", "talk") == "asked to cancel\n"
    snapshot = sessions.talk("talk")
    assert snapshot.turn is not None
    assert (snapshot.status, snapshot.turn.status) == (SessionStatus.IDLE, TurnStatus.CANCELLED)


def test_cancel_can_mean_one_queued_message(cli: Cli, sessions: Sessions) -> None:
    sessions.talk("talk", "refund it")
    queued = cli.json("sessions", "send", "talk", "hello")["turn_id"]
    assert cli.run("sessions", "cancel", "talk", "--turn", "no-such-turn").exit_code == 3
    cli.text("sessions", "cancel", "talk", "--turn", queued)
    snapshot = sessions.talk("talk")
    assert (snapshot.status, snapshot.queued_messages) == (SessionStatus.WAITING, 0)


def test_a_closed_session_can_be_read_and_takes_nothing(cli: Cli, sessions: Sessions) -> None:
    sessions.talk("talk", "hello")
    closed = cli.json("sessions", "close", "talk")
    assert AgentSnapshot.model_validate(closed["snapshot"]).status is SessionStatus.CLOSED
    assert cli.text("sessions", "close", "talk") == "closed\n"
    assert cli.run("sessions", "send", "talk", "hello").exit_code == 4
    assert "You said: hello" in cli.text("sessions", "messages", "talk")


def test_delete_wants_to_be_meant(cli: Cli, sessions: Sessions) -> None:
    sessions.talk("talk")
    assert cli.run("sessions", "delete", "talk").exit_code == 2
    assert cli.run("sessions", "delete", "talk", "--json").exit_code == 2
    assert sessions.snapshot("talk").status is SessionStatus.IDLE
    assert cli.json("sessions", "delete", "talk", "--yes") == {"session_id": "talk"}
    assert cli.run("sessions", "show", "talk").exit_code == 3


def test_the_engine_may_be_named_by_the_environment(folder: Path, sessions: Sessions) -> None:
    sessions.talk("talk")
    (folder / "perdure.db").rename(folder / "other.db")
    assert run_program("sessions", "show", "talk", cwd=folder).returncode == 8
    shown = run_program("sessions", "show", "talk", cwd=folder, PERDURE_ENGINE="sqlite:///other.db")
    assert shown.stdout.startswith("talk  idle\n")
    shown = run_program("sessions", "show", "talk", "--engine", "sqlite:///other.db", cwd=folder)
    assert shown.stdout.startswith("talk  idle\n")
