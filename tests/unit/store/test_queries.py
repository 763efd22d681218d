"""The named statements: both stores have the same ones, each with a description and a use."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import perdure
from perdure.store.postgres import connection as postgres
from perdure.store.sql.queries import Query, parse_queries
from perdure.store.sqlite import connection as sqlite

STORES = Path(perdure.__file__).parent / "store"
BOTH = pytest.mark.parametrize(
    ("folder", "queries"), [("sqlite", sqlite.QUERIES), ("postgres", postgres.QUERIES)], ids=["sqlite", "postgresql"]
)

ONLY_SQLITE = {
    *("payload_insert", "payload_ref_insert", "payload_refs_share", "payload_text"),
    *("delete_payloads", "delete_payload_refs"),
}
"""PostgreSQL keeps long texts apart by itself."""

ONLY_POSTGRES = {
    *("lock_sessions", "lock_owned", "lock_to_check"),
    *("worker_lock", "worker_unlock", "still_there"),
    *("writer_mark", "writer_last", "writer_forget"),
}
"""SQLite has one writer at a time, its workers lock files, and it has no connection to lose."""


@BOTH
def test_every_query_has_a_name_a_description_and_a_use(folder: str, queries: dict[str, Query]) -> None:
    names = re.findall("^-- name: (.*)$", (STORES / folder / "queries.sql").read_text(), re.MULTILINE)
    assert len(names) == len(set(names)) == len(queries)
    code = "\n".join(file.read_text() for part in ("sql", folder) for file in (STORES / part).glob("*.py"))
    for query in queries.values():
        assert re.fullmatch("[a-z_]+", query.name)
        assert query.description.endswith("."), query.name
        assert f'"{query.name}"' in code, f"{query.name} is not used"


def test_both_stores_have_the_same_queries() -> None:
    assert sqlite.QUERIES.keys() - postgres.QUERIES.keys() == ONLY_SQLITE
    assert postgres.QUERIES.keys() - sqlite.QUERIES.keys() == ONLY_POSTGRES


def test_a_query_takes_as_many_facts_in_both_stores() -> None:
    def facts(text: str) -> int:
        numbers = [int(n) for n in re.findall(r"[?$](\d+)", text)]
        return max(numbers, default=text.count("?"))

    differ = {"workers_all"}  # SQLite looks at the locks, and at its own workers, by itself
    for name in sqlite.QUERIES.keys() & postgres.QUERIES.keys() - differ:
        assert facts(sqlite.QUERIES[name].sql) == facts(postgres.QUERIES[name].sql), name


def test_the_code_names_no_query_that_is_not_there() -> None:
    known = sqlite.QUERIES.keys() | postgres.QUERIES.keys()
    for file in (path for part in ("sql", "sqlite", "postgres") for path in (STORES / part).glob("*.py")):
        for name in re.findall(r'(?:execute|executemany|lock)\("([a-z_]+)"', file.read_text()):
            assert name in known, f"{file.name}: {name}"


def test_queries_are_parsed_with_comments_in_between() -> None:
    parsed = parse_queries("-- head\n\n-- name: one\n-- Does\n-- things.\nSELECT 1\n\nFROM t;\n\n-- ==== more\n\n")
    assert (parsed["one"].description, parsed["one"].sql) == ("Does things.", "SELECT 1\n\nFROM t")
