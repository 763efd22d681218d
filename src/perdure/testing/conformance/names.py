"""Canonical names for ids, and short forms for long values, so that two runs of one case read the same."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Iterable, Mapping
from typing import cast

from perdure.session.model import JsonObject, JsonValue

LONGEST = 400
"""Characters of a text that a recording shows; of a longer one it keeps length and hash."""

SHORTEST = 12
"""Characters of an id that is given a name."""

_UUID = re.compile(r"(?:adk-)?[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}")


class Names:
    """Maps ids to names; the first name that an id gets is the one it keeps."""

    def __init__(self) -> None:
        self._names: dict[str, str] = {}
        self._taken: dict[str, int] = {}
        self._pattern: re.Pattern[str] | None = None

    def give(self, identifier: str, name: str) -> None:
        """Names an id; a second one of the same name gets a number.

        A short one was made up by a person: it is the same in every run, and may be part of any word.
        """
        if len(identifier) < SHORTEST or identifier in self._names:
            return
        number = self._taken[name] = self._taken.get(name, 0) + 1
        self._names[identifier] = name if number == 1 else f"{name}#{number}"
        self._pattern = None

    def give_call(self, call_id: str, tool_name: str, arguments: Mapping[str, JsonValue]) -> None:
        """Names a call by its tool and arguments, which do not depend on the order in which branches go on."""
        given = ", ".join(f"{key}={_short(value)}" for key, value in sorted(arguments.items()))
        self.give(call_id, f"{tool_name}({given})")

    def put(self, value: JsonValue) -> JsonValue:
        """The value with names for ids, wherever in a text they are."""
        if isinstance(value, str):
            return self._text(value)
        if isinstance(value, dict):
            return {self._text(key): self.put(item) for key, item in cast(JsonObject, value).items()}
        if isinstance(value, list | tuple):
            return [self.put(item) for item in cast(Iterable[JsonValue], value)]
        return value

    def _text(self, text: str) -> str:
        if len(text) > LONGEST:
            return digest(text)
        if self._pattern is None:
            known = sorted(self._names, key=len, reverse=True)
            self._pattern = re.compile("|".join(map(re.escape, known)) or r"(?!)")
        return _UUID.sub("<id>", self._pattern.sub(self._named, text))

    @property
    def _named(self) -> Callable[[re.Match[str]], str]:
        return lambda match: self._names[match[0]]


def digest(text: str) -> str:
    """A short form of a long text that tells whether two are equal."""
    return f"<{len(text)} characters, sha256 {hashlib.sha256(text.encode()).hexdigest()[:16]}>"


def _short(value: JsonValue) -> str:
    text = json.dumps(value, sort_keys=True)
    return text if len(text) <= 40 else digest(text)
