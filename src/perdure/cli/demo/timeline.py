"""The demo's table: every step of the turn, how often it was tried, and what each of the two workers did with it."""

from __future__ import annotations

from collections.abc import Sequence

from rich.table import Table
from rich.text import Text

from perdure.cli.views import plain_table
from perdure.session.model import StepName, StepRecord, StepStatus

_DONE = {
    StepName.AWAIT_USER_MESSAGE: "took it",
    StepName.RUN_MODEL: "asked the model",
    StepName.AWAIT_TOOL_APPROVAL: "got the answer",
    StepName.CALL_TOOL: "ran the tool",
    StepName.CALL_SINGLE_ATTEMPT_TOOL: "ran the tool",
    StepName.RESUME_TURN: "went on",
}
_RECORDED = (StepName.RUN_MODEL, StepName.CALL_TOOL, StepName.CALL_SINGLE_ATTEMPT_TOOL)
"""Steps whose record answers a replay."""

_REPLAYED = Text("replayed", style="dim")


def timeline(before: Sequence[StepRecord], after: Sequence[StepRecord], first: int, second: int) -> Table:
    """One row for each step.

    Args:
        before: the history right before worker A was killed; there was no worker B yet.
        after: the history at the end.
        first, second: the process ids of A and B.
    """
    known = {step.step_id: step for step in before}
    table = plain_table("step", "tool", "tries", f"A ({first})", f"B ({second})")
    for step in after:
        by_first, by_second = _shares(known.get(step.step_id), step)
        table.add_row(step.name.value, step.tool_name or "", str(step.attempts or ""), by_first, by_second)
    return table


def _shares(before: StepRecord | None, step: StepRecord) -> tuple[Text, Text]:
    """What A and B did for one step."""
    done = _DONE[step.name]
    if before is None or before.attempts == 0:
        return Text(), Text("waits for one" if step.status is StepStatus.PENDING else done, style="green")
    if before.status.settled:
        return Text(done), _REPLAYED if step.name in _RECORDED else Text()
    again = "ran again, same key" if step.attempts > before.attempts else done
    return Text("killed midway", style="bold red"), Text(again, style="green")
