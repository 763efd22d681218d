"""perdure for Google ADK: ADK agents as durable sessions.  The only package that imports ``google.adk``."""

from perdure.adk.durable import durable_step
from perdure.adk.durable_runner import DurableRunner, SessionForkResponse
from perdure.adk.effects import IDEMPOTENCY_KEY_CUSTOM_METADATA_KEY, idempotency_key_for_tool_call
from perdure.adk.failures import RecordedError
from perdure.adk.flow import adk_agent_session_flow
from perdure.adk.native_errors import NoSuchSession, SessionIdTaken, WrongCall
from perdure.adk.runner import AdkAgentRunner
from perdure.adk.session_service import DurableSessionService

__all__ = [
    "IDEMPOTENCY_KEY_CUSTOM_METADATA_KEY",
    "AdkAgentRunner",
    "DurableRunner",
    "DurableSessionService",
    "NoSuchSession",
    "RecordedError",
    "SessionForkResponse",
    "SessionIdTaken",
    "WrongCall",
    "adk_agent_session_flow",
    "durable_step",
    "idempotency_key_for_tool_call",
]
