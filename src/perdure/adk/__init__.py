"""perdure for Google ADK: ADK agents as durable sessions.  The only package that imports ``google.adk``."""

from perdure.adk.durable import durable_step
from perdure.adk.effects import IDEMPOTENCY_KEY_CUSTOM_METADATA_KEY, idempotency_key_for_tool_call
from perdure.adk.failures import RecordedError
from perdure.adk.flow import adk_agent_session_flow
from perdure.adk.runner import AdkAgentRunner

__all__ = [
    "IDEMPOTENCY_KEY_CUSTOM_METADATA_KEY",
    "AdkAgentRunner",
    "RecordedError",
    "adk_agent_session_flow",
    "durable_step",
    "idempotency_key_for_tool_call",
]
