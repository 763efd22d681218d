"""Finds in source text what this repository does not want.  Each rule takes text and gives back one line per find."""

from __future__ import annotations

import ast
import io
import re
import tokenize
from collections.abc import Iterator

_ADDRESSES = (
    re.compile(
        r"https?://(?:[\w-]+\.)*(?:pypi|npm|registry|mirrors?|nexus|artifactory|goproxy)\b[\w./-]*", re.IGNORECASE
    ),
    re.compile(
        r"https?://[\w.:-]+/\S*?\b(?:simple|artifactory|repository/\w+)(?:/\S*)?(?=[\s\"'`)>]|$)", re.IGNORECASE
    ),
    re.compile(r"--(?:(?:extra-)?index-url|find-links)\b"),
    re.compile(r"\bfile://+\w[\w./-]*"),
    re.compile(r"(?<![\w.*}/-])/(?:home|root|Users|mnt|media|work|workspace|builds)/[\w.-]+"),
    re.compile(r"\b[A-Za-z]:\\Users\\\w+"),
)

_IGNORE = re.compile(
    r"""\#\s*(?:type:\ ?ignore|pyright:\ ?(?:ignore|basic)|mypy:\ ?ignore-errors|(?:ruff:\ ?|flake8:\ ?)?noqa)\b
        (?P<rules>\[[\w-]+(?:,\s*[\w-]+)*\]|:\s*[A-Z]+\d+(?:,\s*[A-Z]+\d+)*)?""",
    re.VERBOSE,
)
_WORD = re.compile(r"[A-Za-z]{2,}")


def machine_addresses(text: str) -> list[str]:
    """Addresses of package indexes and paths of somebody's machine."""
    return [
        f"line {number}: {match.group()}"
        for number, line in enumerate(text.splitlines(), 1)
        for pattern in _ADDRESSES
        for match in pattern.finditer(line)
    ]


def unexplained_ignores(source: str) -> list[str]:
    """Comments that silence a checker without naming the rule, or without a reason beside or right above them."""
    lines = source.splitlines()
    finds: list[str] = []
    for number, comment in _comments(source):
        ignores = list(_IGNORE.finditer(comment))
        if not ignores:
            continue
        above = lines[number - 2].strip() if number > 1 else ""
        reason = _IGNORE.sub("", comment)
        if not reason.strip("# -:") and above.startswith("#"):
            reason = above
        if any(ignore["rules"] is None for ignore in ignores):
            finds.append(f"line {number}: names no rule: {comment}")
        elif len(_WORD.findall(reason)) < 2:
            finds.append(f"line {number}: gives no reason: {comment}")
    return finds


def long_functions(source: str, limit: int) -> list[str]:
    """Functions of more than ``limit`` lines, docstring included."""
    return [
        f"line {node.lineno}: {node.name} has {length} lines"
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        and (length := (node.end_lineno or node.lineno) - node.lineno + 1) > limit
    ]


def references(source: str, names: frozenset[str]) -> list[str]:
    """Uses of functions, given by dotted name (``time.time``), however they were imported."""
    tree = ast.parse(source)
    known = {local: full for node in ast.walk(tree) for local, full in _bindings(node)}
    finds: list[str] = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute | ast.Name) and isinstance(node.ctx, ast.Load):
            dotted = ast.unparse(node)
            first, dot, rest = dotted.partition(".")
            if known.get(first, first) + dot + rest in names:
                finds.append(f"line {node.lineno}: {dotted}")
    return finds


def _bindings(node: ast.AST) -> Iterator[tuple[str, str]]:
    if isinstance(node, ast.Import):
        yield from ((alias.asname, alias.name) for alias in node.names if alias.asname)
    elif isinstance(node, ast.ImportFrom):
        yield from ((alias.asname or alias.name, f"{node.module}.{alias.name}") for alias in node.names)


def _comments(source: str) -> Iterator[tuple[int, str]]:
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            yield token.start[0], token.string
