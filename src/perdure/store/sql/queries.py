"""Reads a store's ``queries.sql``: every statement has a name and a description."""

from __future__ import annotations

from dataclasses import dataclass
from importlib.resources import files


@dataclass(frozen=True, slots=True)
class Query:
    """One named statement."""

    name: str
    description: str
    sql: str


def read_text(package: str, name: str) -> str:
    """A file of a package."""
    return files(package).joinpath(name).read_text(encoding="utf-8")


def parse_queries(text: str) -> dict[str, Query]:
    """The statements of a ``.sql`` file: ``-- name: x``, then the description as comment lines, then the statement."""
    found: dict[str, Query] = {}
    for block in text.split("-- name: ")[1:]:
        name, *lines = block.splitlines()
        count = next(i for i, line in enumerate(lines) if not line.startswith("--"))
        description = " ".join(line.removeprefix("--").strip() for line in lines[:count])
        body = "\n".join(line for line in lines[count:] if not line.startswith("--"))
        found[name] = Query(name, description, body.strip().removesuffix(";"))
    return found
