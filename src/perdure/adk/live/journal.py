"""What the journal holds of a turn, in the order in which it is handed out again.

An entry is a model call, or a group of tool calls or questions that are all settled.  Entries go by the order in which
they came to the invocation.  That is nearly the order of their sequences; but the record of a model call comes at once,
and any other when it is on disk.  So a model call's record says which groups had come before it (``seen``).
"""

from __future__ import annotations

import json
from collections import deque
from dataclasses import dataclass

from perdure.session.runner import (
    JOINED,
    Answer,
    AnsweredQuestion,
    CallRecord,
    ModelCall,
    Question,
    RecordedCall,
    RecordedTurn,
)

ASIDE = "aside|"
"""How the key of a record begins that a replay looks up when it needs it.  It has no place in the order."""


@dataclass(frozen=True, slots=True)
class SettledGroup:
    """A group whose calls all have their record."""

    group: str
    records: tuple[CallRecord, ...]

    @property
    def sequence(self) -> int:
        return self.records[-1].sequence


@dataclass(frozen=True, slots=True)
class SettledQuestions:
    """A group of questions that all have their answer."""

    group: str
    answers: tuple[Answer, ...]

    @property
    def sequence(self) -> int:
        return self.answers[-1].sequence


Entry = ModelCall | SettledGroup | SettledQuestions


class Journal:
    """The recorded part of a turn and how far a replay has come in it.

    Attributes:
        asides: key -> record of what has no place in the order; those recorded since are put in, too.
        joined: the records of messages that joined the turn.
    """

    def __init__(self, recorded: RecordedTurn) -> None:
        model_calls = [call for call in recorded.model_calls if not call.key.startswith(ASIDE)]
        self.asides = {call.key: call.response for call in recorded.model_calls if call.key.startswith(ASIDE)}
        self.joined = [call for call in model_calls if call.key.startswith(JOINED)]
        self._calls = {call.request.call_id: call for call in recorded.calls}
        self._model_keys = frozenset(call.key for call in model_calls)
        self._questions = {asked.question.question_id: asked for asked in recorded.questions}
        self._unseen = dict(self._calls)
        self._unasked = dict(self._questions)
        self._ahead, self._tail = _in_order(recorded, model_calls)

    @property
    def next(self) -> Entry | None:
        """The entry that is due; ``None`` when all were handed out."""
        return self._ahead[0] if self._ahead else None

    def hand_out_next(self) -> None:
        """Marks the entry that is due as handed out."""
        self._ahead.popleft()

    @property
    def replayed(self) -> bool:
        """Whether all entries were handed out and all recorded calls came back."""
        return not self._ahead and not self._unseen and not self._unasked

    def tail(self) -> list[int]:
        """The groups that came after the last model call was recorded, by the sequences of their last records."""
        return self._tail.copy()

    def knows_model_call(self, key: str) -> bool:
        return key in self._model_keys

    def call(self, call_id: str) -> RecordedCall | None:
        return self._calls.get(call_id)

    def came_back(self, call_id: str) -> None:
        """A replay has asked for a recorded call again."""
        self._unseen.pop(call_id, None)

    def question(self, question_id: str) -> Question | None:
        """The question of this id."""
        asked = self._questions.get(question_id)
        return None if asked is None else asked.question

    def answer(self, question_id: str) -> Answer | None:
        """The answer to the question of this id."""
        asked = self._questions.get(question_id)
        return None if asked is None else asked.answer

    def questions_of(self, group: str) -> list[Question]:
        """The questions of a group."""
        return [asked.question for asked in self._questions.values() if asked.question.group == group]

    def was_asked_again(self, question_id: str) -> None:
        """A replay has asked a recorded question again."""
        self._unasked.pop(question_id, None)

    def missing(self) -> tuple[str, str]:
        """The first thing that a replay has not repeated: the step, and what was expected."""
        entry = self.next
        if isinstance(entry, ModelCall):
            return entry.key, "a message that joined the turn" if entry.key.startswith(JOINED) else "this model call"
        if self._unseen:
            call = next(iter(self._unseen.values())).request
            return call.call_id, f"a call of tool {call.tool_name!r} with {call.arguments!r}"
        if self._unasked:
            question = next(iter(self._unasked.values())).question
            return question.question_id, f"a question of {question.tool_name!r} with {question.arguments!r}"
        return (entry.group, "the calls of this model response") if entry else ("", "nothing")


def _settled_groups(recorded: RecordedTurn) -> list[SettledGroup]:
    groups: dict[str, list[RecordedCall]] = {}
    for call in recorded.calls:
        groups.setdefault(call.request.group, []).append(call)
    settled: list[SettledGroup] = []
    for group, calls in groups.items():
        records = [call.record for call in calls if call.record is not None]
        if len(records) == len(calls):
            settled.append(SettledGroup(group, tuple(sorted(records, key=lambda record: record.sequence))))
    return settled


def _settled_questions(recorded: RecordedTurn) -> list[SettledQuestions]:
    groups: dict[str, list[AnsweredQuestion]] = {}
    for asked in recorded.questions:
        groups.setdefault(asked.question.group, []).append(asked)
    settled: list[SettledQuestions] = []
    for group, questions in groups.items():
        answers = [asked.answer for asked in questions if asked.answer is not None]
        if len(answers) == len(questions):
            settled.append(SettledQuestions(group, tuple(sorted(answers, key=lambda answer: answer.sequence))))
    return settled


def _in_order(recorded: RecordedTurn, model_calls: list[ModelCall]) -> tuple[deque[Entry], list[int]]:
    settled: list[SettledGroup | SettledQuestions] = [*_settled_groups(recorded), *_settled_questions(recorded)]
    groups = {group.sequence: group for group in sorted(settled, key=lambda group: group.sequence)}
    entries: deque[Entry] = deque()
    for call in sorted(model_calls, key=lambda call: call.sequence):
        entries.extend(groups.pop(sequence) for sequence in _seen(call) if sequence in groups)
        entries.append(call)
    return deque([*entries, *groups.values()]), list(groups)


def _seen(call: ModelCall) -> list[int]:
    if not call.response.startswith('{"seen":[') or call.response.startswith('{"seen":[]'):
        return []
    seen: list[int] = json.loads(call.response)["seen"]
    return seen
