"""The suite catches a store or an engine that breaks a promise, and says which."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.conformance import wrong
from tests.conformance.conftest import sessions_in

from perdure.testing.conformance import ConformanceCase, ConformanceFailure, Target, cases, run_case

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")

CASES = {case.name: case for case in cases()}


def target(folder: Path, opener: str) -> Target:
    return Target(sessions_in(folder), opener=f"tests.conformance.wrong:{opener}")


BREAKS = [
    ("drops_records", "sessions/one-turn", r"steps\[2\] \(CallTool look\)\.result: missing"),
    ("loses_results", "sessions/one-turn", "indexes"),
    ("doubles_events", "streams/live", "no event is doubled"),
    ("skips_events", "streams/reconnects", "seen and stored"),
    ("forgets_requests", "queues/repeats", "the repeat"),
    ("has_no_fence", "workers/stopped-in-the-middle", "."),
]


@pytest.mark.parametrize(("opener", "name", "words"), BREAKS)
async def test_a_store_that_breaks_a_promise_is_caught(tmp_path: Path, opener: str, name: str, words: str) -> None:
    with pytest.raises(ConformanceFailure, match=words):
        await run_case(CASES[name], target(tmp_path, opener))


@pytest.mark.parametrize("name", sorted({name for _, name, _ in BREAKS}))
async def test_and_one_that_breaks_none_is_not(tmp_path: Path, name: str) -> None:
    await run_case(CASES[name], target(tmp_path, "is_right"))


async def test_an_engine_that_repeats_a_write_is_caught(tmp_path: Path) -> None:
    case: ConformanceCase = CASES["effects/failing-twice"]
    with wrong.repeats_writes, pytest.raises(ConformanceFailure, match="outcomes"):
        await run_case(case, target(tmp_path, "is_right"))
