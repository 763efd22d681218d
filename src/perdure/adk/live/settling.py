"""Brings a call and its session to what the journal says of it: its record, and what it asked in the middle."""

from __future__ import annotations

import json
from collections.abc import Mapping

from google.adk.tools.tool_confirmation import ToolConfirmation

from perdure.adk.live.calls import Call, ToolRun
from perdure.adk.tools.asks import apply_ask, give_answer, store_sign_in
from perdure.adk.tools.outcomes import Outcome, apply_actions, apply_state, read_outcome
from perdure.session.model import RecordStatus
from perdure.session.runner import Approval, CallRecord


def settle(call: Call, record: CallRecord, approval: Approval | None, asides: Mapping[str, str]) -> None:
    """Gives a call its record; the session comes to be as the record says.

    What the attempt did that ran here, and that the record is of, is in the session already.

    Args:
        approval: that the journal had when the turn was opened; a later one the call has seen.
        asides: the records of tokens that an outcome may refer to.

    Raises:
        UnknownType: the record holds a value of a class that is gone.
    """
    assert call.run is not None
    ran_here = call.live_outcome is not None and call.live_outcome == record.outcome
    if not isinstance(call.run, ToolRun):  # the node itself takes what the record says
        if not ran_here and call.baseline is not None:
            call.run.take_back()
            call.baseline.restore()
        call.record = record
        call.run = call.baseline = None
        return
    context = call.run.tool_context
    if not ran_here and call.baseline is not None:
        call.baseline.restore()
    call.outcome = _outcome(record, asides)
    if not ran_here:
        store_sign_in(context, approval)
    if record.outcome is None or record.outcome == call.asked:
        apply_ask(call, asides)
    elif call.outcome is not None and not ran_here:
        if not call.state_applied:
            apply_state(context, call.outcome)
        apply_actions(context, call.outcome)
    if record.status is RecordStatus.REJECTED:
        context.tool_confirmation = ToolConfirmation(confirmed=False)
    else:
        give_answer(context, approval)
    call.record = record
    # Let go of what only a run needs: its context variables lead back to this turn.
    call.run = call.baseline = None


def show_state_early(
    call: Call, record: CallRecord | None, approval: Approval | None, asides: Mapping[str, str]
) -> None:
    """Makes the state that a call set visible to its siblings that are yet to run, as it was when they first ran.

    Args:
        record: ``None`` for a call that has none: only what it did before it asked a person is shown.

    Raises:
        UnknownType: the journal holds a value of a class that is gone.
    """
    if not isinstance(call.run, ToolRun):
        return
    outcome = None if record is None else _outcome(record, asides)
    if record is not None:
        store_sign_in(call.run.tool_context, approval)
    if outcome is not None:
        apply_state(call.run.tool_context, outcome)
        call.state_applied = True
    elif not call.ask_applied:
        apply_ask(call, asides)


def _outcome(record: CallRecord, asides: Mapping[str, str]) -> Outcome | None:
    return None if record.outcome is None else read_outcome(json.loads(record.outcome), asides)
