"""perdure for Google ADK: ADK agents as durable sessions.  The only package that imports ``google.adk``.

Where to begin: ``flow`` makes an agent durable, ``runner`` opens its turns, ``live.turn`` is one turn while it runs.
The rest is in folders, each of which says what it owns: ``live`` (the invocation), ``models``, ``tools``, ``nodes`` and
``waits`` (what an invocation asks for), ``records`` (what is stored of it), and ``native`` (ADK's own ``Runner`` and
session service over durable sessions).  Private names of ADK are in ``seams`` only.
"""

from perdure.adk.flow import adk_agent_session_flow
from perdure.adk.live.durable import durable_step
from perdure.adk.native.durable_runner import DurableRunner, SessionForkResponse
from perdure.adk.native.errors import NoSuchSession, SessionIdTaken, WrongCall
from perdure.adk.native.session_service import DurableSessionService
from perdure.adk.records.failures import RecordedError
from perdure.adk.runner import AdkAgentRunner
from perdure.adk.tools.effects import IDEMPOTENCY_KEY_CUSTOM_METADATA_KEY, idempotency_key_for_tool_call

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
