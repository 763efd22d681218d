"""The options of a flow that a ``DurableRunner`` takes, too."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from typing import TypedDict

from google.adk.agents.run_config import RunConfig

from perdure.session.policy import ApprovalMode, RetryPolicy, ToolEffect, ToolPolicy


class FlowOptions(TypedDict, total=False):
    """Named and meant as the arguments of ``adk_agent_session_flow``."""

    tool_policies: Mapping[str, ToolPolicy] | None
    node_policies: Mapping[str, ToolPolicy] | None
    default_tool_effect: ToolEffect
    approvals: ApprovalMode
    interrupt_deadline: timedelta | None
    event_stream_capacity_bytes: int
    run_config: RunConfig | None
    user_id: str
    model_retry: RetryPolicy | None
    model_timeout: timedelta | None
    sync_tools_in_threads: bool
    code_execution_effect: ToolEffect
