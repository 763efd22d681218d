"""perdure's errors where ADK's own interfaces promise another class: each is both, so either ``except`` catches it."""

from __future__ import annotations

from google.adk.errors.already_exists_error import AlreadyExistsError
from google.adk.errors.session_not_found_error import SessionNotFoundError

from perdure.errors import SessionAlreadyExists, SessionNotFound, UsageError


class NoSuchSession(SessionNotFound, SessionNotFoundError):
    """The app and user have no session of this id.  Facts: ``session_id``."""


class SessionIdTaken(SessionAlreadyExists, AlreadyExistsError):
    """A session has this id, be it of another user or app.  Facts: ``session_id``."""


class WrongCall(UsageError, ValueError):
    """The call or the set-up is wrong, in a way for which ADK raises ``ValueError``; nothing was changed."""


def no_such_session(session_id: str, hint: str = "") -> NoSuchSession:
    """The error, in ADK's words."""
    return NoSuchSession(f"Session not found: {session_id}{hint}", session_id=session_id)


def session_id_taken(session_id: str) -> SessionIdTaken:
    """The error, in ADK's words."""
    return SessionIdTaken(f"Session with id {session_id} already exists.", session_id=session_id)
