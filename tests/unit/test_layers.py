"""A folder of perdure imports only from the folders below it, and only ``adk`` and ``testing`` know ADK."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.support.import_graph import find_cycle, imports_of, read_imports, upward_imports

SOURCE = Path(__file__).parents[2] / "src"

LAYERS = (
    frozenset({"errors", "clock", "ids", "faults"}),
    frozenset({"arguments"}),
    frozenset({"session"}),
    frozenset({"store"}),
    frozenset({"engine"}),
    frozenset({"client"}),
    frozenset({"adk"}),
    frozenset({"tools"}),
    frozenset({"media"}),
    frozenset({"testing"}),
    frozenset({"server"}),
    frozenset({"cli"}),
)
FRAMEWORK = frozenset({"google.adk", "google.genai"})
FRAMEWORK_USERS = (
    "perdure.adk",
    "perdure.testing",
    "perdure.cli.demo.agent",  # the agent that the demo plays: what a user of perdure would write
)
IO_MODULES = frozenset(
    [
        "asyncio",
        "concurrent",
        "io",
        "multiprocessing",
        "os",
        "pathlib",
        "random",
        "secrets",
        "shutil",
        "signal",
        "socket",
        "sqlite3",
        "ssl",
        "subprocess",
        "tempfile",
        "threading",
        "time",
        "uuid",
    ]
)


def test_there_is_no_import_cycle() -> None:
    assert find_cycle(read_imports(SOURCE, "perdure")) == []


def test_every_import_goes_down() -> None:
    assert upward_imports(read_imports(SOURCE, "perdure"), "perdure", LAYERS) == []


def test_only_adk_and_testing_know_the_framework() -> None:
    found = imports_of(read_imports(SOURCE, "perdure"), FRAMEWORK)
    assert [str(item) for item in found if not item.importer.startswith(FRAMEWORK_USERS)] == []


def test_the_session_does_no_io() -> None:
    found = imports_of(read_imports(SOURCE, "perdure"), IO_MODULES)
    assert [str(item) for item in found if item.importer.startswith("perdure.session")] == []


# The checker itself, on small trees of which we know what is wrong with them.

TINY_LAYERS = (frozenset({"low", "base"}), frozenset({"high"}))


def tree(root: Path, files: dict[str, str]) -> Path:
    for name, text in {"tiny/__init__.py": "", **files}.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    return root


def complaints(root: Path, files: dict[str, str]) -> list[str]:
    return upward_imports(read_imports(tree(root, files), "tiny"), "tiny", TINY_LAYERS)


UPWARD = {
    "plain": "import tiny.high.a",
    "from a package": "from tiny.high import a",
    "from a module": "from tiny.high.a import name",
    "relative": "from ..high import a",
    "in a function": "def f():\n    from tiny.high import a",
    "in a method of a nested class": "class A:\n    class B:\n        def f(self):\n            import tiny.high.a",
    "for types only": "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from tiny.high.a import name",
    "by name": "import importlib\nimportlib.import_module('tiny.high.a')",
    "by name, again": "from importlib import import_module\nimport_module('tiny.high.a')",
    "of the package itself": "from tiny import name",
    "of a neighbour on the same layer": "from tiny import base",
}


@pytest.mark.parametrize("text", UPWARD.values(), ids=UPWARD.keys())
def test_an_upward_import_is_found(tmp_path: Path, text: str) -> None:
    files = {"tiny/low/__init__.py": "", "tiny/low/m.py": text, "tiny/high/__init__.py": "", "tiny/high/a.py": ""}
    assert len(complaints(tmp_path, {**files, "tiny/base.py": ""})) == 1


def test_a_folder_without_a_layer_is_found(tmp_path: Path) -> None:
    assert complaints(tmp_path, {"tiny/new/m.py": ""}) == ["tiny.new.m has no layer; give 'new' a place"]


def test_downward_and_inner_imports_are_fine(tmp_path: Path) -> None:
    files = {
        "tiny/__init__.py": "from tiny.high.a import name",
        "tiny/low/__init__.py": "from tiny.low.m import name",
        "tiny/low/m.py": "import json\nfrom . import other",
        "tiny/low/other.py": "",
        "tiny/high/a.py": "from tiny.low import m\nfrom tiny import base",
        "tiny/base.py": "",
    }
    assert complaints(tmp_path, files) == []
    assert find_cycle(read_imports(tmp_path, "tiny")) == []


def test_a_cycle_is_found_and_named(tmp_path: Path) -> None:
    files = {
        "tiny/low/a.py": "from tiny.low import b",
        "tiny/low/b.py": "def f():\n    from tiny.low.c import g",
        "tiny/low/c.py": "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from . import a",
    }
    cycle = find_cycle(read_imports(tree(tmp_path, files), "tiny"))
    assert cycle == ["tiny.low.a", "tiny.low.b", "tiny.low.c", "tiny.low.a"]


def test_an_import_of_the_framework_is_found_however_it_is_written(tmp_path: Path) -> None:
    files = {
        "tiny/low/a.py": "from google import genai",
        "tiny/low/b.py": "import google.adk.agents as agents",
        "tiny/low/c.py": "def f():\n    from google.adk.runners import Runner",
        "tiny/low/d.py": "import google.auth",
    }
    found = imports_of(read_imports(tree(tmp_path, files), "tiny"), FRAMEWORK)
    assert sorted(item.importer for item in found) == ["tiny.low.a", "tiny.low.b", "tiny.low.c"]
