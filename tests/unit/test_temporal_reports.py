"""The workflow reduces what a host applied: each input once and in the host's order, however reports arrive."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from perdure.engine.temporal.wire import Report, Start, pack
from perdure.engine.temporal.workflow import SessionWorkflow
from perdure.session.flow import reduce
from perdure.session.state import Input, MessageArrived, RunModel, SessionState, TakenOver

EPOCH = 3
OTHERS = [EPOCH - 1, EPOCH + 1]


def hosted() -> SessionWorkflow:
    """A workflow whose session a worker has under this epoch."""
    workflow = SessionWorkflow(Start("s", "store", "queue", 1000))
    workflow._queue, workflow._epoch = "worker", EPOCH
    return workflow


def reports_of(inputs: Sequence[Input], cuts: Sequence[int]) -> list[Report]:
    """What a host reports of these inputs, a few at a time."""
    ends = sorted({cut % (len(inputs) + 1) for cut in cuts} | {0, len(inputs)})
    return [
        Report(EPOCH, first, [pack(one) for one in inputs[first:end]], deadline_ms=1000 + first)
        for first, end in pairwise(ends)
    ]


INPUTS: list[Input] = [TakenOver(check=False), *(MessageArrived(f"t{n}") for n in range(6))]


@given(st.data())
def test_j15_each_input_is_reduced_once_and_in_the_order_of_its_host(data: st.DataObject) -> None:
    reports = reports_of(INPUTS, data.draw(st.lists(st.integers(0, 100), max_size=4)))
    strange = [Report(epoch, first, [pack(MessageArrived("strange"))]) for epoch in OTHERS for first in range(3)]
    arriving = data.draw(st.permutations([*reports, *data.draw(st.lists(st.sampled_from(reports + strange)))]))
    workflow = hosted()
    for report in arriving:
        workflow.report(report)
    expected = SessionState("s")
    due: list[object] = []
    for one in INPUTS:
        expected, commands = reduce(expected, one)
        due += [command for command in commands if isinstance(command, RunModel)]
    assert workflow._state == expected
    assert workflow._due == due
    assert workflow._expected == len(INPUTS)
    assert workflow._deadline_ms == reports[-1].deadline_ms
    assert not workflow._lacks_report(), "what is heard twice is not waited for"


def test_j15_a_report_that_follows_one_that_is_missing_waits_for_it() -> None:
    first, second = reports_of(INPUTS, [2])
    workflow = hosted()
    workflow.report(second)
    assert workflow._lacks_report()
    assert workflow._state == SessionState("s")
    workflow.report(first)
    assert not workflow._lacks_report()
    assert workflow._expected == len(INPUTS)


def test_j15_what_a_worker_reports_that_has_the_session_no_more_is_ignored() -> None:
    workflow = hosted()
    workflow.poke(EPOCH)  # its lease is worth nothing any more
    (report,) = reports_of(INPUTS, [])
    workflow.report(report)
    assert workflow._state == SessionState("s")
    assert not workflow._early


def test_a_report_of_nothing_may_move_the_deadline() -> None:
    workflow = hosted()
    workflow.report(Report(EPOCH, 0, [], deadline_ms=5))
    assert workflow._state == SessionState("s")
    assert workflow._deadline_ms == 5
