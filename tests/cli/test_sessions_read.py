"""``perdure sessions list | show | messages | history | events``: for people and, with ``--json``, for programs."""

from __future__ import annotations

import json

import pytest
from tests.cli.conftest import Cli, Sessions

from perdure import AgentEvent, AgentSnapshot, Message, Page, SessionSummary, StepRecord


def test_list_shows_what_changed_last_first(cli: Cli, sessions: Sessions) -> None:
    sessions.talk("done", "hello")
    sessions.talk("asks", "refund it")
    assert [line.split()[:3] for line in cli.text("sessions", "list").splitlines()] == [
        ["session", "flow", "status"],
        ["asks", "Play", "waiting"],
        ["done", "Play", "idle"],
    ]
    page = Page[SessionSummary].model_validate(cli.json("sessions", "list"))
    assert [(one.session_id, one.pending_interrupts) for one in page.items] == [("asks", 1), ("done", 0)]


def test_list_filters(cli: Cli, sessions: Sessions) -> None:
    sessions.talk("done", "hello")
    sessions.talk("asks", "refund it")

    def ids(*options: str) -> list[str]:
        return [one["session_id"] for one in cli.json("sessions", "list", *options)["items"]]

    assert ids("--status", "waiting") == ["asks"]
    assert ids("--flow-type", "Play") == ["asks", "done"]
    assert ids("--flow-type", "Other") == []
    assert ids("--user", "user") == ["asks", "done"]
    assert ids("--user", "nobody") == []


def test_lists_come_in_pages_and_say_how_to_go_on(cli: Cli, sessions: Sessions) -> None:
    for name in ("one", "two", "three"):
        sessions.talk(name)
    first = cli.json("sessions", "list", "--limit", "2")
    rest = cli.json("sessions", "list", "--after", first["next_cursor"])
    assert [one["session_id"] for one in first["items"] + rest["items"]] == ["three", "two", "one"]
    assert rest["next_cursor"] is None
    shown = cli.text("sessions", "list", "--limit", "2").splitlines()
    assert shown[-1].strip() == f"more: perdure sessions list --after {first['next_cursor']}"


def test_an_empty_store_lists_nothing(cli: Cli, sessions: Sessions) -> None:
    sessions.talk("gone")
    cli.text("sessions", "delete", "gone", "--yes")
    assert cli.text("sessions", "list") == "no sessions\n"
    assert cli.json("sessions", "list") == {"items": [], "next_cursor": None}


def test_show_gives_the_whole_snapshot(cli: Cli, sessions: Sessions) -> None:
    expected = sessions.talk("asks", "refund it")
    shown = AgentSnapshot.model_validate(cli.json("sessions", "show", "asks"))
    # Whether a worker is alive is a fact of the moment; none is any more.
    assert shown.model_copy(update={"served": True}) == expected.model_copy(update={"served": True})
    text = cli.text("sessions", "show", "asks")
    assert text.startswith("asks  waiting\n")
    assert '? refund_order  (approval)\n  id = "refund-1"\n' in text


def test_show_prints_commands_that_answer(cli: Cli, sessions: Sessions) -> None:
    sessions.talk("it's mine", "refund it")
    text = cli.text("sessions", "show", "it's mine")
    assert "approve: perdure sessions approve 'it'\"'\"'s mine'\n" in text
    assert "reject:  perdure sessions reject 'it'\"'\"'s mine' --message 'why not'\n" in text


def test_show_names_each_question_when_there_are_several(cli: Cli, sessions: Sessions) -> None:
    snapshot = sessions.talk("asks", "two refunds")
    text = cli.text("sessions", "show", "asks", "--engine", Sessions.address)
    for interrupt in snapshot.pending_interrupts:
        command = f"perdure sessions approve asks {interrupt.interrupt_id} --engine {Sessions.address}"
        assert f"approve: {command}\n" in text


def test_show_says_when_no_worker_is_there_to_go_on(cli: Cli, sessions: Sessions) -> None:
    sessions.talk("lonely")
    cli.text("sessions", "send", "lonely", "hello")
    assert "none is alive for Play; start one with 'perdure serve'" in cli.text("sessions", "show", "lonely")


def test_show_says_why_a_turn_failed(cli: Cli, sessions: Sessions) -> None:
    sessions.talk("failed", "fail")
    text = cli.text("sessions", "show", "failed")
    assert "1 (failed)" in text
    assert "No API key was provided [RuntimeError]" in text


def test_messages_read_as_a_conversation(cli: Cli, sessions: Sessions) -> None:
    sessions.talk("talk", "hello", "bye")
    assert cli.text("sessions", "messages", "talk") == (
        "player: hello\nplayer: You said: hello\nplayer: bye\nplayer: You said: bye\n"
    )
    page = Page[Message].model_validate(cli.json("sessions", "messages", "talk", "--after", "1", "--limit", "1"))
    assert [(one.index, one.text) for one in page.items] == [(2, "bye")]
    assert page.next_cursor == "2"


def test_what_was_said_cannot_move_the_cursor(cli: Cli, sessions: Sessions) -> None:
    sessions.talk("talk", "\x1b[2J\x1b[31mred\u202edlrow\x07")
    text = cli.text("sessions", "messages", "talk") + cli.text("sessions", "events", "talk")
    assert "red" in text
    assert not {"\x1b", "\u202e", "\x07"} & set(text)


def test_history_shows_every_step(cli: Cli, sessions: Sessions) -> None:
    sessions.talk("asks", "refund it")
    names = [line.split()[0] for line in cli.text("sessions", "history", "asks").splitlines()[1:]]
    assert names == ["AwaitUserMessage", "RunModel", "CallTool", "ResumeTurn", "RunModel", "AwaitToolApproval"]
    page = Page[StepRecord].model_validate(cli.json("sessions", "history", "asks"))
    assert [step.name.value for step in page.items] == names


def test_events_are_lines_that_a_program_can_read(cli: Cli, sessions: Sessions) -> None:
    sessions.talk("talk", "hello")
    lines = cli.text("sessions", "events", "talk", "--json").splitlines()
    events = [AgentEvent.model_validate_json(line) for line in lines]
    assert [event.type.value for event in events] == [
        "turn_started",
        "text_delta",
        "message",
        "message",
        "turn_completed",
    ]
    assert events[2].data["framework_item"]["text"] == "hello"
    shown = cli.text("sessions", "events", "talk").splitlines()
    assert [line.split()[3] for line in shown] == [event.type.value for event in events]


@pytest.mark.parametrize("position", [0, 2])
def test_events_go_on_behind_a_cursor(cli: Cli, sessions: Sessions, position: int) -> None:
    sessions.talk("talk", "hello")
    lines = cli.text("sessions", "events", "talk", "--json").splitlines()
    cursor = json.loads(lines[position])["cursor"]
    assert cli.text("sessions", "events", "talk", "--json", "--after", cursor).splitlines() == lines[position + 1 :]
    assert cli.text("sessions", "events", "talk", "--json", "--after", json.loads(lines[-1])["cursor"]) == ""


def test_events_stop_at_their_limit(cli: Cli, sessions: Sessions) -> None:
    sessions.talk("talk", "hello")
    lines = cli.text("sessions", "events", "talk", "--json").splitlines()
    assert cli.text("sessions", "events", "talk", "--json", "--limit", "2").splitlines() == lines[:2]
    assert cli.text("sessions", "events", "talk", "--json", "--limit", "2", "--follow").splitlines() == lines[:2]


def test_a_session_without_events_has_none(cli: Cli, sessions: Sessions) -> None:
    sessions.talk("silent")
    assert cli.text("sessions", "events", "silent") == ""
