"""A tool that asks a person in the middle of its run: what is kept of that run, and how the next one begins.

ADK runs such a tool twice: up to ``tool_context.request_confirmation()`` or ``request_credential()``, and then with the
answer.  What the tool returns when it asks is a placeholder and is never shown.  What it did to the state and to
artifacts stays; everything else that it set in its actions goes with the placeholder.
"""

from __future__ import annotations

import json
from collections.abc import Mapping

from google.adk.tools.tool_confirmation import ToolConfirmation
from google.adk.tools.tool_context import ToolContext

from perdure.adk import seams
from perdure.adk.live.calls import Call, ToolRun
from perdure.adk.records.codec import plain
from perdure.adk.tools.outcomes import apply_actions, apply_state, capture_ask, read_outcome
from perdure.adk.waits import signin
from perdure.session.model import InterruptKind, JsonObject
from perdure.session.runner import Approval, ToolAsked


def take_ask(call: Call, run: ToolRun, asides: Mapping[str, str]) -> ToolAsked | None:
    """What an attempt that returned has asked for; ``None`` when it asked nothing.

    Raises:
        ValueNotStorable: what it attached for the decider, or a state value that it set, cannot be stored.
    """
    context = run.tool_context
    requests, confirmations = context.actions.requested_auth_configs, context.actions.requested_tool_confirmations
    config = next(iter(requests.values()), None)
    confirmation = next(iter(confirmations.values()), None)
    if config is None and confirmation is None:
        return None
    note: JsonObject = {}
    if context.tool_confirmation is not None:
        note["confirmation"] = _confirmation_form(context.tool_confirmation, run.tool.name)
    if config is not None:
        note["sign_in"] = signin.note_of(config, context.session.state)
        kind, payload = InterruptKind.CREDENTIAL, signin.shown_request(config)
        hint = f"Tool {run.tool.name!r} needs a sign-in before it can go on."
    else:
        assert confirmation is not None
        kind, hint = InterruptKind.CONFIRMATION, confirmation.hint
        payload = plain(confirmation.payload, f"the payload of what tool {run.tool.name!r} asks")
    assert call.baseline is not None
    call.baseline.keep_state()
    text = capture_ask(context, run.tool.name, note, asides)
    call.live_outcome = call.asked = text
    call.ask_applied, call.baseline = True, None
    return ToolAsked(kind, hint, payload, text)


def _confirmation_form(confirmation: ToolConfirmation, tool_name: str) -> JsonObject:
    payload = plain(confirmation.payload, f"the payload of the confirmation of tool {tool_name!r}")
    return {"confirmed": confirmation.confirmed, "payload": payload}


def drop_asks(context: ToolContext) -> None:
    """Forgets what an attempt asked for that failed: its failure is what counts."""
    context.actions.requested_auth_configs.clear()
    context.actions.requested_tool_confirmations.clear()


def give_answer(context: ToolContext, approval: Approval | None) -> None:
    """Lets the tool, and the callbacks after it, see what a person said."""
    if approval is None:
        return
    if approval.kind is InterruptKind.CREDENTIAL:
        earlier = _note_of(approval).get("confirmation")
        context.tool_confirmation = None if earlier is None else ToolConfirmation.model_validate(earlier)
    else:
        context.tool_confirmation = ToolConfirmation(confirmed=True, payload=approval.payload)


def apply_ask(call: Call, asides: Mapping[str, str]) -> None:
    """Brings the session to where the run that asked has left it, if it is not there yet.

    Raises:
        UnknownType: that run set a state value of a class that is gone.
    """
    if call.asked is None or call.ask_applied:
        return
    assert isinstance(call.run, ToolRun), "only a tool asks in its body"
    outcome = read_outcome(json.loads(call.asked), asides)
    apply_state(call.run.tool_context, outcome)
    apply_actions(call.run.tool_context, outcome)
    call.ask_applied = True


def store_sign_in(context: ToolContext, approval: Approval | None) -> None:
    """Puts the credential of an answered sign-in where ADK looks for it."""
    if approval is not None and approval.kind is InterruptKind.CREDENTIAL:
        delta = seams.own_actions(context).state_delta
        signin.store_answer(context.session.state, delta, _note_of(approval).get("sign_in"), approval.payload)


def _note_of(approval: Approval) -> JsonObject:
    if approval.asked is None:
        return {}
    note: JsonObject = json.loads(approval.asked).get("asked", {})
    return note
