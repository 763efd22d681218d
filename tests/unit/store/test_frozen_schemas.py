"""The schema of a version never changes: it is frozen, and a change of it is a new version with a migration."""

from __future__ import annotations

import re

import pytest
from tests.golden_store.frozen import frozen_stores

from perdure.store.postgres import schema as postgres
from perdure.store.sql.schema import Schema
from perdure.store.sqlite import schema as sqlite

WHAT_TO_DO = """
The schema of {kind} is not that of its version {version}, of which there are databases.  Undo the change, or
  1. write the step from the last version as src/perdure/store/{kind}/migrations/{next:04}_what_it_does.sql,
  2. raise SCHEMA_VERSION in src/perdure/store/{kind}/schema.py (versions of SQLite and PostgreSQL go together),
  3. run: python -m tests.golden_store.record
and leave what is frozen already as it is."""

KINDS = {"sqlite": sqlite.released_schema, "postgres": postgres.released_schema}


def essence(script: str) -> str:
    """A script without its comments and its layout."""
    return re.sub(r"\s+", " ", re.sub(r"--[^\n]*", "", script)).strip()


@pytest.mark.parametrize("kind", KINDS)
def test_the_schema_is_the_frozen_one_of_its_version(kind: str) -> None:
    schema: Schema = KINDS[kind]()
    newest = frozen_stores()[-1]
    advice = WHAT_TO_DO.format(kind=kind, version=newest.version, next=newest.version + 1)
    frozen, today = (essence(text) for text in (newest.schema(kind), schema.create))
    assert (schema.version, today == frozen) == (newest.version, True), advice


def test_each_version_is_frozen() -> None:
    assert [one.version for one in frozen_stores()] == list(range(1, sqlite.SCHEMA_VERSION + 1))
    assert sqlite.SCHEMA_VERSION == postgres.SCHEMA_VERSION


@pytest.mark.parametrize("kind", KINDS)
def test_any_change_counts_but_one_of_words_or_layout(kind: str) -> None:
    text = frozen_stores()[0].schema(kind)
    assert essence(text.replace(" NOT NULL", "", 1)) != essence(text)
    assert essence(text.replace("'idle', ", "", 1)) != essence(text)
    assert essence(text.replace("\n", "\n\n-- Other words.\n  ")) == essence(text)
