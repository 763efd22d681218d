"""Brings a call and its session to what the call's record says."""

from __future__ import annotations

import json

from google.adk.tools.tool_confirmation import ToolConfirmation

from perdure.adk.calls import Call
from perdure.adk.outcomes import Outcome, apply_actions, apply_state, read_outcome
from perdure.session.model import RecordStatus
from perdure.session.runner import Approval, CallRecord


def settle(call: Call, record: CallRecord, approval: Approval | None) -> None:
    """Gives a call its record; the session comes to be as the record says.

    What the attempt did that ran here, and that the record is of, is in the session already.

    Raises:
        UnknownType: the record holds a value of a class that is gone.
    """
    assert call.run is not None
    context = call.run.tool_context
    ran_here = call.live_outcome is not None and call.live_outcome == record.outcome
    if not ran_here and call.baseline is not None:
        call.baseline.restore()
    call.outcome = _outcome(record)
    if call.outcome is not None and not ran_here:
        if not call.state_applied:
            apply_state(context, call.outcome)
        apply_actions(context, call.outcome)
    if record.status is RecordStatus.REJECTED:
        context.tool_confirmation = ToolConfirmation(confirmed=False)
    elif approval is not None:
        context.tool_confirmation = ToolConfirmation(confirmed=True, payload=approval.payload)
    call.record = record
    # Let go of what only a run needs: its context variables lead back to this turn.
    call.run = call.baseline = None


def show_state_early(call: Call, record: CallRecord) -> None:
    """Makes the state of a recorded call visible to its siblings that are yet to run, as it was when they first ran.

    Raises:
        UnknownType: the record holds a value of a class that is gone.
    """
    outcome = _outcome(record)
    if outcome is not None and call.run is not None:
        apply_state(call.run.tool_context, outcome)
        call.state_applied = True


def _outcome(record: CallRecord) -> Outcome | None:
    return None if record.outcome is None else read_outcome(json.loads(record.outcome))
