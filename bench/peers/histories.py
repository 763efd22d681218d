"""How much history a Temporal server keeps of a workflow, over all of its runs."""

from __future__ import annotations

from temporalio.client import Client

from bench.peers.course import History


async def history_of(client: Client, workflow_id: str) -> History:
    """Adds up the runs of a workflow: one that continued as new has several."""
    events = size = 0
    run_id: str | None = None
    while True:
        handle = client.get_workflow_handle(workflow_id, run_id=run_id)
        described = (await handle.describe()).raw_description.workflow_execution_info
        events += described.history_length
        size += described.history_size_bytes
        first = await anext(aiter(handle.fetch_history_events(page_size=1)))
        run_id = first.workflow_execution_started_event_attributes.continued_execution_run_id or None
        if run_id is None:
            return History(events, size)
