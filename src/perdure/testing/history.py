"""A check that the history in a model request is one that strict providers accept.

Gemini, Anthropic and OpenAI refuse (with a 400) a history in which a function call has no result, a result has no call,
or the result does not stand directly behind the call.  The clauses:

* H1: contents have a role (``user`` or ``model``) and parts, and no part is empty.
* H2: function calls are the model's, function responses the user's.
* H3: a history does not begin with a function call.
* H4: the content behind function calls holds exactly one response for each of them, before anything else.
* H5: a function response stands nowhere but in the content behind its call.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from google.genai import types

if TYPE_CHECKING:
    from google.adk.models.llm_request import LlmRequest


class HistoryError(AssertionError):
    """A model request holds a history that strict providers refuse.  ``problems`` lists why, one line each."""

    def __init__(self, problems: Sequence[str], contents: Sequence[types.Content]) -> None:
        self.problems = tuple(problems)
        lines = [*(f"- {problem}" for problem in problems), "The history:", *_outline(contents)]
        super().__init__("a strict provider would refuse this request:\n" + "\n".join(lines))


def check_history(request: LlmRequest) -> None:
    """Checks the history in ``request`` against the clauses of this module.

    Raises:
        HistoryError: the history breaks a clause.
    """
    problems = history_problems(request.contents)
    if problems:
        raise HistoryError(problems, request.contents)


def history_problems(contents: Sequence[types.Content]) -> list[str]:
    """What is wrong with a history, one line for each problem, oldest first; empty when it is sound."""
    problems: list[str] = []
    calls: list[types.FunctionCall] = []
    for index, content in enumerate(contents):
        where = f"contents[{index}]"
        problems.extend(f"{where} {problem}" for problem in _shape_problems(content))
        responses = _responses(content)
        if calls:
            problems.extend(f"{where} {problem}" for problem in _pairing_problems(calls, content))
        elif responses:
            problems.append(f"{where} answers {_names(responses)}, but no call stands directly before it (H5)")
        calls = _calls(content)
        if calls and index == 0:
            problems.append(f"{where} is a call of {_names(calls)}; a history cannot begin with one (H3)")
    if calls:
        problems.append(f"the history ends with a call of {_names(calls)} that has no response (H4)")
    return problems


def _shape_problems(content: types.Content) -> Iterable[str]:
    if content.role not in ("user", "model"):
        yield f"has the role {content.role!r} (H1)"
    if not content.parts:
        yield "has no parts (H1)"
    for number, part in enumerate(content.parts or ()):
        if not part.model_dump(exclude_none=True, exclude={"thought", "part_metadata"}):
            yield f"has an empty part, number {number} (H1)"
    if content.role != "model" and _calls(content):
        yield f"calls {_names(_calls(content))} in the role {content.role!r} (H2)"
    if content.role != "user" and _responses(content):
        yield f"answers {_names(_responses(content))} in the role {content.role!r} (H2)"


def _pairing_problems(calls: Sequence[types.FunctionCall], content: types.Content) -> Iterable[str]:
    responses = _responses(content)
    wanted = Counter(_key(call) for call in calls)
    given = Counter(_key(response) for response in responses)
    for call_id, name in wanted - given:
        yield f"lacks the response of {_label(call_id, name)}, which was called directly before (H4)"
    for call_id, name in given - wanted:
        yield f"answers {_label(call_id, name)}, which was not called directly before (H5)"
    leading = (content.parts or [])[: len(responses)]
    if any(part.function_response is None for part in leading):
        yield f"puts something before the responses of {_names(responses)} (H4)"


def _key(item: types.FunctionCall | types.FunctionResponse) -> tuple[str | None, str | None]:
    return item.id, item.name


def _label(call_id: str | None, name: str | None) -> str:
    return f"{name}()" if call_id is None else f"{name}() with the id {call_id!r}"


def _names(items: Iterable[types.FunctionCall | types.FunctionResponse]) -> str:
    return ", ".join(_label(item.id, item.name) for item in items)


def _calls(content: types.Content) -> list[types.FunctionCall]:
    return [part.function_call for part in content.parts or () if part.function_call is not None]


def _responses(content: types.Content) -> list[types.FunctionResponse]:
    return [part.function_response for part in content.parts or () if part.function_response is not None]


def _outline(contents: Iterable[types.Content]) -> Iterable[str]:
    for index, content in enumerate(contents):
        parts = ", ".join(_part_outline(part) for part in content.parts or ())
        yield f"  [{index}] {content.role}: {parts}"


def _part_outline(part: types.Part) -> str:
    if part.function_call is not None:
        return f"call {_names([part.function_call])}"
    if part.function_response is not None:
        return f"response {_names([part.function_response])}"
    if part.text is not None:
        return repr(part.text if len(part.text) <= 60 else part.text[:57] + "...")
    return "/".join(part.model_dump(exclude_none=True)) or "(empty)"
