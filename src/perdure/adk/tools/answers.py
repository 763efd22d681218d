"""What the model sees of a call that did not succeed."""

from __future__ import annotations

from google.adk.agents.invocation_context import LlmCallsLimitExceededError
from google.adk.tools.base_tool import BaseTool
from google.adk.tools.tool_context import ToolContext

from perdure.adk.live.calls import Call
from perdure.adk.live.core import TurnCore
from perdure.adk.records.failures import message_of
from perdure.adk.tools.stand_ins import is_durable
from perdure.session.model import (
    OUTCOME_UNKNOWN_TOOL_RESULT,
    TOOL_CALL_NOT_RUN_ERROR_PREFIX,
    ErrorInfo,
    JsonObject,
    RecordStatus,
)


def answer_to_failure(core: TurnCore, tool: BaseTool, context: ToolContext, error: Exception) -> JsonObject | None:
    """The answer to a failed call that no callback of the application answers.

    ``None`` leaves it to ADK: a tool that steers ADK, one that is not there, or a limit of the whole invocation.
    """
    if not is_durable(tool) or isinstance(error, LlmCallsLimitExceededError):
        return None
    return _error_answer(core.conductor.floor.requested_call(context.function_call_id or ""), error)


def _error_answer(call: Call | None, error: Exception) -> JsonObject:
    record = call.record if call else None
    if record is None:
        return failure_response(RecordStatus.FAILED, ErrorInfo(code="", message=message_of(error)))
    return failure_response(record.status, record.error or ErrorInfo(code="", message=message_of(error)))


def failure_response(status: RecordStatus, error: ErrorInfo | None) -> JsonObject:
    """What the model sees of a call that did not succeed."""
    if status is RecordStatus.OUTCOME_UNKNOWN:
        return {"error": OUTCOME_UNKNOWN_TOOL_RESULT}
    message = error.message if error else "it failed"
    if status is RecordStatus.REJECTED or message.startswith(TOOL_CALL_NOT_RUN_ERROR_PREFIX):
        return {"error": message}
    return {"error": f"The tool call failed: {message}"}
