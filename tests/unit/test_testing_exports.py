"""What ``perdure.testing`` exports, and what importing it (or perdure itself) does not cost."""

from __future__ import annotations

import ast
import importlib
import inspect

import pytest

from perdure import testing
from perdure.testing.children import WorkerChild


def imported_names() -> dict[str, str]:
    """Name -> module of everything that ``perdure.testing`` imports from perdure, at once or for type checkers."""
    tree = ast.parse(inspect.getsource(testing))
    return {
        alias.name: node.module
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and node.module and node.module.startswith("perdure.")
        for alias in node.names
    }


def test_what_is_exported_is_what_type_checkers_see() -> None:
    assert sorted(testing.__all__) == sorted(imported_names())


@pytest.mark.parametrize("name", testing.__all__)
def test_each_name_comes_from_where_type_checkers_think(name: str) -> None:
    home = importlib.import_module(imported_names()[name])
    assert getattr(testing, name) is getattr(home, name)


def test_other_names_do_not_exist() -> None:
    with pytest.raises(AttributeError, match=r"module 'perdure\.testing' has no attribute 'nothing'"):
        _ = testing.nothing  # type: ignore[attr-defined]  # that is the point


@pytest.mark.parametrize(
    ("statement", "unwanted"),
    [
        ("import perdure", "google.adk"),
        ("from perdure.testing import WorkerChild, arm", "google"),
        ("from perdure.testing import call, failing, text", "google.adk"),
    ],
)
def test_an_import_does_not_drag_in_more_than_it_needs(statement: str, unwanted: str) -> None:
    with WorkerChild.running(f"{statement}; import sys; print({unwanted!r} in sys.modules)") as child:
        assert child.wait_exit() == 0
        assert child.lines == ["False"]
