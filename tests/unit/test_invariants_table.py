"""``docs/invariants.md`` lists every invariant that the code names, and tests that show each of them."""

from __future__ import annotations

import ast
import re
from pathlib import Path

ROOT = Path(__file__).parents[2]

PENDING: dict[str, str] = {}
"""Invariants that no test in the table shows yet, each with what is awaited.  It must end up empty."""


def table() -> dict[str, list[str]]:
    """Id -> names of the tests in its row, in the order of the page."""
    page = (ROOT / "docs" / "invariants.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| (J\d+) \|.*\|([^|]*)\|$", page, re.MULTILINE)
    assert rows, "the table of invariants was not found"
    return {name: re.findall(r"`(\w+)`", tests) for name, tests in rows}


def named_in(folder: str) -> set[str]:
    texts = [
        path.read_text(encoding="utf-8") for pattern in ("*.py", "*.sql") for path in (ROOT / folder).rglob(pattern)
    ]
    return {name for text in texts for name in re.findall(r"\bJ\d+\b", text)}


def definitions_in_tests() -> dict[str, str]:
    """Name -> text of each function and class in the tests; texts of the same name are joined."""
    found: dict[str, str] = {}
    for path in (ROOT / "tests").rglob("*.py"):
        text = path.read_text(encoding="utf-8")
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
                found[node.name] = found.get(node.name, "") + (ast.get_source_segment(text, node) or "")
    return found


def names_invariant(text: str, name: str) -> bool:
    """Whether ``J3`` is in ``text``, as a word or as a part of a name such as ``test_j3_a_settled_step``."""
    return re.search(rf"(?<![a-z0-9]){name.lower()}(?![a-z0-9])", text.lower()) is not None


def test_ids_go_up_without_gaps() -> None:
    assert list(table()) == [f"J{number}" for number in range(1, len(table()) + 1)]


def test_every_id_in_the_code_is_in_the_table() -> None:
    assert named_in("src") | named_in("tests") <= table().keys()


def test_every_invariant_is_shown_by_a_test() -> None:
    assert {name for name, tests in table().items() if not tests} == PENDING.keys()


def test_every_test_in_the_table_exists_and_names_its_invariant() -> None:
    known = definitions_in_tests()
    listed = [(name, test) for name, tests in table().items() for test in tests]
    assert [(name, test) for name, test in listed if not names_invariant(known.get(test, ""), name)] == []


def test_an_invariant_is_recognised_in_words_and_names() -> None:
    assert names_invariant("async def test_j3_a_settled_step_never_changes(): ...", "J3")
    assert names_invariant("This shows J3.", "J3")
    assert not names_invariant("J10, aj1 and x = 'j11'", "J1")
