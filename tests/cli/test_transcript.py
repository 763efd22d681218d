"""What a person sees of the live stream: each word once, be it streamed, stored, interrupted or said side by side."""

from __future__ import annotations

import io
from datetime import UTC, datetime

import pytest
from rich.console import Console

from perdure import AgentEvent, AgentEventType, ErrorInfo, Message, MessageRole
from perdure.cli.transcript import Transcript
from perdure.session.model import STEERED, JsonObject

NOW = datetime(2026, 1, 2, tzinfo=UTC)


class Screen:
    """A transcript on a terminal without colours."""

    def __init__(self) -> None:
        self._file = io.StringIO()
        self.transcript = Transcript(Console(file=self._file, color_system=None, width=80))

    @property
    def text(self) -> str:
        return self._file.getvalue()

    def delta(self, text: str, *, step: str = "step", attempt: int = 1, reasoning: bool = False) -> None:
        kind = AgentEventType.REASONING_DELTA if reasoning else AgentEventType.TEXT_DELTA
        self.transcript.event(
            AgentEvent(
                cursor="c",
                type=kind,
                session_id="s",
                turn_id="t",
                step_execution_id=step,
                attempt=attempt,
                text=text,
                created_at=NOW,
            )
        )

    def event(self, kind: AgentEventType, attempt: int | None = None, **data: object) -> None:
        body: JsonObject = dict(data)
        self.transcript.event(
            AgentEvent(cursor="c", type=kind, session_id="s", turn_id="t", attempt=attempt, data=body, created_at=NOW)
        )

    def message(
        self, text: str, role: MessageRole = MessageRole.ASSISTANT, turn_id: str = "t", item: JsonObject | None = None
    ) -> None:
        framework_item: JsonObject = item or {}
        self.transcript.message(
            Message(
                index=0,
                turn_id=turn_id,
                role=role,
                author="agent",
                text=text,
                framework_item=framework_item,
                created_at=NOW,
            )
        )


@pytest.fixture
def screen() -> Screen:
    return Screen()


def test_streamed_text_is_not_repeated_by_its_message(screen: Screen) -> None:
    screen.delta("Half, ")
    screen.delta("and half.")
    screen.message("Half, and half.")
    assert screen.text == "Half, and half.\n"


def test_a_message_that_was_not_streamed_is_shown(screen: Screen) -> None:
    screen.message("All at once.")
    assert screen.text == "All at once.\n"


def test_the_same_words_said_twice_are_shown_twice(screen: Screen) -> None:
    screen.delta("Yes.")
    screen.message("Yes.")
    screen.message("Yes.")
    assert screen.text == "Yes.\nYes.\n"


def test_what_was_streamed_side_by_side_is_shown_in_order_at_the_end(screen: Screen) -> None:
    for text in ("a1 ", "b1 ", "a2", "b2"):
        screen.delta(text)
    screen.message("a1 a2")
    screen.message("b1 b2")
    assert screen.text == "a1 b1 a2b2\na1 a2\nb1 b2\n"


def test_a_new_attempt_starts_over(screen: Screen) -> None:
    screen.delta("Half an ans")
    screen.delta("Half an answer, and the rest.", attempt=2)
    screen.message("Half an answer, and the rest.")
    assert screen.text == "Half an ans\n(interrupted; once more)\nHalf an answer, and the rest.\n"


def test_a_new_step_is_no_new_attempt(screen: Screen) -> None:
    screen.delta("One.")
    screen.delta("Two.", step="other")
    assert screen.text == "One.\nTwo."


def test_thoughts_are_told_from_words(screen: Screen) -> None:
    screen.delta("Hm.", reasoning=True)
    screen.delta("Yes.")
    screen.message("Yes.")
    assert screen.text == "Hm.\nYes.\n"


def test_lines_do_not_run_into_streamed_text(screen: Screen) -> None:
    screen.delta("I look. ")
    screen.event(AgentEventType.TOOL_CALL_STARTED, attempt=1, tool_name="find", arguments={"id": 7, "deep": ["x"]})
    screen.event(AgentEventType.TOOL_CALL_FINISHED, attempt=1, tool_name="find", arguments={}, status="succeeded")
    assert screen.text == 'I look. \n→ find(id=7, deep=["x"])\n✓ find\n'


@pytest.mark.parametrize(
    ("status", "line"),
    [
        ("failed", "✗ pay: failed"),
        ("rejected", "✗ pay: rejected"),
        ("outcome_unknown", "? pay: outcome unknown"),
    ],
)
def test_how_a_call_ended_is_told(screen: Screen, status: str, line: str) -> None:
    screen.event(AgentEventType.TOOL_CALL_FINISHED, tool_name="pay", arguments={}, status=status)
    assert screen.text == f"{line}\n"


def test_long_arguments_are_cut_and_attempts_counted(screen: Screen) -> None:
    screen.event(AgentEventType.TOOL_CALL_STARTED, attempt=3, tool_name="write", arguments={"text": "x" * 500})
    assert screen.text.endswith("x…  (attempt 3)\n")
    assert len(screen.text) < 130


@pytest.mark.parametrize(
    ("status", "mark"), [("approved", "✓"), ("rejected", "✗"), ("expired", "✗"), ("withdrawn", "✗")]
)
def test_answers_are_told(screen: Screen, status: str, mark: str) -> None:
    screen.event(AgentEventType.INTERRUPT_RESOLVED, tool_name="pay", status=status, resolved_by="ann")
    screen.event(AgentEventType.INTERRUPT_RESOLVED, tool_name="pay", status=status, resolved_by=None)
    assert screen.text == f"{mark} pay {status} by ann\n{mark} pay {status}\n"


@pytest.mark.parametrize(
    ("kind", "line"),
    [
        (AgentEventType.TURN_FAILED, "the turn failed: no luck [ValueError]"),
        (AgentEventType.SESSION_BLOCKED, "blocked: no luck [ValueError]"),
        (AgentEventType.TURN_CANCELLED, "the turn was cancelled"),
        (AgentEventType.SESSION_CLOSED, "the session was closed"),
    ],
)
def test_ends_are_told(screen: Screen, kind: AgentEventType, line: str) -> None:
    screen.event(kind, error=ErrorInfo(code="ValueError", message="no luck").model_dump(mode="json"))
    assert screen.text == f"{line}\n"


def test_what_the_user_typed_is_shown_only_if_it_was_typed_elsewhere(screen: Screen) -> None:
    screen.transcript.own_turns.add("mine")
    screen.message("hello", MessageRole.USER, "mine")
    screen.message("hi there", MessageRole.USER, "another")
    screen.message("from elsewhere", MessageRole.USER, "mine", {"custom_metadata": {STEERED: True}})
    assert screen.text == "agent: hi there\nagent: from elsewhere\n"


def test_markup_and_control_characters_are_only_text(screen: Screen) -> None:
    screen.delta("[red]x[/red] \x1b[31m:smile:")
    assert screen.text == "[red]x[/red] \N{REPLACEMENT CHARACTER}[31m:smile:"
