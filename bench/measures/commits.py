"""How many transactions a read-tool turn takes, alone and beside others that share them (group commit)."""

from __future__ import annotations

from collections.abc import Sequence

from bench.measures.base import Conditions, Measure
from bench.report import Row, Target
from bench.workload import DurableSide, many
from perdure.store.sql.store import SqlStore

SLACK = 2
"""Commits that a turn may take beyond one for each step: the accepted message, and one more."""


async def measure_commits(conditions: Conditions) -> Sequence[Row]:
    """Counts, not times: they are the same on every machine."""
    rows: list[Row] = []
    for name, sessions in (("commits", 1), ("commits_shared", conditions.count(20, 3))):
        turns = conditions.count(10, 2)
        async with DurableSide(conditions.folder / f"{name}.db") as side:
            ids = [f"s{number}" for number in range(sessions)]
            for session_id in ids:
                await side.open(session_id)
            store = side.engine.store
            assert isinstance(store, SqlStore)
            before = store.commits
            await many(side, ids, turns)
            commits = (store.commits - before) / (sessions * turns)
            steps = await _steps_per_turn(side, ids[0], turns)
        rows.append(
            Row(
                name=name,
                what="commits of a read-tool turn" + (f", {sessions} sessions at once" if sessions > 1 else ", alone"),
                unit="commits",
                ours=commits,
                raw=None,
                measured=commits,
                target=Target(steps + SLACK),
                note=f"{steps:g} steps a turn",
            )
        )
    return rows


async def _steps_per_turn(side: DurableSide, session_id: str, turns: int) -> float:
    page = await side.client.read_step_history(session_id, limit=1000)
    # The step that waits for the message after the last one belongs to no turn yet.
    return (len(page.items) - 1) / turns


COMMITS = Measure("commits", measure_commits)
