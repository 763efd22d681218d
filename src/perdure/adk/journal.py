"""What the journal holds of a turn, in the order in which it is handed out again.

An entry is a model call, or a group of tool calls that all have their record.  Entries go by the order in which they
came to the invocation.  That is nearly the order of their sequences; but the record of a model call comes at once, and
one of a tool call when it is on disk.  So a model call's record says which groups had come before it (``seen``).
"""

from __future__ import annotations

import json
from collections import deque
from dataclasses import dataclass

from perdure.session.runner import AnsweredQuestion, CallRecord, ModelCall, RecordedCall, RecordedTurn, Settled


ASIDE = "aside|"
"""How the key of a record begins that a replay looks up when it needs it.  It has no place in the order."""


def key_of(record: Settled) -> str:
    """What a record is known by.  A call that is answered later has a record and an answer under one id."""
    return record.call_id if isinstance(record, CallRecord) else question_key(record.question_id)


def question_key(question_id: str) -> str:
    """What the answer to a question is known by."""
    return f"?{question_id}"


@dataclass(frozen=True, slots=True)
class SettledGroup:
    """A group whose calls or questions all have their record."""

    group: str
    records: tuple[Settled, ...]

    @property
    def sequence(self) -> int:
        return self.records[-1].sequence


class Journal:
    """The recorded part of a turn and how far a replay has come in it.

    Attributes:
        asides: key -> record of what has no place in the order; those recorded since are put in, too.
    """

    def __init__(self, recorded: RecordedTurn) -> None:
        model_calls = [call for call in recorded.model_calls if not call.key.startswith(ASIDE)]
        self.asides = {call.key: call.response for call in recorded.model_calls if call.key.startswith(ASIDE)}
        self._calls = {call.request.call_id: call for call in recorded.calls}
        self._model_keys = frozenset(call.key for call in model_calls)
        self._questions = {question.question.question_id: question for question in recorded.questions}
        self._unseen: dict[str, RecordedCall | AnsweredQuestion] = {
            **self._calls,
            **{question_key(name): question for name, question in self._questions.items()},
        }
        self._ahead, self._tail = _in_order(model_calls, _settled_groups(recorded))

    @property
    def next(self) -> ModelCall | SettledGroup | None:
        """The entry that is due; ``None`` when all were handed out."""
        return self._ahead[0] if self._ahead else None

    def hand_out_next(self) -> None:
        """Marks the entry that is due as handed out."""
        self._ahead.popleft()

    @property
    def replayed(self) -> bool:
        """Whether all entries were handed out and all recorded calls and questions came back."""
        return not self._ahead and not self._unseen

    def tail(self) -> list[int]:
        """The groups that came after the last model call was recorded, by the sequences of their last records."""
        return self._tail.copy()

    def knows_model_call(self, key: str) -> bool:
        return key in self._model_keys

    def call(self, call_id: str) -> RecordedCall | None:
        return self._calls.get(call_id)

    def question(self, question_id: str) -> AnsweredQuestion | None:
        return self._questions.get(question_id)

    def record(self, key: str) -> Settled | None:
        """The record of the call or question of this key, if the journal has one."""
        if key in self._calls:
            return self._calls[key].record
        question = self._questions.get(key.removeprefix(question_key("")))
        return question.answer if question else None

    def came_back(self, key: str) -> None:
        """A replay has asked for a recorded call, or asked a question, again."""
        self._unseen.pop(key, None)

    def missing(self) -> tuple[str, str]:
        """The first thing that a replay has not repeated: the step, and what was expected."""
        entry = self.next
        if isinstance(entry, ModelCall):
            return entry.key, "this model call"
        if self._unseen:
            return _in_words(next(iter(self._unseen.values())))
        return (entry.group, "the calls of this model response") if entry else ("", "nothing")


def _in_words(missing: RecordedCall | AnsweredQuestion) -> tuple[str, str]:
    if isinstance(missing, RecordedCall):
        call = missing.request
        return call.call_id, f"a call of tool {call.tool_name!r} with {call.arguments!r}"
    question = missing.question
    return question.question_id, f"a question of {question.tool_name!r}"


def _settled_groups(recorded: RecordedTurn) -> list[SettledGroup]:
    groups: dict[str, list[Settled | None]] = {}
    for call in recorded.calls:
        groups.setdefault(call.request.group, []).append(call.record)
    for question in recorded.questions:
        groups.setdefault(question.question.group, []).append(question.answer)
    settled: list[SettledGroup] = []
    for group, records in groups.items():
        there = [record for record in records if record is not None]
        if len(there) == len(records):
            settled.append(SettledGroup(group, tuple(sorted(there, key=lambda record: record.sequence))))
    return settled


def _in_order(
    model_calls: list[ModelCall], settled: list[SettledGroup]
) -> tuple[deque[ModelCall | SettledGroup], list[int]]:
    groups = {group.sequence: group for group in sorted(settled, key=lambda group: group.sequence)}
    entries: deque[ModelCall | SettledGroup] = deque()
    for call in sorted(model_calls, key=lambda call: call.sequence):
        entries.extend(groups.pop(sequence) for sequence in _seen(call) if sequence in groups)
        entries.append(call)
    return deque([*entries, *groups.values()]), list(groups)


def _seen(call: ModelCall) -> list[int]:
    if not call.response.startswith('{"seen":[') or call.response.startswith('{"seen":[]'):
        return []
    seen: list[int] = json.loads(call.response)["seen"]
    return seen
