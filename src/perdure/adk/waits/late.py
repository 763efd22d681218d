"""A turn that starts with the answer to a call of an earlier turn.

ADK takes a function response as the end of a pause and goes on under the invocation id of the call.  Here the earlier
turn is over, and the answer starts one of its own, with its own id; everything else is as in ADK.
"""

from __future__ import annotations

from typing import Any

from google.adk.agents.invocation_context import InvocationContext
from google.adk.events.event import Event
from google.adk.runners import Runner
from google.adk.sessions.session import Session
from google.genai import types

from perdure.adk.live.core import TurnCore, current_turn
from perdure.adk.records.history import content_of


class TurnRunner(Runner):
    """ADK's runner, for the turns of a session."""

    def _new_invocation_context(
        self, session: Session, *, invocation_id: str | None = None, **more: Any
    ) -> InvocationContext:
        core = _late_answers()
        if core is not None:  # before it makes the context, ADK makes an event, and takes the first id for that
            invocation_id = core.start.turn_id
        return super()._new_invocation_context(session, invocation_id=invocation_id, **more)

    def _resolve_invocation_id(
        self, session: Session, new_message: types.Content | None, invocation_id: str | None
    ) -> str | None:
        if _late_answers() is not None:
            return invocation_id
        return super()._resolve_invocation_id(session, new_message, invocation_id)

    def _resolve_invocation_id_from_fr(
        self, session: Session, new_message: types.Content, *, strict: bool = True
    ) -> str | None:
        if _late_answers() is not None:
            return None
        return super()._resolve_invocation_id_from_fr(session, new_message, strict=strict)

    def _find_user_message_for_invocation(self, events: list[Event], invocation_id: str) -> types.Content | None:
        """What the user said when the answered call was made."""
        core = _late_answers()
        if core is not None:
            content = content_of(core.start.message)
            invocation_id = super()._resolve_invocation_id_from_fr(core.session, content, strict=False) or invocation_id
        return super()._find_user_message_for_invocation(events, invocation_id)


def _late_answers() -> TurnCore | None:
    """The turn, if it starts with answers."""
    core = current_turn.get()
    return core if core is not None and core.start.leg == 1 and core.start.message.answers else None
