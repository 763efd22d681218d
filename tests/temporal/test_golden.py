"""Histories of earlier days are repeated by today's workflow: what is under way goes on after an upgrade."""

from __future__ import annotations

from pathlib import Path

import pytest
from temporalio import workflow
from temporalio.client import WorkflowHistory
from temporalio.worker import Replayer
from temporalio.worker.workflow_sandbox import SandboxedWorkflowRunner
from tests.temporal.golden import GOLDEN

from perdure.engine.temporal.wire import WORKFLOW, Start
from perdure.engine.temporal.worker import SANDBOX
from perdure.engine.temporal.workflow import SessionWorkflow

FILES = sorted(GOLDEN.glob("*.json"))


def history(file: Path) -> WorkflowHistory:
    return WorkflowHistory.from_json(f"golden-session-{file.stem}", file.read_text(encoding="utf-8"))


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
async def test_a_history_is_repeated(file: Path) -> None:
    runner = SandboxedWorkflowRunner(restrictions=SANDBOX)
    await Replayer(workflows=[SessionWorkflow], workflow_runner=runner).replay_workflow(history(file))


@workflow.defn(name=WORKFLOW, sandboxed=False)
class Other:
    """A workflow that begins with something else."""

    @workflow.run
    async def run(self, start: Start) -> None:
        await workflow.sleep(1)


async def test_a_workflow_that_does_something_else_is_found_out() -> None:
    with pytest.raises(workflow.NondeterminismError):
        await Replayer(workflows=[Other]).replay_workflow(history(FILES[0]))


def test_there_is_a_history_for_each_scene() -> None:
    assert len(FILES) >= 9
