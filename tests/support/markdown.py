"""Reads the parts of a Markdown file that can be checked: fenced code blocks, links and headings."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

_FENCE = re.compile(r"^```(?P<info>[^\n`]*)\n(?P<code>.*?)^```$", re.MULTILINE | re.DOTALL)
_LINK = re.compile(r"(?<!!)\[[^\]]*\]\((?P<target>[^)\s]+)\)")
_HEADING = re.compile(r"^#+ +(?P<title>.+?) *$", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class CodeBlock:
    """A fenced block: its file, the line of its first line of code, and the words behind the opening fence."""

    path: Path
    line: int
    info: tuple[str, ...]
    code: str


def code_blocks(path: Path) -> list[CodeBlock]:
    """The fenced blocks of a file, in order."""
    text = path.read_text(encoding="utf-8")
    return [
        CodeBlock(path, text.count("\n", 0, match.start("code")) + 1, tuple(match["info"].split()), match["code"])
        for match in _FENCE.finditer(text)
    ]


def headings(path: Path) -> list[str]:
    """The titles of a file's headings, in order."""
    return [match["title"] for match in _HEADING.finditer(_prose(path))]


def broken_links(path: Path) -> list[str]:
    """Links to files that are not there, or to headings that their file does not have.  Web addresses pass."""
    return [
        target
        for match in _LINK.finditer(_prose(path))
        if not (target := match["target"]).startswith(("http://", "https://", "mailto:")) and not _leads(path, target)
    ]


def _leads(path: Path, target: str) -> bool:
    name, _, anchor = target.partition("#")
    goal = path.parent / name if name else path
    return goal.exists() and (not anchor or anchor in {_anchor(title) for title in headings(goal)})


def _anchor(title: str) -> str:
    return re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-")


def _prose(path: Path) -> str:
    return _FENCE.sub("", path.read_text(encoding="utf-8"))
