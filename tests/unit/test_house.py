"""Rules that keep the repository honest: what must not be in it, and what must agree with what."""

from __future__ import annotations

import ast
import importlib
import pkgutil
import re
import subprocess
from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest
from tests.support.house_rules import long_functions, machine_addresses, references, unexplained_ignores
from tests.support.import_graph import imports_of, read_imports

import perdure
from perdure import errors

ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "src" / "perdure"

CLOCK_CALLS = frozenset(
    {
        "time.time",
        "time.time_ns",
        "datetime.datetime.now",
        "datetime.datetime.utcnow",
        "datetime.datetime.today",
        "datetime.date.today",
    }
)
ID_CALLS = frozenset(
    {"uuid.uuid1", "uuid.uuid4", "random.random", "random.randbytes", "secrets.token_hex", "os.urandom"}
)


PICKLES = frozenset({"pickle", "_pickle", "marshal", "shelve", "dill", "cloudpickle", "joblib", "jsonpickle"})


def repository_files() -> list[Path]:
    """Every file that is, or is about to be, in the repository."""
    command = ["git", "-c", "safe.directory=*", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    listing = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout
    return [path for name in listing.split("\0") if name and (path := ROOT / name).is_file()]


def complaints(files: Iterator[Path] | list[Path], rule: Callable[[str], list[str]]) -> list[str]:
    return [
        f"{path.relative_to(ROOT)}: {find}"
        for path in files
        for find in rule(path.read_text(encoding="utf-8", errors="replace"))
    ]


def python_files(*folders: str) -> list[Path]:
    return [path for path in repository_files() if path.suffix == ".py" and path.relative_to(ROOT).parts[0] in folders]


def test_no_file_names_a_package_index_or_a_path_of_somebodys_machine() -> None:
    assert complaints(repository_files(), machine_addresses) == []


def test_every_ignore_names_its_rule_and_a_reason() -> None:
    assert complaints(python_files("src", "tests", "bench", "examples"), unexplained_ignores) == []


def test_no_function_is_longer_than_two_screens() -> None:
    assert complaints(python_files("src"), partial(long_functions, limit=80)) == []


def test_no_test_file_has_500_lines() -> None:
    assert [path for path in python_files("tests") if len(path.read_text(encoding="utf-8").splitlines()) >= 500] == []


def test_only_the_clock_asks_for_the_time() -> None:
    files = [path for path in python_files("src") if path != SOURCE / "clock.py"]
    assert complaints(files, partial(references, names=CLOCK_CALLS)) == []


def test_only_the_id_source_asks_for_randomness() -> None:
    files = [path for path in python_files("src") if path != SOURCE / "ids.py"]
    assert complaints(files, partial(references, names=ID_CALLS)) == []


def test_nothing_reads_or_writes_pickles() -> None:
    """What is stored is text that says what it is: it runs no code when it is read, and outlives a renamed class."""
    found = read_imports(SOURCE.parent, "perdure")
    assert [str(item) for item in imports_of(found, PICKLES)] == []


def test_every_module_says_what_it_owns() -> None:
    trees = {path: ast.parse(path.read_text(encoding="utf-8")) for path in python_files("src")}
    assert [path for path, tree in trees.items() if tree.body and ast.get_docstring(tree) is None] == []


# Errors: the classes, the table of their codes and the tree in the module's docstring say the same.


def error_classes() -> list[type[errors.PerdureError]]:
    """``PerdureError`` and all that derives from it, wherever in perdure it is defined."""
    for module in pkgutil.walk_packages(perdure.__path__, "perdure."):
        if not module.name.endswith("__main__"):
            importlib.import_module(module.name)

    def below(cls: type[errors.PerdureError]) -> Iterator[type[errors.PerdureError]]:
        yield cls
        for child in cls.__subclasses__():
            yield from below(child)

    # A class without a code of its own is an error of the tree in another guise (as `perdure.adk` has them for ADK).
    ours = (cls for cls in below(errors.PerdureError) if cls.__module__.split(".")[0] == "perdure")
    return [cls for cls in ours if "code" in vars(cls)]


def test_every_error_code_has_a_row_and_every_row_an_error() -> None:
    assert Counter(cls.code for cls in error_classes()) == Counter(errors.ERROR_TABLE.keys())


def test_the_error_tree_in_the_docstring_is_the_real_one() -> None:
    drawn = {
        match[2]: len(match[1]) // 4
        for match in re.finditer(r"^    ([│├└─ ]*)(\w+)", errors.__doc__ or "", re.MULTILINE)
    }
    assert drawn == {cls.__name__: cls.__mro__.index(errors.PerdureError) for cls in error_classes()}


# The rules themselves: each finds what it is for, and lets the rest pass.  Samples are put together here, so that this
# file passes its own rules.

SLASH = "/"


@pytest.mark.parametrize(
    "text",
    [
        SLASH + "home/ann/project",
        "see " + SLASH + "root/.cache",
        f"open('{SLASH}work/data')",
        "http" + "://mirror.example.com/x",
        "https" + "://packages.example.com/team/simple",
        "https" + "://files.pypi.example/a",
        "--index" + "-url x",
        "file" + "://tmp/x",
        "C:" + "\\Users\\ann",
    ],
)
def test_machine_addresses_are_found(text: str) -> None:
    assert len(machine_addresses(f"first\n{text}\n")) == 1


@pytest.mark.parametrize(
    "text",
    [
        "http://127.0.0.1:8080/sessions",
        "https://www.apache.org/licenses/LICENSE-2.0",
        "the homeroot/home/x",
        "sqlite:///support.db",
        "a simple http server",
        "https://example.com/a-simple-thing",
    ],
)
def test_other_addresses_pass(text: str) -> None:
    assert machine_addresses(text) == []


@pytest.mark.parametrize(
    "comment",
    [
        "# type: " + "ignore",
        "# type: " + "ignore  # the stub is wrong",
        "# type: " + "ignore[arg-type]",
        "# no" + "qa",
        "# no" + "qa: E501",
        "# ruff: no" + "qa",
        "# mypy: " + "ignore-errors",
        "# pyright: " + "ignore[reportPrivateUsage]  # hm",
        "# type: " + "ignore[arg-type]  # pyright: " + "ignore  # the stub is wrong",
    ],
)
def test_unexplained_ignores_are_found(comment: str) -> None:
    assert len(unexplained_ignores(f"import os\n\nx = os.sep  {comment}\n")) == 1


@pytest.mark.parametrize(
    "source",
    [
        "x = 1  # type: " + "ignore[arg-type]  # the stub is wrong",
        "x = 1  # no" + "qa: E501, B008 - a table reads better unbroken",
        "# the stub is wrong\nx = 1  # pyright: " + "ignore[reportPrivateUsage]",
        "x = '# no" + "qa'",
    ],
)
def test_explained_ignores_pass(source: str) -> None:
    assert unexplained_ignores(source) == []


def test_long_functions_are_found_wherever_they_are() -> None:
    body = "        x = 1\n" * 4
    source = f"class A:\n    async def long(self):\n{body}\n    def short(self):\n        return 1\n"
    assert long_functions(source, limit=4) == ["line 2: long has 5 lines"]
    assert long_functions(source, limit=5) == []


@pytest.mark.parametrize(
    "source",
    [
        "import time\ntime.time()",
        "import time as t\nt.time()",
        "from time import time as now\nx = field(default_factory=now)",
        "from datetime import datetime\ndatetime.now(UTC)",
        "import datetime as dt\ndef f():\n    return dt.datetime.now()",
    ],
)
def test_hidden_clocks_are_found(source: str) -> None:
    assert len(references(source, CLOCK_CALLS)) == 1


def test_other_uses_of_a_time_module_pass() -> None:
    imports = "import time\nfrom datetime import datetime\n"
    source = imports + "time.monotonic()\ndatetime.fromtimestamp(0)\nself.time.time\n'time.time()'"
    assert references(source, CLOCK_CALLS) == []
