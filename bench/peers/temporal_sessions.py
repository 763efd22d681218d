"""A session as a Temporal workflow, as Temporal's ADK integration sets it up: an update per turn, activities for calls.

The agent, ADK's runner and the transcript live in the workflow.
"""
# Its packages are in an environment of its own: the checkers do not see them.
# mypy: disable-error-code="import-not-found"
# pyright: reportMissingImports=false, reportUnknownVariableType=false, reportUnknownMemberType=false
# pyright: reportUnknownArgumentType=false

from __future__ import annotations

from datetime import timedelta
from typing import Any

from temporalio import activity, workflow

with workflow.unsafe.imports_passed_through():
    from google.adk.agents import LlmAgent
    from google.adk.runners import Runner
    from google.adk.sessions import InMemorySessionService
    from temporalio.google_adk import TemporalModel
    from temporalio.google_adk.workflow import activity_as_tool

    from bench.orders import FLOW_TYPE, INSTRUCTION, USER
    from bench.orders import lookup as plain_lookup
    from bench.peers.plain import last_text


@activity.defn
async def lookup(order_id: str) -> dict[str, Any]:
    """Reads an order.

    Args:
        order_id: the order's id.
    """
    return await plain_lookup(order_id)


@workflow.defn
class SessionWorkflow:
    """One conversation."""

    def __init__(self) -> None:
        tool = activity_as_tool(lookup, start_to_close_timeout=timedelta(seconds=30))
        agent = LlmAgent(name="orders", model=TemporalModel("scripted"), instruction=INSTRUCTION, tools=[tool])
        self._runner = Runner(app_name=FLOW_TYPE, agent=agent, session_service=InMemorySessionService())
        self._session_id: str | None = None

    @workflow.run
    async def run(self) -> None:
        await workflow.wait_condition(lambda: False)

    @workflow.update
    async def turn(self, text: str) -> str:
        if self._session_id is None:
            session = await self._runner.session_service.create_session(app_name=FLOW_TYPE, user_id=USER)
            self._session_id = session.id
        return await last_text(self._runner, self._session_id, text)
