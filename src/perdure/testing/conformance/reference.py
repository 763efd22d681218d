"""References: what each case recorded when it was last reviewed, kept as JSON beside the cases."""

from __future__ import annotations

import json
from collections.abc import Iterable
from difflib import SequenceMatcher
from pathlib import Path
from typing import cast

from perdure.session.model import JsonObject, JsonValue
from perdure.testing.conformance.case import ConformanceCase

REFERENCES = Path(__file__).parent / "reference"
"""Where the references of perdure's own cases are."""


def read_reference(case: ConformanceCase, folder: Path = REFERENCES) -> JsonObject | None:
    """What the case is to record; ``None`` when that has never been kept."""
    path = _path(case, folder)
    return cast(JsonObject, json.loads(path.read_text(encoding="utf-8"))) if path.exists() else None


def write_reference(case: ConformanceCase, recording: JsonObject, folder: Path = REFERENCES) -> None:
    """Keeps a recording as the case's reference."""
    folder.mkdir(parents=True, exist_ok=True)
    _path(case, folder).write_text(_pretty(recording, 0) + "\n", encoding="utf-8")


def differences(expected: JsonValue, found: JsonValue, where: str = "") -> list[str]:
    """What differs, one line each, with the place: ``sessions.s.steps[3] (CallTool look).attempts: ...``."""
    if isinstance(expected, dict) and isinstance(found, dict):
        before, after = cast(JsonObject, expected), cast(JsonObject, found)
        lines: list[str] = []
        for key in sorted(before.keys() | after.keys()):
            place = f"{where}.{key}" if where else key
            if key not in after:
                lines.append(f"{place}: missing, expected {_brief(before[key])}")
            elif key not in before:
                lines.append(f"{place}: not expected: {_brief(after[key])}")
            else:
                lines += differences(before[key], after[key], place)
        return lines
    if isinstance(expected, list) and isinstance(found, list):
        return _list_differences([*cast(Iterable[JsonValue], expected)], [*cast(Iterable[JsonValue], found)], where)
    if _text(expected) == _text(found):  # 1, 1.0 and True are not the same
        return []
    return [f"{where}: expected {_brief(expected)}, found {_brief(found)}"]


def _list_differences(expected: list[JsonValue], found: list[JsonValue], where: str) -> list[str]:
    """Items are aligned first, so that one that is missing does not make all behind it differ."""
    before, after = [*map(_text, expected)], [*map(_text, found)]
    lines: list[str] = []
    for kind, start, end, new_start, new_end in SequenceMatcher(None, before, after, autojunk=False).get_opcodes():
        if kind == "equal":
            continue
        pairs = min(end - start, new_end - new_start)
        for offset in range(pairs):
            place = f"{where}[{start + offset}]{_title(expected[start + offset])}"
            lines += differences(expected[start + offset], found[new_start + offset], place)
        for index in range(start + pairs, end):
            lines.append(f"{where}[{index}]{_title(expected[index])}: missing: {_brief(expected[index])}")
        for index in range(new_start + pairs, new_end):
            lines.append(f"{where}[{index}]{_title(found[index])}: not expected: {_brief(found[index])}")
    return lines


def _title(item: JsonValue) -> str:
    """Names a row, so that a reader need not count."""
    if not isinstance(item, dict):
        return ""
    row = cast(JsonObject, item)
    words = [row.get("name") or row.get("type") or row.get("role"), row.get("tool") or row.get("author")]
    known = " ".join(str(word) for word in words if word)
    return f" ({known})" if known else ""


def _brief(value: JsonValue) -> str:
    text = _text(value)
    return text if len(text) <= 300 else f"{text[:297]}..."


def _text(value: JsonValue) -> str:
    return json.dumps(value, sort_keys=True)


def _pretty(value: JsonValue, depth: int) -> str:
    """JSON with one row a line: a change of one step is a change of one line."""
    indent = "  " * (depth + 1)
    if isinstance(value, dict) and value and depth < 3:
        items = [
            f"{indent}{json.dumps(key)}: {_pretty(item, depth + 1)}" for key, item in cast(JsonObject, value).items()
        ]
        return "{\n" + ",\n".join(items) + f"\n{indent[2:]}}}"
    if isinstance(value, list) and value and depth < 4:
        rows = [f"{indent}{json.dumps(item)}" for item in cast(Iterable[JsonValue], value)]
        return "[\n" + ",\n".join(rows) + f"\n{indent[2:]}]"
    return json.dumps(value)


def _path(case: ConformanceCase, folder: Path) -> Path:
    return folder / f"{case.name.replace('/', '.')}.json"
