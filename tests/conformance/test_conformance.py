"""The conformance suite, over every engine and store: the same cases, no waivers."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from tests.conformance.conftest import Results

from perdure.testing.conformance import ConformanceCase, cases
from perdure.testing.conformance.reference import REFERENCES, read_reference

TARGETS = {"local+sqlite": False, "local+postgresql": True, "temporal+sqlite": True, "temporal+postgresql": True}
"""Name -> whether it has servers that can be restarted."""

CHOSEN = [
    pytest.param(case, target, id=f"{target}-{case.name}")
    for target, restarts in TARGETS.items()
    for case in cases()
    if restarts or not case.restarts
]


@pytest.mark.timeout(1200)  # The first one of a target waits for all of them.
@pytest.mark.parametrize(("case", "target"), CHOSEN)
def test_conforms(case: ConformanceCase, target: str, results: Callable[[str], Results]) -> None:
    assert results(target)[case.name].failure is None, results(target)[case.name].failure


def test_every_case_has_a_reference_and_every_reference_a_case() -> None:
    known = cases()
    assert [case.name for case in known if read_reference(case) is None] == []
    assert {path.stem for path in REFERENCES.glob("*.json")} == {case.name.replace("/", ".") for case in known}


def test_names_are_told_apart_and_belong_to_their_area() -> None:
    known = cases()
    assert len({case.name for case in known}) == len(known)
    assert all(case.promise.endswith(".") and "\n" not in case.promise for case in known)
