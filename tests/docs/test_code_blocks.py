"""Every Python block of the documentation runs as it stands, and every link leads somewhere.

A block marked ``python no-run`` is compiled only; that is for what needs a key, a network or a person.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from tests.support.markdown import CodeBlock, broken_links, code_blocks

ROOT = Path(__file__).parents[2]
NOWHERE = "http://127.0.0.1:9"
"""A proxy that nobody runs, so that a block that goes to the network fails."""
PAGES = [ROOT / "README.md", ROOT / "CHANGELOG.md", *sorted((ROOT / "docs").rglob("*.md"))]
BLOCKS = [block for page in PAGES for block in code_blocks(page) if block.info[:1] == ("python",)]


def place(block: CodeBlock) -> str:
    return f"{block.path.relative_to(ROOT)}:{block.line}"


@pytest.mark.parametrize("block", BLOCKS, ids=place)
def test_block_compiles(block: CodeBlock) -> None:
    compile(block.code, place(block), "exec")


@pytest.mark.parametrize("block", [block for block in BLOCKS if "no-run" not in block.info], ids=place)
def test_block_runs_offline(block: CodeBlock, tmp_path: Path) -> None:
    program = tmp_path / "block.py"
    program.write_text("\n" * (block.line - 1) + block.code, encoding="utf-8")
    environment = {
        "PATH": os.environ["PATH"],
        "HOME": str(tmp_path),
        "PYTHONPATH": str(ROOT / "src"),
        "HTTPS_PROXY": NOWHERE,
        "HTTP_PROXY": NOWHERE,
    }
    done = subprocess.run(
        [sys.executable, program],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "Traceback" not in done.stderr


def test_the_readme_has_a_program() -> None:
    assert [block for block in BLOCKS if block.path == ROOT / "README.md" and "no-run" not in block.info] != []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page: Path) -> None:
    assert broken_links(page) == []


# The reader itself, on a page of which we know what is on it.

SAMPLE = """# A title, with marks
[here](#a-title-with-marks) [there](other.md) [away](https://example.com) [lost](#nowhere) [gone](missing.md)
```python no-run
x = 1  # [not a link](missing.md)
```
```
plain
```
"""


def test_blocks_are_found_with_their_place_and_marks(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(SAMPLE, encoding="utf-8")
    found = [(block.line, block.info, block.code) for block in code_blocks(page)]
    assert found == [(4, ("python", "no-run"), "x = 1  # [not a link](missing.md)\n"), (7, (), "plain\n")]


def test_broken_links_are_found(tmp_path: Path) -> None:
    (tmp_path / "page.md").write_text(SAMPLE, encoding="utf-8")
    (tmp_path / "other.md").write_text("", encoding="utf-8")
    assert broken_links(tmp_path / "page.md") == ["#nowhere", "missing.md"]
