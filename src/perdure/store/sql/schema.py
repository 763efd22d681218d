"""Schema versions: how a new database gets one, and the step to each version after the first."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.resources import files

from perdure.store.sql.queries import read_text


@dataclass(frozen=True, slots=True)
class Schema:
    """A schema version: the script for a new database, and those that bring an older one there, by version."""

    version: int
    create: str
    migrations: Mapping[int, str]


def read_schema(package: str, version: int) -> Schema:
    """The schema in a package's ``schema.sql`` and ``migrations/``."""
    migrations: dict[int, str] = {}
    for file in files(package).joinpath("migrations").iterdir():
        if found := re.fullmatch(r"(\d{4})_\w+\.sql", file.name):
            migrations[int(found[1])] = file.read_text(encoding="utf-8")
    return Schema(version, read_text(package, "schema.sql"), migrations)
