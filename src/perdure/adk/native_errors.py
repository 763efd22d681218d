"""perdure's errors where ADK's own interfaces promise another class: each is both, so either ``except`` catches it."""

from __future__ import annotations

from google.adk.errors.already_exists_error import AlreadyExistsError
from google.adk.errors.session_not_found_error import SessionNotFoundError

from perdure.errors import SessionAlreadyExists, SessionNotFound, UsageError


class NoSuchSession(SessionNotFound, SessionNotFoundError):
    """The app and user have no session of this id.  Facts: ``session_id``."""

    def __init__(self, session_id: str, hint: str = "") -> None:
        super().__init__(f"Session not found: {session_id}{hint}", session_id=session_id)


class SessionIdTaken(SessionAlreadyExists, AlreadyExistsError):
    """A session has this id, be it of another user or app.  Facts: ``session_id``."""

    def __init__(self, session_id: str) -> None:
        super().__init__(f"Session with id {session_id} already exists.", session_id=session_id)


class WrongCall(UsageError, ValueError):
    """The call or the set-up is wrong, in a way for which ADK raises ``ValueError``; nothing was changed."""
