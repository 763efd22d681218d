"""How much history a Temporal server keeps of a workflow, over all of its runs."""

from __future__ import annotations

from temporalio.client import Client

from bench.peers.course import History


async def history_of(client: Client, workflow_id: str) -> History:
    """Adds up all runs of a workflow: those that continued as new, and those that were started by a later message."""
    events = size = 0
    async for run in client.list_workflows(f'WorkflowId = "{workflow_id}"'):
        handle = client.get_workflow_handle(workflow_id, run_id=run.run_id)
        described = (await handle.describe()).raw_description.workflow_execution_info
        events += described.history_length
        size += described.history_size_bytes
    return History(events, size)
