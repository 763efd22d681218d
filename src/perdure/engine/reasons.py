"""The words of the records and answers that perdure itself decides."""

from __future__ import annotations

from typing import assert_never

from perdure.session.model import (
    DEFAULT_REJECTION_MESSAGE,
    OUTCOME_UNKNOWN_TOOL_RESULT,
    TOOL_CALL_NOT_RUN_ERROR_PREFIX,
    ErrorInfo,
)
from perdure.session.state import Reason


def reason_error(reason: Reason, *, rejection: str | None = None, asked: bool = False) -> ErrorInfo:
    """Why a call has the record that it has.

    Args:
        rejection: what whoever rejected it says.
        asked: the tool ran as far as a question.
    """
    never_ran = f"{TOOL_CALL_NOT_RUN_ERROR_PREFIX}{' to its end' if asked else ''}"
    match reason:
        case Reason.REJECTED:
            message = rejection or DEFAULT_REJECTION_MESSAGE
        case Reason.EXPIRED:
            message = f"{never_ran}: nobody approved it before its deadline"
        case Reason.NOT_RUN:
            message = f"{never_ran}: the turn ended first"
        case Reason.STOPPED:
            message = "the call was stopped because its turn ended"
        case Reason.INTERRUPTED:
            message = OUTCOME_UNKNOWN_TOOL_RESULT
        case _:
            assert_never(reason)
    return ErrorInfo(code=reason.value, message=message)


def expired_answer() -> ErrorInfo:
    """Why a question has no answer."""
    return ErrorInfo(code=Reason.EXPIRED.value, message="Nobody answered before the deadline.")
